"""Second phase: one branch and bound over all skeletons, the time rule, and a plan for every skeleton that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.assign import Assigned, assign_split, assigned
from memx_engine.search.bounding import Tables
from memx_engine.search.bounds import EvenPlan
from memx_engine.search.branch_and_bound import BranchAndBound, Candidate, Skeletons
from memx_engine.search.control import Control
from memx_engine.search.fitting import Fitting
from memx_engine.search.found import Found
from memx_engine.search.objective import Objective, Weights
from memx_engine.search.options import SearchOptions
from memx_engine.search.problem import Problem, criterion_of
from memx_engine.search.prune import removed_by_corner, removed_by_paper
from memx_engine.search.sketch_bounds import balanced_splits
from memx_engine.search.sources import Sources

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SOLVED_AT_LEAST = 64
"""Skeletons that are looked into even where their bounds say that they cannot be among the N best."""
_CLOSED_BY = 10
"""A skeleton is closed by the N-th best plan, N at least this, so that fewer plans shown are the first of more."""
_BALANCED = 128
"""So many skeletons, those with the least bounds, start with a split that balances the stages' times."""
_CANDIDATES = 3
"""Of every plan that may be the fastest by events, so many times the rescored ones are considered."""


class Solver:
    """Finds every skeleton's plan as far as it matters.

    Attributes:
        found: One plan per skeleton that was not removed, in the order of enumeration.
        unsolved_phi: The least bound of 1F1B skeletons that were not proven.
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
        self._ground, self._tables, self._options, self._control = (cluster, model), tables, options, control
        self._one_recompute = framework is Framework.MEGATRON
        self.found: Found
        self.unsolved_phi = math.inf

    def solve(self, fitting: Fitting, objective: Objective) -> None:
        """Rule 3 and the exact solver; fills ``found``."""
        control = self._control
        self._fitting = fitting
        self._sources = Sources(fitting, self._tables, self._options.limits, one_recompute=self._one_recompute)
        self._plain: Bools = np.array([s.virtual_stages == 1 for s in fitting.skeletons], dtype=np.bool_)
        self._splits: dict[int, EvenPlan] = {}
        corners = _log_phi(objective, fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2)
        evens = _log_phi(objective, fitting.even_time_s, fitting.even_peak_bytes, fitting.even_variance)
        known = np.minimum(evens, self._balance(np.argsort(corners, kind="stable")[:_BALANCED].tolist(), objective))
        removed = np.zeros(len(fitting), dtype=np.bool_)
        search: BranchAndBound

        def before_visit(bound: float) -> None:
            self._tell(search.best)
            self._raise_bound(min(bound, _least(search.best[self._plain]), _least(corners[self._plain & removed])))
            control.report("solving", int(search.opened.sum()), len(fitting))

        skeletons = _Asked(self._sources, objective, corners)
        search = self._search(objective, corners, skeletons, known, before_visit)
        if self._options.time_rule == "paper":
            skeletons.refuse = partial(self._removes, search, removed)
        exhausted = search.run()
        self._tell(search.best)
        limits = self._cutoffs(search.best)
        opened = search.opened & ~removed
        if exhausted and self._options.time_rule == "corner":
            made = [(c.time_s, c.peak, c.variance) for c in search.found.values()]
            removed = ~opened & (corners > limits) & removed_by_corner(fitting, made)
        if exhausted:
            left = [i for i in np.argsort(corners, kind="stable").tolist() if not (opened[i] or removed[i])]
            more = max(0, _SOLVED_AT_LEAST - int(opened.sum()))
            missing = [i for i in np.flatnonzero(opened).tolist() if i not in search.found and not search.empty[i]]
            rest = [i for i in (*missing, *left[more:]) if not math.isfinite(known[i])]
            known = np.minimum(known, self._balance(rest, objective))
            search.glance([*left[:more], *(i for i in rest if not math.isfinite(known[i]))])
        elif not search.found and not fitting.has_even.any():
            for i in np.argsort(corners, kind="stable").tolist():
                search.glance([i])
                if search.found:
                    break
        # Of what was removed only its bounds are known.
        lower = np.exp(np.where(removed, corners, search.lower_bounds()))
        plans: dict[int, Assigned] = {}
        for i in {*search.found, *self._splits}:
            plan = None if removed[i] else self._better(i, search.found.get(i), float(evens[i]), objective)
            if plan is not None:
                plans[i] = plan
        there = np.isfinite(evens) & ~removed
        there[list(plans)] = True
        self.found = Found(fitting, self._ground, np.flatnonzero(there), plans, np.exp(evens), lower, self._plain)
        none = exhausted * (len(fitting) - int(removed.sum()) - len(self.found))
        control.counts = replace(
            control.counts, time=control.counts.time + int(removed.sum()), memory=control.counts.memory + none
        )
        control.feasible -= none
        unproven = self._plain & (removed & (corners < limits) if exhausted else removed | ~search.empty)
        self.unsolved_phi = _least(lower[unproven])
        self._raise_bound(min(_least(search.best[self._plain]), _log(self.unsolved_phi)))

    def fastest(self, objective: Objective) -> list[Assigned]:
        """Candidates for the fastest plan, from which events choose: what a search by time alone finds, and what is
        known.

        The least additive time need not be the fastest by events.
        """
        weights = objective.weights
        if weights.peak == 0.0 == weights.variance:
            return []
        by_time = replace(objective, weights=Weights("time", 1.0, 0.0, 0.0))
        fitting, found = self._fitting, self.found
        seeds = fitting.even_time_s.copy()
        for i, split in self._splits.items():
            seeds[i] = min(seeds[i], split.time_s)
        seeds[found.numbers] = np.minimum(seeds[found.numbers], found.time_s)
        with np.errstate(divide="ignore"):
            corners, evens, start = (
                np.log(t / by_time.references.time_s) for t in (fitting.time_s, fitting.even_time_s, seeds)
            )
        search = self._search(by_time, corners, _Asked(self._sources, by_time, corners), start)
        if not self._control.stops():
            search.run()
        plans: list[Assigned] = []
        quickest = np.argsort(search.best, kind="stable")[: _CANDIDATES * self._options.rescored]
        for i in quickest[np.isfinite(search.best[quickest])].tolist():
            # The search starts from all of these, so it says only what beats them.
            made = self._better(i, search.found.get(i), float(evens[i]), by_time)
            known = [plan for plan in (found.of_skeleton(i), made, found.even(i)) if plan is not None]
            if known:
                least_s = min(plan.time_s for plan in known) * (1 + 1e-12)
                plans.append(next(plan for plan in known if plan.time_s <= least_s))
        return plans

    def optimum(
        self,
        objective: Objective,
        corners: Array,
        limit: float,
        most_peak: float,
        most_nodes: float,
        *,
        enough: bool = False,
    ) -> tuple[Assigned | None, bool, int]:
        """The best 1F1B plan for another objective up to a peak, if it is below a limit (of Phi).

        Args:
            corners: (n,) a lower bound of log Phi of every skeleton, infinite for those that are to be left out.
            enough: Stop at the first plan below the limit.

        Returns:
            The plan; whether it is proven that none is better (that there is none below the limit); nodes visited.
        """
        log_limit = _log(limit)
        search: BranchAndBound

        def cutoffs(best: Array) -> Array:
            return np.full_like(best, min(log_limit, float(best.min(initial=math.inf))))

        def should_stop() -> bool:
            return self._control.stops() or (enough and float(search.best.min()) < log_limit)

        search = BranchAndBound(
            criterion_of(objective),
            corners,
            _Asked(self._sources, objective, corners),
            cutoffs=cutoffs,
            most_peak=most_peak,
            should_stop=should_stop,
            most_nodes=most_nodes,
        )
        proven = search.run()
        nodes = int(search.nodes.sum())
        below = {i: c for i, c in search.found.items() if c.log_phi < log_limit}
        if not below:
            return None, proven, nodes
        i = min(below, key=lambda k: (below[k].log_phi, k))
        return self._assigned(i, below[i]), proven or enough, nodes

    # --- parts -----------------------------------------------------------------------------------------------------

    def _removes(self, search: BranchAndBound, removed: Bools, i: int) -> bool:
        """Whether the paper's time rule removes skeleton ``i``; marks it in ``removed``."""
        times = [candidate.time_s for candidate in search.found.values()]
        removed[i] = removed_by_paper(float(self._fitting.time_s[i]), times, self._closed_by)
        return bool(removed[i])

    def _search(
        self,
        objective: Objective,
        corners: Array,
        skeletons: Skeletons,
        known: Array,
        on_visit: Callable[[float], None] | None = None,
    ) -> BranchAndBound:
        control = self._control

        def should_stop() -> bool:
            # A time limit waits for the first plan, the operator does not.
            return control.stops() and (control.cancelled or bool(np.isfinite(made.best).any()))

        made = BranchAndBound(
            criterion_of(objective),
            corners,
            skeletons,
            cutoffs=self._cutoffs,
            known=known,
            should_stop=should_stop,
            on_visit=on_visit,
        )
        return made

    @property
    def _closed_by(self) -> int:
        return max(self._options.top, _CLOSED_BY)

    def _cutoffs(self, best: Array) -> Array:
        """(n,) the N-th best log Phi; for 1F1B skeletons that of 1F1B plans.

        Interleaved estimates may be too low, and the certificate speaks of 1F1B: they close no 1F1B skeleton.
        """
        return np.where(self._plain, _nth(best[self._plain], self._closed_by), _nth(best, self._closed_by))

    def _tell(self, best: Array) -> None:
        for values, plain in ((best[self._plain], True), (best, False)):
            least = _least(values)
            if least < math.inf:
                self._control.found(math.exp(least), plain=plain)

    def _raise_bound(self, log_phi: float) -> None:
        # Every one of them holds, so the highest does.
        self._control.lower_bound_phi = max(self._control.lower_bound_phi or 0.0, math.exp(log_phi))

    def _better(self, i: int, made: Candidate | None, even: float, objective: Objective) -> Assigned | None:
        """The better of what was found and a balanced split, if it beats the even one, which has log Phi ``even``."""
        split, phi = self._splits.get(i), math.inf
        if split is not None:
            phi = objective.phi(split.time_s, split.peak_bytes, split.variance_bytes2)
        if made is not None and made.log_phi <= min(even, _log(phi)) + 1e-12:
            return self._assigned(i, made)
        if split is not None and _log(phi) <= even:
            return assign_split(*self._ground, self._fitting.skeletons[i], split, phi)
        return None

    def _balance(self, skeletons: Sequence[int], objective: Objective) -> Array:
        """Find splits of these skeletons without a search; (n,) log Phi of what is known then, infinite elsewhere."""
        sketches = self._fitting.sketches
        able = [] if self._sources.tied else [i for i in skeletons if sketches[i] is not None]
        made = balanced_splits(
            [sketch for i in able if (sketch := sketches[i]) is not None], variance_kind=objective.variance_kind
        )
        self._splits |= {i: split for i, split in zip(able, made, strict=True) if split is not None}
        out = np.full(len(self._fitting), np.inf)
        if self._splits:
            numbers = list(self._splits)
            columns = np.array([(s.time_s, s.peak_bytes, s.variance_bytes2) for s in self._splits.values()]).T
            out[numbers] = _log_phi(objective, *columns)
        return out

    def _assigned(self, i: int, made: Candidate) -> Assigned:
        return assigned(*self._ground, self._fitting.skeletons[i], self._sources.meaning(i), made)


class _Asked:
    """Problems of one objective, ``corners`` (n,) being the bounds of log Phi; ``refuse``: Those that are removed."""

    def __init__(self, sources: Sources, objective: Objective, corners: Array) -> None:
        self._sources, self._objective, self._corners = sources, objective, corners
        self.refuse: Callable[[int], bool] = lambda i: False

    def foresee(self, numbers: Sequence[int], targets: Array) -> None:
        self._sources.foresee(numbers, self._objective, targets - self._corners[numbers])

    def problem(self, number: int, target: float) -> Problem | None:
        if self.refuse(number):
            return None
        return self._sources.problem(number, self._objective, target - float(self._corners[number]))


def _log_phi(objective: Objective, time_s: Array, peak: Array, variance: Array) -> Array:
    """(n,) log Phi; infinite where the plan does not exist."""
    with np.errstate(invalid="ignore", divide="ignore"):
        made = np.log(objective.phi_array(time_s, peak, variance))
    return np.asarray(np.where(np.isfinite(time_s), made, np.inf))


def _nth(values: Array, n: int) -> float:
    return float(np.partition(values, n - 1)[n - 1]) if len(values) >= n else math.inf


def _least(values: Array) -> float:
    return float(values.min(initial=math.inf))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
