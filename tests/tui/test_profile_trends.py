"""``t`` on the Profile screen: trends, plots and what training has come to, without freezing anything."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import memx_engine
from memx_engine import InputError, ProfileProgress, ProfileResult, Truth, TypeProgress, TypeResult, TypeState
from memx_engine.predict.booster import BoosterSettings
from memx_engine.predict.learning import Learned, TypeLearned
from memx_engine.profile.trends import judge_trend
from memx_tui import profile_job
from memx_tui.app import MemxApp
from memx_tui.profile_state import LogLine
from memx_tui.session import Session
from memx_tui.widgets.chrome import FooterBar
from memx_tui.widgets.text_view import TextView
from tests.builders import make_cluster, make_model
from tests.tui.harness import make_app, screen_lines, screen_text
from tests.tui.test_profile_screen import no_search as no_search  # noqa: PLC0414  # a fixture is used by its name
from tests.tui.test_profile_screen import until

TRENDS = (
    judge_trend("a100", "micro_batch", "throughput", [(1.0, 900.0), (2.0, 1300.0), (4.0, 1310.0), (8.0, 1305.0)]),
    judge_trend("a100", "micro_batch", "memory", [(b, b * 2.0**30) for b in (1.0, 2.0, 4.0, 8.0)]),
    judge_trend("a100", "seq_len", "time", [(s, 1e-12 * s**3) for s in (512.0, 1024.0, 2048.0, 4096.0)]),
    judge_trend("a100", "in_flight", "time", [(1.0, 0.1), (2.0, 0.1), (4.0, 0.1)]),
)


class Known:
    """What stands for an estimator here."""

    provenance = memx_engine.Provenance.SIMULATED
    note = ""


def learned() -> Learned:
    type_learned = TypeLearned("a100", 280, memx_engine.Provenance.SIMULATED, 0.4, 1.3, 0.9, 4.5)
    importances = {"layer_bytes": 0.6, "core_share": 0.4}
    estimator: Any = Known()
    return Learned(estimator, BoosterSettings(), None, (type_learned,), importances, TRENDS, 1.1, False)


def profiled(app: MemxApp, trends: bool = True) -> None:
    """As after a run."""
    state = app.session.profile
    progress = TypeProgress("a100", TypeState.DONE, 280, measured=280)
    state.progress = ProfileProgress(60.0, (progress,))
    state.result = ProfileResult(
        (TypeResult(progress, (), TRENDS if trends else ()),), Truth.TESTBED, "testbed:0", 60.0
    )
    app.publish("profile")


def on_profile() -> Session:
    return Session(cluster=make_cluster(), model=make_model(), mode="profile")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """``learn`` waits until this is set."""
    opened = threading.Event()

    def learn(*args: Any, **named: Any) -> Learned:
        assert opened.wait(30.0)
        return learned()

    monkeypatch.setattr(memx_engine, "learn", learn, raising=False)
    monkeypatch.setattr(memx_engine.Workspace, "exists", staticmethod(lambda folder: True))
    monkeypatch.setattr(memx_engine, "Workspace", Opened, raising=False)
    return opened


class Opened:
    """A workspace that need not be there."""

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        assert read_only, "learning only reads"

    exists = staticmethod(lambda folder: True)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *args: object) -> None:
        return None


@pytest.fixture(autouse=True)
def no_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_job, "run_survey", lambda *args: None)


async def view(pilot: Pilot[Any], app: MemxApp) -> str:
    """Everything in the open view, page by page."""
    await pilot.press("g")
    pages = [screen_text(app)]
    for _ in range(8):
        await pilot.press("pagedown")
        await pilot.pause()
        pages.append(screen_text(app))
    return "\n".join(pages)


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (40, 12)])
async def test_trends_are_there_at_once_and_the_predictor_when_it_is_learned(
    tmp_path: Path, gate: threading.Event, size: tuple[int, int]
) -> None:
    app = make_app(tmp_path, on_profile())
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.05)
        profiled(app)
        await pilot.press("t")
        await until(pilot, lambda: "trends and what is learned" in screen_text(app) or size[0] == 40)
        before = await view(pilot, app)
        assert "learning from what is measured by now" in before
        assert "strong linear" in before or size[0] == 40
        await pilot.press("g", "down")  # the screen is alive while it is learned
        assert app.session.profile.learning
        gate.set()
        await until(pilot, lambda: not app.session.profile.learning)
        after = await view(pilot, app)
        assert "learning from what" not in after and "layer_bytes" in after
        if size[0] >= 80:
            for words in ("superlinear", "irregular", "R2", "slope", "fixed at its default", "power law x^3"):
                assert words in after, words
            assert "micro_batch: memory GiB" in after and "◉" in after and "±0.9 %" in after
        await pilot.press("t")
        await pilot.pause()
        assert "what matters" in screen_text(app)


async def test_without_a_run_the_trends_are_those_of_what_is_stored(tmp_path: Path, gate: threading.Event) -> None:
    app = make_app(tmp_path, on_profile())
    gate.set()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.05)
        profiled(app, trends=False)
        await pilot.press("t")
        await until(pilot, lambda: app.session.profile.learned is not None)
        await until(pilot, lambda: "Trends, measured on a100" in screen_text(app))
        await pilot.press("escape", "t")  # not learned twice
        assert not app.session.profile.learning


async def test_too_little_to_learn_from_is_said_in_the_dashboards_words(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(*args: Any, **named: Any) -> Learned:
        raise InputError("there is too little to learn from: 7 points", hint="use another folder with --workspace")

    monkeypatch.setattr(memx_engine, "learn", learn, raising=False)
    app = make_app(tmp_path, on_profile())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.05)
        profiled(app)
        await pilot.press("t", "G")
        await until(pilot, lambda: "too little to learn from: 7 points" in screen_text(app))
        words = " ".join(screen_text(app).split())
        assert 'use another folder with "workspace" (2 Profile, o)' in words


async def test_the_hint_is_there_when_there_is_something_to_see(tmp_path: Path) -> None:
    app = make_app(tmp_path, on_profile())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.05)
        assert "Trends" not in screen_lines(app)[-1]
        profiled(app)
        await pilot.pause(0.05)
        assert "t Trends" in screen_lines(app)[-1]
        assert app.screen.query_one(FooterBar).shown[-1].label == "Quit"


async def test_check_07_resizing_while_it_runs_keeps_the_place_in_the_log_and_every_line(tmp_path: Path) -> None:
    app = make_app(tmp_path, on_profile())
    state = app.session.profile
    async with app.run_test(size=(160, 50)) as pilot:
        state.running = True
        state.log.extend(LogLine("12:00:00", "a100", f"line {n:03d}") for n in range(200))
        progress = TypeProgress("a100", TypeState.MEASURING, 280, measured=140, rate_per_s=2.0, eta_s=70.0)
        state.progress = ProfileProgress(60.0, (progress,))
        app.publish("profile")
        await until(pilot, lambda: "line 199" in screen_text(app))
        view = app.screen.query_one("#lower", TextView)
        for number, size in enumerate([(80, 24), (40, 12), (120, 36), (160, 50)]):
            await pilot.resize_terminal(*size)
            state.log.append(LogLine("12:00:01", "a100", f"new {number}"))
            app.publish("profile")
            await until(pilot, lambda: state.log[-1].text in screen_text(app))  # it follows the end
            lines = screen_lines(app)
            assert "50%" in lines[2] and "140/280" in "".join(lines[2:6]), size
            assert all(len(line) == size[0] for line in lines)
        await pilot.press("g", "pagedown")
        await pilot.pause(0.1)
        top = view.scroll_offset.y
        assert top > 0
        for size in ((80, 24), (160, 50)):
            await pilot.resize_terminal(*size)
            state.log.append(LogLine("12:00:02", "a100", "later"))
            app.publish("profile")
            await pilot.pause(0.1)
            assert view.scroll_offset.y == top, "whoever reads in the middle stays there"
            assert f"line {top:03d}" in screen_text(app)
        state.running = False
