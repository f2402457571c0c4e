"""What can go wrong while profiling: each is a result, a retry or a clear message, and nothing measured is lost."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import CancelledError
from memx_engine.lockfile import LockedError
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.loop import ProfileOptions, run_profile
from memx_engine.profile.progress import EventKind, ProfileEvent, TypeState
from memx_engine.profile.runner import LaneLostError, ProfileError
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.workspace import StorageError, Workspace
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.cli.processes import run as run_tool
from tests.profile.fakes import FakeRunner, crashed, ok

CLUSTER = make_cluster(H100, MI300X)
ONE = make_cluster(H100)
MODEL, JOB = make_model(), make_job()
SMALL = ProfileOptions(max_points=40, backoff_s=0.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_crash_is_retried_and_only_its_last_word_is_kept() -> None:
    def flaky(point: Point, attempt: int) -> Measurement:
        return crashed(point) if attempt < 2 and point.layers == 2 else ok(point)

    store, events = MemoryStore(), list[ProfileEvent]()
    result = run_profile(ONE, MODEL, JOB, FakeRunner(flaky), store, options=SMALL, on_event=events.append)
    assert result.total("failed") == 0
    assert {m.outcome for m in store.measurements()} == {Outcome.OK}
    retries = [e.message for e in events if e.kind is EventKind.RETRY]
    assert retries and all("retry" in m and "segmentation fault" in m for m in retries)


def test_retries_have_a_limit_and_the_next_run_tries_again() -> None:
    def one_bad(point: Point, _attempt: int) -> Measurement:
        return crashed(point) if point.micro_batch == 8 and point.tp == 2 and point.layers == 5 else ok(point)

    store, runner = MemoryStore(), FakeRunner(one_bad)
    result = run_profile(ONE, MODEL, JOB, runner, store, options=SMALL)
    failed = [m for m in store.measurements() if m.outcome is Outcome.CRASHED]
    assert len(failed) == result.total("failed") > 0
    assert {runner.attempts[m.point.key] for m in failed} == {1 + SMALL.retries}
    mended = FakeRunner()
    again = run_profile(ONE, MODEL, JOB, mended, store, options=replace(SMALL, resume=True))
    tried = {p.key for p in mended.measured}
    good = {m.point.key for m in store.measurements()} - {m.point.key for m in failed} - tried
    # What failed is tried again, points that its answer adds to the design come after, nothing good is repeated.
    assert {m.point.key for m in failed} <= tried
    assert len(good) == result.total("measured") and not good & tried
    assert again.total("failed") == 0 and again.total("measured") == len(tried)


def test_what_hung_is_kept_and_only_repeated_when_asked() -> None:
    def hangs(point: Point, _attempt: int) -> Measurement:
        if point.micro_batch == 8 and point.tp == 2 and point.layers == 5:
            return Measurement(point, Outcome.TIMEOUT, Truth.GPU, "fake", detail="not finished within 300 s")
        return ok(point)

    store, runner = MemoryStore(), FakeRunner(hangs)
    result = run_profile(ONE, MODEL, JOB, runner, store, options=SMALL)
    hung = [m.point.key for m in store.measurements() if m.outcome is Outcome.TIMEOUT]
    good = {m.point.key for m in store.measurements() if m.outcome is Outcome.OK}
    assert len(hung) == result.total("failed") > 0 and {runner.attempts[k] for k in hung} == {1}
    again = run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=replace(SMALL, resume=True))
    assert again.total("measured") == 0 and again.total("cached") == again.total("planned") - again.total("skipped")
    mended = FakeRunner()
    options = replace(SMALL, resume=True, retry_failed=True)
    third = run_profile(ONE, MODEL, JOB, mended, store, options=options)
    tried = {p.key for p in mended.measured}
    # What hung is repeated, points that its answer adds to the design come after, nothing good is measured twice.
    assert set(hung) <= tried and third.total("failed") == 0
    assert not tried & good


def test_a_lost_lane_is_reopened_and_the_point_measured_again() -> None:
    def lost_once(point: Point, attempt: int) -> Measurement:
        if attempt == 0 and point.layers == 2:
            raise LaneLostError("Slurm job 7 on a100-0 is preempted (PREEMPTED)")
        return ok(point)

    store, runner, events = MemoryStore(), FakeRunner(lost_once), list[ProfileEvent]()
    waiting = replace(SMALL, backoff_s=0.1)
    result = run_profile(ONE, MODEL, JOB, runner, store, options=waiting, on_event=events.append)
    losses = sum(1 for p in runner.measured if p.layers == 2) - sum(p.layers == 2 for p in set(runner.measured))
    assert losses > 0 and runner.opened["h100-sxm-80g"] == 1 + losses == runner.closed
    assert result.total("failed") == 0
    assert any("PREEMPTED" in e.message and e.kind is EventKind.RETRY for e in events)
    assert any(e.progress.types[0].state is TypeState.RETRYING for e in events)


def test_a_point_that_always_loses_the_lane_fails_alone() -> None:
    def poison(point: Point, _attempt: int) -> Measurement:
        if point.head and point.micro_batch == 2 and point.tp == 2:
            raise LaneLostError("the node went away")
        return ok(point)

    store = MemoryStore()
    result = run_profile(ONE, MODEL, JOB, FakeRunner(poison), store, options=SMALL)
    bad = [m for m in store.measurements() if m.outcome is Outcome.CRASHED]
    assert len(bad) == result.total("failed") == 1
    assert "lost 4 times under this point; the node went away" in bad[0].detail


def test_a_node_that_does_not_come_back_fails_its_type_after_the_limit() -> None:
    def gone(point: Point, _attempt: int) -> Measurement:
        if point.gpu_type == "mi300x" and len(runner.measured) > 10:
            raise LaneLostError("connection lost")
        return ok(point)

    def refuse(gpu_type: str, number: int) -> None:
        if gpu_type == "mi300x" and number > 0:
            raise ProfileError("no route to host", hint="check the network")

    runner = FakeRunner(gone, refuse)
    store = MemoryStore()
    result = run_profile(CLUSTER, MODEL, JOB, runner, store, options=SMALL)
    good, bad = result.types
    assert good.progress.state is TypeState.DONE and not good.error
    assert bad.progress.state is TypeState.FAILED
    assert bad.error == "no route to host" and bad.hint == "check the network"
    assert runner.opened["mi300x"] == 1 + 1 + SMALL.reopen
    stored = Counter(m.point.gpu_type for m in store.measurements() if m.outcome is Outcome.OK)
    assert stored["mi300x"] == bad.progress.measured and stored["h100-sxm-80g"] == good.progress.measured


def test_a_type_that_cannot_be_reached_fails_alone_and_at_once() -> None:
    def refuse(gpu_type: str, _number: int) -> None:
        if gpu_type == "mi300x":
            raise ProfileError("Slurm has no GPU type that matches mi300x", hint="name one with --gres-name")

    runner = FakeRunner(refuse=refuse)
    result = run_profile(CLUSTER, MODEL, JOB, runner, MemoryStore(), options=SMALL)
    assert [bool(t.error) for t in result.types] == [False, True]
    assert runner.opened["mi300x"] == 1
    assert "--gres-name" in result.types[1].hint


def test_all_types_failing_is_an_error_that_names_each_reason_once() -> None:
    def refuse(gpu_type: str, _number: int) -> None:
        raise ProfileError("the probe cannot run", hint="install PyTorch there")

    with pytest.raises(ProfileError, match="h100-sxm-80g, mi300x: the probe cannot run") as caught:
        run_profile(CLUSTER, MODEL, JOB, FakeRunner(refuse=refuse), MemoryStore(), options=SMALL)
    assert caught.value.exit_code == 4 and caught.value.hint == "install PyTorch there"


def test_a_type_is_given_up_after_some_failures_in_a_row() -> None:
    runner = FakeRunner(crashed)
    with pytest.raises(ProfileError, match="5 points in a row failed on fake-node; the last: segmentation fault"):
        run_profile(ONE, MODEL, JOB, runner, MemoryStore(), options=SMALL)
    assert len(runner.attempts) == 5


def test_results_of_types_that_were_given_up_are_counted_and_resumed_from() -> None:
    def then_broken(point: Point, _attempt: int) -> Measurement:
        return ok(point) if len(runner.measured) < 10 else crashed(point)

    runner, store = FakeRunner(then_broken), MemoryStore()
    with pytest.raises(ProfileError, match="to the end, 9 results are kept") as caught:
        run_profile(ONE, MODEL, JOB, runner, store, options=SMALL)
    assert "--resume" in caught.value.hint
    assert sum(m.outcome is Outcome.OK for m in store.measurements()) == 9
    # Results of an earlier run count as much.
    with pytest.raises(ProfileError, match="to the end, 9 results are kept"):
        run_profile(ONE, MODEL, JOB, FakeRunner(crashed), store, options=replace(SMALL, resume=True))


def test_a_measurement_that_cannot_be_started_is_a_crash() -> None:
    def no_fork(point: Point, attempt: int) -> Measurement:
        if attempt == 0:
            raise OSError(11, "Resource temporarily unavailable")
        return ok(point)

    result = run_profile(ONE, MODEL, JOB, FakeRunner(no_fork), MemoryStore(), options=SMALL)
    assert result.total("failed") == 0


def test_a_device_too_small_for_everything_says_so() -> None:
    tiny = make_cluster(replace(H100, memory_bytes=1 << 22))
    with pytest.raises(ProfileError, match="surely do not fit"):
        run_profile(tiny, MODEL, JOB, FakeRunner(), MemoryStore(), options=SMALL)


def test_a_full_disk_ends_the_run_with_a_message_and_loses_nothing(tmp_path: Path) -> None:
    with Workspace(tmp_path) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 15}")
        runner = FakeRunner()
        with pytest.raises(StorageError, match="full") as caught:
            run_profile(CLUSTER, MODEL, JOB, runner, store, options=SMALL)
        assert "nothing stored is lost" in caught.value.hint
        assert runner.closed == sum(runner.opened.values())
    with Workspace(tmp_path) as store:
        kept = [m for m in store.measurements() if m.outcome is Outcome.OK]
        assert kept
        result = run_profile(CLUSTER, MODEL, JOB, FakeRunner(), store, options=replace(SMALL, resume=True))
        assert result.total("cached") == len(kept)


def test_a_disk_that_fills_up_in_mid_run_is_one_message_and_is_resumed_once_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    arguments = ["profile", "--cluster", "paper-small", "--model", "gpt2-large", "--attention", "unfused"]
    arguments += ["--types", "t4", "--resume", "--json", "--workspace", str(small_disk / "w")]
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (128 << 10))
    first = run_tool(arguments, tmp_path)
    assert first.code == 2 and "full" in first.err and "nothing stored is lost" in first.err
    assert "Traceback" not in first.err
    with Workspace(small_disk / "w", read_only=True) as store:
        kept = [m.point.key for m in store.measurements() if m.outcome is not Outcome.SKIPPED]
    assert kept
    filler.unlink()
    second = run_tool(arguments, tmp_path)
    assert second.code == 0 and json.loads(second.out)["cached"] == len(kept)
    with Workspace(small_disk / "w", read_only=True) as store:
        assert set(Counter(m.point.key for m in store.measurements()).values()) == {1}


def test_a_bug_in_a_lane_reaches_the_caller_and_ends_the_others() -> None:
    def bug(point: Point, _attempt: int) -> Measurement:
        if point.gpu_type == "mi300x" and point.layers == 2:
            raise ZeroDivisionError("a bug")
        time.sleep(0.005)
        return ok(point)

    runner = FakeRunner(bug)
    with pytest.raises(ZeroDivisionError):
        run_profile(CLUSTER, MODEL, JOB, runner, MemoryStore(), options=ProfileOptions())
    assert runner.closed == 2 and len(runner.measured) < 200


def test_a_listener_that_fails_ends_the_run() -> None:
    def deaf(event: ProfileEvent) -> None:
        if event.progress.measured >= 2:
            raise BrokenPipeError

    store, runner = MemoryStore(), FakeRunner(lambda p, _a: (time.sleep(0.005), ok(p))[1])
    with pytest.raises(BrokenPipeError):
        run_profile(ONE, MODEL, JOB, runner, store, on_event=deaf)
    assert runner.closed == 1 and 2 <= len(list(store.measurements())) < 200


def test_a_wall_clock_that_jumps_changes_no_wait_and_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost_once(point: Point, attempt: int) -> Measurement:
        if attempt == 0 and point.layers == 2:
            raise LaneLostError("connection lost")
        time.sleep(0.01)
        return ok(point)

    jumps = iter(itertools.cycle((-1e6, 1e6, 0.0)))
    now, start = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    events: list[ProfileEvent] = []
    result = run_profile(ONE, MODEL, JOB, FakeRunner(lost_once), MemoryStore(), options=SMALL, on_event=events.append)
    took = time.monotonic() - start
    assert 0 < result.seconds <= took
    estimates = [e.progress.eta_s for e in events if e.progress.eta_s is not None]
    assert estimates and all(0 <= eta < 60 for eta in estimates)
    elapsed = [e.progress.elapsed_s for e in events]
    assert elapsed == sorted(elapsed)


def test_a_lane_that_is_cancelled_while_it_waits_for_its_job_submits_nothing_more() -> None:
    def refuse(gpu_type: str, _number: int) -> None:
        raise CancelledError("stopped by the operator")

    result = run_profile(ONE, MODEL, JOB, FakeRunner(refuse=refuse), MemoryStore(), options=SMALL)
    assert result.cancelled and result.total("measured") == 0


def test_check_21_a_killed_session_loses_at_most_the_points_in_work(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from memx_engine.workspace import Workspace;"
        "from memx_engine.profile.loop import run_profile;"
        "from memx_engine.profile.runners.testbed import TestbedRunner;"
        "from tests.profile.test_loop_faults import CLUSTER, JOB, MODEL, SMALL;"
        "hear = lambda e: e.kind == 'measured' and print(e.measurement.point.key, flush=True);"
        "run_profile(CLUSTER, MODEL, JOB, TestbedRunner(pace=0.005), Workspace(Path(sys.argv[1])),"
        " options=SMALL, on_event=hear)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(8)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Workspace(tmp_path) as store:
        assert "is gone" in store.notices[0]
        before = Counter(m.point.key for m in store.measurements())
        assert set(told) <= before.keys()
        seen: list[ProfileEvent] = []
        result = run_profile(
            CLUSTER, MODEL, JOB, TestbedRunner(), store, options=replace(SMALL, resume=True), on_event=seen.append
        )
        after = Counter(m.point.key for m in store.measurements())
    assert set(after.values()) == {1} and before.keys() <= after.keys()
    assert result.total("cached") + result.total("skipped") >= len(before)
    assert result.total("planned") == len(after)
    assert any(e.kind is EventKind.CACHED for e in seen)


def test_a_second_session_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with Workspace(tmp_path) as store:
        run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=SMALL)
        with pytest.raises(LockedError, match="is being written by process"):
            Workspace(tmp_path)
        with Workspace(tmp_path, read_only=True) as reader:
            assert len(reader.finished_points()) > 0
