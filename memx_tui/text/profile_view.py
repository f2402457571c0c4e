"""Profiling as text: the plan of measurements before it, the counts, verdicts and trends after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import cluster_line, job_line
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import Cluster, DesignSummary, Impact, Job, ProfileDesign, ProfileResult, TransformerSpec

Inputs = tuple["Cluster", "TransformerSpec", "Job"]


def clock(seconds: float) -> str:
    """A rough duration: ``40 s``, ``62 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_text(design: ProfileDesign, inputs: Inputs, where: str, cached: Mapping[str, int], style: Style) -> str:
    """The plan of measurements: how many points of which kind, about how long, and what a full grid would take.

    Args:
        where: What measures, in words. cached: GPU type → points that are there already; empty when not looked up.
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
    total, longest = sum(r.points for r in rows), max(r.device_s for r in rows)
    lines = [
        style.section(f"Measurements for {model.name} on {cluster.name}", where),
        *style.wrap(cluster_line(cluster, style), " "),
        *style.wrap(job_line(model, job, style), " "),
        "",
        *table(columns, style),
        *style.wrap(
            f"{total} points where a full grid would take {numbers.count(sum(r.exhaustive for r in rows))}; the types "
            f"are measured side by side, about {clock(longest)} of device time by the cost model. What is crossed "
            f"follows the ablation; expected: {_crossed(rows)}. Points that surely do not fit (too big) are recorded "
            "with their bound and not run.",
            " ",
        ),
    ]
    for name, why in design.excluded.items():
        lines.extend(style.wrap(f"left out: {name}, {why}", " "))
    return "\n".join(lines)


def _crossed(rows: Sequence[DesignSummary]) -> str:
    return ", ".join(dict.fromkeys(name for row in rows for name in row.crossed)) or "nothing"


def result_text(result: ProfileResult, inputs: Inputs, where: str, folder: Path, style: Style) -> str:
    """The end of a run: counts per type, amplitudes with their verdicts, how straight the lines are, what next."""
    cluster, model, _ = inputs
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
    if any(t.trends for t in result.types):
        lines.extend(["", *trend_block(result, style)])
    words = f"kept in {folder}; memx-tui profile with --resume goes on from there and measures nothing twice"
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
        f"amplitude (max - min) / mean of time and of memory when the parameter alone is varied; high above "
        f"{threshold:.0%}"
    )
    if any(i.predicted for t in judged for i in t.impacts):
        caption += "; (model): too few of its points came back, so the cost model answered"
    return [style.section("Impact"), *table(columns, style), *style.wrap(caption, " ")]


def _impact_words(impact: Impact | None) -> str:
    if impact is None:
        return "-"
    shares = [numbers.percent(a) if a is not None else "-" for a in (impact.time_amplitude, impact.memory_amplitude)]
    return (
        f"{'HIGH' if impact.high else 'low':<4} {shares[0]:>5} {shares[1]:>5}{' (model)' if impact.predicted else ''}"
    )


def trend_block(result: ProfileResult, style: Style) -> list[str]:
    """How straight the lines of the numeric parameters are on the representative type."""
    rows = [trend for t in result.types for trend in t.trends]
    columns = [
        Column("parameter", [t.parameter for t in rows]),
        Column("metric", [t.metric for t in rows]),
        Column("points", [str(t.points) for t in rows], right=True),
        Column("R2", [f"{t.r_squared:.3f}" for t in rows], right=True),
        Column("amplitude", [numbers.percent(t.amplitude) for t in rows], right=True),
        Column("verdict", [t.verdict for t in rows]),
    ]
    caption = "linear: R2 of a straight line above 0.95; constant: amplitude below 2 %"
    return [
        style.section(f"Straight lines? measured on {rows[0].gpu_type}"),
        *table(columns, style),
        *style.wrap(caption, " "),
    ]
