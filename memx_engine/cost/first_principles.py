"""The cost model that needs no measurement: shapes, devices and links in, time and memory of every stage out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

import numpy as np

from memx_engine.cost.activations import Shape
from memx_engine.cost.compute import assumed_bandwidth
from memx_engine.cost.events import simulate
from memx_engine.cost.memory import FRAGMENTATION
from memx_engine.cost.network import COLLECTIVE_BASE_S, Network, PlacementNetwork
from memx_engine.cost.parameters import gradient_bytes, vocabulary_matrix
from memx_engine.cost.pipeline import additive_time, held_bytes, in_flight, interleaved_estimate, lower_bound
from memx_engine.cost.recompute import Counts, allowed, basis, counts, strategies
from memx_engine.cost.stage import DP_OVERLAP, StageCost, StageTime, Tail, stage_cost
from memx_engine.cost.table import Array, StageTable
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import (
    FULL,
    NONE,
    SELECTIVE,
    Estimate,
    GpuEstimate,
    MemoryBreakdown,
    Plan,
    Provenance,
    Recompute,
    Skeleton,
    Stage,
)

VERSION = "first-principles/1"
"""Part of the fingerprint: changes whenever a formula or a default changes."""

DEGENERATE_SAVING = 0.01
"""A strategy that saves less than this share of a layer's activations is not worth a column."""

_SCALARS_PER_ITERATION = 3
"""Small all-reduces over all ranks: gradient norm, overflow or NaN check, loss."""


@dataclass(frozen=True)
class ExchangeRate:
    """What a recompute strategy costs and saves on one GPU type: ``rho = dT / dM`` against no recompute.

    Attributes:
        extra_s: Seconds it adds to one micro-batch on the stage. saved_bytes: Peak memory it saves there.
        rho_s_per_byte: Their ratio; None where nothing is saved.
    """

    gpu_type: str
    stage: int
    layers: int
    recompute: Recompute
    extra_s: float
    saved_bytes: float

    @property
    def rho_s_per_byte(self) -> float | None:
        return self.extra_s / self.saved_bytes if self.saved_bytes > 0 else None


