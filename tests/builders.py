"""Hand-made values of every noun, for tests of the rooms that show, write or read results.

The numbers are plausible, deterministic and internally consistent (peaks are the sums of their breakdowns, phi is the
objective's own value, ranks are ordered by phi), but they come from no cost model: a test may rely on their
consistency, never on their size.

    cluster = make_cluster()                   # 2 nodes: 8 x h100-sxm-80g, 8 x mi300x
    result = make_result(n_plans=12)           # a SearchResult with 12 rows, the first 8 rescored in detail
    result.detail(11).estimate                 # estimated on demand, as the real one does
    plan = make_plan(cluster, layers=(9, 9, 7, 7), recompute=("none", "none", "full", "full"))
    estimate = make_estimate(plan, cluster)
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from memx_engine.cost.table import StageTable
from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import (
    Estimate,
    GpuEstimate,
    MemoryBreakdown,
    Plan,
    Provenance,
    Recompute,
    Skeleton,
    Stage,
    StagePlacement,
)
from memx_engine.search.objective import PROFILES, Objective, References, Weights
from memx_engine.search.result import Certificate, PlanTable, PruneCounts, RankedPlan, SearchResult
from memx_engine.units import GIB

H100 = GpuType(
    name="h100-sxm-80g",
    vendor="nvidia",
    marketing_name="NVIDIA H100 SXM 80GB",
    memory_bytes=81559 << 20,
    bf16_flops=989.4e12,
    fp16_flops=989.4e12,
    fp32_flops=66.9e12,
    memory_bandwidth_bytes_s=3.35e12,
    aliases=("h100",),
)
MI300X = GpuType(
    name="mi300x",
    vendor="amd",
    marketing_name="AMD Instinct MI300X",
    memory_bytes=192 * GIB,
    bf16_flops=1307.4e12,
    fp16_flops=1307.4e12,
    fp32_flops=163.4e12,
    memory_bandwidth_bytes_s=5.3e12,
)
V100 = GpuType(
    name="v100-sxm-32g",
    vendor="nvidia",
    marketing_name="Tesla V100-SXM2-32GB",
    memory_bytes=32 * GIB,
    fp16_flops=125e12,
    fp32_flops=15.7e12,
    memory_bandwidth_bytes_s=9.0e11,
    lacks=("bf16",),
)

_RATE = {"h100-sxm-80g": 1.0, "mi300x": 0.9, "v100-sxm-32g": 0.2}


def make_node(name: str, gpu_type: GpuType = H100, count: int = 8, memory_used_bytes: int = 0) -> Node:
    """One host of equal GPUs, all in one island."""
    link = Link(4.5e11, 3e-6)
    return Node(
        name=name,
        groups=(GpuGroup(gpu_type, count, memory_used_bytes),),
        island_size=count,
        numa_size=count,
        island=link,
        node=link,
        numa=link,
    )


def make_cluster(*types: GpuType, gpus_per_node: int = 8, name: str = "test-cluster") -> Cluster:
    """One node of ``gpus_per_node`` GPUs for each type given (default: one H100 node, one MI300X node)."""
    nodes = tuple(
        make_node(f"node-{i}-{gpu_type.name}", gpu_type, gpus_per_node)
        for i, gpu_type in enumerate(types or (H100, MI300X))
    )
    return Cluster(name, nodes, inter_node=Link(5e10, 5e-6, shared=True), host=Link(1.2e10, 2e-5))


def make_model(layers: int = 32, name: str = "llama-test") -> TransformerSpec:
    """A Llama-shaped model (that of Llama-3-8B at 32 layers)."""
    return TransformerSpec(
        name=name,
        architecture="llama",
        layers=layers,
        hidden=4096,
        ffn=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        max_positions=8192,
        assumed=("attention_bias is not given: false, the default of LlamaConfig (transformers 4.57.1)",),
    )


def make_job(global_batch: int = 512, seq_len: int = 4096) -> Job:
    return Job(global_batch, seq_len, assumed=("precision is not given: bf16",))


def make_plan(
    cluster: Cluster | None = None,
    *,
    tp: int = 4,
    dp: int = 1,
    micro_batch: int = 1,
    layers: tuple[int, ...] = (9, 9, 7, 7),
    recompute: tuple[str, ...] | str = "none",
    virtual_stages: int = 1,
    job: Job | None = None,
) -> Plan:
    """A plan whose stages take the cluster's ranks in order; ``len(layers)`` stages of ``tp * dp`` GPUs each."""
    cluster, job = cluster or make_cluster(), job or make_job()
    words = (recompute,) * len(layers) if isinstance(recompute, str) else recompute
    size = tp * dp
    placements = []
    for i in range(len(layers)):
        ranks = tuple(range(i * size, (i + 1) * size))
        placements.append(StagePlacement(cluster.gpus[ranks[0]].gpu_type.name, tp, dp, ranks))
    skeleton = Skeleton(
        tp, len(layers), dp, micro_batch, job.seq_len, job.global_batch, tuple(placements), virtual_stages
    )
    stages = []
    for placement, n, word in zip(placements, layers, words, strict=True):
        base, extra = divmod(n, virtual_stages)
        chunks = tuple(base + (v < extra) for v in range(virtual_stages))
        stages.append(Stage(placement, chunks, Recompute.parse(word)))
    return Plan(skeleton, tuple(stages))


