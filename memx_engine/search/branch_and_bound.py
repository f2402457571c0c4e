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
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.problem import NUMBERS, Criterion, Problem, numbers_of
from memx_engine.search.visit import TIE, Halves, Node, Visit, chosen
from memx_engine.search.wave import Plans, Wave

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOLERANCE = 1e-10  # of log Phi: two plans closer than this count as equal
_ROUNDS = 8  # cuts per visit of a node before it is split
_WIDTHS = (32, 64, 128)  # nodes visited together: few first, so that the first plans soon close others
_CHOICES_AT_ONCE = 100_000
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
        self._shares: dict[int, Array] = {}
        self._scales = np.ones(count)
        self._numbers = np.zeros((NUMBERS, count))
        self._heap: list[tuple[float, int, Node]] = []
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
            nodes: list[Node] = []
            size = 0
            while waiting and len(nodes) < _WIDTHS[-1] and size < _CHOICES_AT_ONCE:
                i = waiting.pop(0)
                if not self.opened[i]:
                    # What was known before is all that will be proven of it.
                    self._close(i, float(self._corners[i]))
                some = self._open(i, math.inf)
                nodes += some
                size += sum(node.choices.shape[1] for node in some)
            if not nodes:
                continue
            visit = self._begin(nodes, np.full(len(nodes), np.inf))
            one, zero = np.ones(len(nodes)), np.zeros(len(nodes))
            self._improve(visit, visit.wave.ask(one, zero, visit.wave.alive))
            if self._criterion.variance:
                self._improve(visit, visit.wave.ask(zero, one, visit.wave.alive))

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

    def _take(self, width: int) -> tuple[list[tuple[Node, float]], list[tuple[Node, float]]]:
        """The nodes with the least bounds: those of skeletons that are opened for them, and others."""
        fresh: list[tuple[Node, float]] = []
        others: list[tuple[Node, float]] = []
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

    def _open(self, i: int, target: float) -> list[Node]:
        problem = self._skeletons.problem(i, target)
        self.opened[i] = True
        if problem is None:
            self.empty[i] = True
            return []
        # The problem itself is not kept: its choices are the nodes'.
        self._shares[i], self._scales[i] = problem.share, problem.scale
        self._numbers[:, i] = numbers_of(problem)
        if not problem.complete:
            self._close(i, target)
        low, high = (-math.inf,) * 4, (math.inf, self._most_peak, math.inf, math.inf)
        return [Node(i, choices, low, high, None) for choices in problem.roots if choices.shape[1]]

    def _push(self, bound: float, node: Node, *, always: bool = False) -> None:
        if bound >= self._targets[node.problem] and not always:
            self._close(node.problem, bound)
            return
        self._pushed += 1
        heapq.heappush(self._heap, (bound, self._pushed, node))

    def _close(self, problem: int, bound: float) -> None:
        self.lower[problem] = min(self.lower[problem], bound)

    def _close_all(self, visit: Visit, closed: Bools, bounds: Array) -> None:
        if closed.any():
            np.minimum.at(self.lower, visit.problems[closed], bounds[closed])

    # --- one visit -------------------------------------------------------------------------------------------------

    def _begin(self, nodes: Sequence[Node], targets: Array) -> Visit:
        shares = [self._shares[node.problem] for node in nodes]
        numbers = self._numbers[:, [node.problem for node in nodes]]
        visit = Visit(self._criterion, nodes, Wave(shares, numbers, [node.choices for node in nodes]))
        self._close_all(visit, visit.begin(targets), targets)
        return visit

    def _visit(self, nodes: Sequence[Node]) -> None:
        """Bound nodes, improve the best plans on the way, split what stays open."""
        numbers = [node.problem for node in nodes]
        np.add.at(self.nodes, numbers, 1)
        visit = self._begin(nodes, self._targets[numbers])
        wave, regions = visit.wave, visit.regions
        before = regions.x.copy(), regions.y.copy()
        active, pending = wave.alive.copy(), wave.alive.copy()
        kept: Plans | None = None
        kept_at = np.full(len(nodes), np.inf)
        for turn in range(_ROUNDS):
            bounds, vertex = visit.least_vertex()
            pending &= ~self._closes(visit, active, bounds)
            # A few nodes are not worth a round of their own.
            if not pending.any() or (turn >= 1 and 4 * pending.sum() < len(nodes)):
                break
            a, b = visit.gradient(*vertex)
            plans = wave.ask(a, b, pending)
            active &= plans.exists | ~pending
            pending &= plans.exists
            self._improve(visit, plans)
            at = visit.height(plans.x, np.maximum(plans.y, 0.0))
            reached = visit.cut(a, b, vertex, plans, pending)
            now = pending & ((at < kept_at) | reached)
            kept_at = np.where(now, at, kept_at)
            kept = chosen(now, plans, kept)
            pending &= ~reached
        bounds, _ = visit.least_vertex()
        self._closes(visit, active, bounds)
        if kept is None or not active.any():
            return
        changed = ((regions.x != before[0]) | (regions.y != before[1])).any(axis=1)
        targets = self._targets[visit.problems]
        self._close_all(visit, visit.lower_upper_ends(*regions.corner(), active, targets), targets)
        self._split(visit, active, bounds, visit.halves(active, kept), changed)

    def _closes(self, visit: Visit, active: Bools, bounds: Array) -> Bools:
        """Close active nodes whose bound reaches the target; which these are."""
        closed: Bools = active & (bounds >= self._targets[visit.problems])
        self._close_all(visit, closed, bounds)
        active &= ~closed
        return closed

    def _improve(self, visit: Visit, plans: Plans) -> None:
        """Keep plans that are the best of their skeletons."""
        value = visit.log_phi(plans)
        margin = TIE * np.maximum(1.0, np.abs(value))
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
                float(plans.variance[j]) * float(self._scales[i]) ** 2,
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

    def _split(self, visit: Visit, active: Bools, bounds: Array, halves: Halves, changed: Bools) -> None:
        # Lists once: what follows is a loop over nodes.
        parts = zip(
            halves.there.tolist(), halves.which.tolist(), halves.up_to.tolist(), halves.from_.tolist(), strict=True
        )
        regions = zip(visit.regions.x, visit.regions.y, visit.regions.count.tolist(), strict=True)
        ends = zip(visit.low.T.tolist(), visit.high.T.tolist(), strict=True)
        nodes = zip(active.tolist(), changed.tolist(), visit.problems.tolist(), bounds.tolist(), strict=True)
        for (is_active, is_changed, i, bound), view, (low, high), (splits, k, up_to, from_), region in zip(
            nodes, visit.wave.choices(), ends, parts, regions, strict=True
        ):
            if not is_active:
                continue
            if bound >= self._targets[i] or not (splits or is_changed):
                self._close(i, bound)
                continue
            choices = view.copy()
            if not splits:
                self._push(bound, Node(i, choices, tuple(low), tuple(high), region))
                continue
            self._push(bound, Node(i, choices, tuple(low), (*high[:k], up_to, *high[k + 1 :]), region))
            if from_ <= high[k]:
                self._push(bound, Node(i, choices, (*low[:k], from_, *low[k + 1 :]), tuple(high), region))


def better(one: Candidate, other: Candidate) -> bool:
    """Less Phi; within rounding, less time, then peak, variance, and the earlier split and options."""
    if one.log_phi == other.log_phi or abs(one.log_phi - other.log_phi) <= TIE * max(1.0, abs(one.log_phi)):
        return one[1:] < other[1:]
    return one.log_phi < other.log_phi
