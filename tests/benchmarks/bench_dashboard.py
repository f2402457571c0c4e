"""30,000 plans in the dashboard: columns, filling, sorting, filtering, drawing a page, plotting.

The aims: interactive at most 0.5 s after a search, sort or filter within 200 ms, a key within 50 ms.
Run: pytest tests/benchmarks/bench_dashboard.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from memx_tui.columns import PlanColumns
from memx_tui.filter import parse_filter
from memx_tui.plan_list import sort_order
from memx_tui.plotting import draw_pareto
from memx_tui.screens.plans import PlansScreen
from tests.builders import make_result
from tests.tui.harness import make_app, make_columns, make_session

N = 30_000


@pytest.fixture(scope="module")
def columns() -> PlanColumns:
    rng = np.random.default_rng(1)
    return make_columns(
        rng.gamma(3, 2, N) + 6,
        rng.gamma(2, 20, N) + 10,
        spread_gib=rng.random(N) * 10,
        worst=rng.random(N),
        recompute=rng.integers(0, 5, N),
    )


def test_bench_columns_of_a_result(benchmark: BenchmarkFixture) -> None:
    table = make_result(12).table
    times = N // 12
    fields = ("time_s", "peak_bytes", "variance_bytes2", "phi", "worst_fraction", "by_events", "pareto")
    large = replace(
        table,
        plans=table.plans * times,
        worst_type=table.worst_type * times,
        **{name: np.tile(getattr(table, name), times) for name in fields},
    )
    assert len(benchmark(lambda: PlanColumns.of(large))) == N


def test_bench_sort(benchmark: BenchmarkFixture, columns: PlanColumns) -> None:
    rows = np.arange(N)
    assert len(benchmark(lambda: sort_order(columns, rows, "worst", True))) == N


def test_bench_filter(benchmark: BenchmarkFixture, columns: PlanColumns) -> None:
    assert benchmark(lambda: parse_filter("worst<90 time<20 type=h100 fits").mask(columns)).any()


def test_bench_plot(benchmark: BenchmarkFixture, columns: PlanColumns) -> None:
    y = columns.peak_bytes / 2**30
    assert benchmark(lambda: draw_pareto(columns.time_s, y, columns.recompute, 50, 20, selected=7)).lines


async def test_bench_on_screen(
    columns: PlanColumns, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Seconds until the screen has settled, in the real app without a terminal; printed with ``-s``."""
    session = make_session(make_result(12))
    assert session.result is not None
    small, times = session.result.table, N // 12
    table = replace(
        small, plans=small.plans * times, phi=np.tile(small.phi, times), pareto=np.tile(small.pareto, times)
    )
    session.result, session.columns = replace(session.result, table=table), columns
    app = make_app(tmp_path, session)
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause(0.2)
        screen = app.screen
        assert isinstance(screen, PlansScreen)
        seconds: dict[str, float] = {}
        for name, act in (
            ("fill", lambda: screen._refill(0)),
            ("sort", lambda: screen.set_sort("spread")),
            ("down", lambda: screen.table.action_move(1)),
            ("page down", lambda: screen.table.action_page(1)),
        ):
            start = perf_counter()
            act()
            await pilot.pause()
            seconds[name] = perf_counter() - start
        for name, value in seconds.items():
            record_property(name, value)
            print(f"{name}: {value * 1000:.0f} ms")
