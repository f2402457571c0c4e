"""What the stage booster knows of one stage on one GPU type: sizes, device, recompute, the cost model's terms.

Layers and micro-batches in flight enter only through the share of memory that is held, which inside a skeleton stands
for all splits: what is learned multiplies terms of the cost model that grow with both, so more layers never need less
memory.
"""

from __future__ import annotations

import math

from memx_engine.cost.recompute import Counts
from memx_engine.cost.stage import StageCost
from memx_engine.inputs.cluster import GpuType
from memx_engine.measurement import Point
from memx_engine.plan import NONE

_SMALLEST = 1e-9


def _log(value: float) -> float:
    return math.log(max(value, _SMALLEST))


def stage_features(point: Point, cost: StageCost, counts: Counts, gpu_type: GpuType) -> dict[str, float]:
    """The features of ``point``; ``cost`` is its stage's, ``counts`` its layers by what happens to them."""
    model, layer, memory = point.model, cost.layer, cost.memory
    plain = layer.forward_s + layer.backward_s
    comm = layer.forward_comm_s + layer.backward_comm_s
    whole = cost.time((counts,))
    held = point.in_flight * memory.chunk_bytes(counts)
    work = max(memory.logits_bytes, memory.working_bytes(counts))
    again = counts.again / max(counts.layers, 1.0)
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
        "recompute_uniform": float(point.recompute.kind in ("full", "uniform")),
        "recompute_share": again,
        "layer_s": _log(plain + comm),
        "layer_flop_s": _log(plain),
        "comm_share": comm / max(plain + comm, _SMALLEST),
        "core_share": layer.core_forward_s / max(layer.forward_s, _SMALLEST),
        "ends_share": ends / max(whole.total_s, _SMALLEST),
        "layer_bytes": _log(memory.whole_bytes),
        "input_share": memory.input_bytes / max(memory.whole_bytes, 1.0),
        "core_bytes_share": memory.core_bytes / max(memory.whole_bytes, 1.0),
        "kept_share": memory.chunk_bytes(counts) / max(counts.layers * memory.whole_bytes, 1.0),
        "held_share": held / max(held + work + memory.buffers_bytes + memory.head_bytes, 1.0),
        "logits_share": memory.logits_bytes / max(memory.logits_bytes + memory.working_bytes(counts), 1.0),
    }
