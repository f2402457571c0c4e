"""A synthetic Estimator with stage tables, so that the search is tested without the cost model."""

from __future__ import annotations

import numpy as np

from memx_engine.cost.pipeline import additive_time, interleaved_estimate, lower_bound
from memx_engine.cost.table import StageTable
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import (
    FULL,
    NONE,
    Estimate,
    GpuEstimate,
    MemoryBreakdown,
    Plan,
    Provenance,
    Recompute,
    Skeleton,
)
from memx_engine.units import GIB

OPTIONS = (NONE, Recompute("block", 2), FULL)


class TableEstimator:
    """Time linear in layers over the type's peak; memory of states and activations; recompute trades one for the other.

    Event time is the additive form less 1 %, so that rescoring changes numbers without changing the order.
    """

    fingerprint = "synthetic"
    provenance = Provenance.UNCALIBRATED

    def __init__(self, cluster: Cluster, model: TransformerSpec, job: Job, *, memory_scale: float = 1.0) -> None:
        self.cluster, self.model, self.job, self.memory_scale = cluster, model, job, memory_scale
        self.estimates = 0

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> TableEstimator:
        return TableEstimator(cluster, model, job, memory_scale=self.memory_scale)

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        layers, v, pp = self.model.layers, skeleton.virtual_stages, skeleton.pp
        shape = (pp, layers + 1, len(OPTIONS))
        forward, backward, memory = (np.full(shape, np.inf) for _ in range(3))
        tail = np.zeros((pp, layers + 1))
        capacity = np.zeros(pp)
        for i, placement in enumerate(skeleton.placements):
            gpu = self.cluster.gpu_type(placement.gpu_type)
            peak = (gpu.bf16_flops or gpu.fp16_flops or 1e14) * 0.5
            tokens = skeleton.micro_batch * skeleton.seq_len
            layer_s = 2.0 * tokens * self.model.layer.total / (peak * placement.tp**0.9)
            head_s = 2.0 * tokens * self.model.embedding_parameters / (peak * placement.tp**0.9)
            held = min(skeleton.micro_batches, pp - i) if v == 1 else pp - i + 1
            capacity[i] = min(self.cluster.gpus[rank].capacity_bytes for rank in placement.ranks)
            for n in range(v, layers + 1, v):
                ends = self.model.embedding_parameters * ((i == 0) + (i == pp - 1))
                states = (6 + 12 / placement.dp) * (n * self.model.layer.total + ends) / placement.tp
                activation = 34.0 * tokens * self.model.hidden / placement.tp * self.memory_scale
                tail[i, n] = 2e-12 * (placement.dp - 1) * n * self.model.layer.total / placement.tp
                for r, option in enumerate(OPTIONS):
                    redone = n if option is FULL else min(2 * v, n) if option.kind == "block" else 0
                    if option.kind == "block" and n < 2 * v:
                        continue
                    kept = (n - redone) + redone * 2 / 34
                    forward[i, n, r] = n * layer_s + (i == pp - 1) * head_s
                    backward[i, n, r] = 2 * forward[i, n, r] + redone * layer_s
                    memory[i, n, r] = 4 * GIB + states + (kept * held + (redone > 0)) * activation
        return StageTable(
            forward,
            backward,
            memory,
            tail,
            capacity,
            np.full(pp - 1, 1e-4),
            np.full(pp, float(skeleton.tp * skeleton.dp)),
            OPTIONS,
            skeleton.micro_batches,
            layers,
            v,
            0.01,
        )

    def estimate(self, plan: Plan) -> Estimate:
        self.estimates += 1
        skeleton, table = plan.skeleton, self.stage_table(plan.skeleton)
        at = (
            np.arange(skeleton.pp),
            np.array(plan.layers),
            np.array([OPTIONS.index(option) for option in plan.recompute]),
        )
        forward, backward, memory = table.forward_s[at], table.backward_s[at], table.memory_bytes[at]
        tails, c, g = table.tail_s[at[0], at[1]], table.p2p_s, skeleton.micro_batches
        time = forward + backward
        if skeleton.virtual_stages == 1:
            additive = additive_time(time, g, p2p_s=c, tails_s=tails, fixed_s=table.fixed_s)
        else:
            additive = interleaved_estimate(
                time, g, skeleton.virtual_stages, p2p_s=c, tails_s=tails, fixed_s=table.fixed_s
            )
        gpus = [
            GpuEstimate(
                rank,
                self.cluster.nodes[self.cluster.gpus[rank].node_index].name,
                stage.gpu_type,
                i,
                float(memory[i]),
                self.cluster.gpus[rank].capacity_bytes,
                MemoryBreakdown(weights=float(memory[i]) - 4 * GIB, context=4 * GIB),
            )
            for i, stage in enumerate(plan.stages)
            for rank in stage.ranks
        ]
        return Estimate(
            iteration_time_s=0.99 * additive,
            additive_time_s=additive,
            lower_bound_s=min(0.99 * additive, lower_bound(time, g)),
            tokens_per_s=skeleton.global_batch * skeleton.seq_len / additive,
            time_breakdown_s={"compute": 0.99 * additive},
            stage_forward_s=tuple(forward.tolist()),
            stage_backward_s=tuple(backward.tolist()),
            p2p_s=tuple(c.tolist()),
            tail_s=tuple(tails.tolist()),
            gpus=tuple(gpus),
            peak_bytes=float(memory.max()),
            memory_variance_bytes2=float(np.average((memory - memory.mean()) ** 2)),
        )


def random_table(rng: np.random.Generator, stages: int, layers: int, options: int) -> StageTable:
    """A table of arbitrary, not even monotone, times and memories with some combinations missing or too large."""
    shape = (stages, layers + 1, options)
    size = np.arange(layers + 1)[None, :, None]
    forward = size * rng.uniform(0.5, 2.0, shape)
    backward = 2 * forward * rng.uniform(0.8, 1.4, shape)
    memory = 5.0 + size * rng.uniform(0.5, 3.0, shape)
    missing = rng.random(shape) < 0.1
    missing[:, 0] = True
    for values in (forward, backward, memory):
        values[missing] = np.inf
    return StageTable(
        forward,
        backward,
        memory * GIB,
        rng.uniform(0, 1.0, (stages, layers + 1)),
        rng.uniform(8.0, 5.0 + 2.5 * layers, stages) * GIB,
        rng.uniform(0.0, 0.3, stages - 1),
        rng.integers(1, 9, stages).astype(float),
        tuple(Recompute("block", r + 1) for r in range(options)),
        int(rng.integers(1, 33)),
        layers,
        1,
        float(rng.uniform(0, 0.5)),
    )
