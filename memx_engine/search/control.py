"""What all phases of a search share: the clock, the wish to stop, and progress reports."""

from __future__ import annotations

import time
from collections.abc import Callable

from memx_engine.search.result import PruneCounts, SearchProgress

Progress = Callable[[SearchProgress], None]
Stop = Callable[[], bool]

_REPORT_EVERY_S = 0.05


class Control:
    """The state of one search that its phases tell each other.

    Attributes:
        cancelled: The operator stopped it. timed_out: The time limit was reached while something had to be stopped.
        counts: Skeletons removed so far. feasible: Skeletons known to hold a plan that fits.
        best_phi: The best plan so far, of whatever schedule; None before the objective is fixed.
        plain_phi: The same of 1F1B plans. lower_bound_phi: No 1F1B plan is better.
    """

    def __init__(self, time_limit_s: float | None, on_progress: Progress | None, should_stop: Stop | None) -> None:
        self._time_limit_s, self._on_progress, self._should_stop = time_limit_s, on_progress, should_stop
        self._began = time.monotonic()
        self._reported = float("-inf")
        self.cancelled = self.timed_out = False
        self.counts = PruneCounts()
        self.feasible = 0
        self.best_phi: float | None = None
        self.plain_phi: float | None = None
        self.lower_bound_phi: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def cancels(self) -> bool:
        """Whether the operator wants an end."""
        if self._should_stop is not None and self._should_stop():
            self.cancelled = True
        return self.cancelled

    def stops(self) -> bool:
        """Whether the operator wants an end, or time is up."""
        self.cancels()
        self.timed_out |= self.elapsed_share() > 1.0
        return self.cancelled or self.timed_out

    def elapsed_share(self) -> float:
        """How much of the time limit is used; 0 without one."""
        return 0.0 if self._time_limit_s is None else self.elapsed_s / self._time_limit_s

    def found(self, phi: float, *, plain: bool) -> None:
        """A plan of this Phi is known; ``plain``: 1F1B."""
        self.best_phi = phi if self.best_phi is None else min(self.best_phi, phi)
        if plain:
            self.plain_phi = phi if self.plain_phi is None else min(self.plain_phi, phi)

    def report(self, phase: str, done: int, total: int, *, force: bool = False) -> None:
        """Tell how it stands, about twenty times a second at most unless forced."""
        if self._on_progress is None:
            return
        now = time.monotonic()
        if not force and now - self._reported < _REPORT_EVERY_S:
            return
        self._reported = now
        gap = None
        lower = self.lower_bound_phi
        if lower is not None and self.plain_phi is not None:
            lower = min(lower, self.plain_phi)
            gap = 1.0 - lower / self.plain_phi
        self._on_progress(
            SearchProgress(phase, done, total, self.feasible, self.counts, self.best_phi, gap, now - self._began, lower)
        )
