"""One GPU type's part of a profiling run: a thread that opens its lane, measures its design and stores every result."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.design import PlannedPoint, TypeDesign
from memx_engine.profile.impact import Impact, peak_bytes
from memx_engine.profile.progress import EventKind, Pace, TypeProgress, TypeState
from memx_engine.profile.result import TypeResult
from memx_engine.profile.runner import Lane, LaneLostError, LaneState, ProfileError, Runner
from memx_engine.profile.store import MeasurementStore
from memx_engine.profile.trends import Trend, trends
from memx_engine.units import gib

_POLL_S = 0.1
_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True)
class LaneRules:
    """How a lane treats trouble; see :class:`~memx_engine.profile.loop.ProfileOptions` for what each means."""

    point_timeout_s: float
    retries: int
    reopen: int
    backoff_s: float
    give_up_after: int
    retry_failed: bool


@dataclass(frozen=True, eq=False)
class Note:
    """What a lane tells the loop's thread, which alone talks to the caller."""

    kind: EventKind
    gpu_type: str
    message: str = ""
    measurement: Measurement | None = None
    impacts: tuple[Impact, ...] = ()


@dataclass(eq=False)
class Shared:
    """What the lanes of one run have in common.

    Attributes:
        store_lock: One thread at a time uses the store. gate: How many lanes may measure at once; None for all.
        abort: Set when the run must end for a reason of its own. fault: That reason.
    """

    cluster: Cluster
    runner: Runner
    store: MeasurementStore
    rules: LaneRules
    should_stop: Callable[[], bool]
    paused: Callable[[], bool]
    clock: Callable[[], float]
    gate: threading.Semaphore | None = None
    store_lock: threading.Lock = field(default_factory=threading.Lock)
    notes: queue.SimpleQueue[Note] = field(default_factory=queue.SimpleQueue)
    abort: threading.Event = field(default_factory=threading.Event)
    fault: BaseException | None = None

    def stopping(self) -> bool:
        return self.abort.is_set() or self.should_stop()

    def fail(self, error: BaseException) -> None:
        """End the run because of ``error``; the first one counts."""
        if self.fault is None:
            self.fault = error
        self.abort.set()


