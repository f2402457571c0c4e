"""Putting one more plan into the table of a search, such as the one that planning again chose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.result import PlanTable, RankedPlan, SearchResult


def with_plan(result: SearchResult, ranked: RankedPlan) -> tuple[SearchResult, int]:
    """``result`` with ``ranked`` as a row of its table, and that row; ``result`` itself where the plan is listed.

    The row stands where its Phi belongs, before rows of equal Phi, and later ranks move down by one. It is not among
    the front, which stays what the search found, and ``feasible`` goes on counting skeletons.
    """
    table = result.table
    row = next((row for row, plan in enumerate(table.plans) if plan == ranked.plan), None)
    if row is not None:
        return result, row
    row = int((table.phi < ranked.phi).sum())
    estimate, worst = ranked.estimate, ranked.estimate.worst_gpu

    def column(values: NDArray[np.float64], value: float) -> NDArray[np.float64]:
        return np.insert(values, row, value)

    plans = list(table.plans)
    plans.insert(row, ranked.plan)
    wider = PlanTable(
        plans=tuple(plans),
        time_s=column(table.time_s, estimate.iteration_time_s),
        peak_bytes=column(table.peak_bytes, estimate.peak_bytes),
        variance_bytes2=column(table.variance_bytes2, estimate.memory_variance_bytes2),
        phi=column(table.phi, ranked.phi),
        worst_fraction=column(table.worst_fraction, worst.used_fraction),
        worst_type=(*table.worst_type[:row], worst.gpu_type, *table.worst_type[row:]),
        by_events=np.insert(table.by_events, row, True),
        pareto=np.insert(table.pareto, row, False),
    )

    def moved(other: RankedPlan) -> RankedPlan:
        return replace(other, rank=other.rank + 1) if other.rank > row else other

    head = [moved(other) for other in result.plans]
    if row <= len(head):
        head.insert(row, replace(ranked, rank=row + 1, pareto=False))
    listed = replace(
        result,
        table=wider,
        plans=tuple(head),
        pareto=tuple(moved(other) for other in result.pareto),
        time_optimal=moved(result.time_optimal),
    )
    return listed, row
