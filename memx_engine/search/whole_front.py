"""Third phase: the Pareto front over (time, peak, variance) of the whole space, not of the plans that were ranked.

The peak is bounded in steps between the least and that of the fastest plan; under each bound, time and variance are
traded by optima of weighted products over ALL 1F1B skeletons. Every weight is positive, so that whatever dominated such
an optimum would be the better optimum: each plan that is proven here is on the true front (of additive times), and the
resolution decides only how many of its plans are found. Bounds keep most skeletons closed, as they do for Phi.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.assign import Assigned
from memx_engine.search.control import Control
from memx_engine.search.fitting import Fitting
from memx_engine.search.objective import Objective, Weights
from memx_engine.search.result import FrontReport
from memx_engine.search.solving import Solver

_SLIGHT = 0.01  # the least weight of each of the three inside the front
_HINT = 1e-3  # the same where a plan that was ranked is to show that it is on the front
_SHARPER = (1.0, 1e-3)  # of the objective's ε, there
_NODES_PER_TRADE = 100.0  # there
_SETTLING = 600.0  # nodes for all of that
_TRADES = 12  # trades under which it may do so
_CORNERS_PER_NODE = 1000  # bounds that are looked through in the time of one node
_CHASES = 4  # plans that may dominate one another on the way from a ranked plan to the front


@dataclass(frozen=True)
class _Target:
    """One trade: weights of time, peak and variance under a bound of the peak."""

    weights: tuple[float, float, float]
    most_peak: float = float("inf")


class WholeFront:
    """Seeks the front; see the module.

    Attributes:
        points: The plans found, each optimal for its trade over all 1F1B skeletons.
    """

    def __init__(
        self, solver: Solver, bounded: Fitting, objective: Objective, control: Control, most_nodes: int | None
    ) -> None:
        self._solver, self._objective, self._control = solver, objective, control
        self._plain = np.array([skeleton.virtual_stages == 1 for skeleton in bounded.skeletons], dtype=np.bool_)
        self._columns: NDArray[np.float64] = np.column_stack(
            [bounded.time_s, bounded.peak_bytes, bounded.variance_bytes2]
        )
        self._left = float("inf") if most_nodes is None else float(most_nodes)
        self.points: list[Assigned] = []
        self._found = solver.found

    @property
    def spent(self) -> bool:
        """Whether the nodes ran out, so that plans remain of which nothing could be tried."""
        return self._left <= 0

    def seek(self, resolution: int) -> FrontReport:
        """``resolution``: Steps of the peak's bound and of the trade between time and variance, at least 1."""
        most = 1 - 2 * _SLIGHT
        extremes = (_Target((most, _SLIGHT, _SLIGHT)), _Target((_SLIGHT, most, _SLIGHT)))
        total = len(extremes) + 1 + (resolution + 1) ** 2
        proven = sum(self._prove(target, k, total) for k, target in enumerate(extremes))
        if proven == len(extremes):
            fastest, lightest = self.points
            for target in self._inner(resolution, lightest.peak_bytes, fastest.peak_bytes):
                proven += self._prove(target, proven, total)
            proven += self._prove(_Target((_SLIGHT, _SLIGHT, most)), proven, total)
        self._control.report("front", total, total, force=True)
        return FrontReport(resolution, total, proven)

    def settle(self, candidates: Sequence[Assigned]) -> None:
        """Prove of each 1F1B plan that it is on the front, or find one there that dominates it; add what is proven.

        It takes no more than a share of the work that seeking does; what is left then remains open.
        """
        self._left = min(self._left, _SETTLING)
        for plan in candidates:
            if self.spent or self._control.stops():
                return
            if not plan.plain or self.proves(plan):
                continue
            for _ in range(_CHASES):
                better = self._dominating(plan)
                if better is plan:
                    self.points.append(plan)
                if better is None or better is plan:
                    break
                plan = better

    def proves(self, plan: Assigned) -> bool:
        """Whether the plan is one of those that are proven."""
        return any(plan.same_as(point) for point in self.points)

    def _dominating(self, plan: Assigned) -> Assigned | None:
        """``plan`` where some trade proves it to be on the front, a plan that dominates it, or None: unknown.

        A plan that is better under one trade tells on which side of it a trade can lie that proves this one. With a
        smaller ε, plans of nearly equal variance are told apart.
        """
        for sharper in _SHARPER:
            references = self._objective.references
            references = replace(references, epsilon_bytes2=sharper * references.epsilon_bytes2)
            found = self._under_some_trade(plan, replace(self._objective, references=references))
            if found is not None:
                return found
        return None

    def _under_some_trade(self, plan: Assigned, objective: Objective) -> Assigned | None:
        low, high = _HINT, 1.0 - 2 * _HINT
        for _ in range(_TRADES):
            time = 0.5 * (low + high)
            objective = replace(objective, weights=Weights("front", time, _HINT, 1.0 - _HINT - time))
            phi = objective.phi(plan.time_s, plan.peak_bytes, plan.variance_bytes2)
            other, known = self._optimum(objective, plan, phi, plan.peak_bytes * (1 + 1e-12), only_this=True)
            if not known or other is None:
                return None
            faster, evener = other.time_s <= plan.time_s, other.variance_bytes2 <= plan.variance_bytes2
            if faster and evener:
                return other
            low, high = (low, time) if faster else (time, high)
        return None

    @staticmethod
    def _inner(resolution: int, least_peak: float, most_peak: float) -> Iterator[_Target]:
        """Trades inside the extremes, the coarsest first; those for variance alone last, they take most work."""
        steps = range(resolution + 1)
        trades = np.linspace(_SLIGHT, 1.0 - 2 * _SLIGHT, resolution + 1)
        peaks = np.linspace(least_peak, most_peak, resolution + 1) * (1 + 1e-12)

        def late(place: tuple[int, int]) -> tuple[bool, int, tuple[int, int]]:
            trade, peak = place
            return trade == 0, _coarseness(trade) + _coarseness(peak), place

        for trade, peak in sorted(product(steps, steps), key=late):
            time = float(trades[trade])
            yield _Target((time, _SLIGHT, 1.0 - _SLIGHT - time), float(peaks[peak]))

    def _prove(self, target: _Target, done: int, total: int) -> bool:
        """Find the best plan of all 1F1B skeletons for one trade; False where work or time ran out before."""
        self._control.report("front", done, total)
        objective = replace(self._objective, weights=Weights("front", *target.weights))
        best: Assigned | None = None
        best_phi = float("inf")
        found = self._found
        phis = objective.phi_array(found.time_s, found.peak_bytes, found.variance_bytes2)
        phis[~found.plain | (found.peak_bytes > target.most_peak)] = np.inf
        if len(phis) and np.isfinite(phis.min()):
            best, best_phi = found[int(phis.argmin())], float(phis.min())
        for known in self.points:
            if known.peak_bytes <= target.most_peak:
                phi = objective.phi(known.time_s, known.peak_bytes, known.variance_bytes2)
                if phi < best_phi:
                    best, best_phi = known, phi
        best, is_proven = self._optimum(objective, best, best_phi, target.most_peak)
        if best is not None and is_proven:
            self.points.append(best)
        return best is not None and is_proven

    def _optimum(
        self,
        objective: Objective,
        best: Assigned | None,
        best_phi: float,
        most_peak: float,
        *,
        only_this: bool = False,
    ) -> tuple[Assigned | None, bool]:
        """The best plan up to a peak over all 1F1B skeletons, starting from a known one; whether that is proven.

        ``only_this``: Enough is known once the plan to start from is beaten.
        """
        if self._control.stops():
            return best, False
        self._left -= 1 + len(self._columns) // _CORNERS_PER_NODE
        most_nodes = max(min(self._left, _NODES_PER_TRADE if only_this else self._left), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            corners = np.log(objective.phi_array(*self._columns.T))
        corners = np.where(self._plain & (self._columns[:, 1] <= most_peak), corners, np.inf)
        other, proven, nodes = self._solver.optimum(
            objective, corners, best_phi, most_peak, most_nodes, enough=only_this
        )
        self._left -= nodes
        return (best if other is None else other), proven


def _coarseness(step: int) -> int:
    """How late a step of a row comes when halves come before quarters: steps with more trailing zero bits first."""
    return 0 if step == 0 else 8 - min(8, (step & -step).bit_length())
