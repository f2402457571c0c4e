"""The dialog of where and how to profile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from memx_engine import MemxError
from memx_tui.profile_form import FORM, changed, form_fields, shown, stepped
from memx_tui.profile_state import ProfileSettings
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.screens.prompt import PromptDialog
from memx_tui.widgets.fields import FieldList

_RUNNER_WORDS = {
    "testbed": "simulated devices, on this machine, at once",
    "local": "the accelerator or the CPU of this machine",
    "slurm": "one job per GPU type, at once",
    "ssh": "a host per GPU type",
    "command": "your own launch command, its Megatron log is read",
}


class RunnerDialog(ModalScreen[ProfileSettings | None]):
    """A list of fields; returns the settings, or None when nothing is to change.

    Args:
        folder: The workspace where the settings name none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "save", "Use", id="runner.save", tooltip="Profile with these settings"),
        Binding("escape", "close", "Close", id="runner.close", tooltip="Leave the settings as they were"),
    ]

    def __init__(self, settings: ProfileSettings, folder: Path) -> None:
        super().__init__()
        self.settings = settings
        self._folder = folder

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog runner-dialog") as box:
            box.border_title = Content("Where to measure")  # Content is kept literal
            yield FieldList(classes="runner-fields", label_width=15)
            yield Static(
                Content("enter Change   +/- Step   backspace Default   s Use   esc Close"),
                classes="dialog-keys",
                markup=False,
            )

    def on_mount(self) -> None:
        self._show()
        self.query_one(FieldList).focus()

    def _show(self) -> None:
        self.query_one(FieldList).show(form_fields(self.settings, self._folder))

    def on_field_list_chosen(self, event: FieldList.Chosen) -> None:
        event.stop()
        key, spec = event.key, FORM[event.key]
        current = shown(self.settings, key)
        if spec.choices:
            words = _RUNNER_WORDS if key == "name" else {}
            items = [Item(word, (word, words.get(word, ""))) for word in spec.choices]
            dialog = PickDialog(f"{spec.label}: {spec.hint}", items, selected=current)
            self.app.push_screen(dialog, partial(self._answer, key))
            return
        prompt = PromptDialog(
            spec.label, current, hint=f"{spec.hint}; empty: the default", check=lambda text: self._changed(key, text)
        )
        self.app.push_screen(prompt, partial(self._answer, key))

    def on_field_list_stepped(self, event: FieldList.Stepped) -> None:
        event.stop()
        self.settings = stepped(self.settings, event.key, event.by)
        self._show()

    def on_field_list_cleared(self, event: FieldList.Cleared) -> None:
        event.stop()
        self._answer(event.key, "")

    def _changed(self, key: str, text: str) -> ProfileSettings:
        return changed(self.settings, key, text)

    def _answer(self, key: str, text: str | None) -> None:
        if text is None:
            return
        try:
            self.settings = self._changed(key, text)
        except MemxError as error:
            from memx_tui.app import MemxApp

            cast(MemxApp, self.app).say(str(error), warning=True)
        self._show()

    def action_save(self) -> None:
        self.dismiss(self.settings)

    def action_close(self) -> None:
        self.dismiss(None)
