"""Why not: asks about any plan, and shows where it stands, which rule removed it and what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from memx_engine import InputError
from memx_tui.messages import JobFailed, RequestExplained
from memx_tui.text import numbers
from memx_tui.text.explain_view import reason_words
from memx_tui.text.plan_view import schedule_word
from memx_tui.widgets.quiet import QuietInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memx_engine import Explanation, RankedPlan, SearchResult
    from memx_tui.app import MemxApp

_GIB = float(1 << 30)
_FIELDS = (("tp", "tp"), ("pp", "pp"), ("dp", "dp"), ("mbs", "micro-batch"))
_WORDS = (("layers", "auto"), ("recompute", "auto"), ("schedule", "1f1b"))
_HINT = (
    "layers: auto (chosen for you), even, or such as 8,8,7,7\n"
    "recompute: auto, or none, selective, full, uniform:N, block:K, one for all or one per stage\n"
    "schedule: 1f1b, or interleaved:V with V chunks on every stage"
)
_VERDICTS = {
    "fits": "fits",
    "tight": "fits, but tight",
    "does_not_fit": "does not fit",
    "invalid": "is not a legal plan",
}


def answer_lines(explanation: Explanation, result: SearchResult | None = None) -> list[str]:
    """The judgement in words, one thing a line; ``result``: the list that the plan is or is not in."""
    lines = [f"This plan {_VERDICTS[explanation.verdict.value]}.{_place(explanation, result)}"]
    gap = explanation.gap
    if gap is not None and gap.time_excess is not None:
        ahead = "" if gap.ahead is None else f"; {gap.ahead:,} plans in the list are better"
        lines.append(f"against #1: Φ {gap.phi:.4f} ({gap.excess:+.1%}), iteration time {gap.time_excess:+.1%}{ahead}")
    if explanation.plan is not None:
        estimate = explanation.plan.estimate
        worst = estimate.worst_gpu
        lines.append(
            f"{numbers.seconds(estimate.iteration_time_s)} s, worst GPU {worst.gpu_type} on {worst.node} "
            f"{worst.peak_bytes / _GIB:.1f}/{worst.capacity_bytes / _GIB:.1f} GiB ({worst.used_fraction * 100:.0f}%)"
        )
    for reason in explanation.reasons:
        if reason.rule == "time" and gap is not None:
            continue  # the lines above say it shorter
        lines.append(f"{reason.rule}: {reason_words(reason)}")
        if reason.remedy:
            lines.append(f"  what would help: {reason.remedy}")
    return lines


def _place(explanation: Explanation, result: SearchResult | None) -> str:
    """Whether the plan is in the list, or its layout with other layers or recompute."""
    if explanation.plan is None:
        return ""
    if result is None:
        return " No current list to compare with: r searches."
    plan, plans = explanation.plan.plan, result.table.plans
    rows = [row for row, other in enumerate(plans) if other.skeleton == plan.skeleton]
    if not rows:
        outside = any(reason.rule == "space" for reason in explanation.reasons)
        unproven = outside or explanation.verdict.value == "does_not_fit"
        closed = "" if unproven else ": the search proved it worse than what it kept"
        return f" Its layout is not in the list of {len(plans):,}{closed}."
    row = next((row for row in rows if plans[row] == plan), rows[0])
    if plans[row] == plan:
        return f" It is #{row + 1:,} of {len(plans):,} in the list."
    return (
        f" #{row + 1:,} of {len(plans):,} has its layout with layers {_listed(plans[row].layers)} and recompute "
        f"{_listed(plans[row].recompute)}."
    )


def _listed(values: Sequence[object]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(set(words)) == 1 else ",".join(words)


class WhyNotDialog(ModalScreen[None]):
    """Type tp, pp, dp, micro-batch, schedule, and layers and recompute where they matter; Enter asks.

    Args:
        start: The plan whose numbers are filled in first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="why-not.close", tooltip="Close"),
        Binding("ctrl+y", "copy", "Copy", id="why-not.copy", tooltip="Copy the answer to the terminal's clipboard"),
    ]

    def __init__(self, start: RankedPlan | None) -> None:
        super().__init__()
        skeleton = start.plan.skeleton if start else None
        self._start = {
            "tp": str(skeleton.tp) if skeleton else "",
            "pp": str(skeleton.pp) if skeleton else "",
            "dp": str(skeleton.dp) if skeleton else "",
            "mbs": str(skeleton.micro_batch) if skeleton else "1",
            "schedule": schedule_word(start.plan) if start else "",
        }
        self.answer: list[str] = []

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog why-not-dialog") as box:
            box.border_title = Content("Why not this plan?")  # Content is kept literal
            with Horizontal(classes="form-row"):
                for name, label in _FIELDS:
                    yield Label(label, classes="form-label", markup=False)
                    yield QuietInput(
                        self._start[name], id=f"ask-{name}", classes="form-field", type="integer", max_length=6
                    )
            with Horizontal(classes="form-row"):
                for name, left_out in _WORDS:
                    yield Label(name, classes="form-label", markup=False)
                    yield QuietInput(
                        self._start.get(name, ""),
                        placeholder=left_out,
                        id=f"ask-{name}",
                        classes="form-field",
                        max_length=2000,
                    )
            with VerticalScroll(classes="dialog-body", can_focus=True):
                yield Static(_HINT, classes="why-not-answer", markup=False)
            yield Static(
                Text("enter Ask   tab Next field   ctrl+y Copy   esc Close"), classes="dialog-keys", markup=False
            )

    def on_mount(self) -> None:
        self.query_one("#ask-tp", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        from memx_engine import PlanRequest
        from memx_tui.commands.explain import parse_layers, parse_recompute, parse_schedule

        try:
            tp, pp, dp, micro_batch = (self._value(name, label) for name, label in _FIELDS)
            layers, recompute, schedule = (self._word(name, left_out) for name, left_out in _WORDS)
            request = PlanRequest(
                tp,
                pp,
                dp,
                micro_batch,
                layers=None if layers == "even" else parse_layers(layers),
                recompute=parse_recompute(recompute),
                virtual_stages=parse_schedule(schedule),
            )
        except InputError as error:
            self._say([f"{error.message}. {error.hint}" if error.hint else error.message], bad=True)
            return
        self._say(["asking ..."])
        self.memx.explain(request, self)

    def _value(self, name: str, label: str) -> int:
        text = self.query_one(f"#ask-{name}", Input).value.strip()
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"{label} must be a whole number of at least 1")
        return int(text)

    def _word(self, name: str, left_out: str) -> str:
        return "".join(self.query_one(f"#ask-{name}", Input).value.split()) or left_out

    def on_request_explained(self, event: RequestExplained) -> None:
        event.stop()
        session = self.memx.session
        self._say(answer_lines(event.explanation, None if session.stale else session.result))

    def on_job_failed(self, event: JobFailed) -> None:
        event.stop()
        message = getattr(event.error, "message", None) or f"{type(event.error).__name__}: {event.error}"
        hint = getattr(event.error, "hint", "")
        self._say([message, *([hint] if hint else []), f"log: {self.memx.paths.log_file}"], bad=True)

    def _say(self, lines: list[str], *, bad: bool = False) -> None:
        self.answer = lines
        answer = self.query_one(".why-not-answer", Static)
        answer.set_class(bad, "-bad")
        answer.update(Text("\n".join(lines)))

    def action_copy(self) -> None:
        self.memx.copy("\n".join(self.answer), "the answer")

    def action_close(self) -> None:
        self.dismiss(None)