def make_estimate(
    plan: Plan,
    cluster: Cluster | None = None,
    model: TransformerSpec | None = None,
    *,
    calibrated: bool = False,
    memory_scale: float = 1.0,
) -> Estimate:
    """Plausible predictions; ``calibrated`` adds intervals and OOM probabilities, ``memory_scale`` > 1 provokes OOM."""
    cluster, model = cluster or make_cluster(), model or make_model()
    skeleton = plan.skeleton
    mbs, count, pp = skeleton.micro_batch, skeleton.micro_batches, skeleton.pp
    forward, backward, tails, gpus = [], [], [], []
    for index, stage in enumerate(plan.stages):
        recomputed = stage.recompute.kind in ("full", "uniform", "block")
        unit = 0.002 * mbs / (stage.tp**0.9 * _RATE.get(stage.gpu_type, 0.5))
        forward.append(unit * stage.layers)
        backward.append((3 if recomputed else 2) * unit * stage.layers)
        tails.append(0.01 * stage.layers / stage.tp)
        ends = (model.embedding_parameters if index == 0 else 0) + (model.head_parameters if index == pp - 1 else 0)
        held = (stage.layers * model.layer.total + ends) / stage.tp
        activation = 34 * skeleton.seq_len * mbs * model.hidden * stage.layers * min(count, pp - index) / stage.tp
        body = MemoryBreakdown(
            weights=2 * held * memory_scale,
            gradients=4 * held * memory_scale,
            optimizer=12 * held / stage.dp * memory_scale,
            activations=activation * (0.1 if recomputed else 1.0) * memory_scale,
            logits=6.0 * mbs * skeleton.seq_len * model.vocab / stage.tp if index == pp - 1 else 0.0,
            buffers=0.5 * GIB,
            context=4.0 * GIB,
        )
        breakdown = replace(body, fragmentation=0.08 * (body.total - body.context))
        for rank in stage.ranks:
            gpu = cluster.gpus[rank]
            gpus.append(
                GpuEstimate(
                    rank,
                    cluster.nodes[gpu.node_index].name,
                    stage.gpu_type,
                    index,
                    breakdown.total,
                    gpu.capacity_bytes,
                    breakdown,
                    (0.999 if breakdown.total > gpu.capacity_bytes else 0.001) if calibrated else None,
                )
            )
    period = [f + b for f, b in zip(forward, backward, strict=True)]
    bubble = sum(period) - max(period)
    parts = {
        "compute": 0.8 * count * max(period),
        "recompute": 0.0,
        "tp_comm": 0.15 * count * max(period),
        "pp_comm": 0.05 * count * max(period),
        "bubble": bubble,
        "dp_comm": 0.3 * max(tails),
        "optimizer": 0.7 * max(tails),
        "fixed": 0.01,
    }
    total = sum(parts.values())
    peaks = np.array([gpu.peak_bytes for gpu in gpus])
    return Estimate(
        iteration_time_s=total,
        additive_time_s=total * 1.01,
        lower_bound_s=total * 0.97,
        tokens_per_s=skeleton.global_batch * skeleton.seq_len / total,
        time_breakdown_s=parts,
        stage_forward_s=tuple(forward),
        stage_backward_s=tuple(backward),
        p2p_s=(0.001,) * (pp - 1),
        tail_s=tuple(tails),
        gpus=tuple(gpus),
        peak_bytes=float(peaks.max()),
        memory_variance_bytes2=float(peaks.var()),
        interval_s=(0.95 * total, 1.06 * total) if calibrated else None,
        provenance=Provenance.SIMULATED if calibrated else Provenance.UNCALIBRATED,
    )


class FakeEstimator:
    """An Estimator whose plans are predicted by :func:`make_estimate`. It has no stage tables."""

    fingerprint = "fake-estimator"

    def __init__(self, cluster: Cluster, model: TransformerSpec, *, calibrated: bool = False) -> None:
        self.cluster, self.model, self.calibrated = cluster, model, calibrated

    @property
    def provenance(self) -> Provenance:
        return Provenance.SIMULATED if self.calibrated else Provenance.UNCALIBRATED

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        raise NotImplementedError("the fake estimator predicts whole plans only")

    def estimate(self, plan: Plan) -> Estimate:
        return make_estimate(plan, self.cluster, self.model, calibrated=self.calibrated)


