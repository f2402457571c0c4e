"""Pictures of the Profile screen; `pytest --snapshot-update` accepts a change that was looked at."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from memx_engine import (
    Impact,
    ProfileProgress,
    ProfileResult,
    Truth,
    TypeProgress,
    TypeResult,
    TypeState,
    load_cluster,
    load_model,
)
from memx_tui.app import MemxApp
from memx_tui.paths import Paths
from memx_tui.profile_state import LogLine, ProfileSettings
from memx_tui.runners import RunnerSettings
from memx_tui.session import Session

SIZES = [pytest.param((80, 24), id="80x24"), pytest.param((120, 36), id="120x36")]
ROOT = Path("/home/operator/.local/state/memx-tui")
PATHS = Paths(ROOT, ROOT, ROOT, ROOT)


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched here, and nothing is looked up once a run is made up."""
    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)


def app_on(runner: str = "testbed", **options: Any) -> MemxApp:
    session = Session(cluster=load_cluster("paper-20gpu"), model=load_model("llama2-7b"), mode="profile")
    session.profile.settings = ProfileSettings(RunnerSettings(runner))
    return MemxApp(session, paths=PATHS, **options)


def running(app: MemxApp) -> MemxApp:
    state = app.session.profile
    state.running, state.subject = True, app.session.subject
    state.progress = ProfileProgress(
        192.0,
        (
            TypeProgress("a100-sxm-80g", TypeState.DONE, 65, 60, 5, node="a100", rate_per_s=0.9, eta_s=0.0),
            TypeProgress(
                "vendor-b", TypeState.MEASURING, 65, 27, 10, 8, 1, 2, "b-node", "8 layers tp4 mbs2 seq4096 full x1",
                rate_per_s=0.5, eta_s=45.0,
            ),
            TypeProgress("vendor-c", TypeState.PENDING, 65, reason="Resources"),
        ),
    )  # fmt: skip
    state.log.extend(
        (
            LogLine("14:02:11", "vendor-b", "out of memory        8 layers tp1 mbs8 seq4096 none x1"),
            LogLine("14:02:19", "vendor-b", "8 layers tp2 mbs2 seq4096 none x1: started", plain=True),
            LogLine("14:02:27", "vendor-b", "8 layers tp2 mbs2 seq4096 none x1: crashed, retry 1 of 2: 137", bad=True),
            LogLine("14:02:31", "vendor-b", " 118.6 ms  17.96 GiB 8 layers tp2 mbs2 seq4096 none x1", more=", +-0.6%"),
            LogLine("14:02:31", "vendor-c", "pending: Resources"),
        )
    )
    return app


def finished(app: MemxApp) -> MemxApp:
    state = running(app).session.profile
    impacts = (
        Impact("tp", 1.09, 1.28, 0.05, crossed=True, note="crossed at 3 points"),
        Impact("seq_len", 1.28, 0.44, 0.05, note="not crossed: needs 700 points, 232 are left"),
        Impact("optimizer", None, 0.01, 0.05, predicted=True, note="kept at its default"),
    )
    assert state.progress is not None
    types = tuple(
        TypeResult(TypeProgress(t.gpu_type, TypeState.DONE, 65, 60, 3, 2), impacts) for t in state.progress.types
    )
    state.running = False
    state.result = ProfileResult(types, Truth.TESTBED, "testbed:0", 192.0)
    state.verdicts = {t.gpu_type: t.impacts for t in types}
    state.progress = ProfileProgress(192.0, tuple(t.progress for t in types))
    return app


def steps(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Wait for the plan of measurements where nothing runs, press keys, and wait until the panes have followed."""

    async def run(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, MemxApp)
        end = time.monotonic() + 20
        while not app.session.profile.running and time.monotonic() < end:
            if app.session.profile.survey is not None and app.session.profile.survey.rows:
                break
            await pilot.pause(0.05)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.15)
        await pilot.pause(0.3)

    return run


@pytest.mark.parametrize("size", SIZES)
def test_check_34_profile_before_a_run(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(), terminal_size=size, run_before=steps())


@pytest.mark.parametrize("size", SIZES)
def test_check_34_profile_while_it_runs(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(running(app_on("slurm")), terminal_size=size, run_before=steps())


def test_check_34_profile_in_ascii(snap_compare: Any) -> None:
    assert snap_compare(running(app_on(ascii_only=True)), terminal_size=(80, 24), run_before=steps())


def test_check_34_profile_on_a_tiny_terminal(snap_compare: Any) -> None:
    assert snap_compare(running(app_on()), terminal_size=(40, 12), run_before=steps())


def test_check_34_profile_full_log(snap_compare: Any) -> None:
    assert snap_compare(running(app_on()), terminal_size=(80, 24), run_before=steps("l"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_profile_verdict(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(finished(app_on()), terminal_size=size, run_before=steps())


@pytest.mark.parametrize("size", SIZES)
def test_check_34_profile_runner_dialog(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on("slurm"), terminal_size=size, run_before=steps("o"))
