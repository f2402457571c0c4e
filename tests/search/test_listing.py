"""One more plan in the table of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memx_engine.plan import FULL
from memx_engine.search.listing import with_plan
from memx_engine.search.result import RankedPlan, SearchResult
from tests.builders import make_result

RESULT = make_result(20, detailed=8)


def another(result: SearchResult, phi: float) -> RankedPlan:
    """A plan that is not in the table, said to have this Phi."""
    plan = result.table.plans[0]
    other = replace(plan, stages=tuple(replace(stage, recompute=FULL) for stage in plan.stages[:1]) + plan.stages[1:])
    assert other not in list(result.table.plans)
    return RankedPlan(99, other, result.estimator.estimate(other), phi, True)


@pytest.mark.parametrize("after", [-1, 0, 4, 7, 8, 15, 19])
def test_the_row_stands_where_its_phi_belongs_and_the_others_move_down(after: int) -> None:
    phis = RESULT.table.phi
    phi = float(phis[0] * 0.5 if after < 0 else np.nextafter(phis[after], np.inf))
    new = another(RESULT, phi)
    listed, row = with_plan(RESULT, new)
    assert row == after + 1 and len(listed.table) == 21 and np.all(np.diff(listed.table.phi) >= 0)
    shown = listed.detail(row)
    assert (shown.rank, shown.plan, shown.phi) == (row + 1, new.plan, phi) and shown.estimate == new.estimate
    others = [listed.detail(i) for i in range(21) if i != row]
    for before, now in zip((RESULT.detail(i) for i in range(20)), others, strict=True):
        assert replace(now, rank=before.rank) == before and now.rank == before.rank + (before.rank > row)
    for name in ("time_s", "peak_bytes", "variance_bytes2", "worst_fraction", "by_events", "pareto"):
        column, old = getattr(listed.table, name), getattr(RESULT.table, name)
        assert np.array_equal(np.delete(column, row), old), name
    assert listed.table.worst_type[row] == new.estimate.worst_gpu.gpu_type
    assert listed.table.time_s[row] == new.estimate.iteration_time_s and listed.table.by_events[row]
    assert [p.plan for p in listed.pareto] == [p.plan for p in RESULT.pareto]
    assert all(listed.table.plans[p.rank - 1] == p.plan for p in listed.pareto)
    assert listed.feasible == RESULT.feasible


def test_a_plan_that_is_listed_stays_where_it_is() -> None:
    for row in (0, 5, 12):
        assert with_plan(RESULT, RESULT.detail(row)) == (RESULT, row)
