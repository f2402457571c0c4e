"""What the stage booster knows of a stage on one GPU type: sizes, device, kind of recompute, the cost model's terms.

Layers, micro-batches in flight and how much is recomputed are not among them: the cost model's terms, which the learned
factors multiply, grow with all of these. So one signature stands for all splits of a skeleton, more layers never need
less, and the same stage in a bigger cluster is the same signature.
"""

from __future__ import annotations

import math

from memx_engine.cost.stage import StageCost
from memx_engine.inputs.cluster import GpuType
from memx_engine.measurement import Point
from memx_engine.plan import NONE

_SMALLEST = 1e-9

DIMENSIONS = {
    "tp": ("tp", "ffn_per_rank", "comm_share"),
    "micro_batch": ("micro_batch", "odd_micro_batch", "tokens"),
    "types": ("type_power", "type_memory", "type_bandwidth", "type_name"),
}
"""What a plan decides → the features that follow it alone."""


def _log(value: float) -> float:
    return math.log(max(value, _SMALLEST))


def stage_features(point: Point, cost: StageCost, gpu_type: GpuType) -> dict[str, float]:
    """The features of ``point``; ``cost`` is its stage's."""
    model, layer, memory = point.model, cost.layer, cost.memory
    plain = layer.forward_s + layer.backward_s
    comm = layer.forward_comm_s + layer.backward_comm_s
    ends = cost.end_forward_s + cost.end_backward_s
    flops = gpu_type.peak_flops(point.precision.value) or 1.0
    return {
        "type_power": _log(flops * gpu_type.efficiency),
        "type_memory": _log(gpu_type.memory_bytes),
        "type_bandwidth": _log(gpu_type.memory_bandwidth_bytes_s or flops / 200.0),
        # Types that only their name tells apart must stay apart; the number has no meaning as a size.
        "type_name": sum(k * ord(c) for k, c in enumerate(gpu_type.vendor + gpu_type.name, 1)) % 997 / 997,
        "tp": _log(point.tp),
        "micro_batch": _log(point.micro_batch),
        "odd_micro_batch": float(point.micro_batch & (point.micro_batch - 1) != 0),
        "seq_len": _log(point.seq_len),
        "tokens": _log(point.micro_batch * point.seq_len),
        "hidden": _log(model.hidden),
        "ffn": _log(model.ffn),
        "heads": _log(model.heads),
        "kv_heads": _log(model.kv_heads),
        "ffn_per_rank": _log(model.ffn / point.tp),
        "vocab_share": model.vocab * model.hidden / max(model.parameters, 1),
        "element_bytes": cost.job.bytes_per_element,
        "unfused": float(point.attention == "unfused"),
        "embedding": float(point.embedding),
        "head": float(point.head),
        "recompute_none": float(point.recompute == NONE),
        "recompute_selective": float(point.recompute.kind == "selective"),
        "recompute_whole": float(point.recompute.kind in ("full", "uniform")),
        "layer_s": _log(plain + comm),
        "layer_flop_s": _log(plain),
        "comm_share": comm / max(plain + comm, _SMALLEST),
        "core_share": layer.core_forward_s / max(layer.forward_s, _SMALLEST),
        "ends_s": ends / max(ends + plain + comm, _SMALLEST),
        "layer_bytes": _log(memory.whole_bytes),
        "input_share": memory.input_bytes / max(memory.whole_bytes, 1.0),
        "core_bytes_share": memory.core_bytes / max(memory.whole_bytes, 1.0),
        "logits_share": memory.logits_bytes / max(memory.logits_bytes + memory.whole_bytes, 1.0),
    }
