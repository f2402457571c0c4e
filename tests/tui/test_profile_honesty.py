"""What the Profile screen may say and how often: time left, repaints, one label with the command line, retries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import memx_engine
from memx_engine import Measurement, Outcome, Truth, load_cluster, load_model, run_profile
from memx_tui import profile_job, profiling
from memx_tui.app import MemxApp
from memx_tui.cli import run
from memx_tui.profile_state import ProfileSettings
from memx_tui.runners import RunnerSettings
from memx_tui.session import Session
from memx_tui.widgets.text_view import TextView
from tests.profile.fakes import FakeClock, FakeRunner, ok
from tests.tui.harness import make_app, screen_lines, screen_text

POINT_S = 2.0


def session(runner: RunnerSettings | None = None) -> Session:
    found = Session(
        cluster=load_cluster("paper-20gpu"), model=load_model("llama2-7b"), mode="profile", cluster_source="paper-20gpu"
    )
    found.profile.settings = ProfileSettings(runner or RunnerSettings(), types=("vendor-b",))
    return found


async def until(pilot: Pilot[Any], app: MemxApp, done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, screen_text(app)
        await pilot.pause(0.02)


async def test_check_22_time_left_on_a_steady_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()

    def steady(point: Any, _attempt: int) -> Measurement:
        clock.now_s += POINT_S
        return ok(point)

    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)
    monkeypatch.setattr(profile_job, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(profiling, "make_runner", lambda settings: FakeRunner(steady))
    monkeypatch.setattr(
        memx_engine, "run_profile", lambda *args, **named: run_profile(*args, **named, clock=clock), raising=False
    )
    app = make_app(tmp_path, session())
    seen: list[tuple[int, float, float, str]] = []
    async with app.run_test(size=(80, 24)) as pilot:

        def look(change: str) -> None:
            progress = app.session.profile.progress
            if change == "profile" and progress is not None and app.session.profile.running:
                line = str(app.screen.query_one("#overall", TextView).lines[0].plain)
                seen.append((progress.measured, progress.fraction, progress.elapsed_s, line))

        await pilot.pause(0.1)
        app.session_changed.subscribe(app.screen, look)  # after the screen itself, which has then drawn
        await pilot.press("r")
        await until(pilot, app, lambda: app.session.profile.result is not None)
        result = app.session.profile.result
        assert result is not None and result.total("failed") == 0
        whole_s = result.seconds
    assert whole_s == pytest.approx(POINT_S * result.total("measured"))
    assert any(measured >= 5 for measured, *_ in seen)
    for measured, fraction, elapsed_s, line in seen:
        assert "left ~-" not in line
        if measured < 5:
            assert "left" not in line, line
        if 0.2 <= fraction < 0.97:  # at the very end a whole second is more than 30 % of what is left
            minutes, seconds = line.rpartition("left ~")[2].split(":")[-2:]
            left_s, truth_s = 60 * int(minutes) + int(seconds), whole_s - elapsed_s
            assert abs(left_s - truth_s) <= 0.3 * truth_s + POINT_S, (line, truth_s)
    assert sum(fraction >= 0.2 for _, fraction, *_ in seen) > 3


async def test_check_09_at_most_ten_repaints_a_second_while_it_runs_and_none_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: list[float] = []
    display = MemxApp._display

    def counted(self: MemxApp, screen: Any, renderable: Any) -> None:
        painted.append(time.monotonic())
        display(self, screen, renderable)

    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)
    monkeypatch.setattr(MemxApp, "_display", counted)
    app = make_app(tmp_path, session(RunnerSettings(pace=0.001)))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, lambda: "full grid" in screen_text(app))
        await pilot.pause(0.5)
        painted.clear()
        await pilot.pause(1.5)
        assert painted == [], "nothing changes, nothing is drawn"
        await pilot.press("r")
        await until(pilot, app, lambda: app.session.profile.progress is not None)
        await pilot.pause(0.5)
        painted.clear()
        start = time.monotonic()
        await pilot.pause(2.0)
        took = time.monotonic() - start
        assert app.session.profile.running, "it must last as long as it is looked at"
        assert 2 <= len(painted) <= 10 * took, len(painted) / took
        await pilot.press("x")
        await until(pilot, app, lambda: not app.session.profile.running)


async def test_f_measures_again_what_hung_and_nothing_else_also_in_another_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def hangs(point: Any, _attempt: int) -> Measurement:
        if len(first.measured) > 40 and len(first.measured) % 20 == 0:  # after the ablation, which decides the rest
            lost.append(point.key)
            return Measurement(point, Outcome.TIMEOUT, Truth.GPU, "fake", detail="not finished")
        return ok(point)

    first = FakeRunner(hangs)
    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)
    monkeypatch.setattr(profiling, "make_runner", lambda settings: first)
    monkeypatch.setattr(profile_job, "make_runner", lambda settings: first)
    app = make_app(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, app, lambda: app.session.profile.result is not None)
        assert app.session.profile.result is not None
        hung = app.session.profile.result.total("failed")
        assert hung == len(lost) > 0 and f"{hung} failed" in screen_lines(app)[3]
    second = FakeRunner()
    monkeypatch.setattr(profiling, "make_runner", lambda settings: second)
    app = make_app(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, lambda: "failed: f tries them again" in screen_text(app))
        await pilot.press("f")
        await until(pilot, app, lambda: app.session.profile.result is not None)
        assert app.session.profile.result is not None
        assert app.session.profile.result.total("failed") == 0
        assert sorted(p.key for p in second.measured) == sorted(lost)


async def test_p_plans_with_what_is_measured_and_says_the_same_as_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = session()
    found.cluster, found.cluster_source = load_cluster("a800x8"), "a800x8"
    found.profile.settings = ProfileSettings(folder=tmp_path / "runs")
    app = make_app(tmp_path, found)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, lambda: found.result is not None)
        await pilot.press("r")
        await until(pilot, app, lambda: found.profile.result is not None)
        await until(pilot, app, lambda: "p uses new measurements" in screen_lines(app)[1])
        await pilot.press("3")
        await until(pilot, app, lambda: "r uses new measurements" in screen_lines(app)[1])
        before = found.result
        await pilot.press("2", "p")
        await until(pilot, app, lambda: found.result is not before and "simulated" in screen_lines(app)[0])
        assert "[3 Plans]" in screen_lines(app)[1] and "STALE" not in screen_lines(app)[0]
        # The whole chain ends here: what the chosen plan is, whether it fits, and how sure that is, at 80x24.
        assert re.search(r"simulated ±\d+(\.\d)? %", screen_lines(app)[0]), screen_lines(app)[0]
        assert re.search(r"#1 (fits|tight), OOM risk \S+%, simulated ±", screen_lines(app)[2]), screen_lines(app)[2]
        assert re.search(r" (fits|tight) ", screen_lines(app)[4]), screen_lines(app)[4]
        assert found.result is not None
    monkeypatch.setenv("MEMX_HOME", str(tmp_path / "home"))
    capsys.readouterr()
    code = run(["plan", "--cluster", "a800x8", "--model", "llama2-7b", "--workspace", str(tmp_path / "runs"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["provenance"] == found.result.provenance.value == "simulated"
