"""What the second-level booster knows of a run: skeleton, model shape, devices, and the cost model's terms.

Nothing here depends on the layer split; recompute enters only through :func:`recompute_features`, which are kept apart.
The cost model's terms are those of the skeleton's even split without recompute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import NONE, Estimate, Plan, Recompute, Skeleton, Stage

_SMALLEST = 1e-9


def _log(value: float) -> float:
    return math.log(max(value, _SMALLEST))


def reference_plan(skeleton: Skeleton, layers: int, *, untied: bool = False) -> Plan:
    """``skeleton`` with an even split and no recompute: what stands for all of its plans."""
    v = skeleton.virtual_stages
    even, more = divmod(layers, skeleton.pp * v)
    stages = []
    for i, placement in enumerate(skeleton.placements):
        chunks = tuple(even + (k * skeleton.pp + i < more) for k in range(v))
        stages.append(Stage(placement, chunks, NONE))
    return Plan(skeleton, tuple(stages), untied)


def raw_features(skeleton: Skeleton, model: TransformerSpec, job: Job) -> dict[str, float]:
    """What the paper's direct form reads: sizes as they stand in a configuration."""
    return {
        "tp": skeleton.tp,
        "pp": skeleton.pp,
        "dp": skeleton.dp,
        "virtual_stages": skeleton.virtual_stages,
        "micro_batch": skeleton.micro_batch,
        "micro_batches": skeleton.micro_batches,
        "global_batch": skeleton.global_batch,
        "seq_len": skeleton.seq_len,
        "layers": model.layers,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocab": model.vocab,
        "positions": model.max_positions,
        "element_bytes": job.bytes_per_element,
        "sharded": job.optimizer == "sharded",
    }


def device_features(estimator: FirstPrinciples, skeleton: Skeleton, subject: str) -> dict[str, float]:
    """The devices by their physical numbers: those of type ``subject``, and how they stand to the others."""
    cluster, precision = estimator.cluster, estimator.job.precision.value
    types = {name: cluster.gpu_type(name) for name in skeleton.type_order}
    power = {name: (t.peak_flops(precision) or 1.0) * t.efficiency for name, t in types.items()}
    own = types[subject]
    places = [i for i, p in enumerate(skeleton.placements) if p.gpu_type == subject]
    out = {
        "type_power": _log(power[subject]),
        "type_memory": _log(own.memory_bytes),
        "type_bandwidth": _log(own.memory_bandwidth_bytes_s or 1e12),
        "type_first_stage": places[0] / skeleton.pp,
        "type_stages": len(places) / skeleton.pp,
        "types": len(types),
        "least_power": _log(min(power.values())),
        "most_power": _log(max(power.values())),
    }
    for k, name in enumerate(skeleton.type_order[:4]):
        # Types that only their vendor tells apart must stay apart; a hash spreads them without an order.
        out[f"type_{k}"] = sum(map(ord, types[name].vendor + name)) % 997 / 997
    return out


def estimate_features(estimate: Estimate, skeleton: Skeleton, subject: str, *, wrap_s: float = 0.0) -> dict[str, float]:
    """The cost model's terms of the reference plan: where its time goes, and its memory on ``subject``.

    Args:
        wrap_s: Transfer from the last stage to the first where the schedule is interleaved.
    """
    total = estimate.iteration_time_s
    parts = _with_every_transfer(estimate, skeleton, wrap_s)
    out = {"time": _log(total)}
    for name, seconds in parts.items():
        if name != "recompute":
            out[f"{name}_share"] = seconds / total
    for name in ("compute", "tp_comm", "pp_comm", "dp_comm", "optimizer"):
        out[f"{name}_s"] = _log(parts[name])
    slowest = max(f + b for f, b in zip(estimate.stage_forward_s, estimate.stage_backward_s, strict=True))
    out["micro_batch_s"] = _log(slowest)
    own = max((gpu for gpu in estimate.gpus if gpu.gpu_type == subject), key=lambda gpu: gpu.peak_bytes)
    out["memory"] = _log(own.peak_bytes)
    for name, size in own.breakdown.as_dict().items():
        out[f"{name}_memory_share"] = size / own.peak_bytes
    return out


