"""How many layers each stage of a skeleton can have in a plan that matters: what the solver need not look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.sketch import Sketch
from memx_engine.search.objective import Objective
from memx_engine.search.sketch_bounds import batch_of, batches

Array = NDArray[np.float64]

_FAR = 100.0  # of a logarithm: more excludes nothing
_HAIR = 1e-9  # by which a limit is wider than it need be, so that rounding excludes nothing
_TURNS = 2


@dataclass(frozen=True, slots=True)
class Window:
    """Of one skeleton, in units of v layers.

    Attributes:
        fewest, most: Per stage. Where the most do not make up the model, no plan matters.
        around_s: (P,) transfers beside each stage. constant_s, period_factor: Of the time's form.
    """

    fewest: list[int]
    most: list[int]
    around_s: Array
    constant_s: float
    period_factor: float


def windows(
    sketches: Sequence[Sketch], objective: Objective, time_s: Array, peak_bytes: Array, room: Array
) -> list[Window]:
    """The windows of n skeletons.

    The period of a plan with time T is at most (T - the rest) / its factor, and the rest at least what the fewest units
    take; both times and memory never fall with the units.

    Args:
        time_s, peak_bytes: (n,) bounds of every plan. room: (n,) how far a log Phi that matters may be above that of
            the bounds.
    """
    out: list[Window | None] = [None] * len(sketches)
    for at in batches(sketches):
        for k, made in zip(at, _alike(sketches, at, objective, time_s, peak_bytes, room), strict=True):
            out[k] = made
    return [window for window in out if window is not None]


def _alike(
    sketches: Sequence[Sketch], at: list[int], objective: Objective, time_s: Array, peak_bytes: Array, room: Array
) -> list[Window]:
    some = [sketches[k] for k in at]
    book, batch, weights = some[0].book, batch_of(some), objective.weights
    rows, factor = batch.rows, batch.period_micro_batches
    count, stages = rows.shape
    columns = book.units - stages + 2
    most = np.minimum(book.most[rows], columns - 1)
    if weights.peak:
        limit = peak_bytes[at] * np.exp(np.minimum(room[at] / weights.peak, _FAR)) * (1.0 + _HAIR)
        light = book.columns["least"][rows, 1:columns] <= limit[:, None, None]
        most = np.minimum(most, light.sum(axis=2))
    fewest = _fewest(book.units, most)
    if weights.time:
        times = book.columns["time"][rows, :columns]
        if batch.factor is not None:
            times = times * batch.factor[:, :, None]
        limit = time_s[at] * np.exp(np.minimum(room[at] / weights.time, _FAR)) * (1.0 + _HAIR)
        stage, skeleton = np.arange(stages), np.arange(count)[:, None]
        for _ in range(_TURNS):
            first = times[skeleton, stage, np.minimum(fewest, columns - 1)].sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                period = np.where(factor > 0.0, (limit - batch.constant_s - first) / factor, np.inf)
            within = times[:, :, 1:] + batch.around_s[:, :, None] <= period[:, None, None]
            most = np.minimum(most, within.sum(axis=2))
            fewest = _fewest(book.units, most)
    lists = zip(fewest.tolist(), most.tolist(), batch.around_s, batch.constant_s.tolist(), factor.tolist(), strict=True)
    return [Window(*one) for one in lists]


def _fewest(units: int, most: NDArray[np.int64]) -> NDArray[np.int64]:
    """(B, P) what the other stages leave at least."""
    return np.asarray(np.maximum(units - (most.sum(axis=1, keepdims=True) - most), 1))
