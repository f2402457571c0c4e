"""Random clusters, toy models and jobs, small enough to list every plan; and an estimator of random stage tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memx_engine.cost.pipeline import additive_time, interleaved_estimate, lower_bound
from memx_engine.cost.table import StageTable
from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.job import Attention, Framework, Job, Optimizer
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
)
from tests.cost.naive_events import naive_iteration_time
from tests.search.exhaustive import Pins, count_plans, list_skeletons, with_memory

NAMES = ("alpha", "beta", "gamma")
OPTIONS = (NONE, SELECTIVE, Recompute("block", 1), FULL)
WORDS = tuple(map(str, OPTIONS))
_UNIT = 1e9


@dataclass(frozen=True)
class Instance:
    cluster: Cluster
    model: TransformerSpec
    job: Job


def random_cluster(rng: np.random.Generator, gpus: int, types: int) -> Cluster:
    """``gpus`` GPUs of up to ``types`` types on a few nodes, some with two types, islands, or memory in use."""
    lacking = types == 3 and rng.random() < 0.3
    known = [
        GpuType(
            name=NAMES[k],
            vendor=("one", "other")[int(rng.integers(0, 2))],
            marketing_name=NAMES[k],
            memory_bytes=int(rng.uniform(2, 9) * _UNIT),
            bf16_flops=None if k == 2 and lacking else float(rng.uniform(0.3, 3)) * 1e14,
            fp16_flops=1e14,
            memory_bandwidth_bytes_s=1e12,
            lacks=("bf16",) if k == 2 and lacking else (),
            context_bytes=10**8,
        )
        for k in range(types)
    ]
    nodes: list[Node] = []
    left = gpus
    while left:
        groups = []
        for t in rng.permutation(types)[: int(rng.integers(1, 3))]:
            count = min(left, int(rng.choice([1, 2, 2, 3, 4])))
            if count:
                used = int(rng.uniform(0, 1) * _UNIT) if rng.random() < 0.2 else 0
                groups.append(GpuGroup(known[t], count, used))
                left -= count
        size = sum(group.count for group in groups)
        link = Link(float(rng.uniform(1, 4)) * 1e11, 3e-6)
        slow = Link(float(rng.uniform(1, 4)) * 1e10, 5e-6, shared=bool(rng.random() < 0.5))
        island = int(rng.choice([1, 2, size]))
        nodes.append(Node(f"n{len(nodes)}", tuple(groups), min(island, size), size, link, slow, slow))
    return Cluster("random", tuple(nodes), inter_node=Link(2e10, 5e-6, shared=True), host=Link(1e10, 2e-5))


def random_instance(
    rng: np.random.Generator, *, gpus: int = 8, layers: int = 8, most_plans: int = 20_000, woven: bool = False
) -> Instance:
    """One instance; redrawn while it has too many plans to list, and mostly while nothing can be placed.

    ``woven``: some skeleton is interleaved.
    """
    while True:
        instance = _draw_instance(rng, gpus, layers)
        legal = list_skeletons(instance.cluster, instance.model, instance.job).legal
        plans = sum(count_plans(s, instance.model.layers, len(OPTIONS)) for s in legal)
        if woven and not any(s.virtual_stages > 1 for s in legal):
            continue
        if plans <= most_plans and len(legal) <= 24 and (legal or rng.random() < 0.05):
            return instance


def _draw_instance(rng: np.random.Generator, gpus: int, layers: int) -> Instance:
    cluster = random_cluster(rng, int(rng.integers(1, gpus + 1)), int(rng.integers(1, 4)))
    heads = int(rng.choice([2, 3, 4, 6]))
    model = TransformerSpec(
        name="toy",
        architecture="llama",
        layers=int(rng.integers(2, layers + 1)),
        hidden=64 * heads,
        ffn=128 * heads,
        heads=heads,
        kv_heads=int(rng.choice([k for k in range(1, heads + 1) if heads % k == 0])),
        head_dim=64,
        vocab=512,
        max_positions=4096,
        tied_embeddings=bool(rng.random() < 0.3),
    )
    batch = int(rng.choice([1, 2, 4, 6, 8, 12]))
    sizes = tuple(sorted({int(b) for b in rng.choice([1, 2, 3, 4], int(rng.integers(1, 3)))}))
    if rng.random() < 0.4:
        # Numbers that let pipelines interleave.
        model, batch, sizes = replace(model, layers=int(rng.choice([4, 6, 8]))), int(rng.choice([12, 24])), (1, 2)
    job = Job(
        batch,
        int(rng.choice([64, 128])),
        attention=Attention.UNFUSED,
        framework=Framework(str(rng.choice(["any", "any", "megatron", "flagscale"]))),
        micro_batch_sizes=sizes,
        tp_sizes=(1,) if rng.random() < 0.3 else None,
        pp_sizes=tuple(sorted({int(n) for n in rng.integers(1, 5, 2)})) if rng.random() < 0.3 else None,
        dp_sizes=(1, 2) if rng.random() < 0.3 else None,
        virtual_stages=((), (2,), (2,), (2, 3))[int(rng.integers(0, 4))],
    )
    return Instance(cluster, model, job)


def physical_instance(
    rng: np.random.Generator, *, gpus: int = 4, layers: int = 6, most_plans: int = 20_000
) -> Instance:
    """An instance whose numbers make sense to the cost model: gigabytes of states and activations, unequal links."""
    while True:
        instance = _draw_instance(rng, gpus, layers)
        job = replace(
            instance.job,
            seq_len=int(rng.choice([512, 1024])),
            attention=Attention(str(rng.choice(["fused", "unfused"]))),
            optimizer=Optimizer(str(rng.choice(["sharded", "replicated"]))),
            sequence_parallel=bool(rng.random() < 0.7),
        )
        model = replace(instance.model, hidden=512 * instance.model.heads, ffn=1024 * instance.model.heads, vocab=4096)
        scale = float(rng.uniform(0.25, 1.2)) * model.heads**2 / 12
        cluster = with_memory(instance.cluster, {}, scale=scale)
        legal = list_skeletons(cluster, model, job).legal
        options = 2 * model.layers + 2
        if legal and len(legal) <= 12 and sum(count_plans(s, model.layers, options) for s in legal) <= 20_000:
            return Instance(cluster, model, job)


def random_pins(rng: np.random.Generator, instance: Instance, words: tuple[str, ...] = WORDS) -> Pins:
    """One to three limits; they may exclude everything, but do not contradict each other on their face."""
    cluster, model, job = instance.cluster, instance.model, instance.job
    names = [t.name for t in cluster.gpu_types]
    pins = Pins()
    targets: list[int | str | None] = [0, 1, str(rng.choice(names)), None]
    words = tuple(word for word in words if job.framework is not Framework.FLAGSCALE or word != "selective")
    for which in rng.permutation(6)[: int(rng.integers(1, 4))]:
        target = targets[int(rng.integers(0, 4))]
        if which == 0 and target is not None:
            pins = replace(pins, layers=((target, int(rng.integers(1, max(2, model.layers // 2 + 1)))),))
        elif which == 1:
            pins = replace(pins, recompute=((target, str(rng.choice(words))),))
        elif which == 2 and len(names) > 1 and not (pins.layers or pins.recompute):
            pins = replace(pins, forbidden=(str(rng.choice(names)),))
        elif which == 3:
            of = None if rng.random() < 0.5 else str(rng.choice(names))
            pins = replace(pins, keep_free=((of, float(rng.uniform(0, 1.5)) * _UNIT),))
        elif which == 4:
            pins = replace(pins, most_difference=int(rng.integers(0, 4)))
        elif which == 5 and rng.random() < 0.5:
            pins = replace(pins, order=tuple(str(n) for n in rng.permutation(names)))
        elif which == 5:
            pins = replace(pins, all_orders=True)
    named = {target for target, _ in (*pins.layers, *pins.recompute)} | set(pins.order or ())
    if not named.isdisjoint(pins.forbidden):
        pins = replace(pins, forbidden=())
    return pins


class RandomTables:
    """An Estimator whose stages are drawn at random: one draw per GPU type, size, position and micro-batches in flight.

    Args:
        seed: Of every draw. rough: Times and memories are not even monotone in the layers, and some are missing.
        time_scale: Multiplies every time. options: The recompute strategies there are.
        woven: Interleaved stages are short and all alike in memory: by their estimate they beat everything.
    """

    provenance = Provenance.UNCALIBRATED

    def __init__(
        self,
        instance: Instance,
        seed: int,
        *,
        rough: bool = False,
        tightness: float = 0.5,
        time_scale: float = 1.0,
        woven: bool = False,
        options: tuple[Recompute, ...] = OPTIONS,
    ) -> None:
        self.cluster, self.model, self.job = instance.cluster, instance.model, instance.job
        self.seed, self.rough, self.tightness, self.time_scale = seed, rough, tightness, time_scale
        self.woven = woven
        self.options = tuple(o for o in OPTIONS if o in options)
        if self.job.framework is Framework.FLAGSCALE:
            self.options = tuple(o for o in self.options if o != SELECTIVE)
        self.fingerprint = f"random/{seed}"
        self._tables: dict[Skeleton, StageTable] = {}

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> RandomTables:
        """The same draws for other inputs."""
        return RandomTables(
            Instance(cluster, model, job),
            self.seed,
            rough=self.rough,
            tightness=self.tightness,
            time_scale=self.time_scale,
            woven=self.woven,
            options=self.options,
        )

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        known = self._tables.get(skeleton)
        if known is None:
            known = self._tables[skeleton] = self._draw(skeleton)
        return known

    def _draw(self, skeleton: Skeleton) -> StageTable:
        p, v, layers = skeleton.pp, skeleton.virtual_stages, self.model.layers
        n = np.arange(layers + 1, dtype=np.float64)
        shape = (p, layers + 1, len(OPTIONS))
        forward, backward, memory = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        tail, p2p = np.zeros((p, layers + 1)), np.zeros(max(p - 1, 0))
        for i, placement in enumerate(skeleton.placements):
            held = min(skeleton.micro_batches, p - i) if v == 1 else (p - i - 1) * 2 + (v - 1) * p + 1
            key = (placement.gpu_type.encode()[0], placement.tp, placement.dp, skeleton.micro_batch, i == 0, i == p - 1)
            rng = np.random.default_rng([self.seed, held, v, *map(int, key)])
            speed = rng.uniform(0.3, 2.0) * 1e2
            bulk = rng.uniform(0.4, 1.2)
            ends = (i == 0) * rng.uniform(0, 1) + (i == p - 1) * rng.uniform(0, 1)
            for r, option in enumerate(OPTIONS):
                redone = {"none": 0.0 * n, "selective": 0.1 * n, "block": np.minimum(n, v), "full": n}[option.kind]
                kept = {"none": n, "selective": 0.7 * n, "block": n - np.minimum(n, v), "full": 0.1 * n}[option.kind]
                time = (3 * n + ends + redone) * skeleton.micro_batch / speed
                share = rng.uniform(0.22, 0.3)
                activations = kept / v * held * skeleton.micro_batch * (1 + self.tightness) / 3
                memory[i, :, r] = bulk * (0.5 + 0.4 * n + ends + activations) / placement.tp
                if self.rough:
                    time = time * rng.uniform(0.5, 1.5, layers + 1)
                    memory[i, :, r] *= rng.uniform(0.5, 1.5, layers + 1)
                    memory[i, rng.random(layers + 1) < 0.08, r] = np.inf
                forward[i, :, r], backward[i, :, r] = share * time, (1 - share) * time
            tail[i] = rng.uniform(0, 0.05) * n * (rng.random() < 0.7)
        for i in range(p - 1):
            ends_of = [skeleton.placements[i + k].gpu_type.encode()[0] for k in (0, 1)]
            p2p[i] = np.random.default_rng([self.seed, *ends_of, skeleton.micro_batch]).uniform(0, 0.02)
        if self.woven and v > 1:
            forward, backward, memory = 0.4 * forward, 0.4 * backward, np.where(np.isfinite(memory), 0.1, np.inf)
        kept_options = [OPTIONS.index(option) for option in self.options]
        forward, backward, memory = (a[:, :, kept_options] for a in (forward, backward, memory * _UNIT))
        missing = ~np.isfinite(memory)
        missing[:, (n == 0) | (n % v != 0)] = True
        for array in (forward, backward, memory):
            array[missing] = np.inf
        fixed, wrap = np.random.default_rng([self.seed, 7]).uniform(0, 0.1, 2) * self.time_scale
        gpus = self.cluster.gpus
        return StageTable(
            forward_s=forward * self.time_scale,
            backward_s=backward * self.time_scale,
            memory_bytes=memory,
            tail_s=tail * self.time_scale,
            capacity_bytes=np.array([float(min(gpus[r].capacity_bytes for r in s.ranks)) for s in skeleton.placements]),
            p2p_s=p2p * self.time_scale,
            gpus=np.array([float(len(s.ranks)) for s in skeleton.placements]),
            options=self.options,
            micro_batches=skeleton.micro_batches,
            layers=layers,
            virtual_stages=v,
            fixed_s=float(fixed),
            wrap_s=float(wrap),
        )

    def estimate(self, plan: Plan) -> Estimate:
        """Iteration time by the second event simulator."""
        s, table = plan.skeleton, self.stage_table(plan.skeleton)
        at = (np.arange(s.pp), np.array(plan.layers), np.array([self.options.index(o) for o in plan.recompute]))
        forward, backward, memory = table.forward_s[at], table.backward_s[at], table.memory_bytes[at]
        tails, g, v = table.tail_s[at[0], at[1]], s.micro_batches, s.virtual_stages
        time = forward + backward
        given = {"p2p_s": table.p2p_s, "tails_s": tails, "fixed_s": table.fixed_s}
        if v == 1:
            additive, least = additive_time(time, g, **given), lower_bound(time, g, **given)
        else:
            additive = interleaved_estimate(time, g, v, wrap_s=table.wrap_s, **given)
            least = float((g * time + tails).max()) + table.fixed_s
        chunk = [np.repeat(x[:, None] / v, v, axis=1).tolist() for x in (forward, backward)]
        events = naive_iteration_time(
            *chunk, table.p2p_s.tolist(), g, wrap_s=table.wrap_s, tails_s=tails.tolist(), fixed_s=table.fixed_s
        )
        gpus = tuple(
            GpuEstimate(
                rank,
                self.cluster.nodes[self.cluster.gpus[rank].node_index].name,
                stage.gpu_type,
                i,
                float(memory[i]),
                self.cluster.gpus[rank].capacity_bytes,
                MemoryBreakdown(weights=float(memory[i])),
            )
            for i, stage in enumerate(plan.stages)
            for rank in stage.ranks
        )
        peaks = np.array([gpu.peak_bytes for gpu in gpus])
        return Estimate(
            iteration_time_s=events,
            additive_time_s=additive,
            lower_bound_s=min(least, events),
            tokens_per_s=s.global_batch * s.seq_len / events,
            time_breakdown_s={"compute": events},
            stage_forward_s=tuple(forward.tolist()),
            stage_backward_s=tuple(backward.tolist()),
            p2p_s=tuple(table.p2p_s.tolist()),
            tail_s=tuple(tails.tolist()),
            gpus=gpus,
            peak_bytes=float(peaks.max()),
            memory_variance_bytes2=float(peaks.var()),
        )


def without_type(cluster: Cluster, name: str) -> Cluster:
    """The cluster without the GPUs of one type."""
    nodes = [replace(node, groups=tuple(g for g in node.groups if g.gpu_type.name != name)) for node in cluster.nodes]
    return replace(cluster, nodes=tuple(node for node in nodes if node.groups))
