"""Branch and bound over the stage period, the peak, the mean memory and the tail; exact for the objective.

A plan's log Phi is ``wT·ln T + wM·ln M + wV·ln(V + ε)`` with T = A·τ + B·Σt + const + δ, τ the longest period, δ the
longest tail. A node holds intervals of τ, M, δ and the mean memory c. Its choices are those with period, memory and
tail below the upper ends; for a plan with mean in [c_lo, c_hi], ``V >= mean((m - c_lo)(m - c_hi))`` =: y, which adds
up over stages as x = Σt does. In the plane (x, y) the objective at the lower ends is concave and increasing, so its
least value over any convex region around all plans is at a vertex: the dynamic programme, asked with the gradient at
the least vertex, returns a supporting line that cuts the vertex off, or shows that a plan lies there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.choices import Choices
from memx_engine.search.nodes import (
    Candidate,
    Criterion,
    Node,
    Outcome,
    better,
    least_bottleneck,
    log_of,
    with_interval,
)
from memx_engine.search.oracle import cheapest_split
from memx_engine.search.polygon import Vertex, clip

Array = NDArray[np.float64]

TOLERANCE = 1e-10  # of log Phi: two plans closer than this count as equal
_TIE = 1e-12
_ROUNDING = 2e-14  # relative error of a sum over stages
_SMALLEST_GAIN = 2e-11  # of a cut, in log Phi; less means that a plan lies at the vertex
_ROUNDS = 8  # cuts per visit of a node before it is split
_SMALLEST_VARIANCE = 1e-18  # of the squared memory range; below it only rounding is left


class BranchAndBound:
    """One run over the choices of a skeleton.

    Args:
        masks: Regions of the choices to search one after another (boolean, shape of the choices); None for all.
        cutoff: A log Phi known from elsewhere; parts whose bound reaches it are closed.
        most_peak: Only plans whose peak does not exceed this. most_nodes: Stop after so many, once a plan is found.
    """

    def __init__(
        self,
        choices: Choices,
        criterion: Criterion,
        *,
        masks: list[NDArray[np.bool_]] | None = None,
        cutoff: float = math.inf,
        should_stop: Callable[[], bool] | None = None,
        most_peak: float = math.inf,
        most_nodes: int | None = None,
    ) -> None:
        self.choices = choices
        self.criterion = criterion
        self.masks = masks
        self.cutoff = cutoff
        self.should_stop = should_stop
        self.most_peak = most_peak
        self.most_nodes = most_nodes
        self.best: Candidate | None = None
        self.nodes = 0
        self._least_closed = math.inf
        self._heap: list[tuple[float, int, Node]] = []
        self._pushed = 0
        self._stages = np.arange(len(choices.share))
        slowest_s = float(choices.time_s.max(axis=(1, 2)).sum())
        self._far = (1.01 * slowest_s, 1.01)  # above every x and, balance lying in 0..1, above every y
        self._share = choices.share[:, None, None]
        self._values: dict[int, Array] = {}

    def run(self) -> Outcome:
        for root in range(1 if self.masks is None else len(self.masks)):
            node = self._root(root)
            if node is not None:
                self._push(-math.inf, node)
        exhausted = True
        while self._heap:
            bound, _, node = self._heap[0]
            if bound >= self._target():
                break
            # Of several regions the first may hold no plan: a limit of nodes waits for one that does.
            spent = self.most_nodes is not None and self.nodes >= self.most_nodes and self.best is not None
            if self.nodes > 0 and (spent or (self.should_stop is not None and self.should_stop())):
                exhausted = False
                break
            heapq.heappop(self._heap)
            self._visit(node)
        if self.best is None and math.isfinite(self._least_closed):
            self._find_any()
        lower = min(self._least_closed, self._heap[0][0] if self._heap else math.inf)
        if self.best is not None:
            lower = min(lower, self.best.log_phi)
        return Outcome(self.best, lower, exhausted, self.nodes)

    def _target(self) -> float:
        return min(self.cutoff, math.inf if self.best is None else self.best.log_phi) - TOLERANCE

    def _push(self, bound: float, node: Node) -> None:
        if bound >= self._target():
            self._least_closed = min(self._least_closed, bound)
            return
        self._pushed += 1
        heapq.heappush(self._heap, (bound, self._pushed, node))

    def _valid(self, root: int) -> NDArray[np.bool_]:
        return self.choices.valid if self.masks is None else self.choices.valid & self.masks[root]

    def _root(self, root: int) -> Node | None:
        if not self._valid(root).any(axis=(1, 2)).all():
            return None
        whole = (-math.inf, math.inf)
        return Node(whole, (-math.inf, self.most_peak), whole, whole, (), root, self.choices.time_s.shape[1])

    def _find_any(self) -> None:
        """Some plan of regions that were closed before one was seen."""
        for root in range(1 if self.masks is None else len(self.masks)):
            node = self._root(root)
            opened = None if node is None else self._open(node, math.inf)
            if opened is not None:
                _, penalty, spread, base_s = opened
                fastest_s = float((self.choices.time_s[:, : penalty.shape[1]] + penalty).min(axis=(1, 2)).sum())
                self._ask(*self._gradient(base_s, (fastest_s, 0.0)), penalty, spread)

    def _open(self, node: Node, target: float) -> tuple[Node, Array, Array, float] | None:
        """The node with its intervals tightened, penalty (0 or infinite) and spread of its choices, T's fixed part.

        Penalty and spread keep the first ``node.columns`` layer counts. None where the node holds no plan better than
        ``target``.
        """
        choices = self.choices
        fresh = not node.chain
        while True:
            allowed = self._allowed(node)
            tightened = self._raise_lower_ends(node, allowed)
            if tightened is None:
                return None
            node, period_s = tightened
            base_s = choices.form.period_factor * node.period[0] + choices.form.constant_s + node.tail[0]
            if not fresh or not math.isfinite(target):
                break
            # Before anything is asked of a new region: what a known plan already rules out.
            fresh = False
            fastest_s = float((period_s.min(axis=1) - choices.form.transfers_s).sum())
            cut = self._lower_upper_ends(node, (fastest_s, 0.0), base_s, target)
            if cut is node:
                break
            within = (period_s <= cut.period[1]).any(axis=0)
            if not within.any():
                return None
            node = replace(cut, columns=int(np.flatnonzero(within)[-1]) + 1)
        n = slice(node.columns)
        allowed, balance = allowed[:, n], choices.balance[:, n]
        if node.mean[0] == -math.inf:
            least = np.where(allowed, balance, np.inf).min(axis=(1, 2))
            most = np.where(allowed, balance, -np.inf).max(axis=(1, 2))
            node = replace(node, mean=(float(choices.share @ least), float(choices.share @ most)))
        low, high = node.mean
        penalty = np.where(allowed, 0.0, np.inf)
        return node, penalty, self._share * (balance - low) * (balance - high), base_s

    def _allowed(self, node: Node) -> NDArray[np.bool_]:
        choices, n = self.choices, slice(node.columns)
        allowed = self._valid(node.root)[:, n]
        if node.period[1] < math.inf:
            allowed = allowed & (choices.period_s[:, n] <= node.period[1])
        if node.peak[1] < math.inf:
            allowed = allowed & (choices.memory[:, n] <= node.peak[1])
        if node.tail[1] < math.inf:
            allowed = allowed & (choices.tail_s[:, n] <= node.tail[1])[:, :, None]
        return allowed

    def _visit(self, node: Node) -> None:
        """Bound one node, improve the incumbent on the way, split what stays open."""
        self.nodes += 1
        choices, criterion = self.choices, self.criterion
        opened = self._open(node, self._target())
        if opened is None:
            return
        node, penalty, spread, base_s = opened
        chain = list(node.chain) or self._corner(penalty, spread)
        if not chain:
            return
        fixed = criterion.peak * log_of(node.peak[0]) if criterion.peak else 0.0

        def height(vertex: Vertex) -> float:
            value = fixed
            if criterion.time:
                value += criterion.time * log_of(base_s + choices.form.sum_factor * vertex[0])
            if criterion.variance:
                value += criterion.variance * log_of(vertex[1] + criterion.epsilon)
            return value

        found: tuple[float, Candidate, Vertex] | None = None
        for _ in range(_ROUNDS):
            bound, vertex = min((height(v), v) for v in chain)
            if bound >= self._target():
                self._least_closed = min(self._least_closed, bound)
                return
            a, b = self._gradient(base_s, vertex)
            plan = self._ask(a, b, penalty, spread)
            if plan is None:
                return
            candidate, point, terms = plan
            at = height((point[0], max(point[1], 0.0)))
            if found is None or at < found[0]:
                found = (at, candidate, point)
            here, least = a * vertex[0] + b * vertex[1], a * point[0] + b * point[1]
            # A line is lowered by the rounding of its own terms, so that it never cuts a plan off.
            least -= _ROUNDING * (a * point[0] + b * terms)
            if least <= here + _SMALLEST_GAIN:
                found = (at, candidate, point)
                break
            chain = clip(chain, a, b, least, self._far)
        bound = min(height(v) for v in chain)
        if bound >= self._target():
            self._least_closed = min(self._least_closed, bound)
            return
        assert found is not None
        before = node.chain
        node = replace(node, chain=tuple(chain))
        node = self._lower_upper_ends(node, (chain[0][0], chain[-1][1]), base_s, self._target())
        self._split(node, bound, found[1], found[2], base_s, tuple(chain) != before)

    def _raise_lower_ends(self, node: Node, allowed: NDArray[np.bool_]) -> tuple[Node, Array] | None:
        """Least period, peak and tail that still hold all layers; None where that is above the interval.

        Also the least period of every stage and layer count, and the node's columns cut to those that remain.
        """
        choices, n = self.choices, slice(allowed.shape[1])
        period_s = np.where(allowed, choices.period_s[:, n], np.inf).min(axis=2)
        peak = np.where(allowed, choices.memory[:, n], np.inf).min(axis=2)
        exists = np.isfinite(period_s)
        ends = []
        for values, (low, high) in (
            (period_s, node.period),
            (peak, node.peak),
            (np.where(exists, choices.tail_s[:, n], np.inf), node.tail),
        ):
            low = max(low, least_bottleneck(values, choices.layers))
            if low > high or low == math.inf:
                return None
            ends.append((low, high))
        columns = int(np.flatnonzero(exists.any(axis=0))[-1]) + 1
        return replace(node, period=ends[0], peak=ends[1], tail=ends[2], columns=columns), period_s[:, :columns]

    def _lower_upper_ends(self, node: Node, corner: Vertex, base_s: float, target: float) -> Node:
        """Cut from above what no plan better than the target can reach, given the least x and y."""
        criterion, form = self.criterion, self.choices.form
        x, y = corner
        time_s = base_s + form.sum_factor * x
        terms = [
            criterion.time * log_of(time_s) if criterion.time else 0.0,
            criterion.peak * log_of(node.peak[0]) if criterion.peak else 0.0,
            criterion.variance * log_of(y + criterion.epsilon) if criterion.variance else 0.0,
        ]
        room = target - sum(terms)
        if not math.isfinite(room):
            return node
        period, peak, tail = node.period, node.peak, node.tail
        if criterion.time:
            slower_s = time_s * math.expm1(min(room / criterion.time, 700.0)) * (1 + 1e-12)
            if form.period_factor > 0:
                period = (period[0], min(period[1], period[0] + slower_s / form.period_factor))
            tail = (tail[0], min(tail[1], tail[0] + slower_s))
        if criterion.peak:
            peak = (peak[0], min(peak[1], peak[0] * math.exp(min(room / criterion.peak, 700.0)) * (1 + 1e-12)))
        if (period, peak, tail) == (node.period, node.peak, node.tail):
            return node
        self._least_closed = min(self._least_closed, target)
        return replace(node, period=period, peak=peak, tail=tail)

    def _corner(self, penalty: Array, spread: Array) -> list[Vertex]:
        """The region's first vertex: least x and least y, each 0 where it has no weight."""
        x = y = 0.0
        if self.criterion.time:
            fastest = self._ask(1.0, 0.0, penalty, spread)
            if fastest is None:
                return []
            x = fastest[1][0] * (1 - _ROUNDING)
        if self.criterion.variance:
            evenest = self._ask(0.0, 1.0, penalty, spread)
            if evenest is None:
                return []
            y = max(evenest[1][1] - _ROUNDING * evenest[2], 0.0)
        return [(x, y)]

    def _gradient(self, base_s: float, vertex: Vertex) -> tuple[float, float]:
        criterion, factor = self.criterion, self.choices.form.sum_factor
        a = b = 0.0
        if criterion.time:
            a = criterion.time * factor / max(base_s + factor * vertex[0], 1e-300)
        if criterion.variance:
            b = criterion.variance / max(vertex[1] + criterion.epsilon, _SMALLEST_VARIANCE)
        return (a, b) if a or b else (1.0, 0.0)

    def _ask(self, a: float, b: float, penalty: Array, spread: Array) -> tuple[Candidate, Vertex, float] | None:
        """The plan with least ``a·x + b·y`` among the allowed, truly evaluated; its (x, y); size of y's terms."""
        choices = self.choices
        each_s = choices.time_s[:, : penalty.shape[1]]
        cost = penalty + a * each_s if not b else penalty + (a * each_s + b * spread)
        split = cheapest_split(cost.min(axis=2), choices.layers)
        if split is None:
            return None
        row, column = self._stages, np.array(split) - 1
        option = cost[row, column].argmin(axis=1)
        total_s = float(choices.time_s[row, column, option].sum())
        terms = spread[row, column, option]
        point = (total_s, float(terms.sum()))
        balance = choices.balance[row, column, option]
        mean = float(choices.share @ balance)
        variance = float(choices.share @ (balance - mean) ** 2)
        period_s = float(choices.period_s[row, column, option].max())
        tail_s = float(choices.tail_s[row, column].max())
        peak = float(choices.memory[row, column, option].max())
        form = choices.form
        time_s = form.period_factor * period_s + form.sum_factor * total_s + form.constant_s + tail_s
        log_phi = self.criterion.log_phi(time_s, peak, variance)
        options = tuple(choices.option[row, column, option].tolist())
        candidate = Candidate(log_phi, time_s, peak, variance, tuple(split), options, period_s, tail_s, mean)
        if self.best is None or better(candidate, self.best):
            self.best = candidate
        return candidate, point, float(np.abs(terms).sum())

    def _attained(self, which: int) -> Array:
        """Sorted values that a period, peak or tail can take."""
        if which not in self._values:
            values = (self.choices.period_s, self.choices.memory, self.choices.tail_s)[which]
            self._values[which] = np.unique(values[np.isfinite(values)])
        return self._values[which]

    def _push_again(self, bound: float, node: Node, cut_further: bool) -> None:
        if cut_further:
            self._push(bound, node)
        else:
            self._least_closed = min(self._least_closed, bound)

    def _split(
        self, node: Node, bound: float, plan: Candidate, point: Vertex, base_s: float, cut_further: bool
    ) -> None:
        """Halve the interval that puts most between the bound and the true Phi of the plan found at the bound."""
        criterion, form = self.criterion, self.choices.form
        time_s = max(base_s + form.sum_factor * point[0], 1e-300)
        loss = [0.0, 0.0, 0.0, 0.0]
        if criterion.time:
            loss[0] = criterion.time * math.log1p(form.period_factor * (plan.period_s - node.period[0]) / time_s)
            loss[2] = criterion.time * math.log1p((plan.tail_s - node.tail[0]) / time_s)
        if criterion.peak:
            loss[1] = criterion.peak * (log_of(plan.peak) - log_of(node.peak[0]))
        if criterion.variance:
            known = max(point[1], 0.0) + criterion.epsilon
            loss[3] = criterion.variance * log_of((plan.variance + criterion.epsilon) / max(known, _SMALLEST_VARIANCE))
        widest = max(range(4), key=loss.__getitem__)
        if loss[widest] <= _TIE and point[1] < 0:
            widest = 3  # a line through a point with y < 0 says too little: y < 0 is what narrows with the mean
        elif loss[widest] <= 0.0:
            # The plan's value is the bound's at that point: only more cuts can raise the bound.
            self._push_again(bound, node, cut_further)
            return
        if widest == 3:
            low, high = node.mean
            margin = 0.1 * (high - low)
            middle = min(max(plan.mean, low + margin), high - margin)
            if not low < middle < high:
                self._push_again(bound, node, cut_further)
                return
            self._push(bound, replace(node, mean=(low, middle)))
            self._push(bound, replace(node, mean=(middle, high)))
            return
        low, high = (node.period, node.peak, node.tail)[widest]
        value = (plan.period_s, plan.peak, plan.tail_s)[widest]
        values = self._attained(widest)
        cut = int(np.searchsorted(values, 0.5 * (low + value), side="right"))
        if values[cut] > value:
            cut = int(np.searchsorted(values, value))
        below, above = float(values[cut - 1]), float(values[cut])
        self._push(bound, with_interval(node, widest, (low, min(max(below, low), high))))
        if above <= high:
            self._push(bound, with_interval(node, widest, (above, high)))
