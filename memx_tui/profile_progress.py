"""A profiling run on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

from memx_engine import EventKind, Outcome, ProfileEvent, ProfileProgress, TypeProgress
from memx_tui.terminal import is_terminal, text_width, wants_unicode

_REDRAW_S = 0.1
_PLAIN_EVERY_S = 5.0
_BAR = 24
_NAME = 18


class ProfileLines:
    """Shows the events of a run; call it with each and :meth:`close` it at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = is_terminal(self._stream) and os.environ.get("TERM", "") not in ("", "dumb")
        self._next_s = 0.0 if self._live else time.monotonic() + _PLAIN_EVERY_S
        self._drawn = 0

    def __call__(self, event: ProfileEvent) -> None:
        line = log_line(event)
        now = time.monotonic()
        if not self._live:
            if line:
                self._write(f"memx-tui: {line}\n")
            if now >= self._next_s:
                self._next_s = now + _PLAIN_EVERY_S
                self._write(f"memx-tui: {overall_words(event.progress)}\n")
            return
        if line:
            self._erase()
            self._write(f"{line}\n")
        if line or now >= self._next_s:
            self._next_s = now + _REDRAW_S
            self._draw(event.progress)

    def close(self) -> None:
        """Remove the bars."""
        self._erase()

    def _draw(self, progress: ProfileProgress) -> None:
        width = text_width(self._stream) - 1
        rows = max(shutil.get_terminal_size((100, 24)).lines - 2, 1)
        unicode = wants_unicode(self._stream)
        lines = [overall_line(progress, unicode), *(type_line(t, unicode) for t in progress.types)][:rows]
        self._erase()
        self._write("".join(f"{line[:width]}\n" for line in lines))
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\r\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Progress is no reason to fail when standard error went away.
            self._live, self._next_s, self._drawn = False, float("inf"), 0


def log_line(event: ProfileEvent) -> str:
    """What of an event deserves a line that stays: all but the ordinary coming and going of points."""
    if event.kind in (EventKind.TICK, EventKind.STARTED, EventKind.SKIPPED):
        return ""
    if event.kind is EventKind.MEASURED and event.measurement is not None:
        if event.measurement.outcome in (Outcome.OK, Outcome.OOM):
            return ""
    return f"{event.gpu_type}: {' '.join(event.message.split())}"


def duration(seconds: float) -> str:
    """``03:12``, ``1:04:09``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def left_words(eta_s: float | None) -> str:
    """``left ~02:25``; empty while nothing honest can be said."""
    return "" if eta_s is None else f"left ~{duration(eta_s)}"


def overall_words(progress: ProfileProgress) -> str:
    """The run in one line without a bar."""
    parts = [
        f"{progress.finished}/{progress.planned} points ({progress.fraction:.0%})",
        f"new {progress.measured}",
        f"cached {progress.cached}",
        f"skipped {progress.skipped}",
        f"failed {progress.failed}",
        f"elapsed {duration(progress.elapsed_s)}",
    ]
    left = left_words(progress.eta_s)
    return ", ".join([*parts, left] if left else parts)


def bar(fraction: float, unicode: bool) -> str:
    full, empty = ("█", "░") if unicode else ("#", "-")
    filled = round(_BAR * min(max(fraction, 0.0), 1.0))
    return full * filled + empty * (_BAR - filled)


def overall_line(progress: ProfileProgress, unicode: bool) -> str:
    words = f"new {progress.measured}, cached {progress.cached}, skipped {progress.skipped}, failed {progress.failed}"
    head = "paused" if progress.paused else "overall"
    left = left_words(progress.eta_s)
    times = f"elapsed {duration(progress.elapsed_s)}  {left}".rstrip()
    return (
        f" {head:<{_NAME}} {bar(progress.fraction, unicode)} {progress.finished:>4}/{progress.planned:<4} "
        f"{progress.fraction:>4.0%}  {times}  ({words})"
    )


def type_line(progress: TypeProgress, unicode: bool) -> str:
    name = progress.gpu_type if len(progress.gpu_type) <= _NAME else progress.gpu_type[: _NAME - 1] + "~"
    fraction = progress.finished / progress.planned if progress.planned else 0.0
    what = progress.reason or progress.current
    words = f"{progress.state.value:<9} {' '.join(what.split())}".rstrip()
    return f" {name:<{_NAME}} {bar(fraction, unicode)} {progress.finished:>4}/{progress.planned:<4}  {words}"
