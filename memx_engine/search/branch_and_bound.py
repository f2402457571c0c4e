"""Branch and bound over the stage period, the peak, the mean memory and the tail, over many skeletons at once.

A plan's log Phi is ``wT·ln T + wM·ln M + wV·ln(V + ε)`` with T = A·τ + B·Σt + const + δ, τ the longest period, δ the
longest tail. A node holds intervals of τ, M, δ and the mean memory c of one skeleton's plans. Its choices are those
with period, memory and tail below the upper ends; for a plan with mean in [c_lo, c_hi],
``V >= mean((m - c_lo)(m - c_hi))`` =: y, which adds up over stages as x = Σt does. In the plane (x, y) the objective at
the lower ends is concave and increasing, so its least value over any convex region around all plans is at a vertex: the
dynamic programme, asked with the gradient at the least vertex, returns a supporting line that cuts the vertex off, or
shows that a plan lies there.

The nodes with the least bounds, of whatever skeletons, are visited together: their arrays lie side by side.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.polygons import Regions
from memx_engine.search.problem import NUMBERS, Criterion, Problem, numbers_of
from memx_engine.search.wave import Plans, Wave

Array = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

TOLERANCE = 1e-10  # of log Phi: two plans closer than this count as equal
_TIE = 1e-12
_ROUNDING = 2e-14  # relative error of a sum over stages
_SMALLEST_GAIN = 2e-11  # of a cut, in log Phi; less means that a plan lies at the vertex
_ROUNDS = 8  # cuts per visit of a node before it is split
_SMALLEST_VARIANCE = 1e-18  # of the squared memory range; below it only rounding is left
_WIDTHS = (32, 64, 128)  # nodes visited together: few first, so that the first plans soon close others
_CHOICES_AT_ONCE = 200_000
_OPENED_AT_ONCE = 2  # skeletons, between two questions whether to stop


class Candidate(NamedTuple):
    """A complete plan with what the objective reads; ``memory`` (P,) bytes."""

    log_phi: float
    time_s: float
    peak: float
    variance: float
    layers: tuple[int, ...]
    options: tuple[int, ...]
    memory: tuple[float, ...]


class _Node:
    """Intervals (lower ends, upper ends) of period, peak, tail and mean, and the region known to hold its (x, y)."""

    __slots__ = ("choices", "high", "low", "problem", "region")

    def __init__(
        self,
        problem: int,
        choices: Array,
        low: tuple[float, ...],
        high: tuple[float, ...],
        region: tuple[Array, Array, int] | None,
    ) -> None:
        self.problem, self.choices, self.low, self.high, self.region = problem, choices, low, high, region


@dataclass
class _Visit:
    """What one visit of B nodes works on; arrays (B,), intervals (4, B)."""

    problems: Ints
    nodes: Sequence[_Node]
    wave: Wave
    low: Array
    high: Array
    base_s: Array
    fixed: Array
    regions: Regions


class Skeletons(Protocol):
    """Where problems come from, by number of the skeleton."""

    def foresee(self, numbers: Sequence[int], targets: Array) -> None:
        """Many of these will be asked for next, with no higher targets than (k,) ``targets``."""
        ...

    def problem(self, number: int, target: float) -> Problem | None:
        """The problem, of which only plans of a log Phi below the target matter; None where nothing fits."""
        ...


class BranchAndBound:
    """One run over several skeletons; asks for their problems one by one, the most promising first.

    Attributes:
        best: (S,) least log Phi known of each skeleton. found: The plans behind it, where this run found them.
        lower: (S,) no plan of the skeleton that was closed has a smaller log Phi.
        opened: (S,) whether its problem was asked for. empty: (S,) whether nothing fits there, as was found.
        nodes: (S,) visited.

    Args:
        corners: (S,) a lower bound of log Phi of every skeleton.
        cutoffs: (S,) from (S,) of ``best``: log Phi from which on a plan of the skeleton does not matter.
        known: (S,) ``best`` to start with. most_peak: Only plans whose peak does not exceed this.
        should_stop: Asked before each visit, but for the first where no plan is known.
        most_nodes: Stop after so many, once a plan is found.
        on_visit: Called with the least bound that waits before every visit.
    """

    def __init__(
        self,
        criterion: Criterion,
        corners: Array,
        skeletons: Skeletons,
        *,
        cutoffs: Callable[[Array], Array],
        known: Array | None = None,
        most_peak: float = math.inf,
        should_stop: Callable[[], bool] | None = None,
        most_nodes: float = math.inf,
        on_visit: Callable[[float], None] | None = None,
    ) -> None:
        count = len(corners)
        self._criterion, self._skeletons, self._cutoffs = criterion, skeletons, cutoffs
        self._should_stop, self._most_nodes, self._on_visit = should_stop, most_nodes, on_visit
        self._most_peak = most_peak
        self._corners = corners
        self._order = np.argsort(corners, kind="stable").tolist()
        self._next = self._foreseen = 0
        self._problems: dict[int, Problem] = {}
        self._numbers = np.zeros((NUMBERS, count))
        self._heap: list[tuple[float, int, _Node]] = []
        self._pushed = 0
        self.best = np.full(count, np.inf) if known is None else known.copy()
        self.found: dict[int, Candidate] = {}
        self.lower = np.full(count, np.inf)
        self.opened, self.empty = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        self.nodes = np.zeros(count, dtype=np.intp)
        self._targets = np.zeros(count)
        self._has_plan = np.zeros(count, dtype=np.bool_)

    # --- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Visit until every skeleton is closed; False where it was stopped before."""
        visits = 0
        self._aim()
        while True:
            if np.isfinite(self.best).any() and self._ends():
                return False
            width = _WIDTHS[min(visits, len(_WIDTHS) - 1)]
            fresh, others = self._take(width)
            if not fresh and not others:
                return True
            if visits and self._ends():
                for node, bound in (*fresh, *others):
                    self._push(bound, node, always=True)
                return False
            for some in (fresh, others):
                if some:
                    self._visit([node for node, _ in some])
            visits += 1

    def glance(self, skeletons: Sequence[int]) -> None:
        """Find some plan of each of these skeletons, whatever it is worth; what that leaves open is not searched."""
        waiting = list(skeletons)
        while waiting:
            nodes: list[_Node] = []
            size = 0
            while waiting and len(nodes) < _WIDTHS[-1] and size < _CHOICES_AT_ONCE:
                some = self._open(waiting.pop(0), math.inf)
                nodes += some
                size += sum(node.choices.shape[1] for node in some)
            if not nodes:
                continue
            visit = self._begin(nodes, np.full(len(nodes), np.inf))
            self._corner(visit, self._criterion.time > 0, self._criterion.variance > 0)

    def lower_bounds(self) -> Array:
        """(S,) of log Phi: from what was closed, what waits, and what was not opened."""
        lower = np.minimum(self.lower, np.where(self.opened, np.inf, self._corners))
        for bound, _, node in self._heap:
            lower[node.problem] = min(lower[node.problem], bound)
        return np.asarray(np.maximum(lower, self._corners))

    def _ends(self) -> bool:
        if self.nodes.sum() >= self._most_nodes and self.found:
            return True
        return self._should_stop is not None and self._should_stop()

    def _aim(self) -> None:
        """What a plan must be below to matter."""
        self._targets = np.minimum(self._cutoffs(self.best), self.best) - TOLERANCE

    def _take(self, width: int) -> tuple[list[tuple[_Node, float]], list[tuple[_Node, float]]]:
        """The nodes with the least bounds: those of skeletons that are opened for them, and others."""
        fresh: list[tuple[_Node, float]] = []
        others: list[tuple[_Node, float]] = []
        size = opened = 0
        least = math.inf
        while len(fresh) + len(others) < width and size < _CHOICES_AT_ONCE:
            corner = self._corners[self._order[self._next]] if self._next < len(self._order) else math.inf
            bound = self._heap[0][0] if self._heap else math.inf
            if corner == bound == math.inf:
                break
            if corner <= bound:
                i = self._order[self._next]
                self._next += 1
                if corner < self._targets[i]:
                    self._foresee(width)
                    opened += 1
                    if opened % _OPENED_AT_ONCE == 0 and self._should_stop is not None and self._should_stop():
                        width = 0
                    least = min(least, float(corner))
                    for node in self._open(i, float(self._targets[i])):
                        fresh.append((node, float(corner)))
                        size += node.choices.shape[1]
                continue
            _, _, node = heapq.heappop(self._heap)
            if bound >= self._targets[node.problem]:
                self._close(node.problem, bound)
                continue
            least = min(least, bound)
            (others if node.region else fresh).append((node, bound))
            size += node.choices.shape[1]
        if self._on_visit is not None and least < math.inf:
            self._on_visit(least)
        return fresh, others

    def _foresee(self, width: int) -> None:
        if self._next <= self._foreseen:
            return
        start, self._foreseen = self._next - 1, self._next - 1 + width
        some = np.array(self._order[start : self._foreseen])
        some = some[self._corners[some] < self._targets[some]]
        self._skeletons.foresee(some.tolist(), self._targets[some])

    def _open(self, i: int, target: float) -> list[_Node]:
        problem = self._skeletons.problem(i, target)
        self.opened[i] = True
        if problem is None:
            self.empty[i] = True
            return []
        self._problems[i] = problem
        self._numbers[:, i] = numbers_of(problem)
        if not problem.complete:
            self._close(i, target)
        low, high = (-math.inf,) * 4, (math.inf, self._most_peak, math.inf, math.inf)
        return [_Node(i, choices, low, high, None) for choices in problem.roots if choices.shape[1]]

    def _push(self, bound: float, node: _Node, *, always: bool = False) -> None:
        if bound >= self._targets[node.problem] and not always:
            self._close(node.problem, bound)
            return
        self._pushed += 1
        heapq.heappush(self._heap, (bound, self._pushed, node))

    def _close(self, problem: int, bound: float) -> None:
        self.lower[problem] = min(self.lower[problem], bound)

    def _close_all(self, visit: _Visit, chosen: Bools, bounds: Array) -> None:
        np.minimum.at(self.lower, visit.problems[chosen], bounds[chosen])

    # --- one visit -------------------------------------------------------------------------------------------------

    def _visit(self, nodes: Sequence[_Node]) -> None:
        """Bound nodes, improve the best plans on the way, split what stays open."""
        np.add.at(self.nodes, [node.problem for node in nodes], 1)
        visit = self._begin(nodes, self._targets[[node.problem for node in nodes]])
        wave, regions = visit.wave, visit.regions
        if nodes[0].region is None:
            x, y = wave.corner()
            visit.regions = regions = Regions.corners(x * (1 - _ROUNDING), y)
        before = regions.x.copy(), regions.y.copy()
        active = wave.alive.copy()
        size = len(nodes)
        kept_at, kept = np.full(size, np.inf), None
        pending = active.copy()
        for turn in range(_ROUNDS):
            bounds, vertex = self._least_vertex(visit)
            pending &= ~self._closes(visit, active, bounds)
            if not pending.any() or (turn >= 1 and 4 * pending.sum() < size):
                break
            a, b = self._gradient(visit, *vertex)
            plans = wave.ask(a, b, pending)
            active &= plans.exists | ~pending
            pending &= plans.exists
            self._improve(visit, plans)
            at = self._height(visit, plans.x, np.maximum(plans.y, 0.0))
            here = a * vertex[0] + b * vertex[1]
            # A line is lowered by the rounding of its own terms, so that it never cuts a plan off.
            least = a * plans.x + b * plans.y - _ROUNDING * (a * plans.x + b * plans.terms)
            reached = pending & (least <= here + _SMALLEST_GAIN)
            better = pending & ((at < kept_at) | reached)
            kept_at = np.where(better, at, kept_at)
            kept = plans if kept is None else _chosen(better, plans, kept)
            pending &= ~reached
            far = wave.far
            regions.clip(a, b, least, far[0], far[1], pending)
        bounds, _ = self._least_vertex(visit)
        self._closes(visit, active, bounds)
        if kept is None or not active.any():
            return
        changed = ((regions.x != before[0]) | (regions.y != before[1])).any(axis=1)
        self._lower_upper_ends(visit, *regions.corner(), active)
        self._split(visit, active, bounds, kept, changed)

    def _begin(self, nodes: Sequence[_Node], targets: Array) -> _Visit:
        """Lay the nodes side by side, drop what cannot matter, tighten their intervals."""
        problems = np.array([node.problem for node in nodes])
        shares = [self._problems[i].share for i in problems.tolist()]
        wave = Wave(shares, self._numbers[:, problems], [node.choices for node in nodes])
        low, high = np.array([n.low for n in nodes]).T.copy(), np.array([n.high for n in nodes]).T.copy()
        size = len(nodes)
        zero = np.zeros(size)
        if nodes[0].region is None:
            regions = Regions.corners(zero, zero)
        else:
            regions = Regions(
                np.array([n.region[0] for n in nodes if n.region]),
                np.array([n.region[1] for n in nodes if n.region]),
                np.array([n.region[2] for n in nodes if n.region]),
            )
        visit = _Visit(problems, nodes, wave, low, high, zero, zero, regions)
        if nodes[0].region is not None:
            self._settle(visit)
            self._lower_upper_ends(visit, *regions.corner(), wave.alive, targets)
        self._narrow(visit)
        if nodes[0].region is None and np.isfinite(targets).any():
            # Before anything is asked of a new region: what a known plan already rules out.
            cut = self._lower_upper_ends(visit, wave.least_total_s(), zero, wave.alive, targets)
            if cut.any():
                self._narrow(visit)
        least, most = wave.mean_ends()
        np.maximum(low[3], least, out=low[3])
        np.minimum(high[3], most, out=high[3])
        wave.alive &= low[3] <= high[3] + _TIE
        if self._criterion.variance:
            wave.set_means(low[3], high[3])
        return visit

    def _narrow(self, visit: _Visit) -> None:
        wave, low, high = visit.wave, visit.low, visit.high
        wave.narrow((high[0], high[1], high[2]))
        for k, ends in enumerate(wave.least_ends()):
            np.maximum(low[k], ends, out=low[k])
            wave.alive &= (low[k] <= high[k]) & (low[k] < math.inf)
        self._settle(visit)

    def _settle(self, visit: _Visit) -> None:
        """What the lower ends fix of log Phi."""
        wave, low = visit.wave, visit.low
        with np.errstate(divide="ignore", invalid="ignore"):
            visit.base_s = np.where(
                np.isfinite(low[0]), wave.period_factor * low[0] + wave.constant_s + low[2], math.inf
            )
            visit.fixed = visit.wave.offset
            if self._criterion.peak:
                visit.fixed = visit.fixed + self._criterion.peak * np.log(low[1])

    def _height(self, visit: _Visit, x: Array, y: Array) -> Array:
        """log Phi at the lower ends; x and y are (B,) or (B, K)."""
        criterion, wave = self._criterion, visit.wave
        wide = (slice(None),) + (None,) * (x.ndim - 1)
        value = visit.fixed[wide]
        with np.errstate(divide="ignore", invalid="ignore"):
            if criterion.time:
                value = value + criterion.time * np.log(visit.base_s[wide] + wave.sum_factor[wide] * x)
            if criterion.variance:
                value = value + criterion.variance * np.log(y + visit.wave.epsilon[wide])
        return np.asarray(np.broadcast_to(value, x.shape))

    def _least_vertex(self, visit: _Visit) -> tuple[Array, tuple[Array, Array]]:
        regions = visit.regions
        heights = np.where(regions.there, self._height(visit, regions.x, regions.y), np.inf)
        # A height that is not a number comes from a node that holds nothing.
        heights[np.isnan(heights)] = np.inf
        least, nodes = heights.argmin(axis=1), np.arange(len(heights))
        return heights[nodes, least], (regions.x[nodes, least], regions.y[nodes, least])

    def _closes(self, visit: _Visit, active: Bools, bounds: Array) -> Bools:
        """Close active nodes whose bound reaches the target; which these are."""
        closed = active & (bounds >= self._targets[visit.problems])
        if closed.any():
            self._close_all(visit, closed, bounds)
            active &= ~closed
        return closed

    def _gradient(self, visit: _Visit, x: Array, y: Array) -> tuple[Array, Array]:
        criterion, factor = self._criterion, visit.wave.sum_factor
        a, b = np.zeros(len(x)), np.zeros(len(x))
        if criterion.time:
            a = criterion.time * factor / np.maximum(visit.base_s + factor * x, 1e-300)
        if criterion.variance:
            b = criterion.variance / np.maximum(y + visit.wave.epsilon, _SMALLEST_VARIANCE)
        a[(a == 0.0) & (b == 0.0)] = 1.0
        return a, b

    def _corner(self, visit: _Visit, by_time: bool, by_variance: bool) -> None:
        """The regions' first vertices: least x and least y, each 0 where it has no weight."""
        wave, size = visit.wave, len(visit.nodes)
        x, y = np.zeros(size), np.zeros(size)
        one, zero = np.ones(size), np.zeros(size)
        if by_time or not by_variance:
            plans = wave.ask(one, zero, wave.alive)
            wave.alive &= plans.exists
            self._improve(visit, plans)
            x = plans.x * (1 - _ROUNDING) if by_time else x
        if by_variance:
            plans = wave.ask(zero, one, wave.alive)
            wave.alive &= plans.exists
            self._improve(visit, plans)
            y = np.maximum(plans.y - _ROUNDING * plans.terms, 0.0)
        visit.regions = Regions.corners(x, y)

    def _improve(self, visit: _Visit, plans: Plans) -> None:
        """Keep plans that are the best of their skeletons."""
        criterion = self._criterion
        with np.errstate(divide="ignore", invalid="ignore"):
            value = visit.wave.offset.copy()
            if criterion.time:
                value += criterion.time * np.log(plans.time_s)
            if criterion.peak:
                value += criterion.peak * np.log(plans.peak)
            if criterion.variance:
                value += criterion.variance * np.log(plans.variance + visit.wave.epsilon)
        margin = _TIE * np.maximum(1.0, np.abs(value))
        with np.errstate(invalid="ignore"):
            worth = plans.exists & ((value <= self.best[visit.problems] + margin) | (value == -np.inf))
        missing = ~self._has_plan[visit.problems]
        changed = False
        for j in np.flatnonzero(plans.exists & (worth | missing)).tolist():
            i = int(visit.problems[j])
            layers, options, memory = visit.wave.plan_of(plans, j)
            made = Candidate(
                float(value[j]),
                float(plans.time_s[j]),
                float(plans.peak[j]),
                float(plans.variance[j]) * self._problems[i].scale ** 2,
                layers,
                options,
                memory,
            )
            if i not in self.found or better(made, self.found[i]):
                self.found[i] = made
                self._has_plan[i] = True
                if made.log_phi < self.best[i]:
                    self.best[i] = made.log_phi
                    changed = True
        if changed:
            self._aim()

    def _lower_upper_ends(
        self, visit: _Visit, x: Array, y: Array, active: Bools, targets: Array | None = None
    ) -> Bools:
        """Cut from above what no plan better than the target can reach, given the least x and y; which nodes."""
        criterion, wave, low, high = self._criterion, visit.wave, visit.low, visit.high
        targets = self._targets[visit.problems] if targets is None else targets
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            room = targets - self._height(visit, x, y)
            time_s = visit.base_s + wave.sum_factor * x
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
        if cut.any():
            self._close_all(visit, cut, targets)
        return cut

    def _split(self, visit: _Visit, active: Bools, bounds: Array, plans: Plans, changed: Bools) -> None:
        """Halve the interval that puts most between the bound and the true Phi of the plan found at the bound."""
        criterion, wave, low, high = self._criterion, visit.wave, visit.low, visit.high
        time_s = np.maximum(visit.base_s + wave.sum_factor * plans.x, 1e-300)
        loss = np.zeros((4, len(active)))
        with np.errstate(divide="ignore", invalid="ignore"):
            if criterion.time:
                loss[0] = criterion.time * np.log1p(wave.period_factor * (plans.period_s - low[0]) / time_s)
                loss[2] = criterion.time * np.log1p((plans.tail_s - low[2]) / time_s)
            if criterion.peak:
                loss[1] = criterion.peak * (np.log(plans.peak) - np.log(low[1]))
            if criterion.variance:
                known = np.maximum(np.maximum(plans.y, 0.0) + visit.wave.epsilon, _SMALLEST_VARIANCE)
                loss[3] = criterion.variance * np.log((plans.variance + visit.wave.epsilon) / known)
        loss[np.isnan(loss)] = 0.0
        widest = loss.argmax(axis=0)
        most = loss.max(axis=0)
        # A line through a point with y < 0 says too little: y < 0 is what narrows with the mean.
        widest = np.where((most <= _TIE) & (plans.y < 0), 3, widest)
        # Where the plan's value is the bound's at that point only more cuts can raise the bound.
        splits = active & ((most > 0.0) | (widest == 3))
        margin = 0.1 * (high[3] - low[3])
        middle = np.minimum(np.maximum(plans.mean, low[3] + margin), high[3] - margin)
        by_mean = widest == 3
        splits &= ~by_mean | ((low[3] < middle) & (middle < high[3]))
        which = np.where(by_mean, 0, widest)
        value = np.choose(which, (plans.period_s, plans.peak, plans.tail_s))
        start = np.choose(which, (low[0], low[1], low[2]))
        with np.errstate(invalid="ignore"):
            cut = np.minimum(0.5 * (start + value), np.nextafter(value, -np.inf))
        below, above = wave.around(which, cut)
        every = np.arange(len(active))
        lower = np.minimum(np.maximum(below, low[widest, every]), high[widest, every])
        lower, upper = np.where(by_mean, middle, lower), np.where(by_mean, middle, above)
        # Lists once: what follows is a loop over nodes.
        ends = zip(low.T.tolist(), high.T.tolist(), lower.tolist(), upper.tolist(), widest.tolist(), strict=True)
        regions = zip(visit.regions.x, visit.regions.y, visit.regions.count.tolist(), strict=True)
        state = zip(active.tolist(), splits.tolist(), changed.tolist(), strict=True)
        kept = zip(visit.problems.tolist(), bounds.tolist(), wave.choices(), strict=True)
        for (is_active, is_split, is_changed), (i, bound, choices), (lows, highs, up_to, from_, k), region in zip(
            state, kept, ends, regions, strict=True
        ):
            if not is_active:
                continue
            if bound >= self._targets[i] or not (is_split or is_changed):
                self._close(i, bound)
            elif not is_split:
                self._push(bound, _Node(i, choices.copy(), tuple(lows), tuple(highs), region))
            else:
                some = choices.copy()
                self._push(bound, _Node(i, some, tuple(lows), (*highs[:k], up_to, *highs[k + 1 :]), region))
                if from_ <= highs[k]:
                    self._push(bound, _Node(i, some, (*lows[:k], from_, *lows[k + 1 :]), tuple(highs), region))


def better(one: Candidate, other: Candidate) -> bool:
    """Less Phi; within rounding, less time, then peak, variance, and the earlier split and options."""
    if one.log_phi == other.log_phi or abs(one.log_phi - other.log_phi) <= _TIE * max(1.0, abs(one.log_phi)):
        return one[1:] < other[1:]
    return one.log_phi < other.log_phi


def _chosen(better_now: Bools, now: Plans, before: Plans) -> Plans:
    """Per node, the plan of now where it is better; their columns are not kept."""
    names = ("x", "y", "terms", "time_s", "peak", "variance", "period_s", "tail_s", "mean")
    return replace(
        now,
        exists=now.exists | before.exists,
        **{name: np.where(better_now, getattr(now, name), getattr(before, name)) for name in names},
    )
