"""The parameters that profiling varies: their range on one GPU type, the three points of each, and the defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memx_engine.cost.recompute import strategies
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Attention, Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import legal_tp
from memx_engine.measurement import Point
from memx_engine.plan import FULL, Recompute

MICRO_BATCHES = (1, 2, 4, 8)
DENSE_MICRO_BATCHES = (1, 2, 4, 8, 16)
EVERY_MICRO_BATCH = (1, 2, 4, 8, 16, 32)
MOST_IN_FLIGHT = 4
HALF = "half"
"""Recompute level: ``block:K`` with K half of the point's layers."""

Value = int | str | bool
Setting = Mapping[str, Value]


@dataclass(frozen=True)
class Parameter:
    """One dimension of the configuration space on one GPU type.

    Attributes:
        levels: Least, centre and greatest value (fewer where fewer exist), ascending; ``default`` is one of them.
        dense: The 5 to 7 values of the linearity check; empty where it is not a numeric parameter or has too few.
        every: All values, what an exhaustive grid would measure.
        decided_by: ``plan`` (what a plan decides), ``job`` (one value per job), ``model`` (fixed by the architecture)
            or ``place`` (which end of the pipeline the stage is).
    """

    name: str
    levels: tuple[Value, ...]
    default: Value
    every: tuple[Value, ...]
    decided_by: str = "plan"
    dense: tuple[int, ...] = ()


def exhaustive_count(sizes: Sequence[int]) -> int:
    """Points of the full grid over dimensions with so many values each: 10 values in 5 dimensions are 100,000."""
    return math.prod(sizes)


def sparse_count(dimensions: int, levels: int = 3) -> int:
    """Points of the crossed three-point design, ``levels ** dimensions``: 3 in 5 dimensions are 243."""
    return int(levels**dimensions)


