"""The dialog that tells what changes of the cluster would buy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import memx_engine
from memx_engine import Gain, InputError, Sensitivity
from memx_engine.search.sensitivity import Change
from memx_tui.screens.sensitivity import SensitivityDialog
from tests.builders import make_result
from tests.tui.harness import make_app, make_session, screen_text
from tests.tui.test_jobs_and_errors import until

RESULT = make_result(20)


def found() -> Sensitivity:
    change = Change("node", "mi300x", "one more node like node-1 (8 x mi300x)", RESULT.cluster)
    gain = Gain(change, RESULT.plans[1], -0.125, -0.25, same_plan=False, proven=True)
    memory = Change("memory", "mi300x", "1 GiB more on each mi300x", RESULT.cluster)
    return Sensitivity(RESULT.plans[0], (Gain(memory, RESULT.plans[0], 0.0, 0.0, True, False), gain), 1.5)


class FakeFind:
    """Stands in for the engine: reports, then waits until released or stopped."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.release, self.stopped = outcome, threading.Event(), threading.Event()

    def __call__(self, result: Any, *, options: Any, on_progress: Any, should_stop: Any) -> Any:
        assert result is RESULT
        on_progress(2, 9, "1 GiB more on each mi300x")
        while not self.release.wait(0.01):
            if should_stop():
                self.stopped.set()
                break
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def install(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> FakeFind:
    fake = FakeFind(outcome)
    monkeypatch.setattr(memx_engine, "find_sensitivity", fake, raising=False)
    return fake


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_progress_then_the_table_the_most_useful_first(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, found())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=size) as pilot:
        await pilot.press("W")
        await until(pilot, lambda: "searching 3 of 9: 1 GiB more on each mi300x" in screen_text(app))
        fake.release.set()
        await until(pilot, lambda: "one more node" in screen_text(app))
        text = screen_text(app)
        assert "-12.5%" in text and "-25.0%" in text and "the same" in text
        assert text.index("one more node") < text.index("1 GiB more on")
        assert max(map(len, text.splitlines())) <= size[0]
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, SensitivityDialog))


async def test_closing_stops_the_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, found())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("W")
        await until(pilot, lambda: "searching 3 of 9" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, fake.stopped.is_set)


async def test_what_goes_wrong_is_said_in_the_dialog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, InputError("this cannot be searched"))
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("W")
        fake.release.set()
        await until(pilot, lambda: "this cannot be searched" in screen_text(app))
        assert "log: " in screen_text(app)


async def test_ctrl_c_stops_the_searches_of_changes_and_does_not_ask_to_quit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, found())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("W")
        await until(pilot, lambda: "searching 3 of 9" in screen_text(app))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "one more node" in screen_text(app))
        assert fake.stopped.is_set() and isinstance(app.screen, SensitivityDialog)
        assert not any("quit" in note.message for note in app._notifications)
