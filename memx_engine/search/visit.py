"""One visit of many nodes of the branch and bound: their intervals, bounds, regions and halves, as arrays.

See :mod:`memx_engine.search.branch_and_bound` for the method. Arrays over nodes are (B,), intervals (4, B): the lower
or upper ends of the period, the peak, the tail and the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.polygons import Regions
from memx_engine.search.problem import Criterion
from memx_engine.search.wave import Plans, Wave

Array = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

TIE = 1e-12
_ROUNDING = 2e-14  # relative error of a sum over stages
_SMALLEST_GAIN = 2e-11  # of a cut, in log Phi; less means that a plan lies at the vertex
_SMALLEST_VARIANCE = 1e-18  # of the squared memory range; below it only rounding is left
_MEAN = 3


class Node(NamedTuple):
    """Intervals of period, peak, tail and mean of one skeleton's plans, and the region known to hold their (x, y).

    ``region``: x and y of its vertices and how many they are; None for a node that was never visited.
    """

    problem: int
    choices: Array
    low: tuple[float, ...]
    high: tuple[float, ...]
    region: tuple[Array, Array, int] | None


@dataclass(frozen=True, eq=False)
class Halves:
    """(B,) how nodes are split: whether they can be; interval number ``which``, up to a value, and from one on."""

    there: Bools
    which: Ints
    up_to: Array
    from_: Array


class Visit:
    """Nodes side by side, all of them new or all of them visited before.

    Attributes:
        problems: (B,) numbers of the nodes' skeletons.
        low, high: (4, B) intervals. regions: Around (x, y) of every plan.
    """

    def __init__(self, criterion: Criterion, nodes: Sequence[Node], wave: Wave) -> None:
        self.problems = np.array([node.problem for node in nodes])
        self.wave, self._criterion = wave, criterion
        self.low, self.high = np.array([n.low for n in nodes]).T.copy(), np.array([n.high for n in nodes]).T.copy()
        known = [node.region for node in nodes if node.region is not None]
        zero = np.zeros(len(nodes))
        self.regions = Regions.corners(zero, zero)
        if known:
            self.regions = Regions(
                np.array([x for x, _, _ in known]), np.array([y for _, y, _ in known]), np.array([c for *_, c in known])
            )
        self._new = not known
        self._base_s, self._fixed = zero, zero

    def begin(self, targets: Array) -> Bools:
        """Drop what cannot be below the targets and tighten the intervals; which nodes that cut from above."""
        wave, low, high = self.wave, self.low, self.high
        if self._new:
            self._narrow()
            # Before anything is asked of a new region: what a known plan already rules out.
            cut = self.lower_upper_ends(wave.least_total_s(), np.zeros(wave.size), wave.alive, targets)
            if cut.any():
                self._narrow()
        else:
            self._settle()
            cut = self.lower_upper_ends(*self.regions.corner(), wave.alive, targets)
            self._narrow()
        least, most = wave.mean_ends()
        np.maximum(low[_MEAN], least, out=low[_MEAN])
        np.minimum(high[_MEAN], most, out=high[_MEAN])
        wave.alive &= low[_MEAN] <= high[_MEAN] + TIE
        if self._criterion.variance:
            wave.set_means(low[_MEAN], high[_MEAN])
        if self._new:
            x, y, terms = wave.corner()
            self.regions = Regions.corners(x * (1 - _ROUNDING), np.maximum(y - _ROUNDING * terms, 0.0))
        return cut

    def _narrow(self) -> None:
        wave, low, high = self.wave, self.low, self.high
        wave.narrow((high[0], high[1], high[2]))
        for k, ends in enumerate(wave.least_ends()):
            np.maximum(low[k], ends, out=low[k])
            wave.alive &= (low[k] <= high[k]) & (low[k] < math.inf)
        self._settle()

    def _settle(self) -> None:
        """What the lower ends fix of log Phi."""
        wave, low = self.wave, self.low
        with np.errstate(divide="ignore", invalid="ignore"):
            base_s = wave.period_factor * low[0] + wave.constant_s + low[2]
            self._base_s = np.where(np.isfinite(low[0]), base_s, math.inf)
            self._fixed = wave.offset
            if self._criterion.peak:
                self._fixed = self._fixed + self._criterion.peak * np.log(low[1])

    def height(self, x: Array, y: Array) -> Array:
        """log Phi at the lower ends; x and y are (B,) or (B, K)."""
        criterion, wave = self._criterion, self.wave
        wide = (slice(None),) + (None,) * (x.ndim - 1)
        value = self._fixed[wide]
        with np.errstate(divide="ignore", invalid="ignore"):
            if criterion.time:
                value = value + criterion.time * np.log(self._base_s[wide] + wave.sum_factor[wide] * x)
            if criterion.variance:
                value = value + criterion.variance * np.log(y + wave.epsilon[wide])
        return np.asarray(np.broadcast_to(value, x.shape))

    def least_vertex(self) -> tuple[Array, tuple[Array, Array]]:
        """(B,) the nodes' bounds, and where they are reached."""
        regions = self.regions
        heights = np.where(regions.there, self.height(regions.x, regions.y), np.inf)
        # A height that is not a number comes from a node that holds nothing.
        heights[np.isnan(heights)] = np.inf
        least, nodes = heights.argmin(axis=1), np.arange(len(heights))
        return heights[nodes, least], (regions.x[nodes, least], regions.y[nodes, least])

    def gradient(self, x: Array, y: Array) -> tuple[Array, Array]:
        """(B,) of the height at (x, y)."""
        criterion, wave = self._criterion, self.wave
        a, b = np.zeros(len(x)), np.zeros(len(x))
        if criterion.time:
            a = criterion.time * wave.sum_factor / np.maximum(self._base_s + wave.sum_factor * x, 1e-300)
        if criterion.variance:
            b = criterion.variance / np.maximum(y + wave.epsilon, _SMALLEST_VARIANCE)
        a[(a == 0.0) & (b == 0.0)] = 1.0
        return a, b

    def cut(self, a: Array, b: Array, vertex: tuple[Array, Array], plans: Plans, pending: Bools) -> Bools:
        """Cut off the pending nodes' vertices by the lines through the plans that (a, b) asked for; which nodes hold a
        plan at the vertex itself, where nothing is cut."""
        here = a * vertex[0] + b * vertex[1]
        # A line is lowered by the rounding of its own terms, so that it never cuts a plan off.
        least = a * plans.x + b * plans.y - _ROUNDING * (a * plans.x + b * plans.terms)
        reached: Bools = pending & (least <= here + _SMALLEST_GAIN)
        far_x, far_y = self.wave.far
        self.regions.clip(a, b, least, far_x, far_y, pending & ~reached)
        return reached

    def log_phi(self, plans: Plans) -> Array:
        """(B,) of plans, truly evaluated."""
        criterion, wave = self._criterion, self.wave
        value: Array = wave.offset.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            if criterion.time:
                value += criterion.time * np.log(plans.time_s)
            if criterion.peak:
                value += criterion.peak * np.log(plans.peak)
            if criterion.variance:
                value += criterion.variance * np.log(plans.variance + wave.epsilon)
        return value

    def lower_upper_ends(self, x: Array, y: Array, active: Bools, targets: Array) -> Bools:
        """Cut from above what no plan below the target can reach, given the least x and y; which nodes that cut."""
        criterion, wave, low, high = self._criterion, self.wave, self.low, self.high
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            room = targets - self.height(x, y)
            time_s = self._base_s + wave.sum_factor * x
            limits = [high[0], high[1], high[2]]
            if criterion.time:
                slower_s = time_s * np.expm1(np.minimum(room / criterion.time, 700.0)) * (1 + 1e-12)
                limits[0] = np.where(wave.period_factor > 0, low[0] + slower_s / wave.period_factor, high[0])
                limits[2] = low[2] + slower_s
            if criterion.peak:
                limits[1] = low[1] * np.exp(np.minimum(room / criterion.peak, 700.0)) * (1 + 1e-12)
        usable = active & np.isfinite(room) & np.isfinite(time_s)
        cut = np.zeros(len(x), dtype=np.bool_)
        for k, limit in enumerate(limits):
            lower = usable & (limit < high[k])
            high[k][lower] = limit[lower]
            cut |= lower
        return cut

    def halves(self, active: Bools, plans: Plans) -> Halves:
        """Halve the interval that puts most between a node's bound and the true Phi of the plan found at the bound."""
        low, high, every = self.low, self.high, np.arange(len(active))
        loss = self._losses(plans)
        widest, most = loss.argmax(axis=0), loss.max(axis=0)
        # A line through a point with y < 0 says too little: y < 0 is what narrows with the mean.
        widest = np.where((most <= TIE) & (plans.y < 0), _MEAN, widest)
        by_mean = widest == _MEAN
        # Where the plan's value is the bound's at that point only more cuts can raise the bound.
        there = active & ((most > 0.0) | by_mean)
        margin = 0.1 * (high[_MEAN] - low[_MEAN])
        middle = np.minimum(np.maximum(plans.mean, low[_MEAN] + margin), high[_MEAN] - margin)
        there &= ~by_mean | ((low[_MEAN] < middle) & (middle < high[_MEAN]))
        which = np.where(by_mean, 0, widest)
        value = np.choose(which, (plans.period_s, plans.peak, plans.tail_s))
        with np.errstate(invalid="ignore"):
            # Below the plan's own value, so that one half is without it.
            middle_value = np.minimum(0.5 * (low[which, every] + value), np.nextafter(value, -np.inf))
        below, above = self.wave.around(which, middle_value)
        below = np.minimum(np.maximum(below, low[widest, every]), high[widest, every])
        return Halves(there, widest, np.where(by_mean, middle, below), np.where(by_mean, middle, above))

    def _losses(self, plans: Plans) -> Array:
        """(4, B) what each interval puts between the bound and the plan's log Phi."""
        criterion, wave, low = self._criterion, self.wave, self.low
        time_s = np.maximum(self._base_s + wave.sum_factor * plans.x, 1e-300)
        loss = np.zeros((4, len(time_s)))
        with np.errstate(divide="ignore", invalid="ignore"):
            if criterion.time:
                loss[0] = criterion.time * np.log1p(wave.period_factor * (plans.period_s - low[0]) / time_s)
                loss[2] = criterion.time * np.log1p((plans.tail_s - low[2]) / time_s)
            if criterion.peak:
                loss[1] = criterion.peak * (np.log(plans.peak) - np.log(low[1]))
            if criterion.variance:
                known = np.maximum(np.maximum(plans.y, 0.0) + wave.epsilon, _SMALLEST_VARIANCE)
                loss[_MEAN] = criterion.variance * np.log((plans.variance + wave.epsilon) / known)
        loss[np.isnan(loss)] = 0.0
        return loss


def chosen(now: Bools, plans: Plans, before: Plans | None) -> Plans:
    """Per node, the plan of now or the one before; their columns are not kept."""
    if before is None:
        return plans
    names = ("x", "y", "terms", "time_s", "peak", "variance", "period_s", "tail_s", "mean")
    return replace(
        plans,
        exists=plans.exists | before.exists,
        **{name: np.where(now, getattr(plans, name), getattr(before, name)) for name in names},
    )
