"""What a profiling run tells while it runs: immutable snapshots, overall and per GPU type, and honest estimates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from memx_engine.measurement import Measurement
from memx_engine.profile.impact import Impact

ETA_POINTS = 5
"""Points that must have been measured before a remaining time is shown."""

_WINDOW = 64


class TypeState(StrEnum):
    """What one GPU type is doing. ``pending`` is the scheduler's word: the job waits, ``reason`` says for what."""

    WAITING = "waiting"
    PENDING = "pending"
    MEASURING = "measuring"
    PAUSED = "paused"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in (TypeState.DONE, TypeState.FAILED, TypeState.CANCELLED)


class EventKind(StrEnum):
    """What happened. ``tick`` is nothing new but the clock, about once a second."""

    LANE = "lane"
    CACHED = "cached"
    STARTED = "started"
    MEASURED = "measured"
    SKIPPED = "skipped"
    RETRY = "retry"
    JUDGED = "judged"
    ENDED = "ended"
    TICK = "tick"


@dataclass(frozen=True)
class TypeProgress:
    """One GPU type.

    Attributes:
        planned: Points of its design; changes once, when the ablation has decided what is crossed.
        measured: Results of this run, out of memory included (``oom`` of them). cached: Results that were there.
        skipped: Not run because they surely do not fit. failed: Crashed or hung.
        current: The point being measured, in short words. reason: Why it waits, retries or failed.
        rate_per_s: Points measured per second of late; None before the second.
        eta_s: Time left; None while fewer than five points were measured, and while nothing can be said.
    """

    gpu_type: str
    state: TypeState
    planned: int
    measured: int = 0
    cached: int = 0
    skipped: int = 0
    failed: int = 0
    oom: int = 0
    node: str = ""
    current: str = ""
    reason: str = ""
    rate_per_s: float | None = None
    eta_s: float | None = None

    @property
    def finished(self) -> int:
        return self.measured + self.cached + self.skipped + self.failed


@dataclass(frozen=True)
class ProfileProgress:
    """The whole run; ``types`` in the cluster's order."""

    elapsed_s: float
    types: tuple[TypeProgress, ...]
    paused: bool = False

    @property
    def planned(self) -> int:
        return sum(t.planned for t in self.types)

    @property
    def measured(self) -> int:
        return sum(t.measured for t in self.types)

    @property
    def cached(self) -> int:
        return sum(t.cached for t in self.types)

    @property
    def skipped(self) -> int:
        return sum(t.skipped for t in self.types)

    @property
    def failed(self) -> int:
        return sum(t.failed for t in self.types)

    @property
    def finished(self) -> int:
        return sum(t.finished for t in self.types)

    @property
    def fraction(self) -> float:
        return self.finished / self.planned if self.planned else 1.0

    @property
    def rate_per_s(self) -> float | None:
        """Points per second over the types that are measuring."""
        rates = [t.rate_per_s for t in self.types if t.rate_per_s is not None and not t.state.over]
        return sum(rates) if rates else None

    @property
    def eta_s(self) -> float | None:
        """Time left until the last type ends; None while any of them cannot tell."""
        open_types = [t for t in self.types if not t.state.over]
        known = [t.eta_s for t in open_types if t.eta_s is not None]
        return max(known, default=None) if len(known) == len(open_types) else None


@dataclass(frozen=True)
class ProfileEvent:
    """Something happened to ``gpu_type`` (empty: to the run as a whole).

    Attributes:
        message: A line for a log pane.
        impacts: Which parameters matter, once the ablation of the type has told; only with ``judged``.
    """

    kind: EventKind
    progress: ProfileProgress
    gpu_type: str = ""
    message: str = ""
    measurement: Measurement | None = None
    impacts: tuple[Impact, ...] = ()


class Pace:
    """How long points take: ``start + factor * predicted work``, fitted to the latest points, both at least 0.

    A steady profiler makes the factor 0, a slow device makes it large; either way what is left follows from what is
    left to do, not from what was done.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self.count = 0

    def add(self, work_s: float, took_s: float) -> None:
        """One measured point: its predicted work, and what it took by a monotonic clock."""
        self._points.append((work_s, max(took_s, 0.0)))
        self.count += 1

    @property
    def rate_per_s(self) -> float | None:
        if len(self._points) < 2:
            return None
        total = sum(took for _, took in self._points)
        return len(self._points) / total if total > 0 else None

    def remaining_s(self, points: int, work_s: float) -> float | None:
        """Time that ``points`` with so much predicted work in all will take; None before five were measured."""
        if self.count < ETA_POINTS:
            return None
        start, factor = self._fit()
        return max(start * points + factor * work_s, 0.0)

    def _fit(self) -> tuple[float, float]:
        n = len(self._points)
        mean_x = sum(x for x, _ in self._points) / n
        mean_y = sum(y for _, y in self._points) / n
        sxx = sum((x - mean_x) ** 2 for x, _ in self._points)
        sxy = sum((x - mean_x) * (y - mean_y) for x, y in self._points)
        if sxx <= 0.0 or sxy <= 0.0:
            return mean_y, 0.0
        factor = sxy / sxx
        start = mean_y - factor * mean_x
        if start < 0.0:
            # Through the origin, keeping the mean: least squares may not promise time back.
            return 0.0, mean_y / mean_x
        return start, factor
