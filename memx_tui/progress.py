"""Progress on standard error: one redrawn line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from memx_engine import SearchProgress
from memx_tui.terminal import is_terminal, text_width, wants_unicode

_REDRAW_S = 0.1
_PLAIN_EVERY_S = 5.0
_NICE_AFTER_S = 2.0
_NICE = 10


class ProgressLine:
    """Shows a search's progress; call it with each report and :meth:`close` it when the search ends.

    A search that lasts lowers its own priority, so that it never slows the others on a login node.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = is_terminal(self._stream) and os.environ.get("TERM", "") not in ("", "dumb")
        self._next_s = time.monotonic() + (0.0 if self._live else _PLAIN_EVERY_S)
        self._drawn = False
        self._niced = False

    def __call__(self, report: SearchProgress) -> None:
        self._yield_to_others(report.elapsed_s)
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (_REDRAW_S if self._live else _PLAIN_EVERY_S)
        if self._live:
            width = text_width(self._stream) - 1
            self._write("\r\x1b[K" + self._bar(report, width))
            self._drawn = True
        else:
            self._write(f"memx-tui: {describe(report)}\n")

    def close(self) -> None:
        """Remove the redrawn line."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _bar(self, report: SearchProgress, width: int) -> str:
        words = describe(report)
        room = min(30, width - len(words) - 3)
        if room < 5 or report.total <= 0:
            return words[:width]
        full, empty = ("█", "░") if wants_unicode(self._stream) else ("#", "-")
        filled = round(room * min(1.0, report.done / report.total))
        return f"{full * filled}{empty * (room - filled)} {words}"[:width]

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Progress is no reason to fail when standard error went away.
            self._live = False
            self._next_s = float("inf")

    def _yield_to_others(self, elapsed_s: float) -> None:
        if self._niced or elapsed_s < _NICE_AFTER_S or not hasattr(os, "nice"):
            return
        self._niced = True
        os.nice(max(0, _NICE - os.nice(0)))


def describe(report: SearchProgress) -> str:
    """One report in words: ``scoring 120/300, 54 fit, best phi 0.8120, 1.2 s``."""
    parts = [f"{report.phase} {report.done}/{report.total}" if report.total else report.phase, f"{report.feasible} fit"]
    if report.best_phi is not None:
        parts.append(f"best phi {report.best_phi:.4f}")
    if report.gap is not None:
        parts.append(f"gap {report.gap:.1%}")
    return f"{', '.join(parts)}, {report.elapsed_s:.1f} s"


class CountLine:
    """Progress of work that only counts: ``evaluating 12/75, 8.1 s``."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream if stream is not None else sys.stderr
        self._live = is_terminal(self._stream) and os.environ.get("TERM", "") not in ("", "dumb")
        self._start_s = time.monotonic()
        self._next_s = self._start_s + (0.0 if self._live else _PLAIN_EVERY_S)
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (_REDRAW_S if self._live else _PLAIN_EVERY_S)
        words = f"{self._what} {done}/{total}, {now - self._start_s:.1f} s"
        self._write(f"\r\x1b[K{words}" if self._live else f"memx-tui: {words}\n")
        self._drawn = self._live

    def close(self) -> None:
        """Remove the redrawn line."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Progress is no reason to fail when standard error went away.
            self._next_s = float("inf")
