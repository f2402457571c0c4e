"""Ordering what the search found: the best by event time, the front, and the table of every skeleton's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import Estimator, Timer
from memx_engine.plan import Estimate, Plan
from memx_engine.search.assign import Assigned
from memx_engine.search.found import Found
from memx_engine.search.objective import Objective
from memx_engine.search.pareto import pareto_mask
from memx_engine.search.result import PlanTable, RankedPlan


@dataclass(frozen=True)
class Ranking:
    """``plans``: the rescored head of the table. ``pareto``: the front by time, the time-optimal plan included.

    ``on_front``: What stands behind ``pareto``.
    """

    table: PlanTable
    plans: tuple[RankedPlan, ...]
    pareto: tuple[RankedPlan, ...]
    time_optimal: RankedPlan
    on_front: tuple[Assigned, ...]


class LazyPlans(Sequence[Plan]):
    """Plans of ``found`` in rank order, each made when it is first asked for."""

    def __init__(self, found: Sequence[Assigned], order: NDArray[np.intp]) -> None:
        self._found, self._order = found, order

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, row: int) -> Plan: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Plan]: ...

    def __getitem__(self, row: int | slice) -> Plan | Sequence[Plan]:
        if isinstance(row, slice):
            return LazyPlans(self._found, self._order[row])
        return self._found[int(self._order[row])].plan

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return repr(tuple(self))

    __hash__ = None  # type: ignore[assignment]  # a sequence compared by what it holds, like a list


_AT_ONCE = 256
"""Plans timed between two questions whether to stop."""


class Predictions:
    """What is predicted of plans, kept from one ranking to the next: iteration times, and estimates once asked for."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._times: dict[Assigned, float] = {}
        self._estimates: dict[Assigned, Estimate] = {}

    def __contains__(self, assigned: object) -> bool:
        """Whether its time is known."""
        return assigned in self._times

    def time_s(self, assigned: Assigned) -> float:
        """The iteration time by events, of what :meth:`time` was asked for."""
        return self._times[assigned]

    def time(self, wanted: Sequence[Assigned], should_stop: Callable[[], bool]) -> None:
        """Predict the iteration times of ``wanted``; of the first one alone where ``should_stop`` says so then."""
        new = [a for a in wanted if a not in self._times]
        at_once = _AT_ONCE if isinstance(self._estimator, Timer) else 1
        start, stop = 0, at_once
        while start < len(new):
            if should_stop():
                if new[0] is not wanted[0] or start:
                    return
                stop = 1
            self._time(new[start:stop])
            start, stop = stop, stop + at_once

    def _time(self, some: Sequence[Assigned]) -> None:
        if isinstance(self._estimator, Timer):
            times = self._estimator.iteration_times([a.plan for a in some])
            self._times |= zip(some, times.tolist(), strict=True)
        else:
            self._times |= {a: self.estimate(a).iteration_time_s for a in some}

    def estimate(self, assigned: Assigned) -> Estimate:
        """Everything predicted of a plan, made once."""
        known = self._estimates.get(assigned)
        if known is None:
            known = self._estimates[assigned] = self._estimator.estimate(assigned.plan)
        return known

    def share(self, known: Assigned, same: Assigned) -> None:
        """``same`` stands for the plan that ``known`` stands for."""
        if known in self._times:
            self._times.setdefault(same, self._times[known])
        if known in self._estimates:
            self._estimates.setdefault(same, self._estimates[known])


