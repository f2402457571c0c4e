"""Second phase: the time rule and the exact solver, the most promising skeleton first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Skeleton
from memx_engine.search.assign import Assigned, assign, assign_even
from memx_engine.search.bounding import Tables
from memx_engine.search.bounds import PlanFigures
from memx_engine.search.control import Control
from memx_engine.search.fitting import Fitting
from memx_engine.search.objective import Objective, Weights
from memx_engine.search.options import SearchOptions
from memx_engine.search.pareto import Front
from memx_engine.search.prune import Incumbents

_SOLVED_AT_LEAST = 64
"""Skeletons that are solved even where their bounds say that they cannot be among the N best."""
_CLOSED_BY = 10
"""A skeleton is closed by the N-th best plan, N at least this, so that fewer plans shown are the first of more."""
_NODES = (4, 40, None)
"""How many nodes a skeleton gets when it is looked into, again, and for good."""


class Solver:
    """Finds every skeleton's plan as far as it matters.

    Attributes:
        found: One plan per skeleton that was not removed, in the order in which they were looked at.
        unsolved_phi: The least bound of skeletons that were neither solved nor proven worse.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        framework: Framework,
        tables: Tables,
        options: SearchOptions,
        control: Control,
    ) -> None:
        self._ground, self._framework, self._tables = (cluster, model), framework, tables
        self._options, self._control = options, control
        self.found: list[Assigned] = []
        self.unsolved_phi = float("inf")
        self._proven = float("inf")

    def solve(self, bounded: Fitting, objective: Objective) -> None:
        """Rule 3 and the inner solver, always on the skeleton with the least bound; ties in the order of enumeration.

        A skeleton is first looked into with a few nodes, then waits with the bound that these give: many are closed
        by plans that are found meanwhile.
        """
        control = self._control
        corners = _corner_phis(bounded, objective)
        evens = _even_phis(bounded, objective)
        every = self._incumbents(evens.values())
        # Interleaved estimates may be too low, and the certificate speaks of 1F1B: they close no 1F1B skeleton.
        plain = self._incumbents(phi for i, phi in evens.items() if bounded.skeletons[i].virtual_stages == 1)
        for i, phi in evens.items():
            control.found(phi, plain=bounded.skeletons[i].virtual_stages == 1)
        waiting: list[tuple[float, int, int]] = [(corner, i, 0) for i, corner in enumerate(corners)]
        heapq.heapify(waiting)
        looked_into: dict[int, Assigned] = {}
        solved = done = 0
        while waiting:
            bound, i, level = waiting[0]
            # Nothing that waits has a smaller bound.
            control.lower_bound_phi = min(self._proven, self.unsolved_phi, bound)
            if control.stops() and (control.cancelled or bool(self.found) or bool(looked_into)):
                self.unsolved_phi = min(self.unsolved_phi, bound)
                self.found += looked_into.values()
                return
            heapq.heappop(waiting)
            skeleton = bounded.skeletons[i]
            known = plain if skeleton.virtual_stages == 1 else every
            if level == 0 and known.closes(bounded.corner(i), bound):
                control.counts = replace(control.counts, time=control.counts.time + 1)
                if self._options.time_rule == "paper":
                    self.unsolved_phi = min(self.unsolved_phi, bound)
                done += 1
                continue
            best = looked_into.pop(i, None)
            beaten = bound > known.phi_limit
            even = bounded.even(i) if beaten and best is None and solved >= _SOLVED_AT_LEAST else None
            if even is not None:
                best = assign_even(*self._ground, skeleton, even, evens[i], bound)
            elif not beaten or best is None:
                nodes = _NODES[level] if skeleton.virtual_stages == 1 else None
                best = _both(best, self._assign(skeleton, objective, known.phi_limit, bound, nodes))
                solved += level == 0
            if best is None:
                if self._may_end():
                    # Stopped before it was known whether anything fits there.
                    self.unsolved_phi = min(self.unsolved_phi, bound)
                else:
                    control.counts = replace(control.counts, memory=control.counts.memory + 1)
                    control.feasible -= 1
                done += 1
                continue
            figures = PlanFigures(best.time_s, best.peak_bytes, best.variance_bytes2)
            for incumbents in (every, plain) if best.plain else (every,):
                incumbents.add(i, figures, best.phi)
            control.found(best.phi, plain=best.plain)
            if best.settled or best.lower_bound_phi > known.phi_limit or not best.plain:
                self._keep(best)
                done += 1
            else:
                looked_into[i] = best
                heapq.heappush(waiting, (best.lower_bound_phi, i, level + 1))
            control.report("solving", done, len(corners))
        control.lower_bound_phi = min(self._proven, self.unsolved_phi)

    def keep_evens(self, bounded: Fitting, objective: Objective) -> None:
        """Where the operator stopped before anything was solved: the even splits are the plans so far.

        Where none fits, one plan of the skeleton with the least bound, with as little work as it takes.
        """
        for i, phi in _even_phis(bounded, objective).items():
            even = bounded.even(i)
            if even is not None:
                self.found.append(assign_even(*self._ground, bounded.skeletons[i], even, phi, 0.0))
        if not self.found:
            corners = _corner_phis(bounded, objective)
            best = self._assign(bounded.skeletons[int(np.argmin(corners))], objective, float("inf"), 0.0, 1)
            self.found += [best] if best is not None else []

    def fastest(self, bounded: Fitting, objective: Objective) -> list[Assigned]:
        """Candidates for the fastest plan: what a search by time alone finds, from which events choose.

        The least additive time need not be the fastest by events.
        """
        weights = objective.weights
        if weights.peak == 0.0 == weights.variance:
            return []
        by_time = replace(objective, weights=Weights("time", 1.0, 0.0, 0.0))
        quiet = Control(None, None, self._control.stops)
        other = Solver(*self._ground, self._framework, self._tables, self._options, quiet)
        other.solve(bounded, by_time)
        return other.found or sorted(self.found, key=lambda a: (a.time_s, a.peak_bytes))[:1]

    def trade(self, skeleton: Skeleton, objective: Objective, limit: float, most_peak: float) -> Assigned | None:
        """The best plan of a skeleton for another objective under a bound of the peak, if it is below the limit."""
        return self._assign(skeleton, objective, limit, 0.0, most_peak=most_peak)

    def _keep(self, best: Assigned) -> None:
        self.found.append(best)
        if best.plain:
            self._proven = min(self._proven, best.lower_bound_phi)

    def _incumbents(self, even_phis: Iterable[float]) -> Incumbents:
        """No plan yet; the N-th best Phi of these even splits is a limit to start with."""
        phis = sorted(even_phis)
        top = max(self._options.top, _CLOSED_BY)
        # A hair above, so that a skeleton whose even split is its best is still solved.
        ceiling = phis[top - 1] * (1.0 + 1e-9) if len(phis) >= top else float("inf")
        return Incumbents(top, self._options.time_rule, ceiling, Front())

    def _assign(
        self,
        skeleton: Skeleton,
        objective: Objective,
        limit: float,
        bound: float,
        most_nodes: int | None = None,
        most_peak: float = float("inf"),
    ) -> Assigned | None:
        best = assign(
            *self._ground,
            self._framework,
            skeleton,
            self._tables.get(skeleton),
            objective,
            incumbent_phi=limit,
            max_layer_difference=self._options.limits.max_layer_difference,
            should_stop=lambda: self._control.stops() and self._may_end(),
            most_nodes=most_nodes,
            most_peak=most_peak,
        )
        if best is None or not best.plain:
            return best
        # What was known before is a bound too.
        return replace(best, lower_bound_phi=min(max(best.lower_bound_phi, bound), best.phi))

    def _may_end(self) -> bool:
        """Whether the work can end here: a time limit still waits for the first plan, the operator does not."""
        return self._control.cancelled or (self._control.timed_out and bool(self.found))


def _corner_phis(bounded: Fitting, objective: Objective) -> list[float]:
    """Phi of every skeleton's bounds: no plan of it that fits is better."""
    phis = objective.phi_array(bounded.time_s, bounded.peak_bytes, bounded.variance_bytes2)
    return [float(phi) for phi in phis]


def _even_phis(bounded: Fitting, objective: Objective) -> dict[int, float]:
    """Phi of every even split that fits, by the number of its skeleton."""
    at = np.flatnonzero(bounded.has_even)
    phis = objective.phi_array(bounded.even_time_s[at], bounded.even_peak_bytes[at], bounded.even_variance[at])
    return dict(zip(at.tolist(), phis.tolist(), strict=True))


def _both(before: Assigned | None, again: Assigned | None) -> Assigned | None:
    """What two looks into a skeleton tell: the better plan, the higher bound.

    The second look may close the plan of the first, because that plan's own Phi was the limit.
    """
    if before is None or again is None:
        return before or again
    best = before if before.phi <= again.phi else again
    lower = min(max(before.lower_bound_phi, again.lower_bound_phi), best.phi)
    return replace(best, lower_bound_phi=lower, settled=again.settled, nodes=before.nodes + again.nodes)
