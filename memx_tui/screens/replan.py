"""What if nodes fail: plans again without them while the dialog is open, shows what moves; Enter takes the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from memx_tui.field_words import in_fields
from memx_tui.messages import JobFailed, ReplanFound, ReplanProgressed
from memx_tui.replanning import Leaving, Replanned
from memx_tui.text.replan_view import answer_text
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_tui.app import MemxApp

_FRAME = 6
"""Columns that border and padding of the dialog take."""
_ROWS = 5
"""Rows of the dialog that are not the answer: border, margins, keys."""


class ReplanDialog(ModalScreen[Replanned | None]):
    """Searches without the nodes of ``asked``; returns the answer where the operator takes it. Closing stops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take", id="replan.take", tooltip="Show these plans instead, to compare and to mark"),
        Binding("e", "export", "Export", id="replan.export", tooltip="Save the plan as YAML"),
        Binding("ctrl+y", "copy", "Copy", id="replan.copy", tooltip="Copy the answer to the terminal's clipboard"),
        Binding("escape", "close", "Close", id="replan.close", tooltip="Close, and leave the plans as they were"),
    ]

    def __init__(self, asked: Leaving) -> None:
        super().__init__()
        self._asked = asked
        self.found: Replanned | None = None
        self.answer: list[str] = []

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        names = ", ".join(self._asked.without)
        title = f"Without {names}" if names else "With every node"
        with Vertical(classes="dialog replan-dialog") as box:
            box.border_title = Content(title)  # Content is kept literal
            with VerticalScroll(classes="dialog-body"):
                yield Static("searching ...", classes="replan-answer", markup=False)
            yield Static(Text("ctrl+c Stop, keep the best so far   esc Close"), classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.memx.replan(self._asked, self)

    def on_resize(self, event: Resize) -> None:
        # The answer scrolls; the keys below it always stay in sight.
        self.query_one(VerticalScroll).styles.max_height = max(2, int(event.size.height * 0.9) - _ROWS)

    def on_unmount(self) -> None:
        self.memx.cancel_replan()

    def on_replan_progressed(self, event: ReplanProgressed) -> None:
        event.stop()
        progress = event.progress
        if self.found is None:
            self._say([f"{progress.phase} {progress.done:,} of {progress.total:,}, {progress.feasible:,} fit ..."])

    def on_replan_found(self, event: ReplanFound) -> None:
        event.stop()
        self.memx.cancel_replan()
        self.found = event.answer
        width = max(self.query_one(".replan-dialog").size.width - _FRAME, 40)
        self._say(answer_text(event.answer, Style(width, not self.memx.ascii_only)))
        self.query_one(".dialog-keys", Static).update(
            Text("enter Take these plans   e Export   ctrl+y Copy   esc Close")
        )

    def on_job_failed(self, event: JobFailed) -> None:
        event.stop()
        self.memx.cancel_replan()
        message = getattr(event.error, "message", None) or f"{type(event.error).__name__}: {event.error}"
        hint = getattr(event.error, "hint", "")
        words = [in_fields(message), *([in_fields(hint)] if hint else []), f"log: {self.memx.paths.log_file}"]
        self._say(words, bad=True)
        self.query_one(".dialog-keys", Static).update(Text("esc Close"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("take", "export"):
            return self.found is not None
        return True

    def _say(self, lines: list[str], *, bad: bool = False) -> None:
        self.answer = lines
        answer = self.query_one(".replan-answer", Static)
        answer.set_class(bad, "-bad")
        answer.update(Text("\n".join(lines)))

    def action_take(self) -> None:
        self.dismiss(self.found)

    def action_export(self) -> None:
        if self.found is not None:
            from memx_tui.screens.export import plan_export

            self.app.push_screen(plan_export(self.found.result, self.found.chosen))

    def action_copy(self) -> None:
        self.memx.copy("\n".join(self.answer), "the answer")

    def action_close(self) -> None:
        self.dismiss(None)
