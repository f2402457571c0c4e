"""Bounds of many skeletons at once, from the rows that their stages share; the same numbers as one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.sketch import RowBook, Sketch
from memx_engine.cost.table import Array
from memx_engine.search.bounds import EvenPlan
from memx_engine.search.event_times import Ends, least_maxima, shrinking
from memx_engine.search.fitting import BoundColumns, split_of
from memx_engine.search.space import even_split

_MOST_NUMBERS = 250_000
"""Numbers of one temporary array; larger batches are cut."""

_OF_EVEN_PLAN = ("time_s", "peak_bytes", "variance", "worst_stage", "worst_fraction", "spread_bytes2")

Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Batch:
    """B sketches of P stages in one book, U units; times of the 1F1B form.

    ``factor`` (B, 1), None where no skeleton has one.
    """

    rows: Places
    whole: Array
    period_micro_batches: Array
    around_s: Array
    constant_s: Array
    p2p_s: Array
    wrap_s: Array
    fixed_s: Array
    factor: Array | None

    def some(self, at: Places) -> Batch:
        if len(at) == len(self.rows):
            return self
        return Batch(
            self.rows[at],
            self.whole[at],
            self.period_micro_batches[at],
            self.around_s[at],
            self.constant_s[at],
            self.p2p_s[at],
            self.wrap_s[at],
            self.fixed_s[at],
            None if self.factor is None else self.factor[at],
        )


def batches(sketches: Sequence[Sketch]) -> Iterator[list[int]]:
    """Numbers of the sketches in parts that can be bounded in one step: of one book and one number of stages."""
    alike: dict[tuple[int, int], list[int]] = {}
    for k, sketch in enumerate(sketches):
        alike.setdefault((id(sketch.book), len(sketch.rows)), []).append(k)
    for (_, stages), members in alike.items():
        step = at_once(sketches[members[0]].book.units, stages)
        for start in range(0, len(members), step):
            yield members[start : start + step]


def at_once(units: int, stages: int) -> int:
    """How many skeletons of so many stages are bounded in one step: their arrays take little memory."""
    return max(1, _MOST_NUMBERS // (stages * (max(units - stages, 0) + 2)))


def sketched_bounds(
    sketches: Sequence[Sketch], *, variance_kind: str = "bytes", max_layer_difference: int | None = None
) -> BoundColumns:
    """What :func:`memx_engine.search.bounds.compute_bounds` says of the skeletons' stage tables.

    What nothing needs is left out: the excess of a skeleton that fits (minus infinity), the utilization of one that
    does not (infinite).

    Args:
        max_layer_difference: Even splits whose stages differ by more layers are none.
    """
    out = BoundColumns.unknown(len(sketches))
    for at in batches(sketches):
        some = [sketches[k] for k in at]
        fits = _bound_alike(out, np.array(at), some, variance_kind)
        first = some[0]
        uneven = first.virtual_stages if first.book.units % len(first.rows) else 0
        if fits is not None and (max_layer_difference is None or uneven <= max_layer_difference):
            _evens(out, *fits, variance_kind)
    return out


def batch_of(sketches: Sequence[Sketch]) -> Batch:
    """Of sketches with one book and one number of stages."""
    first = sketches[0]
    v, count, stages = first.virtual_stages, len(sketches), len(first.rows)
    rows = np.concatenate([s.rows for s in sketches]).reshape(count, stages).astype(np.intp)
    p2p = np.concatenate([s.p2p_s for s in sketches]).reshape(count, stages - 1)
    groups, fixed, wrap, factor = np.array(
        [(s.micro_batches, s.fixed_s, s.wrap_s, s.factor) for s in sketches], dtype=np.float64
    ).T
    around = np.zeros(rows.shape)
    if v == 1:
        around[:, 1:] += p2p
        around[:, :-1] += p2p
        constant = 2.0 * p2p.sum(axis=1) + fixed
    else:
        constant = fixed + 2.0 * v * p2p.sum(axis=1) + 2.0 * (v - 1) * wrap
    return Batch(
        rows=rows,
        whole=first.book.whole[rows],
        period_micro_batches=groups * v - 1.0,
        around_s=around,
        constant_s=constant,
        p2p_s=p2p,
        wrap_s=wrap,
        fixed_s=fixed,
        factor=None if (factor == 1.0).all() else factor[:, None],
    )


def _bound_alike(
    out: BoundColumns, places: Places, sketches: Sequence[Sketch], variance_kind: str
) -> tuple[Places, Sequence[Sketch], Batch] | None:
    """Bounds of sketches of one book and one number of stages, written to ``places``; those of them that fit."""
    book, batch = sketches[0].book, batch_of(sketches)
    stages = batch.rows.shape[1]
    # One unit at least for every other stage.
    columns = book.units - stages + 2
    most = np.minimum(book.most[batch.rows], columns - 1)
    fits = (most.min(axis=1) >= 1) & (most.sum(axis=1) >= book.units)
    short = np.flatnonzero(~fits)
    if len(short):
        _exceed(out, places[short], book, batch.some(short), columns)
    at = np.flatnonzero(fits)
    if not len(at):
        return None
    places, batch, sketches = places[at], batch.some(at), [sketches[k] for k in at.tolist()]
    out.excess_bytes[places] = -np.inf
    one_unit = book.columns["least"][batch.rows, 1]
    least = _many_units(book, "least", batch, columns)
    out.utilization[places] = least_maxima(least / batch.whole[:, :, None], one_unit / batch.whole, book.units)
    out.peak_bytes[places] = least_maxima(least, one_unit, book.units)
    out.time_s[places] = _least_times(book, batch, columns)
    ends = _ends(book, batch, columns, sketches[0].virtual_stages)
    out.closed_times[places], out.closed_less_s[places] = shrinking(ends)
    low, high = one_unit, book.columns["high"][batch.rows, columns - 1]
    if variance_kind == "utilization":
        low, high = low / batch.whole, high / batch.whole
    out.variance_bytes2[places] = _least_variances(low, high)
    return places, sketches, batch


def _exceed(out: BoundColumns, places: Places, book: RowBook, batch: Batch, columns: int) -> None:
    """By how much skeletons that do not fit exceed their memory, and where."""
    over = _many_units(book, "least", batch, columns) - book.capacity[batch.rows][:, :, None]
    excess = least_maxima(over.copy(), over[:, :, 0], book.units)
    out.excess_bytes[places] = excess
    out.binding_stage[places] = (over == excess[:, None, None]).any(axis=2).argmax(axis=1)


def _many_units(book: RowBook, name: str, batch: Batch, columns: int) -> Array:
    """(B, P, columns - 1) values of one unit on."""
    return np.asarray(book.columns[name][batch.rows, 1:columns])


def _least_times(book: RowBook, batch: Batch, columns: int) -> Array:
    """(B,) additive time that no plan falls below; factors other than 1 scale all but transfers, which carry theirs."""
    time_s = _many_units(book, "time", batch, columns)
    first = book.columns["time"][batch.rows, 1]
    tail = book.least_tail[book.tail_of[batch.rows], columns - 1].max(axis=1)
    spare = book.units - batch.rows.shape[1]
    # With one stage fewer than units at least, some stage has a second unit.
    growth = spare * np.fmin.reduce(book.columns["slope"][batch.rows, columns - 1], axis=1) if spare > 0 else 0.0
    if batch.factor is not None:
        time_s = time_s * batch.factor[:, :, None]
        first = first * batch.factor
        tail, growth = tail * batch.factor[:, 0], growth * batch.factor[:, 0]
    time_s += batch.around_s[:, :, None]
    period = least_maxima(time_s, first + batch.around_s, book.units)
    return np.asarray(batch.period_micro_batches * period + first.sum(axis=1) + growth + batch.constant_s + tail)


def _ends(book: RowBook, batch: Batch, columns: int, virtual_stages: int) -> Ends:
    """What tells how much shorter than the closed form event times can be."""
    tail = book.least_tail[book.tail_of[batch.rows[:, 0]], columns - 1]
    return Ends(
        tail_share=book.tail_share[batch.rows].max(axis=1),
        tail_s=tail if batch.factor is None else tail * batch.factor[:, 0],
        p2p_s=batch.p2p_s,
        wrap_s=batch.wrap_s,
        fixed_s=batch.fixed_s,
        micro_batches=(batch.period_micro_batches + 1.0) / virtual_stages,
        virtual_stages=virtual_stages,
    )


def _least_variances(low: Array, high: Array) -> Array:
    """(B,) least variance of P equally weighted numbers in [low, high]; see ``bounds._least_variance``."""
    out = np.zeros(len(low))
    at = np.flatnonzero(low.max(axis=1) > high.min(axis=1))
    if not len(at):
        return out
    low, high = low[at], high[at]
    ends = np.concatenate([low, high], axis=1)
    order = np.argsort(ends, axis=1)
    corners = np.take_along_axis(ends, order, axis=1)
    # Between two corners the clipped mean grows with the share of the ranges that hold both.
    inside = np.cumsum(np.where(order < low.shape[1], 1.0, -1.0), axis=1)[:, :-1]
    pull = low.mean(axis=1)[:, None] - corners
    pull[:, 1:] += np.cumsum(inside * np.diff(corners, axis=1), axis=1) / low.shape[1]
    after = (pull <= 0.0).argmax(axis=1)
    before = np.maximum(after - 1, 0)
    k = np.arange(len(at))
    fall = pull[k, before] - pull[k, after]
    share = np.where(fall > 0.0, pull[k, before] / np.where(fall > 0.0, fall, 1.0), 0.0)
    centre = (corners[k, before] + share * (corners[k, after] - corners[k, before]))[:, None]
    # Rounding must not lift the bound above a plan that reaches it.
    out[at] = ((np.clip(centre, low, high) - centre) ** 2).mean(axis=1) * (1.0 - 1e-9)
    return out


def _evens(out: BoundColumns, places: Places, sketches: Sequence[Sketch], batch: Batch, variance_kind: str) -> None:
    """The even splits with the lightest recompute that fits."""
    book = sketches[0].book
    units = np.asarray(even_split(book.units, batch.rows.shape[1]))
    agreed = [s.even for s in sketches if s.even is not None]
    if agreed:
        at = np.flatnonzero([even.option >= 0 for even in agreed])
    else:
        at = np.flatnonzero((book.even_option[batch.rows, units] >= 0).all(axis=1))
    if not len(at):
        return
    places, batch = places[at], batch.some(at)
    if agreed:
        time_s = np.stack([agreed[k].time_s for k in at.tolist()])
        memory = np.stack([agreed[k].memory for k in at.tolist()])
    else:
        time_s, memory = book.columns["even_time"][batch.rows, units], book.columns["even_memory"][batch.rows, units]
    units = np.broadcast_to(units, batch.rows.shape)
    for name, values in _measures(book, batch, units, time_s, memory, variance_kind).items():
        getattr(out, "even_" + name)[places] = values


def _measures(
    book: RowBook, batch: Batch, units: Places, time_s: Array, memory: Array, variance_kind: str
) -> dict[str, NDArray[Any]]:
    """What splits into (B, P) units measure, of which each stage has this time and memory; (B,) columns."""
    tail = book.columns["tail"][batch.rows, units].max(axis=1)
    if batch.factor is not None:
        time_s, tail = time_s * batch.factor, tail * batch.factor[:, 0]
    used = memory / batch.whole
    by_bytes = memory.var(axis=1)
    worst = used.argmax(axis=1)
    return {
        "time_s": batch.period_micro_batches * (time_s + batch.around_s).max(axis=1)
        + time_s.sum(axis=1)
        + batch.constant_s
        + tail,
        "peak_bytes": memory.max(axis=1),
        "spread_bytes2": by_bytes,
        "variance": by_bytes if variance_kind == "bytes" else used.var(axis=1),
        "worst_stage": worst,
        "worst_fraction": used[np.arange(len(used)), worst],
    }


def balanced_splits(sketches: Sequence[Sketch], *, variance_kind: str = "bytes") -> list[EvenPlan | None]:
    """Layers in proportion to the speed of a stage's one layer, as far as they fit, with the lightest recompute.

    What does not fit on a stage goes to the first stages with room. None where that makes no plan.
    """
    out: list[EvenPlan | None] = [None] * len(sketches)
    for members in batches(sketches):
        some = [sketches[k] for k in members]
        book, batch = some[0].book, batch_of(some)
        stages = batch.rows.shape[1]
        most = np.minimum(book.most[batch.rows], book.units - stages + 1)
        speed = 1.0 / (book.columns["time"][batch.rows, 1] + batch.around_s)
        share = 1.0 + (book.units - stages) * speed / speed.sum(axis=1, keepdims=True)
        units = np.floor(share).astype(np.int64)
        # What rounding down left goes to the largest remainders.
        rank = np.argsort(np.argsort(units - share, axis=1, kind="stable"), axis=1)
        units += rank < (book.units - units.sum(axis=1))[:, None]
        units = np.minimum(units, most)
        room = most - units
        over = book.units - units.sum(axis=1)
        units = units + np.clip(over[:, None] - (np.cumsum(room, axis=1) - room), 0, room)
        at = np.flatnonzero((units.sum(axis=1) == book.units) & (units >= 1).all(axis=1))
        at = at[(book.even_option[batch.rows[at], units[at]] >= 0).all(axis=1)]
        some_rows, units = batch.rows[at], units[at]
        time_s, memory = book.columns["even_time"][some_rows, units], book.columns["even_memory"][some_rows, units]
        made = _measures(book, batch.some(at), units, time_s, memory, variance_kind)
        columns = zip(*(made[name].tolist() for name in _OF_EVEN_PLAN), strict=True)
        for k, split, figures in zip(at.tolist(), units.tolist(), columns, strict=True):
            time_of, peak, variance, *worst = figures
            layers, recompute = split_of(some[k], split)
            out[members[k]] = EvenPlan(time_of, peak, variance, layers, recompute, *worst)
    return out
