"""Ordering what the search found: the best by event time, the front, and the table of every skeleton's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import overload

import numpy as np

from memx_engine.cost.table import Estimator
from memx_engine.plan import Estimate, Plan
from memx_engine.search.assign import Assigned
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
    """Plans in rank order, each made when it is first asked for."""

    def __init__(self, assigned: Sequence[Assigned]) -> None:
        self._assigned = assigned

    def __len__(self) -> int:
        return len(self._assigned)

    @overload
    def __getitem__(self, row: int) -> Plan: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Plan]: ...

    def __getitem__(self, row: int | slice) -> Plan | Sequence[Plan]:
        if isinstance(row, slice):
            return LazyPlans(self._assigned[row])
        return self._assigned[row].plan

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return repr(tuple(self))

    __hash__ = None  # type: ignore[assignment]  # a sequence compared by what it holds, like a list


def rank(
    found: list[Assigned],
    fast: list[Assigned],
    objective: Objective,
    estimator: Estimator,
    rescored: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    beside: Sequence[Assigned] = (),
    whole: bool = False,
    known: dict[int, Estimate] | None = None,
) -> Ranking:
    """Order plans by Phi, the best ``rescored`` of them by event time.

    Plans of equal Phi are ordered by time, peak, variance, then by the order in which they were found. Members of the
    front carry event times too. Event times replace additive ones until the head and the front are all by events,
    because interleaved estimates may rise.

    Args:
        found: One plan per skeleton. fast: One plan per skeleton for time alone, of which the fastest by events among
            the best ``rescored`` takes part; where it is not in ``found`` it stands beside the table.
        beside: Plans of the whole space's front; those that are not in ``found`` stand beside the table too.
        whole: The front holds plans of ``beside`` alone, and three kinds that nothing known dominates: the first plan,
            the fastest one, and interleaved ones.
        known: Estimates by ``id`` of what was assigned, kept from one ranking to the next.
        should_stop: Asked before every simulation; once True only the head that is already simulated is kept, of at
            least one plan.
    """
    known = {} if known is None else known

    def estimate(assigned: Assigned) -> Estimate:
        if id(assigned) not in known:
            known[id(assigned)] = estimator.estimate(assigned.plan)
        return known[id(assigned)]

    pool, count = list(found), len(found)
    fastest = _fastest(fast, estimate, rescored, should_stop)
    wanted = []
    for assigned in (*fastest, *beside):
        same = next((i for i, a in enumerate(pool) if assigned.same_as(a)), len(pool))
        if same == len(pool):
            pool.append(assigned)
        elif id(assigned) in known:
            known.setdefault(id(pool[same]), known[id(assigned)])
        if same >= count or assigned in fastest:
            wanted.append(same)
    time_s = np.array([a.time_s for a in pool])
    peak = np.array([a.peak_bytes for a in pool])
    variance = np.array([a.variance_bytes2 for a in pool])
    spread = np.array([a.spread_bytes2 for a in pool])
    estimates: dict[int, Estimate] = {}
    wanted = list(dict.fromkeys(wanted)) or [0]
    while wanted:
        for i in wanted:
            if i != wanted[0] and should_stop():
                break
            estimates[i] = estimate(pool[i])
            time_s[i] = estimates[i].iteration_time_s
            peak[i] = estimates[i].peak_bytes
            variance[i], spread[i] = objective.variance_of(estimates[i]), estimates[i].memory_variance_bytes2
        phi = objective.phi_array(time_s, peak, variance)
        order = np.lexsort((np.arange(count), variance[:count], peak[:count], time_s[:count], phi[:count]))
        front = pareto_mask(time_s, peak, variance)
        wanted = [int(i) for i in (*order[:rescored], *np.flatnonzero(front)) if int(i) not in estimates]
        if should_stop():
            wanted = [int(order[0])] if int(order[0]) not in estimates else []

    if whole:
        quickest = min(estimates, key=lambda i: (time_s[i], phi[i], i))
        for i in np.flatnonzero(front).tolist():
            proven = not pool[i].plain or any(pool[i].same_as(a) for a in beside)
            front[i] = proven or i in (int(order[0]), quickest)

    by_events = np.zeros(len(pool), dtype=np.bool_)
    by_events[list(estimates)] = True
    table = PlanTable(
        plans=LazyPlans([found[int(i)] for i in order]),
        time_s=time_s[order],
        peak_bytes=peak[order],
        variance_bytes2=spread[order],
        phi=phi[order],
        worst_fraction=np.array([found[int(i)].worst_fraction for i in order]),
        worst_type=tuple(found[int(i)].worst_type for i in order),
        by_events=by_events[order],
        pareto=front[order],
    )
    place = {int(i): row + 1 for row, i in enumerate(order)}
    # A plan beside the table takes the rank that its Phi would have there.
    place |= {i: 1 + int((table.phi < phi[i]).sum()) for i in range(count, len(pool))}

    def ranked(i: int) -> RankedPlan:
        return RankedPlan(place[i], pool[i].plan, estimates[i], float(phi[i]), bool(front[i]))

    on_front = sorted(
        (int(i) for i in np.flatnonzero(front) if int(i) in estimates), key=lambda i: (time_s[i], place[i])
    )
    head = [int(i) for i in takewhile(lambda i: int(i) in estimates, order[:rescored])]
    return Ranking(
        table,
        tuple(ranked(i) for i in head),
        tuple(ranked(i) for i in on_front),
        ranked(min(estimates, key=lambda i: (time_s[i], phi[i], place[i]))),
        tuple(pool[i] for i in on_front),
    )


def _fastest(
    found: Sequence[Assigned],
    estimate: Callable[[Assigned], Estimate],
    rescored: int,
    should_stop: Callable[[], bool],
) -> list[Assigned]:
    """The plan of least event time among the ``rescored`` of least time, as a ranking by time alone orders them."""
    time_s = np.array([a.time_s for a in found])
    ties = (np.array([a.variance_bytes2 for a in found]), np.array([a.peak_bytes for a in found]))
    timed: dict[int, float] = {}
    wanted = [int(time_s.argmin())] if found else []
    while wanted:
        for i in wanted:
            if timed and should_stop():
                break
            time_s[i] = timed[i] = estimate(found[i]).iteration_time_s
        order = np.lexsort((np.arange(len(found)), *ties, time_s))[:rescored].tolist()
        wanted = [] if should_stop() else [i for i in order if i not in timed]
    return [found[min(timed, key=lambda i: (timed[i], found[i].peak_bytes, i))]] if timed else []
