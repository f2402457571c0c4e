"""Dialogs that ask for one value, or for a yes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from memx_engine import MemxError
from memx_tui.widgets.quiet import QuietInput


class PromptDialog(ModalScreen[str | None]):
    """Ask for one value; what is wrong with it shows while it is typed.

    Args:
        title: What is asked for.
        value: What stands there first.
        hint: How to write it.
        check: Raises MemxError for text that cannot be used; "" is passed too.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="prompt.close", tooltip="Leave the value as it was"),
    ]

    def __init__(self, title: str, value: str, *, hint: str = "", check: Callable[[str], object]) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._hint = hint
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog prompt-dialog") as box:
            box.border_title = Content(self._title)  # Content is kept literal
            yield QuietInput(value=self._value, select_on_focus=True, classes="prompt-value")
            yield Static(classes="prompt-status", markup=False)
            yield Static(Content("enter Set   esc Close"), classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show(None)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show(self._problem(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        problem = self._problem(event.value)
        if problem is None:
            self.dismiss(event.value.strip())
        else:
            self._show(problem)

    def action_close(self) -> None:
        self.dismiss(None)

    def _problem(self, text: str) -> MemxError | None:
        try:
            self._check(text.strip())
        except MemxError as error:
            return error
        return None

    def _show(self, problem: MemxError | None) -> None:
        words = Content.styled(self._hint, "$secondary")
        if problem is not None:
            hint = f"; {problem.hint}" if problem.hint else ""
            words = Content.styled(f"{problem.message}{hint}", "$error")
        self.query_one(".prompt-status", Static).update(words)


class ConfirmDialog(ModalScreen[bool]):
    """A question with a yes that has to be pressed on purpose.

    Args:
        title: What is about to happen.
        question: What would be lost.
        yes: What ``y`` does, as a word.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes", tooltip="Go on"),
        Binding("n,escape", "answer(False)", "No", id="confirm.no", tooltip="Stay"),
    ]

    def __init__(self, title: str, question: str, *, yes: str) -> None:
        super().__init__()
        self._title = title
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog prompt-dialog") as box:
            box.border_title = Content(self._title)  # Content is kept literal
            yield Static(Content(self._question), classes="prompt-question", markup=False)
            yield Static(Content(f"y {self._yes}   n Stay"), classes="dialog-keys", markup=False)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
