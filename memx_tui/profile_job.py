"""Profiling in a thread: the engine's events become a log and at most a few messages a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.message import Message

from memx_tui.field_words import in_fields
from memx_tui.ground import Ground, find_ground
from memx_tui.messages import JobFailed, ProfileEnded, ProfileLearned, ProfileProgressed, ProfileSurveyed
from memx_tui.profile_state import LogLine, ProfileSettings, Survey
from memx_tui.runners import make_runner

if TYPE_CHECKING:
    from pathlib import Path

    from memx_engine import Cluster, Impact, Job, ProfileEvent, Runner, TransformerSpec

Post = Callable[[Message], object]
Clock = Callable[[], str]
log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.2
"""Five reports a second at most: the contract with slow connections is ten repaints a second in all."""

DOING = "profiling"
LOOKING = "looking at the workspace"


def wall_clock() -> str:
    return time.strftime("%H:%M:%S")


@dataclass(eq=False)
class ProfileFeed:
    """What the job tells the app between two messages; messages may collapse, lines must not be lost.

    Attributes:
        stop, pause: Asked of the job by the app.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lines: list[LogLine] = field(default_factory=list)
    _verdicts: dict[str, tuple[Impact, ...]] = field(default_factory=dict)

    def add(self, line: LogLine) -> None:
        with self._lock:
            self._lines.append(line)

    def take(self) -> list[LogLine]:
        """The lines since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def judge(self, gpu_type: str, impacts: tuple[Impact, ...]) -> None:
        with self._lock:
            self._verdicts[gpu_type] = impacts

    def verdicts(self) -> dict[str, tuple[Impact, ...]]:
        """What has been judged so far."""
        with self._lock:
            return dict(self._verdicts)


def log_line(event: ProfileEvent, clock: str) -> LogLine | None:
    """An event as a line of the log; None for what is only progress."""
    from memx_engine import EventKind, Outcome

    if event.kind is EventKind.TICK or not event.message:
        return None
    plain = event.kind in (EventKind.STARTED, EventKind.SKIPPED)
    bad = event.kind is EventKind.RETRY
    if event.measurement is not None:
        bad = event.measurement.outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
    if event.kind is EventKind.ENDED and event.message.startswith(("failed", "stopped:")):
        bad = True
    text, more = " ".join(event.message.split()), ""
    if event.measurement is not None and event.kind is EventKind.MEASURED:
        text, more = result_words(text)
    return LogLine(clock, event.gpu_type, text, plain, bad, more)


def result_words(text: str) -> tuple[str, str]:
    """``label: 168.1 ms, 4.19 GiB, +-0.5%`` with what matters first, in columns, and what may be left out."""
    label, _, found = text.partition(": ")
    result, _, rest = found.partition(", ")
    memory, _, more = rest.partition(", ")
    if not result.endswith(" ms"):
        word, colon, why = found.partition(":")
        return f"{word:<20} {label}{colon}{why}", ""
    if not memory.endswith(" GiB"):
        memory, more = "", rest
    return f"{result:>8} {memory:>10} {label}", f", {more}" if more else ""


def run_profile_job(
    inputs: tuple[Cluster, TransformerSpec, Job],
    settings: ProfileSettings,
    runner: Runner,
    folder: Path,
    retry_failed: bool,
    feed: ProfileFeed,
    post: Post,
    clock: Clock = wall_clock,
) -> None:
    """Profile and post the outcome; ``feed`` carries the lines out and the operator's wishes in."""
    from memx_engine import Workspace, run_profile

    last = 0.0

    def hear(event: ProfileEvent) -> None:
        nonlocal last
        if event.impacts:
            feed.judge(event.gpu_type, event.impacts)
        line = log_line(event, clock())
        if line is not None:
            feed.add(line)
        now = time.monotonic()
        if now - last >= REPORT_EVERY_S:
            last = now
            post(ProfileProgressed(event.progress))

    try:
        with Workspace(folder) as store:
            for notice in store.notices:
                feed.add(LogLine(clock(), "", f"{notice}; its results are kept, at most the points that ran are lost"))
            result = run_profile(
                *inputs,
                runner,
                store,
                options=settings.options(retry_failed=retry_failed),
                on_event=hear,
                should_stop=feed.stop.is_set,
                paused=feed.pause.is_set,
            )
        post(ProfileEnded(result))
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("profiling failed")
        post(JobFailed(error, DOING))


def run_survey(
    inputs: tuple[Cluster, TransformerSpec, Job], settings: ProfileSettings, folder: Path, post: Post
) -> None:
    """Find out what would be measured, what is there, and what planning rests on; post it."""
    from memx_engine import MemxError

    try:
        survey = make_survey(inputs, settings, folder)
    except MemxError as error:
        survey = Survey(problem=in_fields(f"{error.message}; {error.hint}" if error.hint else error.message))
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("looking at the workspace failed")
        post(JobFailed(error, LOOKING))
        return
    post(ProfileSurveyed(survey, inputs, settings))


def run_learning(
    inputs: tuple[Cluster, TransformerSpec, Job], folder: Path, of: tuple[object, ...], post: Post
) -> None:
    """Train on what ``folder`` holds and post what it came to; ``of`` names what is there."""
    from memx_engine import PREDICTORS, MemxError, Workspace, learn

    learned, problem = None, ""
    try:
        if Workspace.exists(folder):
            with Workspace(folder, read_only=True) as store:
                learned = learn(*inputs, store, keep=folder / PREDICTORS)
        else:
            problem = "nothing is measured yet"
    except MemxError as error:
        problem = f"{error.message}; {error.hint}" if error.hint else error.message
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("learning from the measurements failed")
        problem = f"learning failed: {type(error).__name__}: {error}; the log has the details"
    post(ProfileLearned(learned, problem, of))


def make_survey(inputs: tuple[Cluster, TransformerSpec, Job], settings: ProfileSettings, folder: Path) -> Survey:
    """See :class:`Survey`.

    Raises:
        MemxError: The settings or the job allow no plan, or the workspace cannot be read.
    """
    from memx_engine import Workspace

    design = settings.options().design(*inputs)
    runner = make_runner(settings.runner)
    cached: tuple[tuple[str, int], ...] = ()
    ground, failed = Ground(), 0
    if Workspace.exists(folder):
        with Workspace(folder, read_only=True) as store:
            cached = tuple((t.gpu_type, t.stored(store, runner.ground(t.gpu_type)[1])) for t in design.types)
            failed = sum(t.failed(store, runner.ground(t.gpu_type)[1]) for t in design.types)
        ground = find_ground(*inputs, folder)
    return Survey(design.summary(), cached, tuple(design.excluded.items()), ground, failed=failed)