class LaneWorker(threading.Thread):
    """Profiles one GPU type. Everything but :meth:`snapshot` and :meth:`result` happens on its own thread."""

    def __init__(self, design: TypeDesign, shared: Shared) -> None:
        super().__init__(name=f"profile {design.gpu_type}", daemon=True)
        self.design, self.shared = design, shared
        self.gpu_type = design.gpu_type
        self.truth, self.truth_name = shared.runner.ground(design.gpu_type)
        self._lane: Lane | None = None
        self._through_gate = False
        self._failures_in_a_row = 0
        self._results: dict[str, Measurement] = {}
        self._tried: set[str] = set()
        self._impacts: tuple[Impact, ...] = ()
        self._trends: tuple[Trend, ...] = ()
        self._lock = threading.Lock()
        # Guarded by the lock: what snapshot() reads.
        self._pace = Pace()
        self._left: dict[str, float] = {}
        self._counts = {"planned": 0, "measured": 0, "cached": 0, "skipped": 0, "failed": 0, "oom": 0}
        self._state, self._node, self._reason, self._current = TypeState.WAITING, "", "", ""
        self._current_key, self._current_since, self._hint = "", 0.0, ""

    # --- seen from the loop's thread -------------------------------------------------------------------------------

    def snapshot(self) -> TypeProgress:
        with self._lock:
            return TypeProgress(
                self.gpu_type,
                self._state,
                **self._counts,
                node=self._node,
                current=self._current,
                reason=self._reason,
                rate_per_s=self._pace.rate_per_s,
                eta_s=self._eta_s(),
            )

    def _eta_s(self) -> float | None:
        if self._state.over:
            return 0.0 if self._state is TypeState.DONE else None
        if self._state in (TypeState.PENDING, TypeState.RETRYING):
            # Nobody knows how long a queue takes.
            return None
        left = self._pace.remaining_s(len(self._left), sum(self._left.values()))
        if left is None or self._current_key not in self._left:
            return left
        this = self._pace.remaining_s(1, self._left[self._current_key]) or 0.0
        return max(left - min(self.shared.clock() - self._current_since, this), 0.0)

    def result(self) -> TypeResult:
        """What came of the type; call it when the thread has ended."""
        return TypeResult(self.snapshot(), self._impacts, self._trends, self._hint)

    # --- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Profile; ends with one ``ended`` note, whatever happens."""
        message = ""
        try:
            self._profile()
            self._set(TypeState.DONE)
            message = "done"
        except CancelledError:
            self._set(TypeState.CANCELLED)
            message = "stopped; its results are kept"
        except ProfileError as error:
            self._set(TypeState.FAILED, reason=error.message, hint=error.hint)
            message = f"failed: {error.message}"
        except BaseException as error:  # carried to the caller's thread, which raises it
            self.shared.fail(error)
            self._set(TypeState.CANCELLED, reason=str(error))
            message = f"stopped: {error}"
        finally:
            try:
                self._close_lane()
            except BaseException as error:  # as above
                self.shared.fail(error)
            if self._through_gate and self.shared.gate is not None:
                self.shared.gate.release()
            self._tell(EventKind.ENDED, message)

    def _profile(self) -> None:
        opening = self.design.opening()
        expected = self.design.predicted_closing().points
        self._look_up([*opening, *expected])
        todo = self._take_stock(opening, expected)
        cached = self._counts["cached"]
        if cached:
            self._tell(EventKind.CACHED, f"{cached} points were measured before")
        self._measure_all(todo)
        closing = self.design.closing(self._measured)
        self._impacts = closing.impacts
        self._trends = trends(self.gpu_type, self.design.dense(), self._measured)
        self._tell(EventKind.JUDGED, _verdict(closing.impacts), impacts=closing.impacts)
        self._look_up(closing.points)
        self._measure_all(self._take_stock([*opening, *closing.points], ()))

    def _measured(self, point: Point) -> Measurement | None:
        return self._results.get(point.key)

    # --- what is there, what is left -------------------------------------------------------------------------------

    def _look_up(self, points: Iterable[PlannedPoint]) -> None:
        """Find stored results of points that were not looked for yet."""
        keys = {p.point.key for p in points} - self._results.keys()
        with self.shared.store_lock:
            found = self.shared.store.latest(self.truth_name, keys)
        self._results.update(found)

    def _is_result(self, key: str) -> bool:
        """Whether a stored or new measurement of this point stands; crashes are tried again by the next run."""
        found = self._results.get(key)
        if found is None:
            return False
        if found.outcome is Outcome.TIMEOUT:
            return not self.shared.rules.retry_failed or key in self._tried
        return found.outcome in (Outcome.OK, Outcome.OOM) or key in self._tried

    def _take_stock(self, sure: Sequence[PlannedPoint], likely: Sequence[PlannedPoint]) -> list[Point]:
        """Count what is done, record what surely does not fit, and return the points of ``sure`` to be measured."""
        todo: list[Point] = []
        cached = skipped = 0
        new_skips: list[Measurement] = []
        left: dict[str, float] = {}
        costs, repetitions = self.design.costs, self.design.repetitions
        for planned in (*sure, *likely):
            point = planned.point
            if self._is_result(point.key):
                cached += point.key not in self._tried
                continue
            why = costs.cannot_fit(point)
            if why:
                skipped += 1
                stored = self._results.get(point.key)
                if stored is None or stored.outcome is not Outcome.SKIPPED:
                    new_skips.append(self._skip(point, why))
                continue
            left[point.key] = costs.work_s(point, repetitions)
        sure_keys = {p.point.key for p in sure}
        todo = [p.point for p in sure if p.point.key in left]
        with self._lock:
            self._counts.update(planned=len(sure) + len(likely), cached=cached, skipped=skipped)
            self._left = left
        for skip in new_skips:
            if skip.point.key in sure_keys:
                self._keep(skip)
                self._tell(EventKind.SKIPPED, f"{self._label(skip.point)}: {skip.detail}", skip)
        return todo

    def _skip(self, point: Point, why: str) -> Measurement:
        capacity = self.design.costs.capacity_bytes(self.gpu_type)
        return Measurement(point, Outcome.SKIPPED, self.truth, self.truth_name, capacity_bytes=capacity, detail=why)

    def _keep(self, measurement: Measurement) -> None:
        """Store for good, then remember."""
        with self.shared.store_lock:
            self.shared.store.add(measurement)
        self._results[measurement.point.key] = measurement

    # --- measuring -------------------------------------------------------------------------------------------------

    def _measure_all(self, points: Sequence[Point]) -> None:
        for point in points:
            self._wait_while_paused()
            start = self.shared.clock()
            result = self._measure(point)
            self._keep(result)
            self._tried.add(point.key)
            self._count(result, self.shared.clock() - start)
            self._tell(EventKind.MEASURED, f"{self._label(point)}: {describe(result)}", result)
            if self._failures_in_a_row >= self.shared.rules.give_up_after:
                raise ProfileError(
                    f"{self._failures_in_a_row} points in a row failed on {self._node or self.gpu_type}; "
                    f"the last: {result.detail[:200] or result.outcome.value}",
                    where=self.gpu_type,
                    hint="put right what the message says and resume",
                )

    def _count(self, result: Measurement, took_s: float) -> None:
        failed = result.outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        with self._lock:
            work = self._left.pop(result.point.key, 0.0)
            self._pace.add(work, took_s)
            self._counts["failed" if failed else "measured"] += 1
            self._counts["oom"] += result.outcome is Outcome.OOM
            self._current, self._current_key = "", ""

    def _measure(self, point: Point) -> Measurement:
        """One result of ``point``: crashes are retried, a lost lane is reopened, both within limits."""
        rules = self.shared.rules
        crashes = losses = 0
        while True:
            lane = self._lane or self._open_lane(after_loss=losses)
            self._start(point)
            try:
                result = lane.measure(point, timeout_s=rules.point_timeout_s, should_stop=self.shared.stopping)
            except LaneLostError as error:
                losses += 1
                self._close_lane()
                if losses > rules.reopen:
                    detail = f"the connection was lost {losses} times under this point; {error.message}"
                    return self._crash(point, detail)
                self._back_off(losses, rules.reopen, error.message)
                continue
            except OSError as error:
                result = self._crash(point, f"the measurement could not be started: {error}")
            if result.outcome is not Outcome.CRASHED or crashes >= rules.retries:
                return result
            crashes += 1
            again = f"retry {crashes} of {rules.retries}"
            self._tell(EventKind.RETRY, f"{self._label(point)}: crashed, {again}: {result.detail}")
            self._wait_while_paused()

    def _crash(self, point: Point, detail: str) -> Measurement:
        return Measurement(point, Outcome.CRASHED, self.truth, self.truth_name, node=self._node, detail=detail)

    def _start(self, point: Point) -> None:
        with self._lock:
            self._state, self._reason = TypeState.MEASURING, ""
            self._current, self._current_key, self._current_since = self._label(point), point.key, self.shared.clock()
        self._tell(EventKind.STARTED, f"{self._label(point)}: started")

    # --- the lane --------------------------------------------------------------------------------------------------

    def _open_lane(self, *, after_loss: int) -> Lane:
        """Open the lane; after a loss, failing to is retried with a limit, because the place may come back."""
        self._pass_gate()
        rules, tries = self.shared.rules, 0
        while True:
            self._check()
            try:
                self._lane = self.shared.runner.open(
                    self.shared.cluster, self.gpu_type, on_state=self._hear, should_stop=self.shared.stopping
                )
                return self._lane
            except OSError as error:
                failure = ProfileError(f"{self.gpu_type} cannot be reached: {error}", where=self.gpu_type)
            except ProfileError as error:
                failure = error
            tries += 1
            if not after_loss or tries > rules.reopen:
                raise failure
            self._back_off(tries, rules.reopen, failure.message)

    def _pass_gate(self) -> None:
        gate = self.shared.gate
        while gate is not None and not self._through_gate:
            self._check()
            self._through_gate = gate.acquire(timeout=_POLL_S)

    def _hear(self, state: LaneState) -> None:
        words = state.state
        if state.state == "pending":
            self._set(TypeState.PENDING, reason=state.reason)
            words = f"pending: {state.reason}"
        elif state.state == "ready":
            with self._lock:
                self._node, self._reason = state.node, ""
            words = f"ready on {state.node}" if state.node else "ready"
        self._tell(EventKind.LANE, words)

    def _close_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()

    def _back_off(self, attempt: int, limit: int, message: str) -> None:
        wait_s = min(self.shared.rules.backoff_s * 2.0 ** (attempt - 1), _LONGEST_BACKOFF_S)
        words = f"retry {attempt} of {limit} in {wait_s:.0f} s: {message}"
        self._set(TypeState.RETRYING, reason=words)
        self._tell(EventKind.RETRY, words)
        end = self.shared.clock() + wait_s
        while self.shared.clock() < end:
            self._nap()

    # --- small steps -----------------------------------------------------------------------------------------------

    def _wait_while_paused(self) -> None:
        self._check()
        if not self.shared.paused():
            return
        before = self._state
        self._set(TypeState.PAUSED)
        self._tell(EventKind.LANE, "paused")
        while self.shared.paused():
            self._nap()
        self._set(before)
        self._tell(EventKind.LANE, "resumed")

    def _nap(self) -> None:
        """Sleep a moment, or until the run is aborted."""
        self.shared.abort.wait(_POLL_S)
        self._check()

    def _check(self) -> None:
        if self.shared.stopping():
            raise CancelledError("stopped by the operator")

    def _set(self, state: TypeState, *, reason: str = "", hint: str = "") -> None:
        with self._lock:
            self._state, self._reason, self._hint = state, reason, hint
            if state.over:
                self._current, self._current_key = "", ""

    def _label(self, point: Point) -> str:
        return point.label_in(self.design.model)

    def _tell(
        self, kind: EventKind, message: str, measurement: Measurement | None = None, impacts: tuple[Impact, ...] = ()
    ) -> None:
        self.shared.notes.put(Note(kind, self.gpu_type, message, measurement, impacts))


def describe(result: Measurement) -> str:
    """A result in a few words: ``48.1 ms, 12.3 GiB, +-0.6 %``, or how it failed."""
    if result.outcome is not Outcome.OK:
        words = {Outcome.OOM: "out of memory", Outcome.TIMEOUT: "hung", Outcome.CRASHED: "crashed"}
        head = words.get(result.outcome, result.outcome.value)
        return f"{head}: {result.detail}" if result.detail else head
    parts = [f"{(result.time_s or 0.0) * 1e3:.4g} ms"]
    peak = peak_bytes(result)
    if peak is not None:
        parts.append(f"{gib(peak):.2f} GiB")
    if result.spread is not None:
        parts.append(f"+-{result.spread:.1%}")
    if result.stragglers:
        parts.append(f"{result.stragglers} stragglers left out")
    return ", ".join(parts)


def _verdict(impacts: Sequence[Impact]) -> str:
    high = ", ".join(i.parameter for i in impacts if i.high) or "none"
    crossed = ", ".join(i.parameter for i in impacts if i.crossed) or "none"
    return f"high impact: {high}; crossed: {crossed}"
