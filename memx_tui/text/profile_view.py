"""Profiling as text: the plan of measurements before it, the counts, verdicts and trends after it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import cluster_line, job_line
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import (
        Attention,
        Cluster,
        DesignSummary,
        Impact,
        Job,
        ProfileDesign,
        ProfileResult,
        TransformerSpec,
        Trend,
    )

_DRAWN = (("micro_batch", "throughput"), ("micro_batch", "memory"), ("seq_len", "time"), ("kv_heads", "time"))
_TWO_ACROSS, _WIDEST, _PLOT_HEIGHT = 76, 58, 9
_DONE_BESIDE = 90
"""From this width on the table itself says what interpolation does."""

Inputs = tuple["Cluster", "TransformerSpec", "Job"]


def clock(seconds: float) -> str:
    """A rough duration: ``40 s``, ``62 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_text(
    design: ProfileDesign,
    inputs: Inputs,
    where: str,
    cached: Mapping[str, int],
    style: Style,
    *,
    lanes_at_once: int | None = None,
) -> str:
    """The plan of measurements: how many points of which kind, about how long, and what a full grid would take.

    Args:
        where: What measures, in words. cached: GPU type → points that are there already; empty when not looked up.
        lanes_at_once: How many types measure at once; None for all.
    """
    cluster, model, job = inputs
    rows = design.summary()
    columns = [
        Column("type", [r.gpu_type for r in rows], shrink=12),
        Column("points", [str(r.points) for r in rows], right=True),
        *(
            Column(name, [str(r.by_purpose.get(name, 0) or "-") for r in rows], right=True, drop=2)
            for name in ("ablation", "linearity", "cross", "ends")
        ),
        Column("too big", [str(r.skipped or "-") for r in rows], right=True),
        Column("there", [str(cached.get(r.gpu_type, 0) or "-") for r in rows] if cached else [""] * len(rows), drop=1),
        Column("about", [clock(r.device_s) for r in rows], right=True),
        Column("full grid", [numbers.count(r.exhaustive) for r in rows], right=True),
    ]
    total = sum(r.points for r in rows)
    lines = [
        style.section(f"Measurements for {model.name} on {cluster.name}", where),
        *style.wrap(cluster_line(cluster, style), " "),
        *style.wrap(job_line(model, job, style), " "),
        "",
        *table(columns, style),
        *style.wrap(
            f"{total} points where a full grid would take {numbers.count(sum(r.exhaustive for r in rows))}; "
            f"{order_words(rows, lanes_at_once)} of device time by the cost model. What is crossed "
            f"follows the ablation; expected: {_crossed(rows)}. Points that surely do not fit (too big) are recorded "
            "with their bound and not run.",
            " ",
        ),
    ]
    for name, why in design.excluded.items():
        lines.extend(style.wrap(f"left out: {name}, {why}", " "))
    return "\n".join(lines)


def order_words(rows: Sequence[DesignSummary], lanes_at_once: int | None) -> str:
    """Whether the types take turns, and how long it all takes."""
    times = [row.device_s for row in rows]
    if len(times) == 1:
        return f"about {clock(times[0])}"
    if lanes_at_once == 1:
        return f"the types are measured one after the other, about {clock(sum(times))}"
    return f"the types are measured side by side, about {clock(max(times))}"


def _crossed(rows: Sequence[DesignSummary]) -> str:
    return ", ".join(dict.fromkeys(name for row in rows for name in row.crossed)) or "nothing"


def result_text(result: ProfileResult, inputs: Inputs, where: str, folder: Path, style: Style) -> str:
    """The end of a run: counts per type, amplitudes with their verdicts, how straight the lines are, what next."""
    cluster, model, job = inputs
    types = [t.progress for t in result.types]
    columns = [
        Column("type", [t.gpu_type for t in types], shrink=12),
        Column("node", [t.node or "-" for t in types], shrink=8, drop=1),
        *(
            Column(name, [str(getattr(t, name)) for t in types], right=True)
            for name in ("planned", "measured", "cached", "skipped", "failed")
        ),
        Column("out of memory", [str(t.oom) for t in types], right=True, drop=2),
        Column("state", [t.state.value for t in types]),
    ]
    lines = [
        style.section(f"Profile of {model.name} on {cluster.name}", where),
        *table(columns, style),
    ]
    for outcome in result.types:
        if outcome.error:
            lines.extend(style.wrap(f"{outcome.gpu_type}: {outcome.error}", "   ", first=" - "))
            if outcome.hint:
                lines.extend(style.wrap(outcome.hint, "   "))
    for name, why in result.excluded:
        lines.extend(style.wrap(f"{name}: left out, {why}", "   ", first=" - "))
    lines.extend(["", *impact_block(result, style)])
    for outcome in result.types:
        if outcome.trends:
            lines.extend(["", *trend_block(outcome.trends, job.attention, style)])
            lines.extend(["", *trend_plots(outcome.trends, style)])
    words = (
        f"kept in {folder}; memx-tui profile with --resume goes on from there and measures nothing twice, with "
        "--list it shows every measurement"
    )
    return "\n".join([*lines, "", style.section("Kept"), *style.wrap(words, " ")])


