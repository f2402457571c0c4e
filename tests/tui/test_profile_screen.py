"""Profiling from the dashboard: started, watched, paused, cancelled, gone on with; the rest stays usable meanwhile."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from memx_engine import (
    Outcome,
    ProfileProgress,
    ProfileResult,
    TestbedRunner,
    Truth,
    TypeProgress,
    TypeState,
    Workspace,
    load_cluster,
    load_model,
    run_profile,
)
from memx_engine.lockfile import Holder
from memx_tui import profile_job
from memx_tui.app import MemxApp
from memx_tui.messages import ProfileEnded, ProfileProgressed
from memx_tui.profile_state import LogLine, ProfileSettings, short_left
from memx_tui.runners import RunnerSettings
from memx_tui.screens.error import ErrorDialog
from memx_tui.screens.profile import ProfileScreen
from memx_tui.screens.prompt import ConfirmDialog
from memx_tui.session import Session
from memx_tui.widgets.chrome import FooterBar
from memx_tui.widgets.text_view import TextView
from tests.tui.harness import make_app, screen_lines, screen_text

ONE_TYPE = ("vendor-b",)


def session(pace: float = 0.0, **settings: Any) -> Session:
    """The paper's cluster on the Profile screen, measured by the testbed."""
    found = Session(
        cluster=load_cluster("paper-20gpu"), model=load_model("llama2-7b"), mode="profile", cluster_source="paper-20gpu"
    )
    found.profile.settings = ProfileSettings(RunnerSettings(pace=pace), **settings)
    return found


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search that starts with the app is not what is tested here."""
    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)


async def until(pilot: Pilot[Any], done: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, screen_text(pilot.app)  # type: ignore[arg-type]  # every app here is a MemxApp
        await pilot.pause(0.02)


def footer(app: MemxApp) -> list[str]:
    return [f"{hint.key} {hint.label}" for hint in app.screen.query_one(FooterBar).shown]


def stored(app: MemxApp) -> dict[str, int]:
    """Point key to how often it is stored with a result."""
    counts: dict[str, int] = {}
    with Workspace(app.workspace_folder(), read_only=True) as store:
        for m in store.measurements():
            if m.outcome is not Outcome.SKIPPED:
                counts[m.point.key] = counts.get(m.point.key, 0) + 1
    return counts


def measured(app: MemxApp) -> int:
    progress = app.session.profile.progress
    return progress.measured if progress is not None else 0


async def test_before_anything_runs_the_plan_of_measurements_is_shown(tmp_path: Path) -> None:
    app = make_app(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "full grid" in screen_text(app))
        text = screen_text(app)
        assert "819 points planned, 0 are there; r starts" in text
        assert "simulated by testbed:0" in text and "uncalibrated" in text
        assert "a100-sxm-80g" in text and "about 63 min" in text
        assert footer(app) == ["? Help", "r Start", "o Runner", "p Plan", "l Log", "^p Palette", "q Quit"]
        assert not app.workspace_folder().exists(), "looking writes nothing"


async def test_check_19_cancel_is_quick_keeps_what_is_done_and_the_next_run_reuses_it(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(0.01, types=ONE_TYPE))
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: measured(app) >= 10)
        assert footer(app)[1:5] == ["spc Pause", "x Cancel", "p Plan", "l Log"]
        start = time.monotonic()
        await pilot.press("x")
        assert state.stopping or not state.running
        await until(pilot, lambda: not state.running, 5)
        assert time.monotonic() - start < 1.5  # the check allows 1 s; the rest is this machine's noise
        assert state.result is not None and state.result.cancelled
        first = stored(app)
        assert len(first) >= 10 and "cancelled" in screen_text(app)
        await until(pilot, lambda: "r Resume" in footer(app))
        state.settings = ProfileSettings(RunnerSettings(), types=ONE_TYPE)
        await pilot.press("r")
        await until(pilot, lambda: not state.running and state.result is not None and not state.result.cancelled)
        await until(pilot, lambda: "what matters" in screen_text(app))  # drawn a moment after the run has ended
        assert state.result.total("cached") >= len(first) - 1
        assert set(stored(app).values()) == {1}, "something was measured twice"
        assert f"{state.result.total('cached')} cached" in screen_text(app)
        assert "what matters" in screen_text(app) and "HIGH" in screen_text(app)


async def test_pause_starts_no_new_point_and_goes_on(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(0.01, types=ONE_TYPE))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: measured(app) >= 3)
        await pilot.press("space")
        await until(pilot, lambda: "paused" in screen_lines(app)[2])
        assert "spc Go on" in footer(app) and "paused" in screen_lines(app)[0]
        await pilot.pause(1.2)  # what ran has ended by now, and the engine has told so
        before = len(stored(app))
        await pilot.pause(0.6)
        assert len(stored(app)) == before
        assert "left" not in screen_lines(app)[2]
        await pilot.press("space")
        await until(pilot, lambda: len(stored(app)) > before)
        await pilot.press("x")
        await until(pilot, lambda: not app.session.profile.running, 5)


async def test_other_screens_stay_usable_and_the_title_row_says_how_far_it_is(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(0.005))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: measured(app) >= 3)
        for key, tab in (("1", "[1 Cluster]"), ("3", "[3 Plans]"), ("4", "[4 Compare]")):
            await pilot.press(key)
            await pilot.pause(0.25)
            assert tab in screen_lines(app)[1]
            assert "profiling " in screen_lines(app)[0] and "%" in screen_lines(app)[0], screen_lines(app)[0]
        await pilot.press("2")
        await pilot.press("x")
        await until(pilot, lambda: not app.session.profile.running, 5)
        assert "profiling" not in screen_lines(app)[0]


async def test_check_20_quitting_while_it_runs_asks_says_nothing_is_lost_and_is_quick(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(0.05))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: measured(app) >= 1)
        await pilot.press("q")
        await pilot.pause(0.1)
        assert isinstance(app.screen, ConfirmDialog)
        assert "Every finished point is stored" in " ".join(screen_text(app).replace("│", " ").split())
        await pilot.press("n")
        assert app.session.profile.running and not app.session.profile.stopping
        await pilot.press("q")
        start = time.monotonic()
        await pilot.press("y")
    assert time.monotonic() - start < 2.0  # the check allows 1 s; the rest is the test's own closing down
    assert stored(app)
    lock = app.workspace_folder() / "memx.lock"
    while lock.exists():  # the job's thread ends by itself, and within the second that a process waits for it
        assert time.monotonic() - start < 3.0
        time.sleep(0.02)


async def test_ctrl_c_cancels_profiling_first(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(0.05))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: measured(app) >= 1)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.session.profile.running, 5)
        assert app.is_running


async def test_check_21_a_killed_session_is_told_of_and_gone_on_with(tmp_path: Path) -> None:
    app = make_app(tmp_path, session(types=ONE_TYPE))
    folder = app.workspace_folder()
    cluster, model = app.session.cluster, app.session.model
    assert cluster is not None and model is not None
    stop_after = iter(range(10**6))
    with Workspace(folder) as store:
        run_profile(
            cluster, model, app.session.job(), TestbedRunner(), store,
            options=app.session.profile.settings.options(), should_stop=lambda: next(stop_after) > 60,
        )  # fmt: skip
        kept = sum(n for (_, _, outcome), n in store.counts().items() if outcome != Outcome.SKIPPED.value)
    assert kept
    # A process number that no process has, as a kill -9 leaves it behind.
    dead = Holder(socket.gethostname(), 2**22 + 5, time.time() - 60, 1.0)
    (folder / "memx.lock").write_text(json.dumps(dead.__dict__))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await until(pilot, lambda: bool(app.session.profile.log))
        said = app.session.profile.log[-1].text
        assert f"its {kept:,} results are kept" in said and "at most the points that were running are lost" in said
        await pilot.press("r")
        await until(pilot, lambda: app.session.profile.result is not None)
        assert set(stored(app).values()) == {1}
        assert any("took over the lock" in line.text for line in app.session.profile.log)


def progress_of(*types: TypeProgress, elapsed_s: float = 192.0) -> ProfileProgress:
    return ProfileProgress(elapsed_s, types)


async def test_check_22_time_left_shows_only_when_the_engine_can_tell(tmp_path: Path) -> None:
    app = make_app(tmp_path, session())
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        state.running = True
        state.progress = progress_of(TypeProgress("h100", TypeState.MEASURING, 100, measured=4, rate_per_s=2.0))
        app.publish("profile")
        await pilot.pause(0.1)
        assert "left" not in screen_lines(app)[2] and "~" not in screen_lines(app)[0]
        state.progress = progress_of(
            TypeProgress("h100", TypeState.MEASURING, 100, measured=57, rate_per_s=2.0, eta_s=119.0)
        )
        app.publish("profile")
        await pilot.pause(0.1)
        assert "left ~01:59" in screen_lines(app)[2]
        assert "profiling 57% ~2m" in screen_lines(app)[0]
        assert "2.0 points/s" in screen_lines(app)[3]
        state.running = False


@pytest.mark.parametrize(
    ("eta_s", "words"), [(None, ""), (0.0, "~0s"), (45.2, "~45s"), (145.0, "~2m"), (5400.0, "~1.5h")]
)
def test_time_left_in_the_title_row(eta_s: float | None, words: str) -> None:
    assert short_left(eta_s) == words


def test_check_09_a_flood_of_events_becomes_a_few_messages_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = session()
    assert found.cluster is not None and found.model is not None
    feed = profile_job.ProfileFeed()
    posted: list[Any] = []
    start = time.monotonic()
    profile_job.run_profile_job(
        (found.cluster, found.model, found.job()), found.profile.settings, TestbedRunner(), tmp_path, False, feed,
        posted.append, lambda: "12:00:00",
    )  # fmt: skip
    took = time.monotonic() - start
    reports = [m for m in posted if isinstance(m, ProfileProgressed)]
    assert 1 <= len(reports) <= took / profile_job.REPORT_EVERY_S + 1
    ended = posted[-1]
    assert isinstance(ended, ProfileEnded)
    lines = feed.take()
    assert sum(not line.plain and " ms " in line.text and " GiB " in line.text for line in lines) == sum(
        t.progress.measured - t.progress.oom for t in ended.result.types
    )
    assert feed.take() == []


async def test_a_pending_type_shows_the_schedulers_reason_and_brackets_stay_literal(tmp_path: Path) -> None:
    app = make_app(tmp_path, session())
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        state.running = True
        state.log.append(LogLine("14:02:11", "a[/x]", "out of memory [tp=2]"))
        state.progress = progress_of(
            TypeProgress("a[/x]", TypeState.PENDING, 65, reason="Priority"),
            TypeProgress("mi300x", TypeState.FAILED, 65, measured=3, failed=5, reason="5 points in a row failed"),
        )
        app.publish("profile")
        await until(pilot, lambda: "out of memory [tp=2]" in screen_text(app))
        text = screen_text(app)
        assert "pending   Priority" in text and "a[/x]" in text
        assert "failed    5 points in a row failed" in text
        assert "5 failed" in screen_lines(app)[3]
        state.running = False


async def test_after_profiling_plans_are_stale_and_a_search_uses_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    app = make_app(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.result is not None, 60)
        assert app.session.result is not None and app.session.result.provenance.value == "uncalibrated"
        await pilot.press("r")
        await until(pilot, lambda: app.session.profile.result is not None)
        await until(pilot, lambda: "results of testbed:0 (simulated)" in screen_text(app))
        assert app.session.stale and "STALE" in screen_lines(app)[0]
        before = app.session.result
        await pilot.press("3", "r")
        await until(pilot, lambda: app.session.result is not before, 60)
        await pilot.pause(0.1)
        assert not app.session.stale and "simulated ±" in screen_lines(app)[0]
        best = app.session.result.detail(0).estimate if app.session.result else None
        assert best is not None and best.interval_s is not None and best.oom_risk is not None
        assert list((app.workspace_folder() / "predictors").glob("*.json"))


async def test_a_workspace_in_use_is_refused_in_words_and_the_app_lives_on(tmp_path: Path) -> None:
    app = make_app(tmp_path, session())
    with Workspace(app.workspace_folder()):
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("r")
            await until(pilot, lambda: isinstance(app.screen, ErrorDialog))
            assert "is being written by process" in screen_text(app)
            await pilot.press("escape")
            await pilot.pause(0.1)
            assert not app.session.profile.running and isinstance(app.screen, ProfileScreen)
            assert "f Retry" in footer(app)


async def test_retry_asks_the_engine_to_measure_again_what_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def run(*args: Any) -> None:
        asked.append(args[4])
        args[6](
            ProfileEnded(
                ProfileResult((), Truth.TESTBED, "testbed:0", 1.0),
            )
        )

    monkeypatch.setattr(profile_job, "run_profile_job", run)
    app = make_app(tmp_path, session())
    async with app.run_test(size=(80, 24)) as pilot:
        app.session.profile.progress = progress_of(TypeProgress("h100", TypeState.DONE, 10, measured=9, failed=1))
        app.publish("profile")
        await pilot.pause(0.1)
        await pilot.press("f")
        await until(pilot, lambda: asked == [True])
        await pilot.press("r")
        await until(pilot, lambda: asked == [True, False])


async def test_a_runner_that_lacks_something_is_an_error_dialog(tmp_path: Path) -> None:
    found = session()
    found.profile.settings = ProfileSettings(RunnerSettings("command"))
    app = make_app(tmp_path, found)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await pilot.pause(0.1)
        assert isinstance(app.screen, ErrorDialog) and "launch command" in screen_text(app)


async def test_a_view_at_its_end_follows_and_one_scrolled_up_stays(tmp_path: Path) -> None:
    app = make_app(tmp_path, session())
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        state.running = True
        state.log.extend(LogLine("12:00:00", "h100", f"line {n}") for n in range(50))
        state.progress = progress_of(TypeProgress("h100", TypeState.MEASURING, 100))
        app.publish("profile")
        await until(pilot, lambda: "line 49" in screen_text(app))
        state.log.append(LogLine("12:00:01", "h100", "line 50"))
        app.publish("profile")
        await until(pilot, lambda: "line 50" in screen_text(app))
        await pilot.press("g")
        await until(pilot, lambda: "line 0" in screen_text(app))
        state.log.append(LogLine("12:00:02", "h100", "line 51"))
        app.publish("profile")
        await pilot.pause(0.2)
        assert app.screen.query_one("#lower", TextView).scroll_offset.y == 0
        assert "line 51" not in screen_text(app)
        state.running = False


async def test_without_a_cluster_it_says_what_is_missing(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="profile"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.1)
        assert "needs a cluster and a model" in screen_text(app)
        await pilot.press("r")
        await pilot.pause(0.1)
        assert isinstance(app.screen, ErrorDialog)
