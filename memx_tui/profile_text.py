"""The Profile screen's words: counts, bars and log as lines of a given width."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from memx_tui.profile_canvas import NARROW, Canvas, Colors, bar_width, name_width, rough
from memx_tui.profile_progress import duration
from memx_tui.profile_state import LogLine, ProfileState, percent

if TYPE_CHECKING:
    from memx_engine import ProfileProgress, TypeProgress

MIN_BAR = 6
MAX_BAR = 40
WORD = 10
"""Cells of the longest state, ``incomplete``."""


def overall_lines(state: ProfileState, canvas: Canvas) -> list[Text]:
    """Two lines: the bar with its times, and the counts with the rate."""
    progress, quiet = state.progress, canvas.colors.quiet
    if progress is None:
        return _idle_lines(state, canvas)
    word, style = _word(state, canvas.colors)
    # The share last settled: skipped and failed points are settled too, so that the bar ends full.
    tail = f" {progress.finished:,}/{progress.planned:,} {percent(progress.fraction):>4}"
    left = eta_words(progress) if state.running and not state.stopping and not state.paused else ""
    left = f"  {left}" if left else ""
    times = f"  {duration(progress.elapsed_s)}"
    head = f" {word:<{WORD}} " if canvas.width >= NARROW else f" {word} "
    room = canvas.width - len(head) - len(tail) - len(left) - 1
    times = times if len(times) <= room else ""
    room -= len(times)
    bar = canvas.bar(progress.fraction, min(MAX_BAR, room)) if room >= MIN_BAR else ()
    return [canvas.line((head, style), *bar, tail, (times, quiet), left), _count_line(state, progress, canvas)]


def _count_line(state: ProfileState, progress: ProfileProgress, canvas: Canvas) -> Text:
    """``47 new, 0 cached, 13 skipped, 0 failed``, out of memory and rate where they fit."""
    bad = canvas.colors.bad if progress.failed else Style()
    failed = (f"{progress.failed:,} failed", bad)
    counts = f"{progress.measured:,} new, {progress.cached:,} cached, {progress.skipped:,} skipped, "
    if canvas.width < NARROW:
        return canvas.line(f" {counts.replace(',', '')}", failed)
    oom = sum(t.oom for t in progress.types)
    rate = progress.rate_per_s if state.running else None
    speed = f"  {rate_words(rate)}" if rate else ""
    room = canvas.width - WORD - 3 - len(counts) - len(failed[0]) - len(speed)
    words = (f", {oom:,} out of memory", f", {oom:,} OOM") if oom else ("",)
    memory = next((word for word in words if len(word) <= room), "")
    return canvas.line(" " * (WORD + 2), counts, failed, (memory + speed, canvas.colors.quiet))


def _idle_lines(state: ProfileState, canvas: Canvas) -> list[Text]:
    quiet, survey = canvas.colors.quiet, state.survey
    if state.running:
        return [canvas.line((" starting   ", canvas.colors.good), "the plan of measurements is being made"), Text()]
    if survey is None:
        return [canvas.line(" Profile    ", ("needs a cluster and a model: 1 chooses them", quiet)), Text()]
    if survey.problem:
        return [canvas.line((" not ready  ", canvas.colors.bad), survey.problem), Text()]
    if not survey.rows:
        return [canvas.line((" looking    ", quiet), "the plan of measurements is being made"), Text()]
    total = sum(row.points for row in survey.rows)
    there = survey.there
    go = "r goes on, nothing is measured twice" if there else "r starts"
    if there >= total:
        go = "nothing is left to measure"
    first = canvas.line((" idle       ", quiet), f"{total:,} points planned, {there:,} are there; ", go)
    again = f"{survey.failed:,} of them failed: f tries them again" if survey.failed else ""
    return [first, canvas.line(" " * 12, (again or "what is measured is kept the moment it arrives", quiet))]


def _word(state: ProfileState, colors: Colors) -> tuple[str, Style]:
    if state.running:
        if state.stopping:
            return "stopping", colors.warning
        return ("paused", colors.warning) if state.paused else ("measuring", colors.good)
    if state.failure is not None:
        return "failed", colors.bad
    if state.result is not None and state.result.cancelled:
        return "cancelled", colors.warning
    if state.result is not None and any(t.error for t in state.result.types):
        return "incomplete", colors.warning
    return "done", colors.good


def eta_words(progress: ProfileProgress) -> str:
    """``left ~02:25``; "" while nothing honest can be said."""
    eta = progress.eta_s
    return "" if eta is None else f"left ~{duration(max(0.0, eta))}"


def rate_words(rate_per_s: float) -> str:
    """Points per second, or seconds per point where that reads better."""
    return f"{rate_per_s:.1f} points/s" if rate_per_s >= 1 else f"{1 / rate_per_s:.1f} s/point"


def type_lines(state: ProfileState, canvas: Canvas) -> list[Text]:
    """One line per GPU type: bar, counts, state, and what it does or waits for."""
    if state.progress is not None:
        types = state.progress.types
        width = name_width([t.gpu_type for t in types], canvas)
        counts = max((len(f"{t.finished}/{t.planned}") for t in types), default=0)
        return [_type_line(t, width, counts, state.running, canvas) for t in types]
    survey = state.survey
    if survey is None or not survey.rows:
        return [canvas.line((" nothing is planned", canvas.colors.quiet))]
    cached = dict(survey.cached)
    width = name_width([row.gpu_type for row in survey.rows], canvas)
    lines = []
    for row in survey.rows:
        done = cached.get(row.gpu_type, 0)
        lines.append(
            canvas.line(
                f" {canvas.cell(row.gpu_type, width)} ",
                *canvas.bar(done / row.points if row.points else 0.0, bar_width(canvas)),
                f" {f'{done}/{row.points}':>7} ",
                (f" about {rough(row.device_s)} on the device", canvas.colors.quiet),
            )
        )
    lines += [canvas.line((f" {name}: left out, {why}", canvas.colors.quiet)) for name, why in survey.excluded]
    return lines


def _type_line(progress: TypeProgress, width: int, counts: int, running: bool, canvas: Canvas) -> Text:
    colors = canvas.colors
    styles = {"done": colors.good, "failed": colors.bad, "pending": colors.warning, "retrying": colors.warning}
    styles |= {"paused": colors.warning, "cancelled": colors.warning}
    word = progress.state.value
    what = " ".join((progress.reason or progress.current).split())
    if not what and progress.failed:
        what = f"{progress.failed} failed"
    share = progress.finished / progress.planned if progress.planned else 0.0
    node = f"{canvas.cell(progress.node, 10)} " if canvas.wide else ""
    rate = ""
    if canvas.wide and running and progress.rate_per_s and not progress.state.over:
        rate = f"{rate_words(progress.rate_per_s)}  "
    return canvas.line(
        f" {canvas.cell(progress.gpu_type, width)} {node}",
        *canvas.bar(share, bar_width(canvas)),
        f" {f'{progress.finished}/{progress.planned}':>{counts}} ",
        (f" {word:<9} ", styles.get(word, Style())),
        (rate, colors.quiet),
        what,
    )


def log_lines(log: Sequence[LogLine], canvas: Canvas, *, full: bool) -> list[Text]:
    """The log; short, it leaves out points that start or are skipped and cuts its lines, full, it wraps them."""
    colors = canvas.colors
    shown = [line for line in log if full or not line.plain]
    width = name_width([line.gpu_type for line in shown], canvas)
    lines: list[Text] = []
    for line in shown:
        name = f"{canvas.cell(line.gpu_type, width)} " if line.gpu_type else ""
        style = colors.bad if line.bad else colors.quiet if line.plain else Style()
        text = f"{name}{line.text}"
        if line.more and (full or cell_len(text) + len(line.more) + 10 <= canvas.width):
            text += line.more
        first, *rest = wrap(text, max(20, canvas.width - 11), drop_whitespace=False) if full else [text]
        lines.append(canvas.line((f" {line.clock} ", colors.quiet), (first, style)))
        lines += [canvas.line(" " * 10, (part, style)) for part in rest]
    return lines or [canvas.line((" nothing has happened yet", colors.quiet))]