class FirstPrinciples:
    """First-principles estimator of one cluster, model and job (see ``docs/cost-model.md``).

    Raises InputError when asked about a device type that lacks the job's precision or whose peak is not known.
    """

    provenance = Provenance.UNCALIBRATED

    def __init__(self, cluster: Cluster, model: TransformerSpec, job: Job) -> None:
        self.cluster = cluster
        self.model = model
        self.job = job
        self._types = {t.name: t for t in cluster.gpu_types}
        self._network = Network(cluster)
        self._costs: dict[tuple[object, ...], StageCost] = {}
        self._rows: dict[tuple[object, ...], tuple[Array, Array]] = {}
        self.hits = 0
        self.misses = 0
        document = asdict(job)
        document.pop("assumed")
        text = json.dumps([VERSION, cluster.fingerprint, model.fingerprint, document], sort_keys=True)
        self._fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def one_recompute_for_all(self) -> bool:
        """True where the framework has one recompute setting for the whole job, so that all stages must agree."""
        return self.job.framework is Framework.MEGATRON

    @property
    def assumed(self) -> tuple[str, ...]:
        """What this model takes for granted, one sentence each."""
        said = [
            "nothing is measured: device efficiencies and context sizes are the catalogue's defaults",
            f"fragmentation takes {FRAGMENTATION:.0%} of everything but the context",
            f"gradients are reduced behind up to {DP_OVERLAP:.0%} of the last micro-batch's backward; "
            "weights are gathered in the open",
            "tensor-parallel collectives do not overlap with computing",
        ]
        for gpu_type in self._types.values():
            if gpu_type.memory_bandwidth_bytes_s is None:
                rate = assumed_bandwidth(gpu_type, self.job) / 1e9
                said.append(f"{gpu_type.name} publishes no memory bandwidth: {rate:.0f} GB/s from its peak")
        if self._network.spans_vendors and not self._network.has_host_links:
            said.append("no host link is described: transfers between vendors run at the speed of the network link")
        return tuple(said)

    def must_untie(self, skeleton: Skeleton) -> bool:
        """True where tied embeddings end on two vendors, which share no collective library."""
        if not self.model.tied_embeddings or skeleton.pp == 1:
            return False
        return self._network.place(skeleton.placements).ends_cross_vendors

    # --- recompute -------------------------------------------------------------------------------------------------

    def collapsed_options(self, skeleton: Skeleton) -> Mapping[Recompute, str]:
        """Strategies that the framework takes but that cannot help in ``skeleton``, each with the reason."""
        memory = self._costs_of(skeleton)[0].memory
        layers, v = self.model.layers, skeleton.virtual_stages
        out: dict[Recompute, str] = {}
        if allowed(self.job.framework, SELECTIVE) and memory.core_bytes < DEGENERATE_SAVING * memory.whole_bytes:
            out[SELECTIVE] = "attention is fused, so there are no scores to drop: it would save nothing"
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)[0]
        for option in strategies(layers, skeleton.pp, v, self.job.framework):
            if option.kind != "uniform":
                continue
            most = max(layers // v - skeleton.pp + 1, option.n)
            kept_less = flights * (most - -(-most // option.n)) * memory.input_bytes
            if kept_less <= (option.n - 1) * memory.whole_bytes:
                out[option] = "with so few micro-batches in flight its work space outweighs the inputs it spares"
        return out

    def recompute_options(self, skeleton: Skeleton) -> tuple[Recompute, ...]:
        """The strategies of :meth:`stage_table`, lightest first, without those that collapse."""
        collapsed = self.collapsed_options(skeleton)
        every = strategies(self.model.layers, skeleton.pp, skeleton.virtual_stages, self.job.framework)
        return tuple(option for option in every if option not in collapsed)

    def exchange_rates(self, skeleton: Skeleton) -> tuple[ExchangeRate, ...]:
        """Time paid per byte saved for every strategy, on the first stage of every GPU type at an even split."""
        costs = self._costs_of(skeleton)
        v = skeleton.virtual_stages
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)
        chunk = max(self.model.layers // (skeleton.pp * v), 1)
        out: list[ExchangeRate] = []
        seen: set[str] = set()
        for i, placement in enumerate(skeleton.placements):
            if placement.gpu_type in seen:
                continue
            seen.add(placement.gpu_type)
            plain = self._at(costs[i], Counts(chunk, whole=chunk), v, flights[i])
            for option in strategies(self.model.layers, skeleton.pp, v, self.job.framework):
                c = counts(chunk, option)
                if c is None or option == NONE:
                    continue
                time_s, peak = self._at(costs[i], c, v, flights[i])
                rate = ExchangeRate(placement.gpu_type, i, chunk * v, option, time_s - plain[0], plain[1] - peak)
                out.append(rate)
        return tuple(out)

    @staticmethod
    def _at(cost: StageCost, c: Counts, v: int, flights: int) -> tuple[float, float]:
        held, memory = flights * cost.memory.chunk_bytes(c), cost.memory
        breakdown = memory.breakdown(round(c.layers) * v, held, -(-flights // v), memory.working_bytes(c))
        return cost.time([c] * v).total_s, breakdown.total

    # --- tables ----------------------------------------------------------------------------------------------------

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        """Tables over (stage, layers, option); chunks are equal when interleaved."""
        v, layers = skeleton.virtual_stages, self.model.layers
        options = self.recompute_options(skeleton)
        table, illegal = basis(layers, options, v)
        network = self._network.place(skeleton.placements)
        costs = self._costs_of(skeleton)
        flights = np.array(in_flight(skeleton.pp, skeleton.micro_batches, v), dtype=np.float64)
        rows = [self._row(cost) for cost in costs]
        scalars = np.stack([row[0] for row in rows])
        shape = (skeleton.pp, layers + 1, len(options))

        forward, backward, held, working = (
            (scalars[:, part * _C : (part + 1) * _C] @ table.reshape(_C, -1)).reshape(shape) for part in range(4)
        )
        ends = scalars[:, 4 * _C :]
        forward = v * forward + ends[:, 0, None, None]
        backward = v * backward + ends[:, 1, None, None]
        state, fixed, per_flight, logits, transient, context = (ends[:, k] for k in range(2, 8))
        held *= flights[:, None, None]
        working += transient[:, None, None]
        np.maximum(working, logits[:, None, None], out=working)
        held += working
        held += np.outer(state, np.arange(layers + 1))[:, :, None]
        held += (fixed + np.ceil(flights / v) * per_flight)[:, None, None]
        held *= 1 + FRAGMENTATION
        held += context[:, None, None]
        for array in (forward, backward, held):
            array[:, illegal] = np.inf
        return StageTable(
            forward_s=forward,
            backward_s=backward,
            memory_bytes=held,
            tail_s=np.stack([row[1] for row in rows]),
            capacity_bytes=network.capacity_bytes,
            p2p_s=np.array(self._p2p(skeleton, network)),
            gpus=np.array([float(len(p.ranks)) for p in skeleton.placements]),
            options=options,
            micro_batches=skeleton.micro_batches,
            layers=layers,
            virtual_stages=v,
            fixed_s=self._fixed_s(skeleton, network, untied=network.ends_cross_vendors),
        )

    def _row(self, cost: StageCost) -> tuple[Array, Array]:
        """One stage's factors of the counts (four blocks), its constants, and its tails over 0..L layers."""
        key = (id(cost),)
        known = self._rows.get(key)
        if known is not None:
            return known
        t, m = cost.layer, cost.memory
        full = t.forward_s + t.forward_comm_s
        forward = Counts(layers=full)
        backward = Counts(layers=t.backward_s + t.backward_comm_s, again=full, again_core=t.core_forward_s)
        held = Counts(0.0, whole=m.whole_bytes, light=m.whole_bytes - m.core_bytes, inputs=m.input_bytes)
        working = Counts(0.0, working=m.whole_bytes, working_core=m.core_bytes)
        state = m.state.total
        constants = (
            cost.end_forward_s,
            cost.end_backward_s,
            m.layer_parameters * state,
            m.end_parameters * state + m.head_bytes + m.buffers_bytes,
            m.per_flight_bytes,
            m.logits_bytes,
            m.transient_bytes,
            m.context_bytes,
        )
        parts = [*astuple(forward), *astuple(backward), *astuple(held), *astuple(working), *constants]
        tails = np.array([cost.tail(n).total_s for n in range(self.model.layers + 1)])
        known = self._rows[key] = (np.array(parts), tails)
        return known

    def _costs_of(self, skeleton: Skeleton, *, untied: bool = False) -> tuple[StageCost, ...]:
        network = self._network.place(skeleton.placements)
        last = skeleton.pp - 1
        out: list[StageCost] = []
        for i, placement in enumerate(skeleton.placements):
            ends = (i == 0, i == last, untied and i in (0, last))
            size = (placement.gpu_type, placement.tp, placement.dp, skeleton.micro_batch, skeleton.seq_len)
            links = (network.tp[i], network.dp[i])
            key = (*size, *ends, *links)
            cost = self._costs.get(key)
            if cost is None:
                self.misses += 1
                shape = Shape(placement.tp, skeleton.micro_batch, skeleton.seq_len, self.job.sequence_parallel)
                cost = self._costs[key] = stage_cost(
                    self.model,
                    self.job,
                    shape,
                    self._types[placement.gpu_type],
                    dp=placement.dp,
                    tp_link=links[0],
                    dp_link=links[1],
                    first=ends[0],
                    last=ends[1],
                    untied=ends[2],
                )
            else:
                self.hits += 1
            out.append(cost)
        return tuple(out)

    # --- network ---------------------------------------------------------------------------------------------------

    def _p2p(self, skeleton: Skeleton, network: PlacementNetwork) -> list[float]:
        """One-way transfer of every boundary: each rank sends its part, whole sequences are gathered behind it."""
        whole = skeleton.micro_batch * skeleton.seq_len * self.model.hidden * self.job.bytes_per_element
        out: list[float] = []
        for i, rate in enumerate(network.p2p):
            tp = min(skeleton.placements[i].tp, skeleton.placements[i + 1].tp)
            out.append(
                rate.message_s(whole / tp) + self._gather_s(whole, skeleton.placements[i + 1].tp, network, i + 1)
            )
        return out

    def _wrap_s(self, skeleton: Skeleton, network: PlacementNetwork) -> float:
        whole = skeleton.micro_batch * skeleton.seq_len * self.model.hidden * self.job.bytes_per_element
        tp = min(skeleton.placements[0].tp, skeleton.placements[-1].tp)
        return network.wrap.message_s(whole / tp) + self._gather_s(whole, skeleton.placements[0].tp, network, 0)

    def _gather_s(self, whole: float, tp: int, network: PlacementNetwork, stage: int) -> float:
        """Without sequence parallelism the receiving ranks gather the parts that came to each of them."""
        return 0.0 if self.job.sequence_parallel else network.tp[stage].scatter_s(whole, tp)

    def _fixed_s(self, skeleton: Skeleton, network: PlacementNetwork, *, untied: bool) -> float:
        """Once per iteration: scalars over all ranks, and the sum of the tied matrices' gradients at both ends."""
        ranks = sum(len(p.ranks) for p in skeleton.placements)
        slowest = max(rate.latency_s for rate in (*network.p2p, *network.tp, *network.dp, network.ends))
        hops = 2 * (ranks - 1).bit_length()
        fixed = _SCALARS_PER_ITERATION * (COLLECTIVE_BASE_S + hops * slowest) if ranks > 1 else 0.0
        if self.model.tied_embeddings and skeleton.pp > 1 and not untied:
            tp = min(skeleton.placements[0].tp, skeleton.placements[-1].tp)
            fixed += network.ends.all_reduce_s(vocabulary_matrix(self.model, tp) * gradient_bytes(self.job), 2)
        return fixed

    # --- plans -----------------------------------------------------------------------------------------------------

    def estimate(self, plan: Plan) -> Estimate:
        """Everything predicted of ``plan``.

        Raises:
            InputError: a recompute that does not exist in one of the plan's chunks (K beyond its layers).
        """
        skeleton = plan.skeleton
        network = self._network.place(skeleton.placements)
        costs = self._costs_of(skeleton, untied=plan.untied)
        v, micro_batches = skeleton.virtual_stages, skeleton.micro_batches
        chunks = [_chunks(i, stage) for i, stage in enumerate(plan.stages)]
        times = [cost.time(c) for cost, c in zip(costs, chunks, strict=True)]
        tails = [cost.tail(stage.layers) for cost, stage in zip(costs, plan.stages, strict=True)]
        p2p = self._p2p(skeleton, network)
        fixed = self._fixed_s(skeleton, network, untied=plan.untied)
        stage_s = [t.total_s for t in times]
        tail_s = [t.total_s for t in tails]
        if v == 1:
            forward, backward = [[t.forward_s] for t in times], [[t.backward_s] for t in times]
            links, wrap = p2p, 0.0
            additive = additive_time(stage_s, micro_batches, p2p_s=p2p, tails_s=tail_s, fixed_s=fixed)
            lowest = lower_bound(stage_s, micro_batches, p2p_s=p2p, tails_s=tail_s, fixed_s=fixed)
        else:
            pairs = [self._chunk_pairs(i, cost, c) for i, (cost, c) in enumerate(zip(costs, chunks, strict=True))]
            forward, backward = [[f for f, _ in row] for row in pairs], [[b for _, b in row] for row in pairs]
            wrap = self._wrap_s(skeleton, network)
            links = [*p2p, wrap]
            additive = interleaved_estimate(
                stage_s, micro_batches, v, p2p_s=p2p, wrap_s=wrap, tails_s=tail_s, fixed_s=fixed
            )
            lowest = max(micro_batches * t + tail for t, tail in zip(stage_s, tail_s, strict=True)) + fixed
        simulation = simulate(forward, backward, links, micro_batches, tails_s=tail_s, fixed_s=fixed, virtual_stages=v)
        iteration = simulation.iteration_time_s
        memory = self._memory(plan, costs, chunks)
        gpus = self._gpus(plan, memory)
        peaks = np.repeat([m.total for m in memory], [len(stage.ranks) for stage in plan.stages])
        return Estimate(
            iteration_time_s=iteration,
            additive_time_s=additive,
            lower_bound_s=lowest,
            tokens_per_s=skeleton.global_batch * skeleton.seq_len / iteration,
            time_breakdown_s=_time_breakdown(iteration, micro_batches, times, tails, p2p, fixed, v, wrap),
            stage_forward_s=tuple(t.forward_s for t in times),
            stage_backward_s=tuple(t.backward_s for t in times),
            p2p_s=tuple(p2p),
            tail_s=tuple(tail_s),
            gpus=gpus,
            peak_bytes=float(peaks.max()),
            memory_variance_bytes2=float(peaks.var()),
        )

    @staticmethod
    def _chunk_pairs(stage: int, cost: StageCost, chunks: list[Counts]) -> list[tuple[float, float]]:
        # Ends have no time on stages that do not hold them, so every stage may be asked alike.
        last = len(chunks) - 1
        return [cost.chunk_time(c, embedding=k == 0, head=k == last) for k, c in enumerate(chunks)]

    @staticmethod
    def _memory(plan: Plan, costs: tuple[StageCost, ...], chunks: list[list[Counts]]) -> list[MemoryBreakdown]:
        skeleton = plan.skeleton
        v = skeleton.virtual_stages
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)
        per_chunk = [[cost.memory.chunk_bytes(c) for c in row] for cost, row in zip(costs, chunks, strict=True)]
        if v == 1:
            held = [count * row[0] for count, row in zip(flights, per_chunk, strict=True)]
        else:
            held = held_bytes(per_chunk, skeleton.micro_batches).tolist()
        out: list[MemoryBreakdown] = []
        for i, (cost, row) in enumerate(zip(costs, chunks, strict=True)):
            working = max(cost.memory.working_bytes(c) for c in row)
            out.append(cost.memory.breakdown(plan.stages[i].layers, held[i], -(-flights[i] // v), working))
        return out

    def _gpus(self, plan: Plan, memory: list[MemoryBreakdown]) -> tuple[GpuEstimate, ...]:
        devices, nodes = self.cluster.gpus, self.cluster.nodes
        out: list[GpuEstimate] = []
        for i, stage in enumerate(plan.stages):
            breakdown, peak = memory[i], memory[i].total
            for rank in stage.ranks:
                gpu = devices[rank]
                node = nodes[gpu.node_index].name
                out.append(GpuEstimate(rank, node, gpu.gpu_type.name, i, peak, gpu.capacity_bytes, breakdown))
        out.sort(key=lambda gpu: gpu.rank)
        return tuple(out)


_C = len(astuple(Counts(0.0)))


def _chunks(index: int, stage: Stage) -> list[Counts]:
    out: list[Counts] = []
    for layers in stage.chunk_layers:
        found = counts(layers, stage.recompute)
        if found is None:
            raise InputError(
                f"{stage.recompute} recomputes more layers than the {layers} that are there",
                where=f"stage {index}",
                hint=f"use at most block:{layers}, or {FULL}",
            )
        out.append(found)
    return out


def _time_breakdown(
    iteration: float,
    micro_batches: int,
    times: list[StageTime],
    tails: list[Tail],
    p2p: list[float],
    fixed: float,
    v: int,
    wrap: float,
) -> dict[str, float]:
    """Where the slowest stage's iteration goes; whatever is not work or transfer is ``bubble``."""
    i = max(range(len(times)), key=lambda k: times[k].total_s)
    slowest, tail = times[i], tails[i]
    around = (p2p[i - 1] if i > 0 else wrap) + (p2p[i] if i < len(p2p) else wrap)
    compute = slowest.total_s - slowest.recompute_s - slowest.comm_s
    parts = {
        "compute": micro_batches * compute,
        "recompute": micro_batches * slowest.recompute_s,
        "tp_comm": micro_batches * slowest.comm_s,
        "dp_comm": tail.dp_s,
        "optimizer": tail.optimizer_s,
        "fixed": fixed,
    }
    rest = iteration - sum(parts.values())
    parts["pp_comm"] = min(micro_batches * v * around, max(rest, 0.0))
    parts["bubble"] = rest - parts["pp_comm"]
    return parts
