"""A profiling run on a real Slurm that is disturbed in mid-run; the probe's place is taken by a quick stand-in."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Outcome
from memx_engine.profile.loop import ProfileOptions, run_profile
from memx_engine.profile.progress import EventKind, ProfileEvent, TypeState
from memx_engine.profile.result import ProfileResult
from memx_engine.profile.runners.slurm import SlurmOptions, SlurmRunner
from memx_engine.profile.store import MemoryStore
from tests.builders import make_job
from tests.profile.conftest import TINY
from tests.profile.slurm_cluster import SlurmCluster
from tests.profile.stand_in import logged, make_stand_in

JOB = replace(make_job(seq_len=4, global_batch=1), micro_batch_sizes=(1,), tp_sizes=(1,))
SMALL = ProfileOptions(max_points=12, backoff_s=0.2)


class Run:
    """A profiling run on a thread of its own, and what it tells."""

    def __init__(self, cluster: Cluster, runner: SlurmRunner, store: MemoryStore, options: ProfileOptions) -> None:
        self.events: list[ProfileEvent] = []
        self.result: ProfileResult | None = None
        self._stop = threading.Event()

        def work() -> None:
            self.result = run_profile(
                cluster, TINY, JOB, runner, store, options=options, on_event=self.events.append,
                should_stop=self._stop.is_set,
            )  # fmt: skip

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_for(self, condition: Callable[[ProfileEvent], bool], seconds: float = 40.0) -> ProfileEvent:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in tuple(self.events):
                if condition(event):
                    return event
            time.sleep(0.05)
        pytest.fail(f"it was never told; the last: {[e.message for e in self.events[-5:]]}")

    def end(self, seconds: float = 60.0) -> ProfileResult:
        self._thread.join(seconds)
        assert self.result is not None, [e.message for e in self.events[-5:]]
        return self.result


def measured(gpu_type: str, count: int) -> Callable[[ProfileEvent], bool]:
    def is_so(event: ProfileEvent) -> bool:
        return any(t.gpu_type == gpu_type and t.measured >= count for t in event.progress.types)

    return is_so


def once_each(store: MemoryStore) -> bool:
    return set(Counter(m.point.key for m in store.measurements()).values()) == {1}


def runner(python: Path, **changes: float) -> SlurmRunner:
    return SlurmRunner(SlurmOptions(python=str(python), device="cpu", step_wait_s=5, **changes))  # type: ignore[arg-type]  # seconds


def job_of(slurm: SlurmCluster, node: str) -> str:
    return slurm.client("squeue", "-h", "-w", node, "-o", "%i").stdout.strip()


def test_a_killed_controller_is_waited_for_and_the_run_goes_on(
    slurm: SlurmCluster, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    python = make_stand_in(tmp_path / "a b;$(touch ran)'", seconds=0.3)
    store = MemoryStore()
    with Run(mixed_cluster, runner(python), store, SMALL) as run:
        run.wait_for(measured("mi300x", 2))
        jobs = slurm.client("squeue", "-h", "-o", "%i").stdout.split()
        slurm.kill("slurmctld")
        told = run.wait_for(lambda e: e.kind is EventKind.LANE and "does not answer" in e.message)
        assert told.message.startswith("pending: job")
        slurm.start_controller()
        result = run.end()
        assert len(jobs) == 2
    assert [t.progress.state for t in result.types] == [TypeState.DONE] * 2
    assert result.total("failed") == 0 and once_each(store)
    assert {m.node for m in store.measurements()} == {"a100-0", "mi300x-0"}
    assert slurm.client("squeue", "-h").stdout == ""
    assert not Path("ran").exists()


def test_a_job_that_is_taken_away_is_asked_for_again_and_the_point_measured_once(
    slurm: SlurmCluster, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    store = MemoryStore()
    with Run(mixed_cluster, runner(make_stand_in(tmp_path, seconds=0.3)), store, SMALL) as run:
        run.wait_for(measured("mi300x", 2))
        first = job_of(slurm, "mi300x-0")
        slurm.client("scancel", first)
        retry = run.wait_for(lambda e: e.kind is EventKind.RETRY)
        assert retry.gpu_type == "mi300x" and f"Slurm job {first} on mi300x-0 is" in retry.message
        result = run.end()
    assert result.total("failed") == 0 and once_each(store)
    assert [t.progress.state for t in result.types] == [TypeState.DONE] * 2


def test_a_node_that_is_drained_and_loses_its_job_is_given_up_alone(
    slurm: SlurmCluster, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    store = MemoryStore()
    options = ProfileOptions(max_points=12, backoff_s=0.1, reopen=1)
    limited = runner(make_stand_in(tmp_path, seconds=0.3), pending_limit_s=1.2)
    try:
        with Run(mixed_cluster, limited, store, options) as run:
            run.wait_for(measured("mi300x", 2))
            slurm.client("scontrol", "update", "nodename=mi300x-0", "state=drain", "reason=maintenance")
            # A drained node lets its job go on: measuring goes on too.
            before = run.events[-1].progress.types[1].measured
            run.wait_for(measured("mi300x", before + 1))
            slurm.client("scancel", job_of(slurm, "mi300x-0"))
            pending = run.wait_for(lambda e: e.message.startswith("pending: job"))
            assert pending.gpu_type == "mi300x"
            # Slurm says the one or the other, depending on which of its loops looked last.
            assert "UnavailableNodes:mi300x-0" in pending.message or "DRAINED" in pending.message
            result = run.end()
    finally:
        slurm.client("scontrol", "update", "nodename=mi300x-0", "state=resume")
    good, bad = result.types
    assert good.progress.state is TypeState.DONE and not good.error
    assert bad.progress.state is TypeState.FAILED and "pending for more than" in bad.error
    assert "--max-pending" in bad.hint
    assert slurm.client("squeue", "-h").stdout == ""
    kept = len(list(store.measurements()))
    resumed = ProfileOptions(max_points=12, resume=True)
    # Slurm may take some seconds to notice that the node is back.
    patient = runner(make_stand_in(tmp_path, seconds=0.3), pending_limit_s=60.0)
    with Run(mixed_cluster, patient, store, resumed) as again:
        second = again.end()
    assert second.total("cached") == kept and second.total("measured") > 0 and once_each(store)


def test_a_probe_killed_on_its_node_is_a_crash_that_is_tried_again(
    slurm: SlurmCluster, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    store = MemoryStore()
    options = ProfileOptions(max_points=4, types=("mi300x",))
    with Run(mixed_cluster, runner(make_stand_in(tmp_path, first_seconds=5.0)), store, options) as run:
        deadline = time.monotonic() + 30
        while not logged(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        process, key = logged(tmp_path)[0]
        os.kill(process, signal.SIGKILL)
        retry = run.wait_for(lambda e: e.kind is EventKind.RETRY)
        assert "crashed, retry 1 of 2" in retry.message and "Killed" in retry.message
        result = run.end()
    assert result.total("failed") == 0 and once_each(store)
    assert {m.outcome for m in store.measurements()} == {Outcome.OK}
    assert [k for _, k in logged(tmp_path)].count(key) == 2
