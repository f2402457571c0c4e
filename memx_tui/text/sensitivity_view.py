"""What a little more of anything would buy, as a table."""

from __future__ import annotations

from memx_engine import Sensitivity
from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import layers_by_type
from memx_tui.text.style import Style

_SAME = 5e-4
"""Shares below this show as no change."""


def sensitivity_text(sensitivity: Sensitivity, style: Style) -> list[str]:
    """A section with one row for each change, the most useful first."""
    gains = sorted(sensitivity.gains, key=lambda gain: gain.phi_change)
    lines = [style.section("What a little more would buy")]
    if gains:
        shapes = [gain.plan.plan.skeleton for gain in gains]
        columns = [
            Column("change", [gain.change.words for gain in gains], shrink=44),
            Column(style.glyphs.phi, [_share(gain.phi_change) for gain in gains], right=True),
            Column("time", [_share(gain.time_change) for gain in gains], right=True),
            Column("time s", [numbers.seconds(g.plan.estimate.iteration_time_s) for g in gains], right=True, drop=1),
            Column("tp pp dp mbs", [f"{s.tp} {s.pp} {s.dp} {s.micro_batch}" for s in shapes], drop=2),
            Column(
                "layers",
                ["the same plan" if g.same_plan else layers_by_type(g.plan.plan, style) for g in gains],
                shrink=13,
            ),
            Column("", ["" if gain.proven else "not proven" for gain in gains], drop=3),
        ]
        lines += table(columns, style, gap=2 if style.width >= 110 else 1)
    words = (
        f"Each change was searched anew with this search's weights and references, in {sensitivity.seconds:.1f} s; "
        "shares are against plan 1"
    )
    stopped = "; stopped early, further changes are missing" if sensitivity.cancelled else ""
    traded = any(gain.phi_change < -_SAME and gain.time_change > _SAME for gain in gains)
    if traded:
        stopped += (
            f". Where the time rises, nothing got slower: the plan trades time for less peak or spread, which "
            f"{style.glyphs.phi} counts too; --weights 1,0,0 asks for time alone"
        )
    return [*lines, *style.wrap(f"{words}{stopped}.", " ")]


def _share(change: float) -> str:
    return "same" if abs(change) < _SAME else f"{change:+.1%}"
