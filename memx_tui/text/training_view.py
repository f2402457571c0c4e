"""Training as text: errors per GPU type, what the trees look at, trends, and the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.profile_view import trend_block, trend_plots
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import Cluster, Job, Learned, TransformerSpec, Trend

_SHOWN = 10
_BAR = 30


def training_text(learned: Learned, inputs: tuple[Cluster, TransformerSpec, Job], folder: Path, style: Style) -> str:
    """Everything :class:`Learned` says."""
    lines = predictor_block(learned, inputs, style)
    shown = longest_trends(learned.trends)
    if shown:
        lines += ["", *trend_block(shown, inputs[2].attention, style), "", *trend_plots(shown, style)]
    words = f"kept in {folder}; memx-tui plan with --workspace uses it"
    return "\n".join([*lines, "", style.section("Kept"), *style.wrap(words, " ")])


def predictor_block(learned: Learned, inputs: tuple[Cluster, TransformerSpec, Job], style: Style) -> list[str]:
    """Errors of held-out points, the trees' settings, and what they look at."""
    cluster, model, _ = inputs
    lines = [
        style.section(f"Predictor of {model.name} on {cluster.name}", learned.estimator.provenance.value),
        *_types(learned, style),
        "",
        *_settings(learned, style),
    ]
    return [*lines, "", *importance_block(learned.importances, style)] if learned.importances else lines


def longest_trends(trends: Sequence[Trend]) -> list[Trend]:
    """Those of the type that had the linearity check; the others have little more than their three points."""
    if not trends:
        return []
    longest = max(trends, key=lambda t: t.points).gpu_type
    return [t for t in trends if t.gpu_type == longest]


def _types(learned: Learned, style: Style) -> list[str]:
    def share(value: float | None, sign: str = "") -> str:
        return "-" if value is None else f"{sign}{value:.1f} %"

    plus = "±" if style.unicode else "+-"
    rows = learned.types
    columns = [
        Column("type", [t.gpu_type for t in rows], shrink=12),
        Column("points", [str(t.points) for t in rows], right=True),
        Column("ground", [t.provenance.value for t in rows]),
        Column("time error", [share(t.time_error_pct) for t in rows], right=True),
        Column("95 %", [share(t.time_width_pct, plus) for t in rows], right=True),
        Column("memory error", [share(t.memory_error_pct) for t in rows], right=True),
        Column("95 %", [share(t.memory_width_pct, plus) for t in rows], right=True, drop=1),
    ]
    grown = (
        f"; the trees saw {learned.grew:.1f} rows for each measured one, the others lie between measured points where "
        "their trend holds"
        if learned.grew > 1.005
        else ""
    )
    caption = (
        "mean error on points that were held out, and the interval that holds 95 % of them; memory beside weights and "
        f"gradients{grown}"
    )
    return [*table(columns, style), *style.wrap(caption, " ")]


def _settings(learned: Learned, style: Style) -> list[str]:
    s = learned.settings
    words = (
        f"depth {s.depth}, learning rate {s.learning_rate:.3g}, subsample {s.subsample:.2f}, least child weight "
        f"{s.min_child_weight:.3g}, {s.rounds} rounds"
    )
    lines = [style.section("Trees"), *style.wrap(words, " ")]
    tuned = learned.tuned
    if tuned is None:
        return [*lines, *style.wrap("memx-tui train --tune 24 looks for better settings", " ")]
    ended = {"trials": "", "time": ", ended by the time limit", "cancelled": ", stopped by you"}[tuned.ended]
    changed = tuned.settings != tuned.trials[0].settings
    verdict = (
        f"held-out error {tuned.start_error:.4f} before, {tuned.best_error:.4f} with the settings found"
        if changed
        else f"nothing clearly better than {tuned.start_error:.4f} was found (best {tuned.best_error:.4f}); unchanged"
    )
    return [*lines, *style.wrap(f"tuned: {len(tuned.trials)} settings tried{ended}; {verdict}", " ")]


def importance_block(importances: Mapping[str, float], style: Style) -> list[str]:
    """The features that the trees gain most from, with bars."""
    shown = list(importances.items())[:_SHOWN]
    name_width = max(len(name) for name, _ in shown)
    full = style.glyphs.segments[0]
    most = shown[0][1] or 1.0
    lines = [
        f" {name:<{name_width}} {numbers.percent(share):>5} {full * max(round(_BAR * share / most), 1)}"
        for name, share in shown
    ]
    rest = 1.0 - sum(share for _, share in shown)
    note = f"share of the trees' gain{f'; all others together {numbers.percent(rest)}' if rest > 0.005 else ''}"
    return [style.section("What the trees look at"), *lines, *style.wrap(note, " ")]