def three(values: Sequence[int]) -> tuple[int, ...]:
    """Least, centre and greatest of ascending ``values``; of an even count the lower centre."""
    if len(values) < 3:
        return tuple(values)
    return values[0], values[(len(values) - 1) // 2], values[-1]


def spaced(low: int, high: int, count: int, keep: Sequence[int] = ()) -> tuple[int, ...]:
    """About ``count`` whole numbers evenly from ``low`` to ``high``, ascending; those of ``keep`` are among them."""
    even = {round(low + (high - low) * i / max(count - 1, 1)) for i in range(count)}
    free = sorted(even - set(keep))
    room = max(count - len(set(keep)), 0)
    step = max(len(free) / room, 1.0) if room else 1.0
    picked = {free[int(i * step)] for i in range(room) if int(i * step) < len(free)}
    return tuple(sorted(picked | set(keep)))


def parameters_of(
    cluster: Cluster, model: TransformerSpec, job: Job, gpu_type: str, *, default_tp: int | None = None
) -> tuple[Parameter, ...]:
    """Every parameter with its range on the representative node of ``gpu_type``, planner's dimensions first.

    ``default_tp`` replaces the centre of the TP sizes as the default; key-value heads must divide by it.
    """
    tp = _tp(cluster, model, job, gpu_type)
    default_tp = default_tp or int(tp.default)
    tp = replace(tp, default=default_tp)
    layers = _layers(model)
    return (
        tp,
        _micro_batch(job),
        layers,
        _recompute(job, int(layers.levels[-1])),
        _in_flight(cluster, model, job),
        _seq_len(job, [int(t) for t in tp.levels]),
        _kv_heads(model, default_tp),
        Parameter("embedding", (False, True), False, (False, True), "place"),
        Parameter("head", (False, True), False, (False, True), "place"),
    )


def _tp(cluster: Cluster, model: TransformerSpec, job: Job, gpu_type: str) -> Parameter:
    """TP sizes that fit the first node of the type, which is the one that runners measure on."""
    node = cluster.nodes[cluster.gpus[cluster.ranks_by_type[gpu_type][0]].node_index]
    count = sum(group.count for group in node.groups if group.gpu_type.name == gpu_type)
    sizes = [t for t in legal_tp(model, kv_replication=True) if t <= count]
    if job.sequence_parallel:
        sizes = [t for t in sizes if job.seq_len % t == 0]
    sizes = [t for t in sizes if job.tp_sizes is None or t in job.tp_sizes] or sizes
    levels = three(sizes)
    return Parameter("tp", levels, levels[len(levels) // 2] if len(levels) > 2 else levels[0], tuple(sizes))


def _micro_batch(job: Job) -> Parameter:
    sizes = sorted(set(job.micro_batch_sizes or [b for b in MICRO_BATCHES if b <= job.global_batch]))
    dense = sorted(set(job.micro_batch_sizes or [b for b in DENSE_MICRO_BATCHES if b <= job.global_batch]))
    every = sorted(set(job.micro_batch_sizes or [b for b in EVERY_MICRO_BATCH if b <= job.global_batch]))
    levels = three(sizes)
    return Parameter("micro_batch", levels, _centre(levels), tuple(every), dense=_dense(dense, levels))


def _layers(model: TransformerSpec) -> Parameter:
    least = 2 if model.layers >= 4 else 1
    most = min(model.layers, max(4, -(-model.layers // 4)))
    levels = three(range(least, most + 1))
    every = tuple(range(1, model.layers + 1))
    return Parameter("layers", levels, _centre(levels), every, dense=_dense(spaced(least, most, 7, levels), levels))


def _recompute(job: Job, layers: int) -> Parameter:
    """None, a centre, full; the centre is selective where attention keeps scores to drop, else half of the layers."""
    selective = job.attention is Attention.UNFUSED and job.framework is not Framework.FLAGSCALE
    centre = "selective" if selective else HALF
    every = tuple(str(option) for option in strategies(layers, 1, 1, job.framework))
    return Parameter("recompute", ("none", centre, "full"), "none", every)


def _in_flight(cluster: Cluster, model: TransformerSpec, job: Job) -> Parameter:
    deepest = max(min(len(cluster.gpus), model.layers, job.global_batch), 1)
    most = min(deepest, MOST_IN_FLIGHT)
    levels = three(sorted({1, 2, most} & set(range(1, most + 1))))
    dense = sorted({*levels, 3, 6} & set(range(1, deepest + 1)))
    every = tuple(range(1, deepest + 1))
    return Parameter("in_flight", levels, levels[0], every, dense=_dense(dense, levels))


def _seq_len(job: Job, tp_levels: Sequence[int]) -> Parameter:
    """A quarter, a half and the whole of the job's sequence, kept divisible by every TP that is measured."""
    unit = math.lcm(*tp_levels) if job.sequence_parallel else 1
    longest = job.seq_len

    def part(eighths: int) -> int:
        return max(longest * eighths // 8 // unit, 1) * unit if eighths < 8 else longest

    levels = tuple(sorted({part(2), part(4), longest}))
    dense = sorted({part(k) for k in range(2, 9)})
    every = tuple(sorted({max(longest * k // 16 // unit, 1) * unit for k in range(4, 16)} | {longest}))
    return Parameter("seq_len", levels, longest, every, "job", dense=_dense(dense, levels))


def _kv_heads(model: TransformerSpec, tp: int) -> Parameter:
    """The model's own number of key-value heads and its neighbours among those that ``tp`` allows."""
    own = model.kv_heads
    legal = [n for n in range(1, model.heads + 1) if model.heads % n == 0 and (n % tp == 0 or tp % n == 0)]
    place = legal.index(own)
    first = min(max(place - 2, 0), max(len(legal) - 3, 0))
    levels = tuple(legal[first : first + 3])
    return Parameter("kv_heads", levels, own, tuple(legal), "model", dense=_dense(legal[-7:], levels))


def _centre(levels: tuple[int, ...]) -> int:
    return levels[(len(levels) - 1) // 2]


def _dense(values: Sequence[int], levels: Sequence[int]) -> tuple[int, ...]:
    """``values`` with ``levels`` among them, if that makes a linearity check: at least 5 points."""
    merged = tuple(sorted({*values, *levels}))
    return merged if len(merged) >= 5 else ()


def point_of(gpu_type: str, model: TransformerSpec, job: Job, setting: Setting) -> Point:
    """The point that ``setting`` (a value for every parameter) describes."""
    kv_heads, layers, tp = int(setting["kv_heads"]), int(setting["layers"]), int(setting["tp"])
    word = str(setting["recompute"])
    recompute = Recompute("block", max(1, layers // 2)) if word == HALF else Recompute.parse(word)
    if recompute.kind == "block" and recompute.n >= layers:
        # Recomputing every layer on its own is what full recompute does.
        recompute = FULL
    return Point(
        gpu_type=gpu_type,
        model=model if kv_heads == model.kv_heads else replace(model, kv_heads=kv_heads),
        tp=tp,
        micro_batch=int(setting["micro_batch"]),
        seq_len=int(setting["seq_len"]),
        layers=layers,
        embedding=bool(setting["embedding"]),
        head=bool(setting["head"]),
        recompute=recompute,
        in_flight=int(setting["in_flight"]),
        precision=job.precision,
        attention=job.attention,
        sequence_parallel=job.sequence_parallel and tp > 1,
    )
