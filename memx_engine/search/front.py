"""The Pareto front over (time, peak, variance) inside one skeleton: complete plans that no other plan dominates.

The peak is bounded in steps between its least value and that of the fastest plan (an ε-constraint); under each bound
time and variance are traded by exact optima of weighted products. Every weight is positive there, so that whatever
dominated such an optimum would have been the better optimum: each plan returned is on the true front, and the
resolution decides only how many of its plans are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memx_engine.cost.table import StageTable
from memx_engine.search.branch_and_bound import BranchAndBound
from memx_engine.search.choices import NO_LIMITS, Choices, Limits, build_choices
from memx_engine.search.nodes import Candidate, Criterion
from memx_engine.search.pareto import pareto_mask
from memx_engine.search.solver import masks_of

_SLIGHT = 0.01  # the least weight of each of the three inside the front
_HINT = 1e-4  # a weight that breaks ties
_EPSILON = 4e-4  # of the squared memory range: spreads the optima between even and uneven plans
_SAME = 1e-12


@dataclass(frozen=True)
class FrontPlan:
    """One plan of the front; ``options`` index the table's recompute options, ``variance`` is of ``variance_kind``."""

    layers: tuple[int, ...]
    options: tuple[int, ...]
    time_s: float
    peak_bytes: float
    variance: float


def skeleton_front(
    table: StageTable,
    *,
    variance_kind: str = "bytes",
    resolution: int = 4,
    limits: Limits | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[FrontPlan, ...]:
    """Non-dominated plans of a skeleton by rising time; empty where nothing fits.

    The fastest plan (of those the one with the least peak), the plan of least peak (of those the fastest) and a plan of
    least variance are always among them. Times are additive (1F1B) or the interleaved estimate.

    Args:
        resolution: Steps of the peak bound and of the trade between time and variance, at least 1; the front grows
            with it, the work with its square.
        should_stop: Asked before each plan is sought; the front of what was found comes back.
    """
    if resolution < 1:
        raise ValueError("resolution is at least 1")
    limits = limits or NO_LIMITS
    limits.check(table)
    choices = build_choices(table, variance_kind, limits, by_variance=True)
    if choices is None:
        return ()
    finder = _Finder(choices, limits)
    lightest = finder.best(0.0, 1.0, 0.0)
    if lightest is None:
        return ()
    fastest = finder.lightest_of_fastest(lightest.peak)
    found = [fastest, finder.best(1.0, 0.0, 0.0, lightest.peak), finder.best(0.0, 0.0, 1.0)]
    # The extremes again, the other two with a slight say: a plan that ties with an extreme and dominates it.
    found += [finder.best(1.0, _HINT, _HINT), finder.best(_HINT, 1.0, _HINT), finder.best(_HINT, _HINT, 1.0)]
    steps = np.linspace(lightest.peak, fastest.peak, resolution + 1).tolist()
    trades = np.linspace(_SLIGHT, 1.0 - _SLIGHT, resolution + 1).tolist()
    for bound in (math.inf, *reversed(steps)):
        for trade in trades:
            if should_stop is not None and should_stop():
                return _front(found, choices)
            found.append(finder.best(trade, _SLIGHT, 1.0 - trade, bound))
    return _front(found, choices)


class _Finder:
    """Exact optima of one skeleton under changing weights and peak bounds."""

    def __init__(self, choices: Choices, limits: Limits) -> None:
        self._choices = choices
        self._masks = masks_of(choices, limits)

    def best(self, time: float, peak: float, variance: float, most_peak: float = math.inf) -> Candidate | None:
        criterion = Criterion(time, peak, variance, _EPSILON)
        return BranchAndBound(self._choices, criterion, masks=self._masks, most_peak=most_peak).run().best

    def lightest_of_fastest(self, least_peak: float) -> Candidate:
        """Among the plans of least time, one of the least peak: the least time falls as the peak's bound rises."""
        best = self.best(1.0, 0.0, 0.0)
        assert best is not None, "some plan fits"
        peaks = np.unique(self._choices.memory[self._choices.valid])
        low, high = int(np.searchsorted(peaks, least_peak)), int(np.searchsorted(peaks, best.peak))
        while low < high:
            middle = (low + high) // 2
            other = self.best(1.0, 0.0, 0.0, float(peaks[middle]))
            if other is not None and other.time_s <= best.time_s * (1 + _SAME):
                best, high = other, int(np.searchsorted(peaks, other.peak))
            else:
                low = middle + 1
        return best


def _front(found: list[Candidate | None], choices: Choices) -> tuple[FrontPlan, ...]:
    unique = {(c.layers, c.options): c for c in found if c is not None}
    plans = sorted(unique.values(), key=lambda c: (c.time_s, c.peak, c.variance, c.layers, c.options))
    values = np.array([(c.time_s, c.peak, c.variance) for c in plans])
    kept = pareto_mask(values[:, 0], values[:, 1], values[:, 2])
    return tuple(
        FrontPlan(c.layers, c.options, c.time_s, c.peak, c.variance * choices.scale**2)
        for c, keep in zip(plans, kept, strict=True)
        if keep
    )
