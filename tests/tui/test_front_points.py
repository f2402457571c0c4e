"""Plans of the front that are no rows of the table stand in the plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from memx_engine import SearchOptions, SearchResult, resolve_job
from memx_engine import search_plans as search
from memx_tui.columns import FrontPoints, PlanColumns
from memx_tui.screens.plans import PlansScreen
from tests.builders import make_cluster, make_model
from tests.tui.harness import make_app, make_session


def searched() -> SearchResult:
    cluster, model = make_cluster(), make_model(layers=12)
    return search(cluster, model, resolve_job(cluster, model, global_batch=16), options=SearchOptions(front=3))


def test_beside_the_table_are_plans_of_the_front_that_are_no_rows() -> None:
    result = searched()
    beside, rows = FrontPoints.beside(result), set(result.table.plans)
    extra = [p for p in result.pareto if p.plan not in rows]
    assert extra and beside.time_s.tolist() == [p.estimate.iteration_time_s for p in extra]
    assert beside.peak_bytes.tolist() == [p.estimate.peak_bytes for p in extra]
    assert np.allclose(beside.spread_bytes**2, [p.estimate.memory_variance_bytes2 for p in extra])
    none = FrontPoints.beside(replace(result, pareto=()))
    assert not len(none.time_s) and not len(none.recompute)


async def test_the_plot_shows_them_unless_rows_are_hidden(tmp_path: Path) -> None:
    result = searched()
    session = make_session(result)
    session.columns = columns = PlanColumns.of_result(result)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(0.1)
        screen = app.screen
        assert isinstance(screen, PlansScreen) and columns.beside is not None
        x, _ = screen.plot.points()
        assert len(x) == len(columns) + len(columns.beside.time_s)
        screen.action_frontier()
        await pilot.pause(0.1)
        x, _ = screen.plot.points()
        assert len(x) == int(columns.pareto.sum())