def make_objective(profile: str = "heterogeneous") -> Objective:
    weights = Weights(profile, *PROFILES[profile], reason="the cluster's devices differ in speed")
    return Objective(weights, References(30.0, 40.0 * GIB, (6.0 * GIB) ** 2, (4.0 * GIB) ** 2))


def _plans(cluster: Cluster, model: TransformerSpec, job: Job, n_plans: int) -> list[Plan]:
    """``n_plans`` different legal plans over layouts, micro-batch sizes, layer splits and recompute."""
    world = len(cluster.gpus)
    layouts = [
        (tp, dp) for tp, dp in product((4, 2, 8, 1), (1, 2, 4, 8)) if tp * dp <= 8 and model.layers * tp * dp >= world
    ]
    plans: dict[Plan, None] = {}
    for seed in range(10_000):
        for micro_batch, word, (tp, dp) in product((1, 2, 4, 8), ("none", "full", "selective"), layouts):
            pp = world // (tp * dp)
            # Seeded, so that the same call gives the same plans; the first of each layout is the even split.
            draw = np.random.default_rng([seed, pp]).multinomial(model.layers - pp, [1 / pp] * pp)
            base, extra = divmod(model.layers, pp)
            layers = [int(n) + 1 for n in draw] if seed else [base + (i < extra) for i in range(pp)]
            plan = make_plan(
                cluster, tp=tp, dp=dp, micro_batch=micro_batch, layers=tuple(layers), recompute=word, job=job
            )
            plans[plan] = None
            if len(plans) == n_plans:
                return list(plans)
    raise ValueError(f"cannot make {n_plans} plans for this cluster")


def make_result(
    n_plans: int = 12,
    *,
    cluster: Cluster | None = None,
    model: TransformerSpec | None = None,
    job: Job | None = None,
    detailed: int = 8,
    calibrated: bool = False,
    cancelled: bool = False,
) -> SearchResult:
    """A SearchResult of ``n_plans`` rows, best phi first, whose first ``detailed`` carry full estimates."""
    cluster, model, job = cluster or make_cluster(), model or make_model(), job or make_job()
    estimator = FakeEstimator(cluster, model, calibrated=calibrated)
    objective = make_objective()
    plans = _plans(cluster, model, job, n_plans)
    estimates = [estimator.estimate(plan) for plan in plans]
    time_s = np.array([e.iteration_time_s for e in estimates])
    peak = np.array([e.peak_bytes for e in estimates])
    variance = np.array([e.memory_variance_bytes2 for e in estimates])
    phi = objective.phi_array(time_s, peak, variance)
    order = np.argsort(phi, kind="stable")
    pareto = _pareto(time_s, peak, variance)
    table = PlanTable(
        plans=tuple(plans[i] for i in order),
        time_s=time_s[order],
        peak_bytes=peak[order],
        variance_bytes2=variance[order],
        phi=phi[order],
        worst_fraction=np.array([estimates[i].worst_gpu.used_fraction for i in order]),
        worst_type=tuple(estimates[i].worst_gpu.gpu_type for i in order),
        by_events=np.arange(n_plans) < detailed,
        pareto=pareto[order],
    )
    ranked = [
        RankedPlan(row + 1, plans[i], estimates[i], float(phi[i]), bool(pareto[i])) for row, i in enumerate(order)
    ]
    front = sorted((r for r in ranked if r.pareto), key=lambda r: r.estimate.iteration_time_s)
    return SearchResult(
        cluster=cluster,
        model=model,
        job=job,
        provenance=estimator.provenance,
        predictor_fingerprint=estimator.fingerprint,
        assumed=(*job.assumed, *model.assumed),
        objective=objective,
        space={"tp": (1, 2, 4, 8), "pp": (1, 2, 4), "micro_batch": (1, 2, 4, 8), "recompute": ("none", "full")},
        skeletons=n_plans * 3,
        pruned=PruneCounts(placement=n_plans, memory=n_plans, time=0),
        feasible=n_plans,
        plans_covered=n_plans * 1000,
        seconds=1.25,
        cache_hits=3,
        cache_misses=5,
        certificate=Certificate("additive", float(phi.min()), None, None, False, None, detailed),
        table=table,
        plans=tuple(ranked[:detailed]),
        pareto=tuple(front),
        time_optimal=min(ranked, key=lambda r: r.estimate.iteration_time_s),
        estimator=estimator,
        cancelled=cancelled,
    )


def _pareto(*columns: np.ndarray) -> np.ndarray:
    """Rows that no other row dominates, smaller being better in every column."""
    points = np.stack(columns, axis=1)
    front: list[int] = []
    for i in np.lexsort(points.T[::-1]):
        if not any(bool(np.all(points[j] <= points[i]) and np.any(points[j] < points[i])) for j in front):
            front.append(int(i))
    mask = np.zeros(len(points), dtype=bool)
    mask[front] = True
    return mask
