"""Why not: asks about a plan that is not in the list, and shows which rule removed it and what would make it fit."""

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
from memx_tui.widgets.quiet import QuietInput

if TYPE_CHECKING:
    from memx_engine import Explanation, RankedPlan
    from memx_tui.app import MemxApp

_GIB = float(1 << 30)
_FIELDS = (("tp", "tp"), ("pp", "pp"), ("dp", "dp"), ("mbs", "micro-batch"))
_VERDICTS = {
    "fits": "fits",
    "tight": "fits, but tight",
    "does_not_fit": "does not fit",
    "invalid": "is not a legal plan",
}


def answer_lines(explanation: Explanation) -> list[str]:
    """The judgement in words, one thing a line."""
    lines = [f"This plan {_VERDICTS[explanation.verdict.value]}."]
    if explanation.plan is not None:
        estimate = explanation.plan.estimate
        worst = estimate.worst_gpu
        lines.append(
            f"{numbers.seconds(estimate.iteration_time_s)} s, worst GPU {worst.gpu_type} on {worst.node} "
            f"{worst.peak_bytes / _GIB:.1f}/{worst.capacity_bytes / _GIB:.1f} GiB ({worst.used_fraction * 100:.0f}%)"
        )
    for reason in explanation.reasons:
        missing = f" ({reason.missing_bytes / _GIB:.1f} GiB too much)" if reason.missing_bytes else ""
        lines.append(f"{reason.rule}: {reason.message}{missing}")
        if reason.remedy:
            lines.append(f"  what would help: {reason.remedy}")
    return lines


class WhyNotDialog(ModalScreen[None]):
    """Type tp, pp, dp and micro-batch; Enter asks.

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
        }
        self.answer: list[str] = []

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog why-not-dialog") as box:
            box.border_title = Content("Why is this plan not in the list?")  # Content is kept literal
            with Horizontal(classes="form-row"):
                for name, label in _FIELDS:
                    yield Label(label, classes="form-label", markup=False)
                    yield QuietInput(
                        self._start[name], id=f"ask-{name}", classes="form-field", type="integer", max_length=6
                    )
            with VerticalScroll(classes="dialog-body", can_focus=False):
                yield Static("layers and recompute are chosen for you", classes="why-not-answer", markup=False)
            yield Static(
                Text("enter Ask   tab Next field   ctrl+y Copy   esc Close"), classes="dialog-keys", markup=False
            )

    def on_mount(self) -> None:
        self.query_one("#ask-tp", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        from memx_engine import PlanRequest

        try:
            tp, pp, dp, micro_batch = (self._value(name, label) for name, label in _FIELDS)
            request = PlanRequest(tp, pp, dp, micro_batch)
        except InputError as error:
            self._say([error.message], bad=True)
            return
        self._say(["asking ..."])
        self.memx.explain(request, self)

    def _value(self, name: str, label: str) -> int:
        text = self.query_one(f"#ask-{name}", Input).value.strip()
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"{label} must be a whole number of at least 1")
        return int(text)

    def on_request_explained(self, event: RequestExplained) -> None:
        event.stop()
        self._say(answer_lines(event.explanation))

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
