"""The dashboard on real components, by keys: Slurm jobs and local probes started, watched, cancelled, gone on with."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from memx_engine import Measurement, Outcome, Truth, Workspace
from memx_engine.inputs.cluster import Cluster
from memx_tui.app import MemxApp
from memx_tui.runners import RunnerSettings
from memx_tui.screens.error import ErrorDialog
from memx_tui.session import Session
from memx_tui.widgets.fields import FieldList
from tests.profile.conftest import A100, LINK, TINY, Sshd, node
from tests.profile.slurm_cluster import SlurmCluster
from tests.profile.test_runners import LOG
from tests.tui.harness import make_app, screen_lines, screen_text

SMALL = {"seq_len": 64, "global_batch": 16, "tp_sizes": (1,), "micro_batch_sizes": (1,)}


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search that starts with the app is not what is tested here."""
    monkeypatch.setattr(MemxApp, "start_search", lambda self: None)


def session(cluster: Cluster) -> Session:
    """Tiny stages of ``cluster`` on the Profile screen, nothing chosen yet."""
    return Session(cluster=cluster, model=TINY, mode="profile", job_overrides=dict(SMALL))


async def until(pilot: Pilot[None], app: MemxApp, done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{screen_text(app)}\n{[line.text for line in app.session.profile.log]}"
        await pilot.pause(0.05)


async def choose(pilot: Pilot[None], runner_steps: int, down_to_python: int, python: str) -> None:
    """Through the dialog: the runner, its Python, CPUs as the device, one repetition."""
    await pilot.press("o", *["plus"] * runner_steps, *["down"] * down_to_python, "enter", *python, "enter")
    await pilot.press("down", "plus")
    while "repetitions" not in screen_text(pilot.app):  # type: ignore[arg-type]  # every app here is a MemxApp
        await pilot.pause(0.05)
    await pilot.press(*["down"] * (2 if runner_steps == 1 else 1), "enter", "backspace", "1", "enter", "s")


async def fill(pilot: Pilot[None], app: MemxApp, runner_steps: int, texts: dict[str, str]) -> None:
    """Through the dialog by keys: the runner, then a text pasted into each field that is named."""
    await pilot.press("o", *["plus"] * runner_steps)
    await until(pilot, app, lambda: next(iter(texts)) in screen_text(app))
    at = 0
    for label, text in texts.items():
        index = [field.label for field in app.screen.query_one(FieldList).shown].index(label)
        await pilot.press(*["down"] * (index - at), "enter", "home", "ctrl+k")
        assert app.screen.focused is not None
        app.screen.focused.post_message(Paste(text))
        await pilot.press("enter")
        at = index
    await pilot.press("s")


def stored(app: MemxApp) -> list[Measurement]:
    with Workspace(app.workspace_folder(), read_only=True) as store:
        return [m for m in store.measurements() if m.outcome is not Outcome.SKIPPED]


def measured(app: MemxApp, gpu_type: str) -> int:
    progress = app.session.profile.progress
    return sum(t.measured for t in progress.types if t.gpu_type == gpu_type) if progress is not None else 0


def row_of(app: MemxApp, gpu_type: str) -> str:
    """The GPU type's line among the bars."""
    return next((line for line in screen_lines(app)[4:9] if line.lstrip().startswith(gpu_type)), "")


async def test_slurm_from_the_dashboard_waits_measures_is_cancelled_and_goes_on(
    slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    # Somebody else holds the A100s: that type has to wait, the other need not.
    hold = ["sbatch", "-w", "a100-0", "--gres=gpu:a100:4", "--output=/dev/null", "--wrap", "sleep 600"]
    foreign = slurm.client(*hold).stdout.split()[-1]
    app = make_app(tmp_path, session(mixed_cluster))
    state = app.session.profile
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await choose(pilot, 2, 8, torch_python)
            wanted = RunnerSettings("slurm", python=torch_python, device="cpu", repetitions=1)
            assert state.settings.runner == wanted and "measured by slurm on CPUs" in screen_text(app)
            await pilot.press("r")
            await until(pilot, app, lambda: "pending   job " in row_of(app, "a100"))
            assert "Resources" in row_of(app, "a100") or "Priority" in row_of(app, "a100")
            await until(pilot, app, lambda: measured(app, "mi300x") >= 1)
            assert measured(app, "a100-sxm-80g") == 0
            slurm.client("scancel", foreign)
            await until(pilot, app, lambda: measured(app, "a100-sxm-80g") >= 1)
            foreign = slurm.client(*hold).stdout.split()[-1]
            await pilot.press("x")
            await until(pilot, app, lambda: not state.running, 10)
            assert slurm.client("squeue", "-h", "-o", "%i").stdout.split() == [foreign], "its own jobs, and no other"
            slurm.client("scancel", foreign)
            kept = stored(app)
            assert {(m.point.gpu_type, m.node) for m in kept} == {("a100-sxm-80g", "a100-0"), ("mi300x", "mi300x-0")}
            assert all(m.truth is Truth.CPU and m.outcome is Outcome.OK and m.time_s for m in kept), kept
            await pilot.press("r")
            await until(pilot, app, lambda: len(stored(app)) > len(kept))
            assert state.progress is not None and state.progress.cached == len(kept)
            await pilot.press("x")
            await until(pilot, app, lambda: not state.running, 10)
            keys = [m.point.key for m in stored(app)]
            assert len(keys) == len(set(keys)), "something was measured twice"
    finally:
        slurm.client("scancel", foreign)


async def test_this_machine_from_the_dashboard_gives_rows_of_its_own_cpu(torch_python: str, tmp_path: Path) -> None:
    app = make_app(tmp_path, session(Cluster("box", (replace(node("box", A100, 2)),), LINK)))
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        await choose(pilot, 1, 3, torch_python)
        assert state.settings.runner == RunnerSettings("local", python=torch_python, device="cpu", repetitions=1)
        await pilot.press("r")
        await until(pilot, app, lambda: measured(app, "a100-sxm-80g") >= 3)
        await pilot.press("x")
        await until(pilot, app, lambda: not state.running, 10)
        rows = stored(app)
        assert len(rows) >= 3
        for row in rows:
            assert (row.truth, row.node, row.outcome) == (Truth.CPU, os.uname().nodename, Outcome.OK)
            assert row.forward_s and row.backward_s and row.peak_allocated_bytes and row.versions["torch"]
        # Planning says what it now rests on, on the screen too.
        await until(pilot, app, lambda: "(measured)" in screen_lines(app)[-2])


async def test_ssh_from_the_dashboard_measures_on_the_host_and_says_what_to_do_without_one(
    sshd: Sshd, torch_python: str, tmp_path: Path
) -> None:
    app = make_app(tmp_path, session(Cluster("box", (replace(node("box", A100, 2)),), LINK)))
    state = app.session.profile
    texts = {
        "hosts": "a100-sxm-80g=127.0.0.1",
        "arguments": shlex.join(sshd.arguments),
        "python": torch_python,
        "repetitions": "1",
    }
    async with app.run_test(size=(80, 24)) as pilot:
        await fill(pilot, app, 3, texts)
        runner = state.settings.runner
        assert (runner.kind, runner.python, runner.ssh_arguments) == ("ssh", torch_python, sshd.arguments)
        state.settings = replace(state.settings, runner=replace(runner, device="cpu"))
        await pilot.press("r")
        await until(pilot, app, lambda: measured(app, "a100-sxm-80g") >= 2)
        await pilot.press("x")
        await until(pilot, app, lambda: not state.running, 10)
        rows = stored(app)
        assert len(rows) >= 2
        assert {(m.truth, m.node, m.outcome) for m in rows} == {(Truth.CPU, "box", Outcome.OK)}
        elsewhere = replace(state.settings.runner, ssh_arguments=("-F", "none", "-p", "1"))
        state.settings = replace(state.settings, runner=elsewhere)
        await pilot.press("r")
        await until(pilot, app, lambda: state.failure is not None)
        await until(pilot, app, lambda: isinstance(app.screen, ErrorDialog))
        assert isinstance(app.screen, ErrorDialog)
        said = app.screen.report
        assert "cannot be reached" in said and 'name another host with "hosts" TYPE=HOST' in said
        assert "r on 2 Profile goes on from them" in said and " --" not in said
        assert len(stored(app)) == len(rows), "what was measured before is kept"


async def test_a_launch_command_from_the_dashboard_is_run_and_its_log_read(tmp_path: Path) -> None:
    script = tmp_path / "train me.py"
    script.write_text(f"import sys; assert sys.argv[1:2] == ['1']; print({LOG!r})")
    app = make_app(tmp_path, session(Cluster("box", (replace(node("box", A100, 2)),), LINK)))
    state = app.session.profile
    async with app.run_test(size=(80, 24)) as pilot:
        await fill(pilot, app, 4, {"command": f"{sys.executable} -S '{script}' {{tp}} {{micro_batch}} {{node}}"})
        assert state.settings.runner.kind == "command" and "measured by command" in screen_text(app)
        await pilot.press("r")
        await until(pilot, app, lambda: measured(app, "a100-sxm-80g") >= 3)
        await pilot.press("x")
        await until(pilot, app, lambda: not state.running, 10)
        rows = stored(app)
        assert len(rows) >= 3
        for row in rows:
            # The log's iterations of 0.41, 0.40 and 0.42 s hold the micro-batches that were in flight.
            assert row.time_s == pytest.approx(0.41 / row.point.in_flight)
            assert (row.node, row.outcome, row.peak_allocated_bytes) == ("box", Outcome.OK, int(1000.5 * (1 << 20)))
