"""A Slurm controller that is away longer than it is waited for, or comes back with another's job: pretended clients."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Outcome
from memx_engine.profile.runner import LaneLostError, LaneState
from memx_engine.profile.runners.slurm import SlurmOptions, SlurmRunner
from tests.profile.stand_in import make_stand_in
from tests.profile.test_runners import POINT

# salloc grants job 7 and waits for its standard input to end; the others answer as long as ``folder``/up exists.
SALLOC = 'echo "salloc: Granted job allocation 7" >&2; exec cat'
AWAY = (
    'if [ ! -e {folder}/up ]; then echo "error: Unable to contact slurm controller (connect failure)" >&2; exit 1; fi'
)
CLIENTS = {
    "scontrol": 'case "$*" in *--json*) exit 1;; esac; ' + AWAY + "; echo 'NodeName=m Gres=gpu:mi300x:4 State=IDLE'",
    "sinfo": "exit 1",
    "squeue": AWAY + "; cat {folder}/job; echo squeue $* >> {folder}/said",
    "scancel": "echo scancel $* >> {folder}/said",
    "srun": 'if [ "$1" = --version ]; then echo slurm {release}; exit; fi; echo srun $* >> {folder}/said; '
    + AWAY
    + '; while [ "$1" != {python} ]; do shift; done; exec "$@"',
}


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, release: str = "20.02.7") -> SlurmRunner:
    python = make_stand_in(folder / "python-folder")
    for name, code in {**CLIENTS, "salloc": SALLOC}.items():
        text = code.format(folder=folder, release=release, python=python) if name != "salloc" else code
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "up").touch()
    (folder / "job").write_text("RUNNING|None|m\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return SlurmRunner(SlurmOptions(python=str(python), device="cpu"))


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text().splitlines()


def never() -> bool:
    return False


@pytest.mark.parametrize(("release", "overlap"), [("18.08.9", False), ("20.11.8", True), ("24.05.3-1", True)])
def test_steps_share_their_job_where_the_release_knows_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed_cluster: Cluster, release: str, overlap: bool
) -> None:
    runner = pretend(tmp_path, monkeypatch, release)
    lane = runner.open(mixed_cluster, "mi300x", on_state=lambda _: None, should_stop=never)
    assert lane.measure(POINT, timeout_s=20, should_stop=never).outcome is Outcome.OK
    lane.close()
    step = next(line for line in said(tmp_path) if line.startswith("srun"))
    assert ("--overlap" in step) is overlap and "--gres=gpu:mi300x:1" in step
    # Numbers are given out again after a controller lost its state: the job is cancelled only under its own name.
    assert said(tmp_path)[-1] == f"scancel --name={lane.job_name} 7"


def test_a_controller_that_stays_away_loses_the_lane_and_names_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed_cluster: Cluster
) -> None:
    runner = pretend(tmp_path, monkeypatch)
    runner = replace(runner, options=replace(runner.options, controller_wait_s=0.5))
    states: list[LaneState] = []
    lane = runner.open(mixed_cluster, "mi300x", on_state=states.append, should_stop=never)
    (tmp_path / "up").unlink()
    with pytest.raises(LaneLostError, match="has not answered for 0 s; job 7 may still hold m"):
        lane.measure(POINT, timeout_s=20, should_stop=never)
    assert states[-1].state == "pending" and "does not answer" in states[-1].reason
    stop_at = [False, False, True]
    patient = replace(runner, options=replace(runner.options, controller_wait_s=60.0))
    with pytest.raises(CancelledError):
        patient.open(mixed_cluster, "mi300x", on_state=states.append, should_stop=lambda: stop_at.pop(0))
    lane.close()


def test_a_point_whose_step_fell_with_the_controller_is_run_anew_in_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed_cluster: Cluster
) -> None:
    states: list[LaneState] = []

    def hear(state: LaneState) -> None:
        states.append(state)
        if state.state == "pending":
            (tmp_path / "up").touch()

    lane = pretend(tmp_path, monkeypatch).open(mixed_cluster, "mi300x", on_state=hear, should_stop=never)
    (tmp_path / "up").unlink()
    result = lane.measure(POINT, timeout_s=20, should_stop=never)
    lane.close()
    assert result.outcome is Outcome.OK and result.node == "m"
    assert [state.state for state in states] == ["ready", "pending", "ready"]
    assert sum(line.startswith("srun") for line in said(tmp_path)) == 2
