"""The Profile screen's words: counts, bars, log, plan of measurements and verdicts as lines of a given width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from memx_tui.glyphs import Glyphs
from memx_tui.profile_progress import duration
from memx_tui.profile_state import LogLine, ProfileState, Survey, percent
from memx_tui.text import numbers

if TYPE_CHECKING:
    from memx_engine import Impact, ProfileProgress, ProfileResult, TypeProgress

MIN_BAR = 6
MAX_BAR = 40


@dataclass(frozen=True)
class Colors:
    """Rich styles made of the theme's variables."""

    bar: Style
    quiet: Style
    good: Style
    warning: Style
    bad: Style


@dataclass(frozen=True)
class Canvas:
    """What lines are drawn with."""

    width: int
    glyphs: Glyphs
    colors: Colors

    @property
    def wide(self) -> bool:
        return self.width >= 100

    def line(self, *parts: str | tuple[str, Style]) -> Text:
        text = Text(no_wrap=True)
        for part in parts:
            if isinstance(part, tuple):
                text.append(*part)
            else:
                text.append(part)
        return text

    def bar(self, fraction: float, width: int) -> tuple[tuple[str, Style], tuple[str, Style]]:
        full = int(width * min(max(fraction, 0.0), 1.0))
        return (self.glyphs.weights * full, self.colors.bar), (self.glyphs.free * (width - full), self.colors.quiet)

    def cell(self, text: str, width: int) -> str:
        """``text`` in exactly ``width`` cells, its end replaced where it is too long."""
        if cell_len(text) > width:
            return set_cell_size(text, max(0, width - 1)) + self.glyphs.ellipsis
        return set_cell_size(text, width)


def overall_lines(state: ProfileState, canvas: Canvas) -> list[Text]:
    """Two lines: the bar with its times, and the counts with the rate."""
    progress, quiet = state.progress, canvas.colors.quiet
    if progress is None:
        return _idle_lines(state, canvas)
    word, style = _word(state, canvas.colors)
    head = f" {word:<10}"
    # The share last settled: skipped and failed points are settled too, so that the bar ends full.
    tail = f" {progress.finished:,}/{progress.planned:,} {percent(progress.fraction):>4}"
    times = f"  {duration(progress.elapsed_s)}"
    left = eta_words(progress) if state.running and not state.stopping and not state.paused else ""
    width = canvas.width - len(head) - len(tail) - len(times) - (2 + len(left) if left else 0) - 1
    bar = canvas.bar(progress.fraction, min(MAX_BAR, width)) if width >= MIN_BAR else ()
    first = canvas.line((head, style), *bar, tail, (times, quiet), f"  {left}" if left else "")
    counts = f"{'':<11}{progress.measured:,} new, {progress.cached:,} cached, {progress.skipped:,} skipped, "
    failed = (f"{progress.failed:,} failed", canvas.colors.bad if progress.failed else Style())
    oom = sum(t.oom for t in progress.types)
    rate = progress.rate_per_s if state.running else None
    more = (f", {oom:,} out of memory" if oom else "") + (f"  {rate_words(rate)}" if rate else "")
    return [first, canvas.line(counts, failed, (more, quiet))]


def _idle_lines(state: ProfileState, canvas: Canvas) -> list[Text]:
    quiet, survey = canvas.colors.quiet, state.survey
    if state.running:
        return [canvas.line((" starting  ", canvas.colors.good), "the plan of measurements is being made"), Text()]
    if survey is None:
        return [canvas.line(" Profile    ", ("needs a cluster and a model: 1 chooses them", quiet)), Text()]
    if survey.problem:
        return [canvas.line((" not ready  ", canvas.colors.bad), survey.problem), Text()]
    if not survey.rows:
        return [canvas.line((" looking    ", quiet), "the plan of measurements is being made"), Text()]
    total = sum(row.points for row in survey.rows)
    there = survey.there
    go = "r goes on, nothing is measured twice" if there else "r starts"
    first = canvas.line((" idle       ", quiet), f"{total:,} points planned, {there:,} are there; ", go)
    return [first, canvas.line(" " * 12, ("what is measured is kept the moment it arrives", quiet))]


def _word(state: ProfileState, colors: Colors) -> tuple[str, Style]:
    if state.running:
        if state.stopping:
            return "stopping", colors.warning
        return ("paused", colors.warning) if state.paused else ("measuring", colors.good)
    if state.failure is not None:
        return "failed", colors.bad
    if state.result is not None and state.result.cancelled:
        return "cancelled", colors.warning
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
        name_width = _name_width([t.gpu_type for t in types], canvas)
        return [_type_line(t, name_width, state.running, canvas) for t in types]
    survey = state.survey
    if survey is None or not survey.rows:
        return [canvas.line((" nothing is planned", canvas.colors.quiet))]
    cached = dict(survey.cached)
    name_width = _name_width([row.gpu_type for row in survey.rows], canvas)
    lines = []
    for row in survey.rows:
        done = cached.get(row.gpu_type, 0)
        lines.append(
            canvas.line(
                f" {canvas.cell(row.gpu_type, name_width)} ",
                *canvas.bar(done / row.points if row.points else 0.0, _bar_width(canvas)),
                f" {f'{done}/{row.points}':>9} ",
                (f" about {_rough(row.device_s)} on the device", canvas.colors.quiet),
            )
        )
    lines += [canvas.line((f" {name}: left out, {why}", canvas.colors.quiet)) for name, why in survey.excluded]
    return lines


