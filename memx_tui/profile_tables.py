"""The Profile screen's two tables: the plan of measurements, and the verdict of what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from memx_tui.profile_canvas import Canvas, name_width, rough, wrapped
from memx_tui.profile_state import Survey
from memx_tui.text import numbers
from memx_tui.text.profile_view import amplitude_words

if TYPE_CHECKING:
    from memx_engine import Impact


CELL = 19
"""``HIGH  109%!  128%!*``"""


def plan_lines(survey: Survey | None, canvas: Canvas, lanes_at_once: int | None = None) -> list[Text]:
    """What would be measured: how many points of which kind, about how long, and what a full grid would take.

    Args:
        lanes_at_once: How many types measure at once; None for all.
    """
    quiet = canvas.colors.quiet
    if survey is None or not survey.rows:
        words = survey.problem if survey is not None and survey.problem else "no plan of measurements yet"
        return [canvas.line((f" {words}", quiet))]
    width = name_width([row.gpu_type for row in survey.rows], canvas)
    kinds = ("ablation", "linearity", "cross", "ends") if canvas.width >= 78 else ()
    head = f" {'':<{width}} {'points':>6}" + "".join(f" {kind:>5}" for kind in kinds)
    lines = [canvas.line((f"{head} {'too big':>7} {'about':>7} {'full grid':>10}", quiet))]
    for row in survey.rows:
        counts = "".join(f" {row.by_purpose.get(kind, 0) or '-':>{max(5, len(kind))}}" for kind in kinds)
        lines.append(
            canvas.line(
                f" {canvas.cell(row.gpu_type, width)} {row.points:>6}{counts} {row.skipped or '-':>7} "
                f"{rough(row.device_s):>7} {numbers.count(row.exhaustive):>10}"
            )
        )
    total, grid = sum(r.points for r in survey.rows), sum(r.exhaustive for r in survey.rows)
    crossed = ", ".join(dict.fromkeys(name for row in survey.rows for name in row.crossed)) or "nothing"
    times = [row.device_s for row in survey.rows]
    order, device_s = (
        ("one type after the other", sum(times)) if lanes_at_once == 1 else ("types side by side", max(times))
    )
    for words in (
        f"{total:,} points instead of {numbers.count(grid)} of a full grid; {order}, "
        f"about {rough(device_s)} of device time",
        f"expected to be crossed: {crossed}",
        "too big: surely does not fit, recorded with its bound and not run",
    ):
        lines += [canvas.line((part, quiet)) for part in wrapped(words, canvas.width)]
    return lines


def verdict_lines(verdicts: Mapping[str, Sequence[Impact]], canvas: Canvas) -> list[Text]:
    """Which parameters matter: one row each, amplitudes of time and memory per GPU type.

    Args:
        verdicts: GPU type to its parameters, for those whose ablation is complete.
    """
    quiet, colors = canvas.colors.quiet, canvas.colors
    judged = [(name, impacts) for name, impacts in verdicts.items() if impacts]
    if not judged:
        return [canvas.line((" the verdict comes when the ablation of a GPU type is complete", quiet))]
    first = judged[0][1]
    label = min(15, max(len(i.parameter) for i in first))
    shown = judged[: max(1, (canvas.width - label - 1) // (CELL + 1))]
    names = "".join(f" {canvas.cell(name, CELL)}" for name, _ in shown)
    lines = [
        canvas.line(f" {'':<{label}}{names}"),
        canvas.line((f" {'parameter':<{label}}" + f" {'impact  time memory':<{CELL}}" * len(shown), quiet)),
    ]
    by_type = [{i.parameter: i for i in impacts} for _, impacts in shown]
    for impact in first:
        parts: list[str | tuple[str, Style]] = [f" {canvas.cell(impact.parameter, label)}"]
        for found in by_type:
            own = found.get(impact.parameter)
            high = own is not None and own.high
            parts += [" ", (f"{impact_words(own):<{CELL}}", colors.warning if high else Style())]
        lines.append(canvas.line(*parts))
    hidden = f" {len(judged) - len(shown)} more types where the screen is wider." if len(shown) < len(judged) else ""
    notes = [
        f"time, memory: (max - min) / mean when it alone is varied; HIGH above {first[0].threshold:.0%}, at the !; "
        f"* by the cost model.{hidden}",
        *_notes(judged),
    ]
    return lines + [canvas.line((part, quiet)) for words in notes for part in wrapped(words, canvas.width)]


def _notes(judged: Sequence[tuple[str, Sequence[Impact]]]) -> list[str]:
    """What is crossed and what is not, with the reason; parameters and GPU types of one note together."""
    of_note: dict[str, dict[str, list[str]]] = {}
    for name, impacts in judged:
        for impact in impacts:
            if impact.note:
                of_note.setdefault(impact.note, {}).setdefault(impact.parameter, []).append(name)
    lines = []
    for note, parameters in of_note.items():
        named = [
            parameter if len(types) == len(judged) else f"{parameter} ({', '.join(types)})"
            for parameter, types in parameters.items()
        ]
        lines.append(f"{', '.join(named)}: {note}")
    return lines


def impact_words(impact: Impact | None) -> str:
    """``HIGH  109%!   3% *``: ``!`` at what is above the threshold, ``*`` where the cost model had to answer."""
    if impact is None:
        return "-"
    time, memory = amplitude_words(impact)
    return f"{'HIGH' if impact.high else 'low':<5}{time:>6} {memory:>6}{'*' if impact.predicted else ''}"
