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
_WIDE = 100


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
        wide = width >= _WIDE
        lines = [*overall_lines(progress, unicode, wide), *(type_line(t, unicode, wide) for t in progress.types)][:rows]
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


def bar(fraction: float, width: int, unicode: bool) -> str:
    full, empty = ("█", "░") if unicode else ("#", "-")
    filled = round(width * min(max(fraction, 0.0), 1.0))
    return full * filled + empty * (width - filled)


def overall_lines(progress: ProfileProgress, unicode: bool, wide: bool) -> list[str]:
    """The run as a bar with its times, and below it the counts."""
    head = "paused" if progress.paused else "overall"
    times = f"elapsed {duration(progress.elapsed_s)}  {left_words(progress.eta_s)}".rstrip()
    counts = f"new {progress.measured}, cached {progress.cached}, skipped {progress.skipped}, failed {progress.failed}"
    return [
        f" {_head(head, progress.fraction, progress.finished, progress.planned, unicode, wide)} "
        f"{progress.fraction:>4.0%}  {times}",
        f" {'':<{_name(wide)}} {counts}",
    ]


def type_line(progress: TypeProgress, unicode: bool, wide: bool) -> str:
    """One GPU type: bar, counts, what it is doing and with what."""
    fraction = progress.finished / progress.planned if progress.planned else 0.0
    what = " ".join((progress.reason or progress.current).split())
    head = _head(progress.gpu_type, fraction, progress.finished, progress.planned, unicode, wide)
    return f" {head}  {progress.state.value:<9} {what}".rstrip()


def _name(wide: bool) -> int:
    return 20 if wide else 12


def _head(name: str, fraction: float, finished: int, planned: int, unicode: bool, wide: bool) -> str:
    width = _name(wide)
    name = name if len(name) <= width else name[: width - 1] + "~"
    return f"{name:<{width}} {bar(fraction, 24 if wide else 12, unicode)} {finished:>4}/{planned:<4}"
