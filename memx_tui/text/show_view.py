"""A plan file as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_tui.text import numbers
from memx_tui.text.explain_view import inputs_heading
from memx_tui.text.plan_view import plan_block
from memx_tui.text.search_view import assumed_block, limits_words
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import PlanFile


def show_text(file: PlanFile, style: Style) -> str:
    """The plan as its file says it; nothing is computed anew."""
    weights = file.objective.weights
    words = (
        f"Φ {numbers.phi(file.phi)} with weights {weights.profile}: time {weights.time:g}, peak {weights.peak:g}, "
        f"spread {weights.variance:g}" + (f"; {weights.reason}" if weights.reason else "")
    )
    origin = f"numbers: {file.provenance}, predictor {file.predictor_fingerprint}, memx {file.version}"
    lines = [
        *inputs_heading(f"{file.model.name} on {file.cluster.name}", (file.cluster, file.model, file.job), style),
        "",
        *plan_block("Plan", file.plan, file.estimate, style),
        "",
        style.section("Why this plan"),
        *style.wrap(words, "   ", first=" - "),
        *(style.wrap(f"limits: {limits_words(file.limits)}", "   ", first=" - ") if file.limits else []),
        *style.wrap(origin, "   ", first=" - "),
        "",
        *assumed_block(file.assumed, style),
    ]
    return "\n".join(lines)
