"""What if: what more memory, faster links or one more node would buy, searched while the dialog is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from memx_tui.messages import JobFailed, SensitivityFound, SensitivityProgressed
from memx_tui.text.sensitivity_view import sensitivity_text
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import SearchResult
    from memx_tui.app import MemxApp

_FRAME = 6
"""Columns that border and padding of the dialog take."""


class SensitivityDialog(ModalScreen[None]):
    """Searches every change of the cluster of ``result``; closing stops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="sensitivity.close", tooltip="Close, and stop what is still searched"),
        Binding("ctrl+y", "copy", "Copy", id="sensitivity.copy", tooltip="Copy the table to the terminal's clipboard"),
    ]

    def __init__(self, result: SearchResult) -> None:
        super().__init__()
        self._result = result
        self.answer: list[str] = []

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog sensitivity-dialog") as box:
            box.border_title = Content("What would more buy?")  # Content is kept literal
            with VerticalScroll(classes="dialog-body"):
                yield Static("searching ...", classes="sensitivity-answer", markup=False)
            yield Static(
                Text("ctrl+c Stop, keep what is done   ctrl+y Copy   esc Close"), classes="dialog-keys", markup=False
            )

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.memx.find_sensitivity(self._result, self)

    def on_unmount(self) -> None:
        self.memx.cancel_sensitivity()

    def on_sensitivity_progressed(self, event: SensitivityProgressed) -> None:
        event.stop()
        self._say([f"searching {event.done + 1} of {event.total}: {event.words} ..."])

    def on_sensitivity_found(self, event: SensitivityFound) -> None:
        event.stop()
        self.memx.cancel_sensitivity()
        width = max(self.query_one(".sensitivity-dialog").size.width - _FRAME, 40)
        style = Style(width, not self.memx.ascii_only)
        self._say(sensitivity_text(event.sensitivity, style)[1:])

    def on_job_failed(self, event: JobFailed) -> None:
        event.stop()
        self.memx.cancel_sensitivity()
        message = getattr(event.error, "message", None) or f"{type(event.error).__name__}: {event.error}"
        self._say([message, f"log: {self.memx.paths.log_file}"], bad=True)

    def _say(self, lines: list[str], *, bad: bool = False) -> None:
        self.answer = lines
        answer = self.query_one(".sensitivity-answer", Static)
        answer.set_class(bad, "-bad")
        answer.update(Text("\n".join(lines)))

    def action_copy(self) -> None:
        self.memx.copy("\n".join(self.answer), "the table")

    def action_close(self) -> None:
        self.dismiss(None)
