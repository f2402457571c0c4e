"""The error dialog: what failed, why, what to do, where the log is. Never a traceback."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class ErrorDialog(ModalScreen[None]):
    """Shows one error until it is dismissed; ``y`` copies its text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Close", id="error.close", tooltip="Close this message"),
        Binding("y", "copy", "Copy", id="error.copy", tooltip="Copy the message to the terminal's clipboard"),
        Binding("Y", "write", "Write", id="error.write", tooltip="Write the message to a new file here"),
    ]

    def __init__(self, title: str, reason: str, *, where: str = "", hint: str = "", log_path: str = "") -> None:
        super().__init__()
        self.error_title = title
        self.reason = reason
        self.where = where
        self.hint = hint
        self.log_path = log_path

    @property
    def report(self) -> str:
        """The whole message as plain text, one thing a line."""
        lines = [self.error_title, self.reason]
        lines += [f"where: {self.where}"] if self.where else []
        lines += [f"what to do: {self.hint}"] if self.hint else []
        lines += [f"log: {self.log_path}"] if self.log_path else []
        return "\n".join(lines)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog error-dialog") as box:
            box.border_title = Text(self.error_title)
            with VerticalScroll(classes="dialog-body"):
                yield Static(Text(self.reason), classes="error-reason", markup=False)
                if self.where:
                    yield Static(Text(f"Where: {self.where}"), classes="error-line", markup=False)
                if self.hint:
                    yield Static(Text(f"What to do: {self.hint}"), classes="error-line", markup=False)
                if self.log_path:
                    yield Static(Text(f"Log: {self.log_path}"), classes="error-line muted", markup=False)
            yield Static(Text("esc Close   y Copy   Y Write a file"), classes="dialog-keys", markup=False)

    def action_copy(self) -> None:
        from memx_tui.app import MemxApp

        assert isinstance(self.app, MemxApp)
        self.app.copy(self.report, "the message")

    def action_write(self) -> None:
        from memx_tui.app import MemxApp

        assert isinstance(self.app, MemxApp)
        self.app.write(self.report + "\n", "memx-message.txt")
