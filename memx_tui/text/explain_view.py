"""The judgement of one plan as text: verdict, reasons with their remedies, then the plan itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memx_engine import gib
from memx_tui.text import numbers
from memx_tui.text.plan_view import VERDICT_LOOKS, VERDICT_WORDS, cluster_line, idle_words, job_line, plan_block
from memx_tui.text.search_view import assumed_block
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import Cluster, Explanation, Gap, Job, Reason, TransformerSpec


_ADDITIVE = "the additive time (the closed form that the solver optimises; 1F1B events never take longer)"


def explain_text(
    explanation: Explanation, heading: Sequence[str], assumed: Sequence[str], style: Style, gpus: int = 0
) -> str:
    """The whole answer of ``explain``; the first line carries the verdict, and how many of ``gpus`` stay idle."""
    verdict = explanation.verdict
    idle = idle_words(explanation.plan.plan, gpus) if explanation.plan is not None else ""
    word = style.paint(VERDICT_WORDS[verdict].upper(), VERDICT_LOOKS[verdict])
    lines = [*heading, "", f"{word}, {idle}" if idle else word]
    for reason in explanation.reasons:
        lines.extend(style.wrap(f"{reason_words(reason)} [{reason.rule}]", "   ", first=" - "))
        if reason.remedy:
            lines.extend(style.wrap(f"remedy: {reason.remedy}", "     ", first="   "))
    if explanation.gap is not None:
        woven = explanation.plan is not None and explanation.plan.plan.skeleton.virtual_stages > 1
        by_events = event_gap_words(explanation.gap)
        if not (woven and by_events):
            # Of an interleaved plan the closed form is an estimate, so that the proof by events is the one that counts.
            lines.extend(style.wrap(gap_words(explanation.gap), "   ", first=" - "))
        if by_events:
            lines.extend(style.wrap(by_events, "   ", first=" - "))
    if explanation.plan is not None:
        lines.extend(["", *plan_block("The plan", explanation.plan.plan, explanation.plan.estimate, style)])
    lines.extend(["", *assumed_block(assumed, style)])
    return "\n".join(lines)


def reason_words(reason: Reason) -> str:
    """The message with its stage and what it lacks, where it does not say them itself."""
    place = f"stage {reason.stage}"
    place = "" if reason.stage is None or place in reason.message else f"{place}: "
    lacks = reason.missing_bytes is not None and reason.missing_bytes > 0 and "missing" not in reason.message
    missing = f" ({gib(reason.missing_bytes or 0.0):.2f} GiB missing)" if lacks else ""
    return f"{place}{reason.message}{missing}"


def gap_words(gap: Gap) -> str:
    """How far the plan is from the best known, where the reasons do not say it, and from what is proven."""
    words = ""
    if gap.time_excess is None:
        best = numbers.phi(gap.best_phi)
        words = f"Φ by {_ADDITIVE} {numbers.phi(gap.phi)}, of the best plan of its search {best}; "
    if gap.bound_gap is None:
        return f"{words}no lower bound is proven [gap]"
    if gap.bound_gap < -1e-9:
        return f"{words}below the lower bound, which is that of the 1F1B plans searched [gap]"
    if gap.bound_gap <= 1e-9:
        return f"{words}proven: no 1F1B plan of the space has a lower Φ [gap]"
    by = "the additive time" if words else _ADDITIVE
    return (
        f"{words}what is proven, by {by}: no 1F1B plan of the space has a Φ more than {gap.bound_gap:.1%} lower [gap]"
    )


def event_gap_words(gap: Gap) -> str:
    """How far the plan is from what is proven by events over the whole space; empty where nothing is."""
    if gap.event_bound_gap is None:
        return ""
    if gap.event_bound_gap < -1e-9:
        return "by events: below the bound of all plans searched, so it is none of them [gap]"
    return (
        "what is proven by events: no plan of the space, interleaved ones included, has a Φ more than "
        f"{max(gap.event_bound_gap, 0.0):.1%} lower [gap]"
    )


def inputs_heading(title: str, inputs: tuple[Cluster, TransformerSpec, Job], style: Style) -> list[str]:
    """What was judged: cluster, model and job in two lines under a title."""
    cluster, model, job = inputs
    return [
        style.section(title),
        *style.wrap(cluster_line(cluster, style), " "),
        *style.wrap(job_line(model, job, style), " "),
    ]
