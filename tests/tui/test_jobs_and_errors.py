"""Searching from the dashboard: live counts, cancelling, marks that survive; what the engine raises becomes words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import memx_engine
from memx_engine import CancelledError, MemxError, NoFeasiblePlanError, PruneCounts, SearchProgress
from memx_tui.logs import start_logging
from memx_tui.messages import SearchProgressed
from memx_tui.screens.error import ErrorDialog
from tests.builders import make_result
from tests.tui.harness import empty_session, make_app, make_paths, make_session, screen_lines, screen_text

Wait = Callable[[], bool]


def progress(done: int) -> SearchProgress:
    return SearchProgress("solving", done, 100, done, PruneCounts(), None, None, done / 10)


async def until(pilot: Pilot[Any], done: Wait, seconds: float = 10.0) -> None:
    """Let the app run until ``done``; fails when it never is."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, screen_text(pilot.app)  # type: ignore[arg-type]  # every app here is a MemxApp
        await pilot.pause(0.02)


class FakeSearch:
    """Stands in for the engine's search: reports until it is released or told to stop."""

    def __init__(self, outcome: Any = None) -> None:
        self.outcome = outcome
        self.release = threading.Event()
        self.started = threading.Event()
        self.stopped = False

    def __call__(self, *inputs: Any, options: Any, estimator: Any, on_progress: Any, should_stop: Any) -> Any:
        self.started.set()
        done = 0
        while not self.release.is_set():
            done = min(99, done + 1)
            on_progress(progress(done))
            if should_stop():
                self.stopped = True
                break
            time.sleep(0.01)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeSearch) -> FakeSearch:
    monkeypatch.setattr(memx_engine, "search_plans", fake, raising=False)
    return fake


async def test_a_search_starts_by_itself_shows_counts_and_ends_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(make_result(25)))
    app = make_app(tmp_path, empty_session())
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.session.progress is not None)
        await pilot.pause(0.15)
        assert "solving" in screen_lines(app)[1] and "ctrl+c cancels" in screen_lines(app)[1]
        assert "Searching; the plans appear here when it ends." in screen_text(app)
        fake.release.set()
        await until(pilot, lambda: app.session.result is not None)
        await pilot.pause(0.1)
        assert "25 of 75 fit" in screen_text(app) and "Plans 25" in screen_text(app)
        assert not app.session.searching and not app.session.stale


async def test_the_first_ctrl_c_cancels_and_keeps_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(make_result(5, cancelled=True)))
    app = make_app(tmp_path, empty_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, fake.started.is_set)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app.session.result is not None, 3)
        await pilot.pause(0.1)
        assert fake.stopped and app.is_running
        assert "cancelled, best so far" in screen_text(app)


async def test_a_search_cancelled_before_any_plan_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeSearch(CancelledError("stopped")))
    app = make_app(tmp_path, empty_session())
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, fake.started.is_set)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.session.searching, 3)
        await pilot.pause(0.1)
        assert "before any plan was found" in screen_text(app).replace("\n", " ") or app.is_running


async def test_ctrl_c_twice_quits_and_q_asks_while_a_search_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(make_result(5)))
    app = make_app(tmp_path, empty_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, fake.started.is_set)
        await pilot.press("q")
        assert app.is_running and app.session.searching
        await pilot.press("ctrl+c", "ctrl+c")
        await until(pilot, lambda: not app._running or app._exit, 3)
    assert fake.stopped


async def test_marks_follow_their_plans_into_the_next_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = make_result(20)
    fake = install(monkeypatch, FakeSearch(result))
    fake.release.set()
    session = make_session(result)
    session.marks = {"A": 3, "C": 7}
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        await until(pilot, lambda: not app.session.searching)
        table = result.table.plans
        for letter, row in (("A", 3), ("C", 7)):
            found, wanted = table[session.marks[letter]].skeleton, table[row].skeleton
            assert (found.tp, found.pp, found.dp, found.micro_batch) == (
                wanted.tp,
                wanted.pp,
                wanted.dp,
                wanted.micro_batch,
            )


def test_progress_messages_collapse() -> None:
    first, second = SearchProgressed(progress(1)), SearchProgressed(progress(2))
    assert second.can_replace(first)


ERRORS: list[tuple[BaseException, list[str]]] = [
    (
        NoFeasiblePlanError("stage 0 misses 3.1 GiB", hint="halve the micro-batch"),
        ["No plan fits", "stage 0 misses 3.1 GiB", "halve the micro-batch"],
    ),
    (MemxError("bad thing", where="cluster.yaml:3: nodes"), ["Something went wrong", "bad thing", "cluster.yaml:3"]),
    (
        ZeroDivisionError("division by zero"),
        ["Failed while searching for plans", "ZeroDivisionError: division by zero"],
    ),
    (KeyError("gpu[0]"), ["Failed while searching", "gpu[0]"]),
    (MemoryError(), ["Failed while searching", "MemoryError"]),
    (RecursionError("maximum recursion depth exceeded"), ["RecursionError"]),
]


@pytest.mark.parametrize(("error", "words"), ERRORS, ids=lambda value: type(value).__name__)
async def test_check_23_whatever_a_search_raises_becomes_a_dialog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, words: list[str]
) -> None:
    paths = make_paths(tmp_path)
    assert start_logging(paths.log_file) is None
    fake = install(monkeypatch, FakeSearch(error))
    fake.release.set()
    app = make_app(tmp_path, empty_session())
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ErrorDialog))
        await pilot.pause(0.1)
        dialog = app.screen
        assert isinstance(dialog, ErrorDialog)
        for word in words:
            assert word in dialog.report
            assert word in " ".join(screen_text(app).replace("│", " ").split())
        assert str(paths.log_file) in dialog.report
        assert "Traceback" not in screen_text(app) and "File " not in screen_text(app)
        await pilot.press("y")
        assert app.clipboard == dialog.report
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert not app.session.searching and "No plan to show." in screen_text(app)
        await pilot.press("4", "3")
    log = paths.log_file.read_text()
    assert "Traceback" in log and type(error).__name__ in log


async def test_check_23_an_action_that_raises_becomes_a_dialog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("cannot write [yaml]")

    monkeypatch.setattr(memx_engine, "plan_file", broken, raising=False)
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await pilot.pause(0.1)
        assert isinstance(app.screen, ErrorDialog) and "cannot write [yaml]" in screen_text(app)
        await pilot.press("escape", "down")
        await pilot.pause(0.1)
        assert app.session.selected_row == 1


async def test_check_23_an_estimate_that_raises_becomes_a_dialog(tmp_path: Path) -> None:
    session = make_session(make_result(20, detailed=2))
    assert session.result is not None
    estimator: Any = session.result.estimator

    def broken(plan: object) -> None:
        raise ArithmeticError("nan in stage 3")

    estimator.estimate = broken
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("G")
        await until(pilot, lambda: isinstance(app.screen, ErrorDialog))
        assert "nan in stage 3" in screen_text(app)
        await pilot.press("escape", "g")
        await pilot.pause(0.1)
        assert "Memory GiB, plan #1" in screen_text(app)