def _type_line(progress: TypeProgress, name_width: int, running: bool, canvas: Canvas) -> Text:
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
        f" {canvas.cell(progress.gpu_type, name_width)} {node}",
        *canvas.bar(share, _bar_width(canvas)),
        f" {f'{progress.finished}/{progress.planned}':>9} ",
        (f" {word:<9} ", styles.get(word, Style())),
        (rate, colors.quiet),
        what,
    )


def _name_width(names: Iterable[str], canvas: Canvas) -> int:
    return min(24 if canvas.wide else 16 if canvas.width >= 60 else 9, max(map(cell_len, names), default=1))


def _bar_width(canvas: Canvas) -> int:
    return 24 if canvas.wide else 12 if canvas.width >= 70 else 4


def _rough(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def log_lines(log: Sequence[LogLine], canvas: Canvas, *, full: bool) -> list[Text]:
    """The log; short, it leaves out points that start or are skipped and cuts its lines, full, it wraps them."""
    colors = canvas.colors
    lines: list[Text] = []
    for line in log:
        if line.plain and not full:
            continue
        name = f"{line.gpu_type} " if line.gpu_type else ""
        style = colors.bad if line.bad else colors.quiet if line.plain else Style()
        first, *rest = wrap(f"{name}{line.text}", max(20, canvas.width - 11)) if full else [f"{name}{line.text}"]
        lines.append(canvas.line((f" {line.clock} ", colors.quiet), (first, style)))
        lines += [canvas.line(" " * 10, (part, style)) for part in rest]
    return lines or [canvas.line((" nothing has happened yet", colors.quiet))]


def plan_lines(survey: Survey | None, canvas: Canvas) -> list[Text]:
    """What would be measured: how many points of which kind, about how long, and what a full grid would take."""
    quiet = canvas.colors.quiet
    if survey is None or not survey.rows:
        words = survey.problem if survey is not None and survey.problem else "no plan of measurements yet"
        return [canvas.line((f" {words}", quiet))]
    width = _name_width([row.gpu_type for row in survey.rows], canvas)
    kinds = ("ablation", "linearity", "cross", "ends") if canvas.width >= 78 else ()
    head = f" {'':<{width}} {'points':>6}" + "".join(f" {kind:>5}" for kind in kinds)
    lines = [canvas.line((f"{head} {'too big':>7} {'about':>7} {'full grid':>10}", quiet))]
    for row in survey.rows:
        counts = "".join(f" {row.by_purpose.get(kind, 0) or '-':>{max(5, len(kind))}}" for kind in kinds)
        lines.append(
            canvas.line(
                f" {canvas.cell(row.gpu_type, width)} {row.points:>6}{counts} {row.skipped or '-':>7} "
                f"{_rough(row.device_s):>7} {numbers.count(row.exhaustive):>10}"
            )
        )
    total, grid = sum(r.points for r in survey.rows), sum(r.exhaustive for r in survey.rows)
    crossed = ", ".join(dict.fromkeys(name for row in survey.rows for name in row.crossed)) or "nothing"
    longest = max(row.device_s for row in survey.rows)
    for words in (
        f"{total:,} points instead of {numbers.count(grid)} of a full grid; types side by side, "
        f"about {_rough(longest)} of device time",
        f"expected to be crossed: {crossed}",
        "too big: surely does not fit, recorded with its bound and not run",
    ):
        lines += [canvas.line((part, quiet)) for part in wrapped(words, canvas.width)]
    return lines


def verdict_lines(result: ProfileResult | None, canvas: Canvas) -> list[Text]:
    """Which parameters matter: one row each, amplitudes of time and memory per GPU type."""
    quiet, colors = canvas.colors.quiet, canvas.colors
    judged = [t for t in result.types if t.impacts] if result is not None else []
    if not judged:
        return [canvas.line((" the verdict comes when the ablation of a GPU type is complete", quiet))]
    room = canvas.width - 17
    cell = 19
    shown = judged[: max(1, room // cell)]
    head = f" {'parameter':<15}" + "".join(f" {canvas.cell(t.gpu_type, cell - 1)}" for t in shown)
    lines = [canvas.line((head, quiet))]
    by_type = [{i.parameter: i for i in t.impacts} for t in shown]
    for impact in shown[0].impacts:
        parts: list[str | tuple[str, Style]] = [f" {canvas.cell(impact.parameter, 15)}"]
        for found in by_type:
            own = found.get(impact.parameter)
            high = own is not None and own.high
            parts += [" ", (f"{impact_words(own):<{cell - 1}}", colors.warning if high else Style())]
        lines.append(canvas.line(*parts))
        if impact.note:
            lines[-1].append(f" {impact.note}", quiet)
    hidden = f" {len(judged) - len(shown)} more types where the screen is wider." if len(shown) < len(judged) else ""
    threshold = shown[0].impacts[0].threshold
    words = (
        f"time and memory: (max - min) / mean when it alone is varied; HIGH above {threshold:.0%}; "
        f"* answered by the cost model.{hidden}"
    )
    return lines + [canvas.line((part, quiet)) for part in wrapped(words, canvas.width)]


def impact_words(impact: Impact | None) -> str:
    """``HIGH  109% 128%``; ``*`` where the cost model had to answer."""
    if impact is None:
        return "-"
    shares = [numbers.percent(a) if a is not None else "-" for a in (impact.time_amplitude, impact.memory_amplitude)]
    return f"{'HIGH' if impact.high else 'low':<4} {shares[0]:>5} {shares[1]:>5}{'*' if impact.predicted else ''}"


def wrapped(words: str, width: int) -> list[str]:
    return wrap(words, max(20, width - 2), initial_indent=" ", subsequent_indent=" ")
