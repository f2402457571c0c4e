"""The cost model that needs no measurement: shapes, devices and links in, time and memory of every stage out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.activations import Shape
from memx_engine.cost.composition import Transfers, compose, stage_breakdowns, stage_chunks
from memx_engine.cost.compute import assumed_bandwidth
from memx_engine.cost.constants import cost_constants
from memx_engine.cost.correction import UNCORRECTED, Correction, corrected
from memx_engine.cost.many_events import Pipeline, iteration_times
from memx_engine.cost.memory import FRAGMENTATION, StageMemory
from memx_engine.cost.network import COLLECTIVE_BASE_S, Network, PlacementNetwork, Rate
from memx_engine.cost.origins import Learn, Limits
from memx_engine.cost.parameters import gradient_bytes, vocabulary_matrix
from memx_engine.cost.pipeline import in_flight
from memx_engine.cost.recompute import Counts, allowed, counts, strategies
from memx_engine.cost.sketch import Sketch, Sketcher
from memx_engine.cost.stage import DP_OVERLAP, StageCost, stage_cost
from memx_engine.cost.table import StageTable
from memx_engine.cost.tables import StageTerms, TableFactors, dense, stage_terms
from memx_engine.cost.timing import StageTimes
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import (
    NONE,
    SELECTIVE,
    Estimate,
    GpuEstimate,
    MemoryBreakdown,
    Plan,
    Provenance,
    Recompute,
    Skeleton,
    StagePlacement,
)

VERSION = "first-principles/1"
"""Part of the fingerprint: changes whenever a formula changes; constants count by their values."""

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


@dataclass(frozen=True, eq=False)
class StageSignature:
    """A stage signature's cost, the same as numbers for the tables, and the times that were asked for."""

    cost: StageCost
    terms: StageTerms
    times: StageTimes