def impact_block(result: ProfileResult, style: Style) -> list[str]:
    """One row per parameter, one column per type: amplitudes of time and memory, and the verdict."""
    judged = [t for t in result.types if t.impacts]
    if not judged:
        return [style.section("Impact"), *style.wrap("no ablation was completed", " ")]
    names = [i.parameter for i in judged[0].impacts]
    by_type = [{i.parameter: i for i in t.impacts} for t in judged]
    columns = [Column("parameter", names)]
    for t, found in zip(judged, by_type, strict=True):
        columns.append(Column(t.gpu_type, [_impact_words(found.get(name)) for name in names], shrink=20))
    columns.append(Column("what was done", [by_type[0][name].note for name in names], shrink=16, drop=1))
    threshold = judged[0].impacts[0].threshold
    caption = (
        "time, then memory: (max - min) / mean when the parameter alone is varied; HIGH where either is above "
        f"{threshold:.0%}, which ! marks"
    )
    if any(i.predicted for t in judged for i in t.impacts):
        caption += "; (model): too few of its points came back, so the cost model answered"
    return [style.section("Impact"), *table(columns, style), *style.wrap(caption, " ")]


def _impact_words(impact: Impact | None) -> str:
    if impact is None:
        return "-"
    time, memory = amplitude_words(impact)
    words = f"{'HIGH' if impact.high else 'low':<4} {time:>6} {memory:>6}"
    return f"{words} (model)" if impact.predicted else words.rstrip()


def amplitude_words(impact: Impact) -> tuple[str, str]:
    """Amplitudes of time and of memory, ``109%!`` where it is above the threshold, a blank in its place where not."""

    def word(amplitude: float | None) -> str:
        if amplitude is None:
            return "- "
        return f"{numbers.percent(amplitude)}{'!' if amplitude > impact.threshold else ' '}"

    return word(impact.time_amplitude), word(impact.memory_amplitude)


def trend_block(trends: Sequence[Trend], attention: Attention, style: Style) -> list[str]:
    """How metrics follow the numeric parameters, and what interpolation makes of it."""
    from memx_engine import attention_doubt

    roomy = style.width >= _DONE_BESIDE
    columns = [
        Column("parameter", [t.parameter for t in trends]),
        Column("metric", [t.metric for t in trends]),
        Column("points", [str(t.points) for t in trends], right=True, drop=1),
        Column("R2", [f"{t.r_squared:.3f}" for t in trends], right=True, drop=4),
        Column("slope", ["-" if t.exponent is None else f"{t.exponent:.2f}" for t in trends], right=True, drop=3),
        Column("amplitude", [numbers.percent(t.amplitude) for t in trends], right=True, drop=2),
        Column("trend", [t.verdict.value for t in trends]),
        *([Column("interpolation", [t.done for t in trends], shrink=16)] if roomy else []),
    ]
    caption = (
        "R2: of one straight line (throughput: over log2), strong linear above 0.95; slope: of the logarithms, above 1 "
        "is superlinear; constant: amplitude below 2 %"
    )
    lines = [
        style.section(f"Trends, measured on {trends[0].gpu_type}"),
        *table(columns, style),
        *([] if roomy else _done_lines(trends, style)),
        *style.wrap(caption, " "),
    ]
    doubt = attention_doubt(trends, attention)
    return [*lines, *style.wrap(f"warning: {doubt}", "   ", first=" - ")] if doubt else lines


def _done_lines(trends: Sequence[Trend], style: Style) -> list[str]:
    """What interpolation does, one line for all trends that it treats alike; where the table has no room for it."""
    alike: dict[str, dict[str, list[str]]] = {}
    for t in trends:
        alike.setdefault(t.done, {}).setdefault(t.parameter, []).append(t.metric)
    lines = [" interpolation:"]
    for done, found in alike.items():
        names = "; ".join(f"{parameter} {', '.join(metrics)}" for parameter, metrics in found.items())
        lines += style.wrap(f"{done}: {names}", "   ")
    return lines


def trend_plots(trends: Sequence[Trend], style: Style) -> list[str]:
    """Small plots of the paper's figure 3, two beside each other where the width allows; empty where none is there."""
    from memx_tui import glyphs
    from memx_tui.plotting import draw_line

    by_name = {(t.parameter, t.metric): t for t in trends}
    shown = [by_name[name] for name in _DRAWN if name in by_name]
    if not shown:
        return []
    across = 2 if style.width >= _TWO_ACROSS else 1
    width = min((style.width - 2 * (across - 1)) // across, _WIDEST)
    drawn = []
    for t in shown:
        x = [math.log2(a) if t.logarithmic else a for a, _ in t.values]
        y, unit = _scaled([b for _, b in t.values], t.metric)
        name = f"log2 {t.parameter}" if t.logarithmic else t.parameter
        plot = draw_line(x, y, width, _PLOT_HEIGHT, glyphs.UNICODE if style.unicode else glyphs.ASCII)
        titles = [f" {name}: {unit}, {word}" for word in (t.verdict.value, f"R2 {t.r_squared:.2f}")]
        title = next((title for title in titles if len(title) <= width), titles[-1][:width])
        drawn.append((title.ljust(width), *plot))
    lines = [style.section(f"Measured points and a straight line, {trends[0].gpu_type}")]
    for at in range(0, len(drawn), across):
        lines += ["  ".join(cells).rstrip() for cells in zip(*drawn[at : at + across], strict=True)]
    return lines


def _scaled(values: Sequence[float], metric: str) -> tuple[list[float], str]:
    if metric == "memory":
        return [v / 2**30 for v in values], "memory GiB"
    return ([v * 1e3 for v in values], "time ms") if metric == "time" else (list(values), "tokens/s")