def _with_every_transfer(estimate: Estimate, skeleton: Skeleton, wrap_s: float) -> dict[str, float]:
    """The time breakdown with ``pp_comm`` as all that passes the slowest stage, as far as the stage may wait for it.

    Unlike the part that lengthens the iteration this is smooth in the links' speed, so learning can scale it.
    """
    parts, i, p2p = dict(estimate.time_breakdown_s), estimate.slowest_stage, estimate.p2p_s
    around = (p2p[i - 1] if i > 0 else wrap_s) + (p2p[i] if i < len(p2p) else wrap_s)
    waiting = parts["pp_comm"] + parts["bubble"]
    parts["pp_comm"] = min(skeleton.micro_batches * skeleton.virtual_stages * around, waiting)
    parts["bubble"] = waiting - parts["pp_comm"]
    return parts


def recompute_features(estimator: FirstPrinciples, plan: Plan, subject: str) -> dict[str, float]:
    """The recompute of the first four GPU types along the pipeline, and what it alone changes at an even split."""
    out: dict[str, float] = {}
    by_type = {stage.gpu_type: stage.recompute for stage in reversed(plan.stages)}
    order = plan.skeleton.type_order
    for k in range(4):
        own = by_type[order[k]] if k < len(order) else NONE
        out[f"recompute_{k}_none"] = own.kind == "none"
        out[f"recompute_{k}_selective"] = own.kind == "selective"
        out[f"recompute_{k}_whole"] = own.kind in ("full", "uniform")
        out[f"recompute_{k}_n"] = own.n
    reference = reference_plan(plan.skeleton, sum(plan.layers), untied=plan.untied)
    stages = []
    for even, own_stage in zip(reference.stages, plan.stages, strict=True):
        most = min(even.chunk_layers)
        own = own_stage.recompute
        own = Recompute("block", min(own.n, most)) if own.kind == "block" and most else own
        stages.append(replace(even, recompute=own if most else NONE))
    estimate = estimator.estimate(replace(reference, stages=tuple(stages)))
    out["recompute_time"] = _log(estimate.iteration_time_s)
    out["recompute_memory"] = _log(max(gpu.peak_bytes for gpu in estimate.gpus if gpu.gpu_type == subject))
    return out


def skeleton_features(
    estimator: FirstPrinciples, skeleton: Skeleton, subject: str, *, untied: bool = False
) -> Mapping[str, float]:
    """All features of a skeleton's GPUs of type ``subject``, logarithms of sizes, the cost model's terms."""
    model = estimator.model
    out = {name: _log(value) for name, value in raw_features(skeleton, model, estimator.job).items()}
    out["gpus"] = _log(skeleton.tp * skeleton.pp * skeleton.dp)
    out["tokens"] = _log(skeleton.micro_batch * skeleton.seq_len)
    out["hidden_per_rank"] = _log(model.hidden / skeleton.tp)
    out |= device_features(estimator, skeleton, subject)
    plan = reference_plan(skeleton, model.layers, untied=untied)
    wrap_s = 0.0
    if skeleton.virtual_stages > 1:
        wrap_s = estimator.transfers(skeleton, estimator.network.place(skeleton.placements), untied=untied).wrap_s
    out |= estimate_features(estimator.estimate(plan), skeleton, subject, wrap_s=wrap_s)
    out["tp_across_share"] = out["tp_comm_share"] if _tensor_groups_cross_nodes(estimator, skeleton) else 0.0
    return out


def _tensor_groups_cross_nodes(estimator: FirstPrinciples, skeleton: Skeleton) -> bool:
    gpus, tp = estimator.cluster.gpus, skeleton.tp
    for placement in skeleton.placements:
        nodes = [gpus[rank].node_index for rank in placement.ranks]
        if any(len(set(nodes[i : i + tp])) > 1 for i in range(0, len(nodes), tp)):
            return True
    return False


def slowest_type(estimate: Estimate, plan: Plan) -> str:
    """The GPU type of the stage that takes longest per micro-batch."""
    return plan.stages[estimate.slowest_stage].gpu_type
