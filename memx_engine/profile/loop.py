"""The profiling loop: one thread per GPU type, every result stored the moment it arrives, nothing measured twice."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Outcome
from memx_engine.profile.described import OfCluster
from memx_engine.profile.design import MAX_POINTS, ProfileDesign, design_profile
from memx_engine.profile.impact import THRESHOLD
from memx_engine.profile.lane_worker import LaneRules, LaneWorker, Note, Shared
from memx_engine.profile.progress import EventKind, ProfileEvent, ProfileProgress
from memx_engine.profile.result import ProfileResult
from memx_engine.profile.runner import ProfileError, Runner
from memx_engine.profile.store import MeasurementStore

TICK_S = 1.0
_JOIN_S = 10.0

EventCallback = Callable[[ProfileEvent], None]


@dataclass(frozen=True)
class ProfileOptions:
    """How to profile.

    Attributes:
        types: GPU types to measure; None for all of the cluster.
        resume: Go on in a store that already holds measurements of this cluster; without it such a store is refused.
        retry_failed: Measure again what timed out in an earlier run; what crashed is always tried again.
        max_points: Most points per GPU type. threshold: Amplitude above which a parameter has high impact.
        repetitions: Repetitions of every point, for the estimate of how long it takes; the runner has its own.
        point_timeout_s: A measurement that takes longer counts as hung.
        retries: How often a crashed point is tried again at once.
        reopen: How often a lost connection is made anew, waiting ``backoff_s``, then twice that, and so on.
        give_up_after: Failed points in a row after which a GPU type is given up.
        lanes_at_once: How many types may measure side by side; None for all, 1 where they share one machine.
    """

    types: tuple[str, ...] | None = None
    resume: bool = False
    retry_failed: bool = False
    max_points: int = MAX_POINTS
    threshold: float = THRESHOLD
    repetitions: int = 5
    point_timeout_s: float = 300.0
    retries: int = 2
    reopen: int = 3
    backoff_s: float = 2.0
    give_up_after: int = 5
    lanes_at_once: int | None = None

    def design(self, cluster: Cluster, model: TransformerSpec, job: Job) -> ProfileDesign:
        """The design that a run with these options follows."""
        return design_profile(
            cluster,
            model,
            job,
            types=self.types,
            max_points=self.max_points,
            threshold=self.threshold,
            repetitions=self.repetitions,
        )


def _ignore(_event: ProfileEvent) -> None:
    return None


def _never() -> bool:
    return False


def run_profile(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    runner: Runner,
    store: MeasurementStore,
    *,
    options: ProfileOptions | None = None,
    on_event: EventCallback = _ignore,
    should_stop: Callable[[], bool] = _never,
    paused: Callable[[], bool] = _never,
    clock: Callable[[], float] = time.monotonic,
) -> ProfileResult:
    """Measure the minimal set of points of every GPU type and store each result as it arrives.

    Points that ``store`` already has from the same ground are not measured again. A type that cannot be reached fails
    alone. A stopped run returns what it has with ``cancelled`` set; stopping takes at most about a second.

    Args:
        store: A workspace, or a store in memory. It is used by one thread at a time.
        on_event: Told everything that happens, and once a second that time goes on; always on the calling thread.
        should_stop: Asked ten times a second. paused: While true, no new point starts; the current one ends.
        clock: Monotonic seconds.

    Raises:
        InputError: The store holds measurements of this cluster and ``options.resume`` is false; unknown types.
        ProfileError: Every type failed, or nothing at all could be measured.
        MemxError: The store cannot be written; what was stored before stays.
    """
    options = options or ProfileOptions()
    start = clock()
    design = options.design(cluster, model, job)
    if not options.resume:
        refuse_without_resume(store, cluster, [d.gpu_type for d in design.types])
    rules = LaneRules(
        options.point_timeout_s,
        options.retries,
        options.reopen,
        options.backoff_s,
        options.give_up_after,
        options.retry_failed,
    )
    gate = threading.Semaphore(options.lanes_at_once) if options.lanes_at_once else None
    shared = Shared(cluster, runner, OfCluster(store, cluster), rules, should_stop, paused, clock, gate)
    workers = [LaneWorker(d, shared) for d in design.types]

    def progress() -> ProfileProgress:
        return ProfileProgress(clock() - start, tuple(w.snapshot() for w in workers), paused())

    for worker in workers:
        worker.start()
    try:
        _listen(shared.notes, len(workers), progress, on_event)
    except BaseException:
        # The listener failed or the operator insisted: end the lanes, keep what they stored.
        shared.abort.set()
        raise
    finally:
        for worker in workers:
            worker.join(_JOIN_S)
    if shared.fault is not None:
        raise shared.fault
    result = ProfileResult(
        types=tuple(w.result() for w in workers),
        truth=workers[0].truth,
        truth_name=workers[0].truth_name,
        seconds=clock() - start,
        cancelled=any(w.snapshot().state.value == "cancelled" for w in workers),
        excluded=tuple(design.excluded.items()),
    )
    if not result.cancelled:
        _refuse_nothing(result)
    return result


def _listen(
    notes: queue.SimpleQueue[Note], lanes: int, progress: Callable[[], ProfileProgress], on_event: EventCallback
) -> None:
    """Pass the lanes' notes on until each has ended; a tick a second in between."""
    ended = 0
    while ended < lanes:
        try:
            note = notes.get(timeout=TICK_S)
        except queue.Empty:
            on_event(ProfileEvent(EventKind.TICK, progress()))
            continue
        ended += note.kind is EventKind.ENDED
        on_event(ProfileEvent(note.kind, progress(), note.gpu_type, note.message, note.measurement, note.impacts))


def refuse_without_resume(store: MeasurementStore, cluster: Cluster, types: Sequence[str]) -> None:
    """Raise InputError where ``store`` holds measurements of one of ``types``."""
    held = 0
    for (_, gpu_type, outcome), count in OfCluster(store, cluster).counts().items():
        held += count if gpu_type in types and outcome != Outcome.SKIPPED.value else 0
    if held:
        raise InputError(
            f"the workspace already holds {held} measurements of {cluster.name}'s GPU types",
            where="--workspace",
            hint="add --resume to go on with them (nothing is measured twice), or name another folder",
        )


def _refuse_nothing(result: ProfileResult) -> None:
    """Raise ProfileError where no type came to anything."""
    failed = [t for t in result.types if t.error]
    results = result.total("measured") + result.total("cached")
    if len(failed) == len(result.types):
        reasons: dict[str, list[str]] = {}
        for t in failed:
            reasons.setdefault(t.error, []).append(t.gpu_type)
        message = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        hints = dict.fromkeys(t.hint for t in failed if t.hint)
        kept = ""
        if results:
            kept = f" to the end, {results} results are kept"
            hints["the same command with --resume goes on from them and measures nothing twice"] = None
        raise ProfileError(f"no GPU type could be measured{kept}: {message}", hint="; ".join(hints))
    if not results:
        skipped, crashed = result.total("skipped"), result.total("failed")
        raise ProfileError(f"nothing could be measured: {crashed} points failed, {skipped} surely do not fit")