class FirstPrinciples:
    """First-principles estimator of one cluster, model and job (see ``docs/cost-model.md``).

    Args:
        corrections: By GPU type, factors that measurements gave; what planning on stored
            measurements puts in.

    Raises InputError when asked about a device type that lacks the job's precision or whose peak is not known.
    """

    provenance = Provenance.UNCALIBRATED

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        corrections: Mapping[str, Correction] = MappingProxyType({}),
    ) -> None:
        self.corrections = corrections
        self.cluster = cluster
        self.model = model
        self.job = job
        self._types = {t.name: t for t in cluster.gpu_types}
        self.network = Network(cluster)
        self._known: dict[tuple[object, ...], StageSignature] = {}
        self._sketcher = Sketcher(self)
        self._limited: Sketcher | None = None
        self.hits = 0
        self.misses = 0
        document = asdict(job)
        document.pop("assumed")
        moved = {name: asdict(c) for name, c in corrections.items() if c != UNCORRECTED}
        constants = cost_constants() | {"scalars": _SCALARS_PER_ITERATION, "degenerate": DEGENERATE_SAVING}
        parts = [VERSION, constants, cluster.fingerprint, model.fingerprint, document, moved]
        text = json.dumps(parts, sort_keys=True)
        self._fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> FirstPrinciples:
        """The same corrections for other inputs."""
        return FirstPrinciples(cluster, model, job, self.corrections)

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
        return (
            "nothing is measured: device efficiencies and context sizes are the catalogue's defaults",
            self.fragmentation_assumed,
            *self.modelled,
        )

    @property
    def fragmentation_assumed(self) -> str:
        """What is taken for fragmentation where it was not measured."""
        return f"fragmentation takes {FRAGMENTATION:.0%} of everything but the context"

    @property
    def modelled(self) -> tuple[str, ...]:
        """What the model leaves out or simplifies, measured or not."""
        said = [
            f"gradients are reduced behind up to {DP_OVERLAP:.0%} of the last micro-batch's backward; "
            "weights are gathered in the open",
            "tensor-parallel collectives do not overlap with computing",
        ]
        for gpu_type in self._types.values():
            if gpu_type.memory_bandwidth_bytes_s is None:
                rate = assumed_bandwidth(gpu_type, self.job) / 1e9
                said.append(f"{gpu_type.name} publishes no memory bandwidth: {rate:.0f} GB/s from its peak")
        if self.network.spans_vendors and not self.network.has_host_links:
            said.append("no host link is described: transfers between vendors run at the speed of the network link")
        return tuple(said)

    def must_untie(self, skeleton: Skeleton) -> bool:
        """True where tied embeddings end on two vendors, which share no collective library."""
        if not self.model.tied_embeddings or skeleton.pp == 1:
            return False
        return self.network.place(skeleton.placements).ends_cross_vendors

    # --- recompute -------------------------------------------------------------------------------------------------

    def recompute_options(self, skeleton: Skeleton) -> tuple[Recompute, ...]:
        """The strategies of :meth:`stage_table`, lightest first, without those that collapse."""
        network = self.network.place(skeleton.placements)
        return self._options(skeleton, self._stages(skeleton, network)[0].cost)

    def collapsed_options(self, skeleton: Skeleton) -> Mapping[Recompute, str]:
        """Strategies that the framework takes but that cannot help in ``skeleton``, each with the reason."""
        network = self.network.place(skeleton.placements)
        return self._collapsed(skeleton, self._stages(skeleton, network)[0].cost)

    def exchange_rates(self, skeleton: Skeleton) -> tuple[ExchangeRate, ...]:
        """Time paid per byte saved for every strategy, on the first stage of every GPU type at an even split."""
        known = self._stages(skeleton, self.network.place(skeleton.placements))
        v = skeleton.virtual_stages
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)
        chunk = max(self.model.layers // (skeleton.pp * v), 1)
        out: list[ExchangeRate] = []
        seen: set[str] = set()
        for i, placement in enumerate(skeleton.placements):
            if placement.gpu_type in seen:
                continue
            seen.add(placement.gpu_type)
            plain_s, plain_bytes = _at(known[i].cost, Counts(chunk, whole=chunk), v, flights[i])
            for option in strategies(self.model.layers, skeleton.pp, v, self.job.framework):
                c = counts(chunk, option)
                if c is None or option == NONE:
                    continue
                time_s, peak = _at(known[i].cost, c, v, flights[i])
                extra, saved = time_s - plain_s, plain_bytes - peak
                out.append(ExchangeRate(placement.gpu_type, i, chunk * v, option, extra, saved))
        return tuple(out)

    def _options(self, skeleton: Skeleton, first: StageCost) -> tuple[Recompute, ...]:
        collapsed = self._collapsed(skeleton, first)
        every = strategies(self.model.layers, skeleton.pp, skeleton.virtual_stages, self.job.framework)
        return tuple(option for option in every if option not in collapsed)

    @staticmethod
    def saves_nothing(memory: StageMemory) -> bool:
        """Whether dropping the attention core is not worth a strategy of its own."""
        return memory.core_bytes < DEGENERATE_SAVING * memory.whole_bytes

    def _collapsed(self, skeleton: Skeleton, first: StageCost) -> dict[Recompute, str]:
        memory, layers, v = first.memory, self.model.layers, skeleton.virtual_stages
        out: dict[Recompute, str] = {}
        if allowed(self.job.framework, SELECTIVE) and self.saves_nothing(memory):
            out[SELECTIVE] = "attention is fused, so there are no scores to drop: it would save nothing"
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)[0]
        most = max((layers - (skeleton.pp - 1) * v) // v, 1)
        for option in strategies(layers, skeleton.pp, v, self.job.framework):
            if option.kind == "uniform":
                spared = flights * (most - -(-most // option.n)) * memory.input_bytes
                if spared <= (option.n - 1) * memory.whole_bytes:
                    out[option] = "its work space outweighs the inputs it spares with so few micro-batches in flight"
        return out

    # --- tables and plans ------------------------------------------------------------------------------------------

    def stage_table(
        self, skeleton: Skeleton, learn: Callable[[tuple[Recompute, ...]], TableFactors] | None = None
    ) -> StageTable:
        """Tables over (stage, layers, option); chunks are equal when interleaved.

        Args:
            learn: What is learned of the skeleton's stages under given options.
        """
        v, layers = skeleton.virtual_stages, self.model.layers
        network = self.network.place(skeleton.placements)
        known = self._stages(skeleton, network)
        options = self._options(skeleton, known[0].cost)
        flights = in_flight(skeleton.pp, skeleton.micro_batches, v)
        learned = learn(options) if learn else None
        forward, backward, memory = dense(tuple(k.terms for k in known), flights, options, layers, v, learned)
        transfers = self.transfers(skeleton, network, untied=network.ends_cross_vendors)
        return StageTable(
            forward_s=forward,
            backward_s=backward,
            memory_bytes=memory,
            tail_s=np.stack([k.terms.tails for k in known]),
            capacity_bytes=network.capacity_bytes,
            p2p_s=np.array(transfers.p2p_s),
            gpus=np.array([float(len(p.ranks)) for p in skeleton.placements]),
            options=options,
            micro_batches=skeleton.micro_batches,
            layers=layers,
            virtual_stages=v,
            fixed_s=transfers.fixed_s,
            wrap_s=transfers.wrap_s,
        )

    def sketch(self, skeleton: Skeleton, learn: Learn | None = None, limits: Limits | None = None) -> Sketch:
        """The rows that bounds of :meth:`stage_table` need, shared between skeletons.

        Args:
            learn: What is learned of one stage. limits: What the operator holds fixed; rows of the latest are kept.
        """
        if limits is None:
            return self._sketcher.sketch(skeleton, learn)
        if self._limited is None or self._limited.limits != limits:
            self._limited = Sketcher(self, limits)
        return self._limited.sketch(skeleton, learn)

    def estimate(self, plan: Plan, corrections: Sequence[Correction] | None = None) -> Estimate:
        """Everything predicted of ``plan``.

        Args:
            corrections: One per stage, on top of those of the GPU types; tails stay as they are without them.

        Raises:
            InputError: a recompute that does not exist in one of the plan's chunks (K beyond its layers).
        """
        skeleton = plan.skeleton
        network = self.network.place(skeleton.placements)
        costs = [k.cost for k in self._stages(skeleton, network, untied=plan.untied)]
        chunks = [stage_chunks(i, stage) for i, stage in enumerate(plan.stages)]
        transfers = self.transfers(skeleton, network, untied=plan.untied)
        tails = [cost.tail(stage.layers) for cost, stage in zip(costs, plan.stages, strict=True)]
        if corrections is not None:
            costs = [corrected(cost, own) for cost, own in zip(costs, corrections, strict=True)]
        made = compose(plan, costs, chunks, transfers, tails=tails)
        memory = stage_breakdowns(plan, costs, chunks)
        peaks = np.repeat([m.total for m in memory], [len(stage.ranks) for stage in plan.stages])
        return Estimate(
            iteration_time_s=made.iteration_s,
            additive_time_s=made.additive_s,
            lower_bound_s=made.lower_bound_s,
            tokens_per_s=skeleton.global_batch * skeleton.seq_len / made.iteration_s,
            time_breakdown_s=made.breakdown_s,
            stage_forward_s=tuple(t.forward_s for t in made.times),
            stage_backward_s=tuple(t.backward_s for t in made.times),
            p2p_s=transfers.p2p_s,
            tail_s=tuple(t.total_s for t in made.tails),
            gpus=self._gpus(plan, memory),
            peak_bytes=float(peaks.max()),
            memory_variance_bytes2=float(peaks.var()),
        )

    def iteration_times(
        self, plans: Sequence[Plan], corrections: Sequence[Sequence[Correction]] | None = None
    ) -> NDArray[np.float64]:
        """(n,) iteration time of every plan, as :meth:`estimate` gives it; ``corrections`` by plan and stage."""
        if corrections is None:
            corrections = [[UNCORRECTED] * plan.skeleton.pp for plan in plans]
        return iteration_times([self._pipeline(*both) for both in zip(plans, corrections, strict=True)])

    def _pipeline(self, plan: Plan, corrections: Sequence[Correction]) -> Pipeline:
        skeleton = plan.skeleton
        network = self.network.place(skeleton.placements)
        known = self._stages(skeleton, network, untied=plan.untied)
        timed = [
            signature.times.of(i, stage, correction)
            for i, (signature, stage, correction) in enumerate(zip(known, plan.stages, corrections, strict=True))
        ]
        transfers = self.transfers(skeleton, network, untied=plan.untied)
        interleaved = skeleton.virtual_stages > 1
        return Pipeline(
            [s for stage in timed for s in stage.forward_s],
            [s for stage in timed for s in stage.backward_s],
            (*transfers.p2p_s, transfers.wrap_s) if interleaved else transfers.p2p_s,
            skeleton.micro_batches,
            [stage.tail_s for stage in timed],
            transfers.fixed_s,
            skeleton.virtual_stages,
        )

    # --- stages and links, remembered ------------------------------------------------------------------------------

    def _stages(
        self, skeleton: Skeleton, network: PlacementNetwork, *, untied: bool = False
    ) -> tuple[StageSignature, ...]:
        """Cost and terms of every stage; a signature is computed once, whatever skeleton it comes from."""
        last = skeleton.pp - 1
        return tuple(
            self.stage(skeleton, placement, (i == 0, i == last), network.tp[i], network.dp[i], untied=untied)
            for i, placement in enumerate(skeleton.placements)
        )

    def stage(
        self,
        skeleton: Skeleton,
        placement: StagePlacement,
        ends: tuple[bool, bool],
        tp_link: Rate,
        dp_link: Rate,
        *,
        untied: bool = False,
    ) -> StageSignature:
        """Cost and terms of one stage; ``ends``: whether it holds the embedding, and the head."""
        untied = untied and any(ends)
        size = (placement.gpu_type, placement.tp, placement.dp, skeleton.micro_batch, skeleton.seq_len)
        key = (size, ends, untied, tp_link, dp_link)
        known = self._known.get(key)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        cost = stage_cost(
            self.model,
            self.job,
            Shape(placement.tp, skeleton.micro_batch, skeleton.seq_len, self.job.sequence_parallel),
            self._types[placement.gpu_type],
            dp=placement.dp,
            tp_link=tp_link,
            dp_link=dp_link,
            first=ends[0],
            last=ends[1],
            untied=untied,
        )
        cost = corrected(cost, self.corrections.get(placement.gpu_type, UNCORRECTED))
        known = self._known[key] = StageSignature(cost, stage_terms(cost, self.model.layers), StageTimes(cost))
        return known

    def transfers(self, skeleton: Skeleton, network: PlacementNetwork, *, untied: bool) -> Transfers:
        """What crosses between stages. Each rank sends its part of the message to its peer in the next stage."""
        whole = skeleton.micro_batch * skeleton.seq_len * self.model.hidden * self.job.bytes_per_element
        placements = skeleton.placements

        def one_way(rate: Rate, source: int, target: int) -> float:
            tp = placements[target].tp
            sent = rate.message_s(whole / min(placements[source].tp, tp))
            # Without sequence parallelism the receiving ranks gather the parts that came to each of them.
            return sent + (0.0 if self.job.sequence_parallel else network.tp[target].scatter_s(whole, tp))

        p2p = tuple(one_way(rate, i, i + 1) for i, rate in enumerate(network.p2p))
        wrap = one_way(network.wrap, skeleton.pp - 1, 0) if skeleton.pp > 1 else 0.0
        return Transfers(p2p, wrap, self.fixed_s(skeleton, network, untied=untied))

    def fixed_s(self, skeleton: Skeleton, network: PlacementNetwork, *, untied: bool) -> float:
        """Once per iteration: scalars over all ranks, and the sum of the tied matrices' gradients at both ends."""
        ranks = sum(len(p.ranks) for p in skeleton.placements)
        if ranks == 1:
            return 0.0
        slowest = max(rate.latency_s for rate in (*network.p2p, *network.tp, *network.dp, network.ends))
        fixed = _SCALARS_PER_ITERATION * (COLLECTIVE_BASE_S + 2 * (ranks - 1).bit_length() * slowest)
        if self.model.tied_embeddings and skeleton.pp > 1 and not untied:
            tp = min(skeleton.placements[0].tp, skeleton.placements[-1].tp)
            fixed += network.ends.all_reduce_s(vocabulary_matrix(self.model, tp) * gradient_bytes(self.job), 2)
        return fixed

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


def _at(cost: StageCost, c: Counts, v: int, flights: int) -> tuple[float, float]:
    """Seconds of one micro-batch and peak bytes of a stage of ``v`` chunks like ``c``."""
    held, memory = flights * cost.memory.chunk_bytes(c), cost.memory
    breakdown = memory.breakdown(round(c.layers) * v, held, -(-flights // v), memory.working_bytes(c))
    return cost.time([c] * v).total_s, breakdown.total
