"""The loop on fake devices: what is measured, stored, resumed, and what is said of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import InputError
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Provenance
from memx_engine.profile.design import design_profile
from memx_engine.profile.loop import ProfileOptions, run_profile
from memx_engine.profile.progress import EventKind, ProfileEvent, TypeState
from memx_engine.profile.result import profile_document
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.workspace import Workspace
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.profile.fakes import FakeClock, FakeRunner, crashed, ok

CLUSTER = make_cluster(H100, MI300X)
ONE = make_cluster(H100)
MODEL, JOB = make_model(), make_job()
SMALL = ProfileOptions(max_points=60, backoff_s=0.0)


def test_every_point_is_measured_once_and_stored_with_its_ground() -> None:
    store, runner = MemoryStore(), FakeRunner()
    result = run_profile(CLUSTER, MODEL, JOB, runner, store, options=SMALL)
    stored = list(store.measurements())
    measured = Counter(p.key for p in runner.measured)
    assert set(measured.values()) == {1}
    assert len({m.point.key for m in stored}) == len(stored)
    assert result.total("planned") == result.total("measured") + result.total("skipped") == len(stored)
    assert {m.truth_name for m in stored} == {"fake"}
    assert result.provenance is Provenance.MEASURED and not result.cancelled
    assert runner.opened == {"h100-sxm-80g": 1, "mi300x": 1} and runner.closed == 2
    assert all(t.impacts for t in result.types)
    assert [bool(t.trends) for t in result.types] == [False, True]


def test_the_measured_ablation_decides_what_is_crossed() -> None:
    def flat(point: Point, attempt: int) -> Measurement:
        return replace(ok(point), forward_s=1.0 / point.tp, backward_s=1.0 / point.tp, peak_allocated_bytes=100)

    result = run_profile(ONE, MODEL, JOB, FakeRunner(flat), MemoryStore())
    (t,) = result.types
    assert [i.parameter for i in t.impacts if i.crossed] == ["tp"]
    opening = design_profile(ONE, MODEL, JOB).types[0].opening()
    assert t.progress.planned == len(opening)  # one crossed parameter adds nothing to its own ablation


def test_the_verdict_of_a_type_is_told_as_soon_as_its_ablation_is_complete() -> None:
    events: list[ProfileEvent] = []
    result = run_profile(CLUSTER, MODEL, JOB, FakeRunner(), MemoryStore(), options=SMALL, on_event=events.append)
    told = {e.gpu_type: e.impacts for e in events if e.impacts}
    assert told == {t.gpu_type: t.impacts for t in result.types}
    assert {e.kind for e in events if e.impacts} == {EventKind.JUDGED}
    kinds = [e.kind for e in events if e.gpu_type == "mi300x"]
    assert EventKind.MEASURED in kinds[kinds.index(EventKind.JUDGED) :], "only at the end"


def test_failed_points_of_a_store_are_counted_until_they_succeed() -> None:
    def hangs(point: Point, _attempt: int) -> Measurement:
        return Measurement(point, Outcome.TIMEOUT, Truth.GPU, "fake") if point.layers == 3 else ok(point)

    store = MemoryStore()
    result = run_profile(ONE, MODEL, JOB, FakeRunner(hangs), store, options=SMALL)
    (design,) = design_profile(ONE, MODEL, JOB, max_points=SMALL.max_points).types
    assert 0 < design.failed(store, "fake") <= result.total("failed") and design.failed(store, "other") == 0
    run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=replace(SMALL, resume=True, retry_failed=True))
    assert design.failed(store, "fake") == 0


def test_a_store_with_measurements_of_this_cluster_is_refused_without_resume() -> None:
    store = MemoryStore()
    run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=SMALL)
    with pytest.raises(InputError, match="already holds .* measurements") as caught:
        run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=SMALL)
    assert "--resume" in caught.value.hint and caught.value.exit_code == 2
    # Another cluster's types do not stand in the way.
    run_profile(make_cluster(MI300X), MODEL, JOB, FakeRunner(), store, options=SMALL)


def test_resuming_a_finished_run_opens_no_device_and_measures_nothing() -> None:
    store = MemoryStore()
    first = run_profile(CLUSTER, MODEL, JOB, FakeRunner(), store, options=SMALL)
    rows = len(list(store.measurements()))
    runner = FakeRunner()
    again = run_profile(CLUSTER, MODEL, JOB, runner, store, options=replace(SMALL, resume=True))
    assert runner.opened == {} and runner.measured == []
    assert len(list(store.measurements())) == rows
    assert again.total("cached") == first.total("measured") and again.total("measured") == 0
    assert again.total("skipped") == first.total("skipped")
    assert [t.impacts for t in again.types] == [t.impacts for t in first.types]


def test_resuming_an_empty_store_is_a_first_run() -> None:
    result = run_profile(ONE, MODEL, JOB, FakeRunner(), MemoryStore(), options=replace(SMALL, resume=True))
    assert result.total("cached") == 0 and result.total("measured") > 0


def test_another_ground_shares_nothing() -> None:
    store = MemoryStore()
    run_profile(ONE, MODEL, JOB, FakeRunner(), store, options=SMALL)
    other = FakeRunner(lambda p, _a: replace(ok(p), truth_name="other"), truth_name="other")
    result = run_profile(ONE, MODEL, JOB, other, store, options=replace(SMALL, resume=True))
    assert result.total("cached") == 0 and result.total("measured") > 0


def test_skipped_points_are_recorded_with_the_bound_and_never_run() -> None:
    tight = make_cluster(replace(H100, memory_bytes=20 << 30))
    store, runner = MemoryStore(), FakeRunner()
    result = run_profile(tight, MODEL, JOB, runner, store)
    skipped = [m for m in store.measurements() if m.outcome is Outcome.SKIPPED]
    assert len(skipped) == result.total("skipped") > 0
    assert all("at least" in m.detail and "20.0 GiB" in m.detail and m.truth is Truth.GPU for m in skipped)
    assert not {m.point.key for m in skipped} & {p.key for p in runner.measured}
    again = run_profile(tight, MODEL, JOB, runner, store, options=ProfileOptions(resume=True))
    assert again.total("skipped") == len(skipped)
    assert sum(m.outcome is Outcome.SKIPPED for m in store.measurements()) == len(skipped)


def test_out_of_memory_is_a_result_that_is_not_tried_again() -> None:
    def oom(point: Point, _attempt: int) -> Measurement:
        return ok(point) if point.layers < 8 else Measurement(point, Outcome.OOM, Truth.GPU, "fake", detail="oom")

    store, runner = MemoryStore(), FakeRunner(oom)
    result = run_profile(ONE, MODEL, JOB, runner, store, options=SMALL)
    (t,) = result.types
    assert t.progress.oom > 0 and t.progress.failed == 0
    assert set(runner.attempts.values()) == {1}
    again = run_profile(ONE, MODEL, JOB, FakeRunner(oom), store, options=replace(SMALL, resume=True))
    assert again.total("measured") == 0


def test_types_are_measured_side_by_side_unless_they_share_a_machine() -> None:
    active, most = 0, {"side": 0, "one": 0}
    lock = threading.Lock()

    def runner(name: str) -> FakeRunner:
        def answer(point: Point, _attempt: int) -> Measurement:
            nonlocal active
            with lock:
                active += 1
                most[name] = max(most[name], active)
            time.sleep(0.005)
            with lock:
                active -= 1
            return ok(point)

        return FakeRunner(answer)

    run_profile(CLUSTER, MODEL, JOB, runner("side"), MemoryStore(), options=SMALL)
    run_profile(CLUSTER, MODEL, JOB, runner("one"), MemoryStore(), options=replace(SMALL, lanes_at_once=1))
    assert most == {"side": 2, "one": 1}


def test_events_come_on_the_callers_thread_and_their_counts_only_grow() -> None:
    threads: set[str] = set()
    events: list[ProfileEvent] = []

    def hear(event: ProfileEvent) -> None:
        threads.add(threading.current_thread().name)
        events.append(event)

    run_profile(ONE, MODEL, JOB, FakeRunner(), MemoryStore(), options=SMALL, on_event=hear)
    assert threads == {threading.current_thread().name}
    finished = [e.progress.finished for e in events]
    assert finished == sorted(finished)
    kinds = [e.kind for e in events]
    assert kinds[0] is EventKind.LANE and kinds[-1] is EventKind.ENDED
    assert kinds.count(EventKind.STARTED) == kinds.count(EventKind.MEASURED)
    assert events[-1].progress.types[0].state is TypeState.DONE
    assert events[-1].progress.fraction == 1.0
    first = next(e for e in events if e.kind is EventKind.MEASURED)
    assert first.measurement is not None and "ms" in first.message and "GiB" in first.message


class LockStep:
    """A clock that the lane moves, and a lane that waits until each result has been reported."""

    def __init__(self, seconds: float, per_work: float = 0.0) -> None:
        self.clock, self.seconds, self.per_work = FakeClock(), seconds, per_work
        self.heard = threading.Semaphore(1)
        self.reports: list[tuple[float, float | None, int, int]] = []
        self.costs = design_profile(ONE, MODEL, JOB).types[0].costs

    def answer(self, point: Point, _attempt: int) -> Measurement:
        assert self.heard.acquire(timeout=30)
        self.clock.now_s += self.seconds + self.per_work * self.costs.work_s(point, 5)
        return ok(point)

    def hear(self, event: ProfileEvent) -> None:
        if event.kind is EventKind.MEASURED:
            p = event.progress
            self.reports.append((p.elapsed_s, p.eta_s, p.finished, p.planned))
            self.heard.release()

    def run(self) -> float:
        run_profile(ONE, MODEL, JOB, FakeRunner(self.answer), MemoryStore(), on_event=self.hear, clock=self.clock)
        return self.clock.now_s - 1000.0


@pytest.mark.parametrize(("seconds", "per_work"), [(10.0, 0.0), (12.0, 4.0), (0.0, 0.5)])
def test_check_22_the_time_left_is_honest(seconds: float, per_work: float) -> None:
    profiler = LockStep(seconds, per_work)
    total = profiler.run()
    measured = 0
    for elapsed, eta, finished, planned in profiler.reports:
        measured += 1
        if finished == planned:
            break
        if measured < 5:
            assert eta is None
            continue
        assert eta is not None and eta >= 0.0
        left = total - elapsed
        if finished >= 0.2 * planned and left > 0.02 * total:
            assert eta == pytest.approx(left, rel=0.3), (finished, planned)
    assert len(profiler.reports) > 200


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    seen: list[ProfileEvent] = []
    run_profile(ONE, MODEL, JOB, TestbedRunner(), MemoryStore(), options=SMALL, on_event=seen.append)
    elapsed = [e.progress.elapsed_s for e in seen]
    assert elapsed == sorted(elapsed) and elapsed[-1] < 600
    assert all(e.progress.eta_s is None or e.progress.eta_s >= 0 for e in seen)


def test_pausing_starts_no_new_point_and_resuming_goes_on() -> None:
    paused, release = threading.Event(), threading.Event()
    runner = FakeRunner()
    seen: list[ProfileEvent] = []
    counted: list[int] = []

    def hear(event: ProfileEvent) -> None:
        seen.append(event)
        if len(runner.measured) >= 3 and not counted:
            paused.set()
            counted.append(0)
            threading.Thread(target=watch).start()

    def watch() -> None:
        deadline = time.monotonic() + 20
        while not any(e.progress.types[0].state is TypeState.PAUSED for e in seen) and time.monotonic() < deadline:
            time.sleep(0.01)
        counted[0] = len(runner.measured)
        time.sleep(0.4)
        counted.append(len(runner.measured))
        paused.clear()
        release.set()

    def slow(point: Point, _attempt: int) -> Measurement:
        time.sleep(0.01)
        return ok(point)

    runner.answer = slow
    result = run_profile(ONE, MODEL, JOB, runner, MemoryStore(), options=SMALL, on_event=hear, paused=paused.is_set)
    assert release.is_set() and counted[0] == counted[1] > 0
    assert result.total("measured") == result.total("planned") - result.total("skipped")
    assert any(e.progress.paused for e in seen)
    assert {e.message for e in seen if e.kind is EventKind.LANE} >= {"paused", "resumed"}


def test_check_19_cancelling_keeps_what_was_measured_and_ends_within_a_second(tmp_path: Path) -> None:
    stop = threading.Event()
    asked: list[float] = []

    def hear(event: ProfileEvent) -> None:
        if event.progress.measured >= 3 and not stop.is_set():
            asked.append(time.monotonic())
            stop.set()

    with Workspace(tmp_path) as store:
        result = run_profile(
            CLUSTER, MODEL, JOB, TestbedRunner(pace=0.02), store, options=SMALL, on_event=hear, should_stop=stop.is_set
        )
        # The aim is one second; shared machines get a little more.
        assert time.monotonic() - asked[0] < 2.0
        assert result.cancelled
        kept = store.finished_points()
        assert result.total("measured") == sum(outcome in ("ok", "oom") for outcome in kept.values()) >= 3
        again = run_profile(CLUSTER, MODEL, JOB, TestbedRunner(), store, options=replace(SMALL, resume=True))
        assert again.total("cached") == result.total("measured")
        rows = [m.point.key for m in store.measurements()]
        assert len(rows) == len(set(rows))


def test_a_paused_run_can_be_cancelled() -> None:
    result = run_profile(
        ONE, MODEL, JOB, FakeRunner(), MemoryStore(), paused=lambda: True, should_stop=Deadline(0.3).passed
    )
    assert result.cancelled and result.total("measured") == 0


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def passed(self) -> bool:
        return time.monotonic() > self.end


def test_the_document_adds_up_per_type_and_in_all() -> None:
    result = run_profile(CLUSTER, MODEL, JOB, TestbedRunner(3, True), MemoryStore(), options=SMALL)
    document = profile_document(result)
    assert document["provenance"] == "simulated" and document["truth"] == "testbed:hard:3"
    for name in ("planned", "measured", "cached", "skipped", "failed"):
        assert document[name] == sum(t[name] for t in document["types"])
    for t in document["types"]:
        assert t["planned"] == t["measured"] + t["cached"] + t["skipped"] + t["failed"]
        assert {i["impact"] for i in t["impacts"]} <= {"high", "low"} and t["error"] is None


def test_crashes_alone_are_counted_as_failed() -> None:
    def some(point: Point, attempt: int) -> Measurement:
        return crashed(point) if point.layers == 8 and point.tp == 8 else ok(point)

    store = MemoryStore()
    result = run_profile(ONE, MODEL, JOB, FakeRunner(some), store, options=SMALL)
    (t,) = result.types
    rows = list(store.measurements())
    assert t.progress.failed == sum(m.outcome is Outcome.CRASHED for m in rows)
    assert t.progress.planned == t.progress.finished
