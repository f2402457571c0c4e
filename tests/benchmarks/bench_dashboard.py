"""30,000 plans in the dashboard: columns, filling, sorting, filtering, drawing a page, plotting; and doing nothing.

The aims: interactive at most 0.5 s after a search, sort or filter within 200 ms, a key within 50 ms; below 1 % of a
core when idle and while a device is waited for; 2,000 selection changes grow the process by less than 10 MiB.
Run: pytest tests/benchmarks/bench_dashboard.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import psutil
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from memx_engine import load_cluster, load_model
from memx_tui.app import MemxApp
from memx_tui.columns import PlanColumns
from memx_tui.filter import parse_filter
from memx_tui.plan_list import sort_order
from memx_tui.plotting import draw_pareto
from memx_tui.profile_state import ProfileSettings
from memx_tui.runners import RunnerSettings
from memx_tui.screens.plans import PlansScreen
from memx_tui.session import Session
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


async def own_cpu(seconds: float = 10.0) -> float:
    """Share of one core that this process uses while nothing is pressed for ``seconds``."""
    start, before = perf_counter(), process_time()
    # One sleep of the event loop's: waiting with pilot.pause() would count its own work.
    await asyncio.sleep(seconds)
    return (process_time() - before) / (perf_counter() - start)


async def test_bench_check_09_idle_with_results(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Below 1 % of a core over 10 s on every screen, with results loaded; printed with ``-s``."""
    app = make_app(tmp_path, make_session(make_result(200, calibrated=True)))
    async with app.run_test(size=(160, 50)) as pilot:
        for key, name in (("3", "plans"), ("2", "profile")):
            await pilot.press(key)
            await pilot.pause(1.0)
            share = await own_cpu()
            record_property(f"idle {name}", share)
            print(f"idle on {name}: {share:.2%} of a core, load {os.getloadavg()[0]:.1f}")
            assert share < 0.01


async def test_bench_check_09_while_a_point_is_waited_for(
    tmp_path: Path, record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 1 % of a core over 10 s while a device works; the testbed at the pace of real devices stands for it."""
    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)
    session = Session(cluster=load_cluster("paper-20gpu"), model=load_model("llama2-7b"), mode="profile")
    session.profile.settings = ProfileSettings(RunnerSettings(pace=1.0))
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        while session.profile.progress is None or session.profile.progress.measured < 3:
            await pilot.pause(0.2)
        share = await own_cpu()
        record_property("profiling", share)
        measured = session.profile.progress.measured
        print(f"profiling, three types, {measured} points so far: {share:.2%}, load {os.getloadavg()[0]:.1f}")
        await pilot.press("x")
        while session.profile.running:
            await pilot.pause(0.1)
        assert share < 0.01


async def test_bench_check_32_two_thousand_selection_changes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each with the plot drawn anew; the process may grow by less than 10 MiB."""
    app = make_app(tmp_path, make_session(make_result(200)))
    process = psutil.Process()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, PlansScreen)

        async def change(times: int) -> None:
            for i in range(times):
                screen.table.move_to((i * 7 + 1) % 200)
                screen.show_selection()
                screen.plot.render_line(0)
                if i % 20 == 0:
                    await pilot.pause()

        await change(300)  # fills the caches of details and styles
        before, draws = process.memory_info().rss, screen.plot.draws
        await change(2000)
        await pilot.pause(0.1)
        grown = (process.memory_info().rss - before) / 2**20
        record_property("grown MiB", grown)
        print(f"2,000 changes, {screen.plot.draws - draws} plots drawn: {grown:+.2f} MiB")
        assert screen.plot.draws - draws >= 2000 and grown < 10
