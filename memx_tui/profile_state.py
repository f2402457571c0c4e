"""What profiling has come to: settings, counts, log and result. Part of the session; screens only read it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.ground import Ground
from memx_tui.runners import RunnerSettings

if TYPE_CHECKING:
    from memx_engine import DesignSummary, Impact, Learned, ProfileOptions, ProfileProgress, ProfileResult

LOG_LINES = 2000


@dataclass(frozen=True)
class ProfileSettings:
    """How to profile.

    Attributes:
        folder: The workspace; None is the cluster's own folder.
        types: GPU types to measure; empty for all.
    """

    runner: RunnerSettings = field(default_factory=RunnerSettings)
    folder: Path | None = None
    types: tuple[str, ...] = ()
    point_timeout_s: float = 300.0
    retries: int = 2

    def where_words(self) -> str:
        """What measures, in words that cannot be mistaken."""
        runner = self.runner
        if runner.simulated:
            named = runner.name.rpartition(":")[2].isdecimal()
            return f"simulated by {runner.name if named else f'{runner.name}:{runner.seed}'}"
        return f"measured by {runner.kind}{' on CPUs' if runner.device == 'cpu' else ''}"

    def options(self, *, retry_failed: bool = False) -> ProfileOptions:
        """For the engine; a workspace that holds results is always gone on with."""
        from memx_engine import ProfileOptions

        return ProfileOptions(
            types=self.types or None,
            resume=True,
            retry_failed=retry_failed,
            repetitions=self.runner.repetitions,
            point_timeout_s=self.point_timeout_s,
            retries=self.retries,
            lanes_at_once=self.runner.lanes_at_once,
        )


@dataclass(frozen=True)
class LogLine:
    """One line of the log.

    Attributes:
        plain: A point was started or skipped; shown only in the full log.
        more: The end of the line, left out where it does not fit.
    """

    clock: str
    gpu_type: str
    text: str
    plain: bool = False
    bad: bool = False
    more: str = ""


@dataclass(frozen=True)
class Survey:
    """What is known before anything runs: the plan of measurements, what is there, what planning rests on.

    Attributes:
        cached: GPU type to the points of its plan that are stored already. failed: Points that crashed or hung.
        problem: Why there is no plan; empty when there is one.
    """

    rows: tuple[DesignSummary, ...] = ()
    cached: tuple[tuple[str, int], ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    ground: Ground = field(default_factory=Ground)
    problem: str = ""
    failed: int = 0

    @property
    def there(self) -> int:
        return sum(count for _, count in self.cached)


@dataclass
class ProfileState:
    """Attributes:
    running: A job is on; ``paused`` and ``stopping`` are what the operator has asked of it.
    subject: Cluster and model of the run, since others may be chosen while it goes on.
    verdicts: GPU type to what its ablation has told, as soon as it has.
    looking: What is stored has changed and is being read again.
    version: Goes up whenever a run has ended, so that plans computed before it are called stale.
    learned: What training on the workspace has come to. unlearned: Why it has come to nothing.
    learning: It is being trained. learned_of: Names what it is, or is being, learned from.
    """

    settings: ProfileSettings = field(default_factory=ProfileSettings)
    running: bool = False
    paused: bool = False
    stopping: bool = False
    progress: ProfileProgress | None = None
    result: ProfileResult | None = None
    failure: BaseException | None = None
    survey: Survey | None = None
    subject: str = ""
    verdicts: dict[str, tuple[Impact, ...]] = field(default_factory=dict)
    looking: bool = False
    version: int = 0
    learned: Learned | None = None
    unlearned: str = ""
    learning: bool = False
    learned_of: tuple[object, ...] = ()
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))

    def forget(self) -> None:
        """Other inputs or settings: nothing of the run that was holds any more."""
        self.progress = self.result = self.learned = self.failure = None
        self.unlearned, self.learned_of = "", ()

    def short_words(self) -> str:
        """For the title row while it runs: ``profiling 57% ~2m``; "" when nothing runs."""
        if not self.running:
            return ""
        progress = self.progress
        if progress is None:
            return "profiling"
        word = "stopping" if self.stopping else "paused" if self.paused else "profiling"
        left = "" if self.paused or self.stopping else short_left(progress.eta_s)
        return f"{word} {percent(progress.fraction)}{f' {left}' if left else ''}"


def percent(fraction: float) -> str:
    """Rounded down: 100 % means that nothing is left."""
    # 0.57 * 100 is a little less than 57.
    return f"{int(fraction * 100 + 1e-9)}%"


def short_left(eta_s: float | None) -> str:
    """``~45s``, ``~2m``, ``~3.5h``; "" while nothing honest can be said."""
    if eta_s is None:
        return ""
    if eta_s < 60:
        return f"~{eta_s:.0f}s"
    return f"~{eta_s / 60:.0f}m" if eta_s < 5400 else f"~{eta_s / 3600:.1f}h"
