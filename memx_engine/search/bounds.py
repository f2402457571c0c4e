"""What a skeleton's table says before its split is chosen: does it fit, how good can it be, what its even split gives.

Everything here is a few array operations per skeleton, because a large cluster has tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable, at_least
from memx_engine.plan import Recompute
from memx_engine.search.event_times import EventTimes, StageRows, least_maxima
from memx_engine.search.space import even_split

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PlanFigures:
    """The three measures of one plan; ``time_s`` by the additive form.

    ``variance_bytes2`` is a share squared where the variance is of utilization.
    """

    time_s: float
    peak_bytes: float
    variance_bytes2: float


@dataclass(frozen=True)
class EvenPlan(PlanFigures):
    """The even split with the lightest recompute that fits, and what it measures.

    Attributes:
        recompute: One strategy per stage. worst_stage, worst_fraction: The stage with the highest memory / capacity.
        spread_bytes2: Variance of the memory in bytes, whatever kind ``variance_bytes2`` is of.
    """

    layers: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    worst_stage: int
    worst_fraction: float
    spread_bytes2: float


@dataclass(frozen=True)
class Bounds:
    """Bounds over every split and recompute of a skeleton.

    Attributes:
        excess_bytes: By how much the fullest stage exceeds its capacity at the split that fits best; <= 0 fits.
        binding_stage: The stage of that excess.
        utilization: The least possible highest memory / capacity. time_s, peak_bytes, variance_bytes2: No plan of the
            skeleton that fits is better in any of them (infinite where none fits); time by the additive form.
        even: The even split with the lightest recompute that fits; None where it does not fit.
        events: What holds of event times; None where nothing fits, or where a sketch says it.
    """

    excess_bytes: float
    binding_stage: int
    utilization: float
    time_s: float
    peak_bytes: float
    variance_bytes2: float
    even: EvenPlan | None
    events: EventTimes | None = None

    @property
    def fits(self) -> bool:
        return self.excess_bytes <= 0.0


def as_1f1b(table: StageTable) -> StageTable:
    """An interleaved table as the 1F1B table of the same estimated time, counted in units of v layers.

    With v chunks per stage the estimate ``G max t + (sum t - max t)/v`` equals ``(Gv - 1) max(t/v) + sum(t/v)``: the
    additive form of a pipeline with v times as many micro-batches and stages v times as short. Transfers count once per
    chunk that is passed on. A stage's chunks have equal layers, so n layers are n / v units.
    """
    v = table.virtual_stages
    if v == 1:
        return table
    return replace(
        table,
        forward_s=table.forward_s[:, ::v] / v,
        backward_s=table.backward_s[:, ::v] / v,
        memory_bytes=table.memory_bytes[:, ::v],
        tail_s=table.tail_s[:, ::v],
        layers=table.layers // v,
        p2p_s=np.zeros_like(table.p2p_s),
        micro_batches=table.micro_batches * v,
        virtual_stages=1,
        fixed_s=table.fixed_s + 2 * v * float(table.p2p_s.sum()) + 2 * (v - 1) * table.wrap_s,
    )


def fixed_split(table: StageTable, layers: Sequence[int]) -> StageTable:
    """A table in which stage i has exactly ``layers[i]`` layers, called one: only the recompute is left open."""
    stages, at = table.stages, (np.arange(table.stages), np.asarray(layers))

    def only(values: Array) -> Array:
        out = np.full((stages, stages + 1, *values.shape[2:]), np.inf)
        out[:, 1] = values[at]
        return out

    return replace(
        table,
        forward_s=only(table.forward_s),
        backward_s=only(table.backward_s),
        memory_bytes=only(table.memory_bytes),
        tail_s=only(table.tail_s),
        layers=stages,
    )


def transfer_s(table: StageTable) -> Array:
    """(P,) transfers beside each stage, c_{i-1} + c_i."""
    padded = np.concatenate([[0.0], table.p2p_s, [0.0]])
    return np.asarray(padded[:-1] + padded[1:])


def figures(
    table: StageTable, layers: tuple[int, ...], options: tuple[int, ...], variance_kind: str = "bytes"
) -> PlanFigures:
    """The measures of one split and recompute of a 1F1B table; options are indices into ``table.options``."""
    at = (np.arange(table.stages), np.asarray(layers), np.asarray(options))
    time = table.forward_s[at] + table.backward_s[at]
    memory = table.memory_bytes[at]
    tail = float(table.tail_s[at[0], at[1]].max())
    total = (
        (table.micro_batches - 1) * float((time + transfer_s(table)).max())
        + float(time.sum())
        + 2.0 * float(table.p2p_s.sum())
        + table.fixed_s
        + tail
    )
    measure = memory / table.whole_bytes if variance_kind == "utilization" else memory
    return PlanFigures(total, float(memory.max()), weighted_variance(measure, table.gpus))


def weighted_variance(values: Array, weights: Array) -> float:
    """Variance of (P,) values, each counted ``weights`` times."""
    share = weights / weights.sum()
    return float(share @ (values - share @ values) ** 2)


def compute_bounds(table: StageTable, *, one_recompute: bool = False, variance_kind: str = "bytes") -> Bounds:
    """Bounds of a skeleton.

    Args:
        table: The skeleton's table, interleaved or not.
        one_recompute: Every stage must use the same strategy (one setting for the whole job).
        variance_kind: Of bytes, or of utilization (memory / capacity).
    """
    units, given = table.virtual_stages, table
    table = as_1f1b(table)
    capacity = table.capacity_bytes[:, None]
    # One layer at least for every other stage.
    columns = table.layers - table.stages + 2
    memory = table.memory_bytes[:, :columns]
    least = at_least(memory.min(axis=2))
    over = least - capacity
    excess = _least_maximum(over, table.layers)
    binding = int(_stage_at(over, excess))
    whole = table.whole_bytes[:, None]
    utilization = _least_maximum(least / whole, table.layers)
    if excess > 0.0 or not np.isfinite(excess):
        inf = float("inf")
        return Bounds(excess, binding, utilization, inf, inf, inf, None)
    fits = memory <= capacity[:, :, None]
    time = at_least(np.where(fits, table.time_s[:, :columns], np.inf).min(axis=2))
    period = _least_maximum(time + transfer_s(table)[:, None], table.layers)
    first = time[:, 1]
    with np.errstate(invalid="ignore"):
        slope = (time[:, 2:] - first[:, None]) / np.arange(1, columns - 1)
    spare = table.layers - table.stages
    total = float(first.sum()) + (spare * float(np.nanmin(slope)) if spare > 0 else 0.0)
    tail = float(at_least(table.tail_s[:, :columns])[:, 1].max())
    time_s = (table.micro_batches - 1) * period + total + 2.0 * float(table.p2p_s.sum()) + table.fixed_s + tail
    peak = _least_maximum(least, table.layers)
    highest = np.where(fits, memory, -np.inf).max(axis=(1, 2))
    scale = table.whole_bytes if variance_kind == "utilization" else np.ones(table.stages)
    variance = _least_variance(least[:, 1] / scale, highest / scale, table.gpus)
    even = _even(table, fits, one_recompute, units, variance_kind)
    rows = StageRows(
        time[None],
        table.tail_s[None, :, :columns],
        np.asarray(given.p2p_s)[None],
        np.array([given.wrap_s]),
        np.array([given.fixed_s]),
        np.array([float(given.micro_batches)]),
        units,
        table.layers,
    )
    return Bounds(excess, binding, utilization, time_s, peak, variance, even, EventTimes.of(rows))


def _even(
    table: StageTable, fits: NDArray[np.bool_], one_recompute: bool, units: int, variance_kind: str
) -> EvenPlan | None:
    layers = np.asarray(even_split(table.layers, table.stages))
    usable = fits[np.arange(table.stages), layers, :]
    if one_recompute:
        usable = np.broadcast_to(usable.all(axis=0), usable.shape)
    if not usable.any(axis=1).all():
        return None
    options = usable.argmax(axis=1)
    made = figures(table, tuple(layers.tolist()), tuple(options.tolist()), variance_kind)
    memory = table.memory_bytes[np.arange(table.stages), layers, options]
    used = memory / table.whole_bytes
    return EvenPlan(
        made.time_s,
        made.peak_bytes,
        made.variance_bytes2,
        tuple((layers * units).tolist()),
        tuple(table.options[r] for r in options),
        int(used.argmax()),
        float(used.max()),
        weighted_variance(memory, table.gpus),
    )


def _least_maximum(values: Array, layers: int) -> float:
    """:func:`~memx_engine.search.event_times.least_maxima` of one skeleton's (P, L+1) values."""
    return float(least_maxima(values[None, :, 1:].copy(), values[None, :, 1], layers)[0])


def _stage_at(values: Array, maximum: float) -> int:
    """A stage that sits at the maximum."""
    return int((values[:, 1:] == maximum).any(axis=1).argmax())


def _least_variance(low: Array, high: Array, weights: Array) -> float:
    """The least variance of numbers that lie in [low, high]: all as near as they can to one common value.

    The squared distance to a centre c is convex in c, and its least value lies at c where the clipped mean equals c.
    """
    if low.max() <= high.min():
        return 0.0
    # The clipped mean minus c falls piecewise linearly in c, with corners at the ends of the ranges.
    corners = np.sort(np.concatenate([low, high]))
    pull = np.average(np.clip(corners[:, None], low, high), axis=1, weights=weights) - corners
    after = int(np.argmax(pull <= 0.0))
    before = max(after - 1, 0)
    fall = pull[before] - pull[after]
    share = pull[before] / fall if fall > 0.0 else 0.0
    centre = corners[before] + share * (corners[after] - corners[before])
    spread = float(np.average((np.clip(centre, low, high) - centre) ** 2, weights=weights))
    # Rounding must not lift the bound above a plan that reaches it.
    return spread * (1.0 - 1e-9)