def rank(
    found: Found,
    fast: list[Assigned],
    objective: Objective,
    predictions: Predictions,
    rescored: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    beside: Sequence[Assigned] = (),
    whole: bool = False,
) -> Ranking:
    """Order plans by Phi, the best ``rescored`` of them by event time; peak and variance are the solver's.

    Plans of equal Phi are ordered by time, peak, variance, then by the order in which they were found. Members of the
    front carry event times too. Event times replace additive ones until the head and the front are all by events,
    because interleaved estimates may rise.

    Args:
        found: One plan per skeleton. fast: One plan per skeleton for time alone, of which the fastest by events among
            the best ``rescored`` takes part; where it is not in ``found`` it stands beside the table.
        beside: Plans of the whole space's front; those that are not in ``found`` stand beside the table too.
        whole: The front holds plans of ``beside`` alone, and three kinds that nothing known dominates: the first plan,
            the fastest one, and interleaved ones.
        should_stop: Asked before plans are timed; once True only the head that is already timed is kept, of at least
            one plan.
    """
    beyond: list[Assigned] = []
    pool, count = _Pool(found, beyond), len(found)
    places = _Places(pool, found.marks)
    wanted: list[int] = []
    fastest = _fastest(fast, predictions, rescored, should_stop)
    for assigned in (*fastest, *beside):
        same = places.of(assigned)
        if same == len(pool):
            beyond.append(assigned)
        else:
            predictions.share(assigned, pool[same])
        if same >= count or assigned in fastest:
            wanted.append(same)
    time_s = np.append(found.time_s, [a.time_s for a in beyond])
    peak = np.append(found.peak_bytes, [a.peak_bytes for a in beyond])
    variance = np.append(found.variance_bytes2, [a.variance_bytes2 for a in beyond])
    timed: set[int] = set()
    wanted = list(dict.fromkeys(wanted)) or [0]
    while wanted:
        predictions.time([pool[i] for i in wanted], should_stop)
        for i in wanted:
            if pool[i] in predictions:
                timed.add(i)
                time_s[i] = predictions.time_s(pool[i])
        phi = objective.phi_array(time_s, peak, variance)
        keys = (variance[:count], peak[:count], time_s[:count], phi[:count])
        head = _least(keys, rescored)
        front = pareto_mask(time_s, peak, variance)
        wanted = [i for i in (*head, *np.flatnonzero(front).tolist()) if i not in timed]
        if should_stop():
            wanted = [] if head[0] in timed else [head[0]]

    if whole:
        proven = _Places(beside, np.array([id(a.skeleton) for a in beside], dtype=np.int64))
        quickest = min(timed, key=lambda i: (time_s[i], phi[i], i))
        for i in np.flatnonzero(front).tolist():
            front[i] = not pool[i].plain or pool[i] in proven or i in (head[0], quickest)

    order = _order(keys)
    by_events = np.zeros(len(pool), dtype=np.bool_)
    by_events[list(timed)] = True
    types = found.worst_types()
    table = PlanTable(
        plans=LazyPlans(found, order),
        time_s=time_s[order],
        peak_bytes=peak[order],
        variance_bytes2=found.spread_bytes2[order],
        phi=phi[order],
        worst_fraction=found.worst_fraction[order],
        worst_type=tuple([types[i] for i in order.tolist()]),
        by_events=by_events[order],
        pareto=front[order],
    )
    place = np.empty(len(pool), dtype=np.int64)
    place[order] = np.arange(1, count + 1)
    # A plan beside the table takes the rank that its Phi would have there.
    for i in range(count, len(pool)):
        place[i] = 1 + table.ahead_of(float(phi[i]))

    def ranked(i: int) -> RankedPlan:
        estimate = partial(predictions.estimate, pool[i])
        return RankedPlan.later(int(place[i]), pool[i].plan, estimate, float(phi[i]), bool(front[i]))

    on_front = sorted(timed.intersection(np.flatnonzero(front).tolist()), key=lambda i: (time_s[i], place[i]))
    shown = next((row for row, i in enumerate(head) if i not in timed), len(head))
    return Ranking(
        table,
        tuple(ranked(i) for i in head[:shown]),
        tuple(ranked(i) for i in on_front),
        ranked(min(timed, key=lambda i: (time_s[i], phi[i], place[i]))),
        tuple(pool[i] for i in on_front),
    )


def _fastest(
    found: Sequence[Assigned],
    predictions: Predictions,
    rescored: int,
    should_stop: Callable[[], bool],
) -> list[Assigned]:
    """The plan of least event time among the ``rescored`` of least time, as a ranking by time alone orders them."""
    time_s = np.array([a.time_s for a in found])
    peak = np.array([a.peak_bytes for a in found])
    variance = np.array([a.variance_bytes2 for a in found])
    timed: set[int] = set()
    wanted = _least((variance, peak, time_s), rescored) if found else []
    while wanted:
        predictions.time([found[i] for i in wanted], should_stop)
        for i in wanted:
            if found[i] in predictions:
                timed.add(i)
                time_s[i] = predictions.time_s(found[i])
        if should_stop():
            break
        wanted = [i for i in _least((variance, peak, time_s), rescored) if i not in timed]
    return [found[min(timed, key=lambda i: (time_s[i], peak[i], i))]] if timed else []


class _Pool(Sequence[Assigned]):
    """What was found, and plans beyond it."""

    def __init__(self, found: Found, beyond: list[Assigned]) -> None:
        self._found, self._beyond = found, beyond

    def __len__(self) -> int:
        return len(self._found) + len(self._beyond)

    @overload
    def __getitem__(self, i: int) -> Assigned: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Assigned]: ...

    def __getitem__(self, i: int | slice) -> Assigned | Sequence[Assigned]:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return self._found[i] if i < len(self._found) else self._beyond[i - len(self._found)]


class _Places:
    """Where a plan stands among plans of one search, whose skeletons are the same objects everywhere."""

    def __init__(self, plans: Sequence[Assigned], marks: NDArray[np.int64]) -> None:
        self._plans, self._marks = plans, marks

    def _find(self, assigned: Assigned) -> int | None:
        alike = np.flatnonzero(self._marks == id(assigned.skeleton)).tolist()
        return next((i for i in alike if assigned.same_as(self._plans[i])), None)

    def __contains__(self, assigned: Assigned) -> bool:
        return self._find(assigned) is not None

    def of(self, assigned: Assigned) -> int:
        """The place of the plan that ``assigned`` stands for; where it is new, the next one, which it then takes."""
        place = self._find(assigned)
        if place is None:
            place = len(self._marks)
            self._marks = np.append(self._marks, id(assigned.skeleton))
        return place


def _order(keys: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Rows by the last key, ties by the one before it, and so on, then as they come."""
    return np.lexsort(keys)


def _least(keys: Sequence[NDArray[np.float64]], count: int) -> list[int]:
    """The first ``count`` rows of :func:`_order`, without sorting the others."""
    first = keys[-1]
    if len(first) <= count:
        return [int(i) for i in _order(keys)]
    few = np.flatnonzero(first <= np.partition(first, count - 1)[count - 1])
    return [int(i) for i in few[_order([key[few] for key in keys])][:count]]
