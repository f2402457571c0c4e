"""Ordering what the search found: the best by event time, the front, and the table of every skeleton's plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memx_engine.cost.table import Estimator
from memx_engine.plan import Estimate
from memx_engine.search.assign import Assigned
from memx_engine.search.objective import Objective
from memx_engine.search.pareto import pareto_mask
from memx_engine.search.result import PlanTable, RankedPlan


@dataclass(frozen=True)
class Ranking:
    """``plans``: the rescored head of the table. ``pareto``: the front by time. Ties: see :func:`rank`."""

    table: PlanTable
    plans: tuple[RankedPlan, ...]
    pareto: tuple[RankedPlan, ...]


def rank(
    found: list[Assigned],
    objective: Objective,
    estimator: Estimator,
    rescored: int,
) -> Ranking:
    """Order plans by Phi, the best ``rescored`` of them by event time.

    Plans of equal Phi are ordered by time, peak, variance, then by the order in which their skeletons are enumerated.
    Members of the front carry event times too. Event times replace additive ones until the head and the front are all
    by events, because interleaved estimates may rise.
    """
    count = len(found)
    time_s = np.array([a.time_s for a in found])
    peak = np.array([a.peak_bytes for a in found])
    variance = np.array([a.variance_bytes2 for a in found])
    estimates: dict[int, Estimate] = {}
    while True:
        phi = objective.phi_array(time_s, peak, variance)
        order = np.lexsort((np.arange(count), variance, peak, time_s, phi))
        front = pareto_mask(time_s, peak, variance)
        wanted = [int(i) for i in (*order[:rescored], *np.flatnonzero(front)) if int(i) not in estimates]
        if not wanted:
            break
        for i in wanted:
            estimates[i] = estimator.estimate(found[i].plan)
            time_s[i] = estimates[i].iteration_time_s
            peak[i] = estimates[i].peak_bytes
            variance[i] = estimates[i].memory_variance_bytes2

    place = {int(i): row + 1 for row, i in enumerate(order)}
    by_events = np.zeros(count, dtype=np.bool_)
    by_events[list(estimates)] = True
    table = PlanTable(
        plans=tuple(found[int(i)].plan for i in order),
        time_s=time_s[order],
        peak_bytes=peak[order],
        variance_bytes2=variance[order],
        phi=phi[order],
        worst_fraction=np.array([found[int(i)].worst_fraction for i in order]),
        worst_type=tuple(found[int(i)].worst_type for i in order),
        by_events=by_events[order],
        pareto=front[order],
    )

    def ranked(i: int) -> RankedPlan:
        return RankedPlan(place[i], found[i].plan, estimates[i], float(phi[i]), bool(front[i]))

    on_front = sorted((int(i) for i in np.flatnonzero(front)), key=lambda i: (time_s[i], place[i]))
    head = tuple(ranked(int(i)) for i in order[:rescored])
    return Ranking(table, head, tuple(ranked(i) for i in on_front))
