"""A form as a list: one line a field, Enter edits, ``+`` and ``-`` step, backspace returns to the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList

from memx_tui.widgets.lines import Line, Lines

MOTION: list[BindingType] = [
    Binding("down,j", "cursor_down", "Down", id="motion.down", show=False, tooltip="Next line"),
    Binding("up,k", "cursor_up", "Up", id="motion.up", show=False, tooltip="Previous line"),
]


@dataclass(frozen=True)
class Field:
    """One line of a form.

    Attributes:
        note: Said after the value, quietly: a unit, ``default``, what it means.
        bad: What is wrong with the value; replaces the note.
        editable: False for lines that only inform.
    """

    key: str
    label: str
    value: str
    note: str = ""
    bad: str = ""
    editable: bool = True


class FieldList(Lines):
    """Fields with one cursor; posts what the operator wants done and changes nothing itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *MOTION,
        Binding("enter", "select", "Edit", id="field.edit", show=False, tooltip="Change this value"),
        Binding("plus,equals_sign", "step(1)", "More", id="field.more", show=False, tooltip="Next value, or one more"),
        Binding("minus", "step(-1)", "Less", id="field.less", show=False, tooltip="Previous value, or one less"),
        Binding(
            "backspace,delete", "clear", "Default", id="field.clear", show=False, tooltip="Return to the default value"
        ),
    ]

    @dataclass
    class Chosen(Message):
        """Enter or a click on a field."""

        fields: FieldList
        key: str

        @property
        def control(self) -> FieldList:
            return self.fields

    @dataclass
    class Stepped(Message):
        """``+`` (1) or ``-`` (-1) on a field."""

        fields: FieldList
        key: str
        by: int

        @property
        def control(self) -> FieldList:
            return self.fields

    @dataclass
    class Cleared(Message):
        """Backspace on a field."""

        fields: FieldList
        key: str

        @property
        def control(self) -> FieldList:
            return self.fields

    def __init__(self, *, id: str | None = None, classes: str | None = None, label_width: int = 12) -> None:  # noqa: A002  # Textual's own parameter name
        super().__init__(id=id, classes=classes)
        self._label_width = label_width
        self._fields: tuple[Field, ...] = ()

    @property
    def shown(self) -> tuple[Field, ...]:
        """The fields as they stand."""
        return self._fields

    @property
    def key(self) -> str | None:
        """Key of the field under the cursor."""
        index = self.highlighted
        return self._fields[index].key if index is not None and index < len(self._fields) else None

    def show(self, fields: Sequence[Field]) -> None:
        """Set the lines; the cursor stays on its field."""
        new = tuple(fields)
        if new == self._fields:
            return
        key = self.key
        if [f.key for f in new] == [f.key for f in self._fields]:
            for index, (field, old) in enumerate(zip(new, self._fields, strict=True)):
                if field != old:
                    self.set_line(index, self._line(field))
            self._fields = new
            return
        self._fields = new
        at = next((index for index, field in enumerate(new) if field.key == key), 0)
        self.set_lines([self._line(field) for field in new], at if new else None)

    def go_to(self, key: str) -> None:
        """Put the cursor on a field."""
        self.highlighted = next((i for i, field in enumerate(self._fields) if field.key == key), self.highlighted)

    def action_step(self, by: int) -> None:
        if self.key is not None:
            self.post_message(self.Stepped(self, self.key, by))

    def action_clear(self) -> None:
        if self.key is not None:
            self.post_message(self.Cleared(self, self.key))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        field = self._fields[event.option_index]
        if field.editable:
            self.post_message(self.Chosen(self, field.key))

    def _line(self, field: Field) -> Line:
        note, style = (f"  {field.bad}", "$error") if field.bad else (f"  {field.note}", "$secondary")
        return Line(
            Content.assemble(
                (field.label.ljust(self._label_width), "$secondary"),
                (field.value, "" if field.editable else "$secondary"),
                (note, style) if note.strip() else "",
            )
        )
