"""Two to four plan files side by side: what differs, with better or worse in words, and mirrored memory bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memx_engine import comparison_notes, gib
from memx_tui.text import numbers
from memx_tui.text.bars import LEGEND, bar, fold
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import layers_by_type, recompute_by_type, schedule_word
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import PlanFile

LETTERS = "ABCD"


@dataclass(frozen=True)
class Metric:
    """A number to compare. ``better``: -1 where less is better, 1 where more is, 0 where neither."""

    name: str
    value: Callable[[PlanFile], float]
    show: Callable[[float], str]
    better: int


METRICS = (
    Metric("iteration time", lambda f: f.estimate.iteration_time_s, lambda v: f"{numbers.seconds(v)} s", -1),
    Metric("tokens/s", lambda f: f.estimate.tokens_per_s, numbers.rate, 1),
    Metric("worst GPU", lambda f: f.estimate.worst_gpu.used_fraction, numbers.percent, -1),
    Metric("peak memory", lambda f: f.estimate.peak_bytes, lambda v: f"{gib(v):.1f} GiB", -1),
    Metric(
        "memory spread",
        lambda f: numbers.spread_gib(f.estimate.memory_variance_bytes2),
        lambda v: f"{v:.2f} GiB",
        -1,
    ),
)


def compare_text(files: Sequence[PlanFile], names: Sequence[str], style: Style) -> str:
    """The whole answer of ``compare``; the first file is the base of every difference."""
    lines = [style.section("Compare", "A is the base")]
    for letter, name, file in zip(LETTERS, names, files, strict=False):
        lines.extend(
            style.wrap(f"{letter}  {name}: {file.model.name} on {file.cluster.name}, {file.provenance}", "    ", " ")
        )
    lines.extend(
        style.paint(text, "warn") for note in comparison_notes(files) for text in style.wrap(f"note: {note}", " ")
    )
    per_page = max(1, (style.width - 16) // 26 - 1)
    others = list(range(1, len(files)))
    for start in range(0, len(others), per_page):
        lines.extend(["", *_page([0, *others[start : start + per_page]], files, style)])
    lines.extend(["", *_bars(files, style)])
    return "\n".join(lines)


def _page(columns: Sequence[int], files: Sequence[PlanFile], style: Style) -> list[str]:
    rows = [*METRICS, Metric(style.glyphs.phi, lambda f: phi_under(files[0], f), numbers.phi, -1)]
    words: list[tuple[str, Callable[[PlanFile], str]]] = [
        ("tp pp dp mbs", _dimensions),
        ("schedule", lambda f: schedule_word(f.plan)),
        ("layers by type", lambda f: layers_by_type(f.plan, style)),
        ("recompute", lambda f: recompute_by_type(f.plan, style)),
        ("type order", lambda f: " > ".join(f.plan.skeleton.type_order)),
    ]
    titles = [name for name, _ in words] + [metric.name for metric in rows]
    out = [Column("", titles)]
    base = files[0]
    for index in columns:
        file = files[index]
        cells = []
        for _, show in words:
            text = show(file)
            cells.append("same" if index and text == show(base) else text)
        cells.extend(_cell(metric, file, base if index else None) for metric in rows)
        out.append(Column(LETTERS[index] + (" (base)" if not index else ""), cells, shrink=14))
    return table(out, style)


def phi_under(base: PlanFile, file: PlanFile) -> float:
    """The objective of ``file``'s plan as ``base`` weighs it."""
    return file.phi if file.objective == base.objective else base.objective.phi_of(file.estimate)


def _dimensions(file: PlanFile) -> str:
    s = file.plan.skeleton
    return f"{s.tp}  {s.pp}  {s.dp}  {s.micro_batch}"


def _cell(metric: Metric, file: PlanFile, base: PlanFile | None) -> str:
    value = metric.value(file)
    if base is None:
        return metric.show(value)
    old = metric.value(base)
    change = numbers.change(value, old)
    if change == "same":
        return "same"
    if file.provenance != base.provenance:
        return f"{metric.show(value)}  {change} (?)"
    word = "" if not metric.better else " better" if (value - old) * metric.better > 0 else " worse"
    return f"{metric.show(value)}  {change}{word}"


def _bars(files: Sequence[PlanFile], style: Style) -> list[str]:
    """Memory of each node under every plan, one bar above the other on one scale."""
    lines = [style.section("Memory per node")]
    width = max(10, min(60, style.width - 34))
    places: dict[str, None] = {}
    folded = [fold(f.estimate.gpus) for f in files]
    for rows in folded:
        places.update(dict.fromkeys(f"{row.place} {row.gpu.gpu_type}" for row in rows))
    scale = min(2.0, max(1.0, *(f.estimate.worst_gpu.used_fraction for f in files)))
    for place in places:
        lines.append(f" {place}")
        for letter, rows in zip(LETTERS, folded, strict=False):
            for row in rows:
                if f"{row.place} {row.gpu.gpu_type}" == place:
                    fraction = row.gpu.used_fraction
                    look = "bad" if fraction > 1 else "warn" if fraction > 0.9 else "accent"
                    drawn = style.paint(bar(row.gpu, width, style, scale).ljust(width + 1), look)
                    word = " OOM" if fraction > 1 else ""
                    lines.append(
                        f"  {letter} {drawn} {numbers.size(row.gpu.peak_bytes):>6} GiB {numbers.percent(fraction):>5}"
                        f" s{row.gpu.stage}{word}"
                    )
    legend = "   ".join(f"{glyph} {name}" for glyph, name in zip(style.glyphs.segments, LEGEND, strict=True))
    return [*lines, *(style.paint(line, "dim") for line in style.wrap(legend, " "))]
