"""Bounds of many skeletons at once, from the rows that their stages share; the same numbers as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.sketch import Ints, RowBook, Sketch
from memx_engine.cost.table import Array
from memx_engine.search.fitting import BoundColumns
from memx_engine.search.space import even_split

_MOST_NUMBERS = 2_000_000
"""Numbers of one temporary array; larger batches are cut."""


@dataclass(frozen=True, eq=False)
class _Batch:
    """B sketches of P stages in one book, U units; times of the 1F1B form."""

    rows: Ints
    capacity: Array
    period_micro_batches: Array
    around_s: Array
    constant_s: Array
    factor: Array
    gpus: Array


def sketched_bounds(sketches: Sequence[Sketch], *, variance_kind: str = "bytes") -> BoundColumns:
    """What :func:`memx_engine.search.bounds.compute_bounds` says of the skeletons' stage tables."""
    out = BoundColumns.unknown(len(sketches))
    alike: dict[tuple[int, int], list[int]] = {}
    for k, sketch in enumerate(sketches):
        alike.setdefault((id(sketch.book), len(sketch.rows)), []).append(k)
    for (_, stages), members in alike.items():
        book = sketches[members[0]].book
        step = max(1, _MOST_NUMBERS // (stages * (book.units + 1 + 2 * stages)))
        for start in range(0, len(members), step):
            at = members[start : start + step]
            out.put(at, _bound_alike([sketches[k] for k in at], variance_kind))
    return out


def _batch(sketches: Sequence[Sketch]) -> _Batch:
    v = sketches[0].virtual_stages
    rows = np.stack([s.rows for s in sketches])
    p2p = np.stack([s.p2p_s for s in sketches])
    total = p2p.sum(axis=1)
    fixed = np.array([s.fixed_s for s in sketches])
    around = np.zeros(rows.shape)
    if v == 1:
        around[:, 1:] += p2p
        around[:, :-1] += p2p
        constant = 2.0 * total + fixed
    else:
        constant = fixed + 2.0 * v * total + 2.0 * (v - 1) * np.array([s.wrap_s for s in sketches])
    return _Batch(
        rows=rows,
        capacity=sketches[0].book.capacity[rows],
        period_micro_batches=np.array([s.micro_batches * v - 1.0 for s in sketches]),
        around_s=around,
        constant_s=constant,
        factor=np.array([s.factor for s in sketches]),
        gpus=np.array([s.gpus for s in sketches]),
    )


def _bound_alike(sketches: Sequence[Sketch], variance_kind: str) -> BoundColumns:
    book, batch = sketches[0].book, _batch(sketches)
    units = book.units
    count, stages = batch.rows.shape
    # One unit at least for every other stage.
    columns = units - stages + 2
    least = book.columns["least"][batch.rows, :columns]
    over = least - batch.capacity[:, :, None]
    out = BoundColumns.unknown(count)
    out.excess_bytes = _least_maxima(over, units)
    out.binding_stage = (over[:, :, 1:] == out.excess_bytes[:, None, None]).any(axis=2).argmax(axis=1)
    out.utilization = _least_maxima(least / batch.capacity[:, :, None], units)
    at = np.flatnonzero(out.excess_bytes <= 0.0)
    if len(at):
        some = _some(batch, at)
        out.time_s[at] = _least_times(
            book.columns["time"][some.rows, :columns], book.columns["tail"][some.rows, :columns], some, units
        )
        out.peak_bytes[at] = _least_maxima(least[at], units)
        low, high = least[at][:, :, 1], book.columns["high"][some.rows, columns - 1]
        if variance_kind == "utilization":
            low, high = low / some.capacity, high / some.capacity
        out.variance_bytes2[at] = _least_variances(low, high)
        _evens(out, at, book, some, variance_kind)
    return out


def _some(batch: _Batch, at: NDArray[np.intp]) -> _Batch:
    return _Batch(
        batch.rows[at],
        batch.capacity[at],
        batch.period_micro_batches[at],
        batch.around_s[at],
        batch.constant_s[at],
        batch.factor[at],
        batch.gpus[at],
    )


def _least_times(time_s: Array, tail_s: Array, batch: _Batch, units: int) -> Array:
    """(B,) additive time that no plan falls below; factors other than 1 scale all but transfers, which carry theirs."""
    factor = batch.factor[:, None, None]
    time_s = time_s * factor
    period = _least_maxima(time_s + batch.around_s[:, :, None], units)
    first = time_s[:, :, 1]
    total = first.sum(axis=1)
    spare = units - time_s.shape[1]
    if spare > 0:
        with np.errstate(invalid="ignore"):
            slope = (time_s[:, :, 2:] - first[:, :, None]) / np.arange(1, time_s.shape[2] - 1)
        total = total + spare * np.nanmin(slope.reshape(len(slope), -1), axis=1)
    tail = tail_s[:, :, 1:].min(axis=2).max(axis=1) * batch.factor
    return np.asarray(batch.period_micro_batches * period + total + batch.constant_s + tail)


def _least_maxima(values: Array, units: int) -> Array:
    """(B,) of (B, P, U+1): the least possible maximum over stages, each with at least one unit."""
    flat = values[:, :, 1:].reshape(len(values), -1)
    counted = np.partition(flat, units - 1, axis=1)[:, units - 1]
    return np.asarray(np.maximum(counted, values[:, :, 1].max(axis=1)))


def _least_variances(low: Array, high: Array) -> Array:
    """(B,) least variance of P equally weighted numbers in [low, high]; see ``bounds._least_variance``."""
    out = np.zeros(len(low))
    at = np.flatnonzero(low.max(axis=1) > high.min(axis=1))
    if not len(at):
        return out
    low, high = low[at], high[at]
    corners = np.sort(np.concatenate([low, high], axis=1), axis=1)
    pull = np.clip(corners[:, :, None], low[:, None, :], high[:, None, :]).mean(axis=2) - corners
    after = (pull <= 0.0).argmax(axis=1)
    before = np.maximum(after - 1, 0)
    k = np.arange(len(at))
    fall = pull[k, before] - pull[k, after]
    share = np.where(fall > 0.0, pull[k, before] / np.where(fall > 0.0, fall, 1.0), 0.0)
    centre = (corners[k, before] + share * (corners[k, after] - corners[k, before]))[:, None]
    # Rounding must not lift the bound above a plan that reaches it.
    out[at] = ((np.clip(centre, low, high) - centre) ** 2).mean(axis=1) * (1.0 - 1e-9)
    return out


def _evens(out: BoundColumns, at: NDArray[np.intp], book: RowBook, batch: _Batch, variance_kind: str) -> None:
    """The even splits with the lightest recompute that fits, for the rows ``at`` of ``out``."""
    where = (batch.rows, np.asarray(even_split(book.units, batch.rows.shape[1]))[None, :])
    possible = (book.even_option[where] >= 0).all(axis=1)
    time_s = book.columns["even_time"][where] * batch.factor[:, None]
    memory = book.columns["even_memory"][where]
    total = (
        batch.period_micro_batches * (time_s + batch.around_s).max(axis=1)
        + time_s.sum(axis=1)
        + batch.constant_s
        + (book.columns["tail"][where].max(axis=1) * batch.factor)
    )
    used = memory / batch.capacity
    by_bytes = _variances(memory)

    def put(column: Array, values: Array) -> None:
        column[at] = np.where(possible, values, np.inf)

    put(out.even_time_s, total)
    put(out.even_peak_bytes, memory.max(axis=1))
    put(out.even_variance, by_bytes if variance_kind == "bytes" else _variances(used))
    put(out.even_spread_bytes2, by_bytes)
    put(out.even_worst_fraction, used.max(axis=1))
    out.even_worst_stage[at] = used.argmax(axis=1)


def _variances(values: Array) -> Array:
    """(B,) variance of (B, P) equally weighted numbers; infinite where one of them is."""
    with np.errstate(invalid="ignore"):
        made = ((values - values.mean(axis=1, keepdims=True)) ** 2).mean(axis=1)
    return np.asarray(np.where(np.isfinite(made), made, np.inf))
