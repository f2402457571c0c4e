"""A dialog with a list that typing narrows; help and every chooser are one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from memx_tui.widgets.lines import Line, Lines
from memx_tui.widgets.quiet import QuietInput

V = TypeVar("V")


@dataclass(frozen=True)
class Item(Generic[V]):
    """One line of the list.

    Attributes:
        cells: Columns; the first is padded to the widest of the list.
        section: Items with the same section stand under one heading, in the order given.
        words: More text that a filter may match.
        enabled: Disabled items are shown dim and cannot be chosen.
    """

    value: V
    cells: tuple[str, ...]
    section: str = ""
    words: str = ""
    enabled: bool = True

    def matches(self, terms: Sequence[str]) -> bool:
        text = " ".join((*self.cells, self.section, self.words)).lower()
        return all(term in text for term in terms)


class PickDialog(ModalScreen[V | None], Generic[V]):
    """Choose one item: type to filter, arrows to move, Enter to take.

    Args:
        title: What is being chosen.
        items: The choices.
        placeholder: Shown in the empty filter line.
        typed: Makes a choice out of the text itself (a path); None where only listed items count.
        selected: The value to start on.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="pick.close", tooltip="Close without choosing"),
        Binding("down", "move(1)", "Down", id="pick.down", show=False, tooltip="Next line"),
        Binding("up", "move(-1)", "Up", id="pick.up", show=False, tooltip="Previous line"),
        Binding("pagedown", "move(10)", "Page down", id="pick.page-down", show=False, tooltip="Ten lines down"),
        Binding("pageup", "move(-10)", "Page up", id="pick.page-up", show=False, tooltip="Ten lines up"),
    ]
    VERB: ClassVar[str] = "Choose"
    FILTER: ClassVar[type[QuietInput]] = QuietInput
    MAX_FIRST: ClassVar[int] = 30

    def __init__(
        self,
        title: str,
        items: Sequence[Item[V]],
        *,
        placeholder: str = "type to filter",
        typed: Callable[[str], Item[V] | None] | None = None,
        selected: V | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._items: tuple[Item[V], ...] = ()
        self._placeholder = placeholder
        self._typed = typed
        self._selected = selected
        self._shown: list[Item[V]] = []
        self._at: list[Item[V] | None] = []
        self._first = 0
        self.set_items(items)

    def set_items(self, items: Sequence[Item[V]]) -> None:
        """Replace the choices, before the dialog is mounted."""
        self._items = tuple(items)
        self._first = min(self.MAX_FIRST, max((len(item.cells[0]) for item in self._items), default=0))

    def take(self, value: V) -> None:
        """What a dialog of commands does with the choice, after it has closed."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog pick-dialog") as box:
            box.border_title = Content(self._title)  # Content is kept literal
            yield self.FILTER(placeholder=self._placeholder, classes="pick-filter")
            choices = Lines(classes="pick-list -always")
            choices.can_focus = False
            yield choices
            yield Static(classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._take()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take()

    def action_move(self, lines: int) -> None:
        choices = self.query_one(Lines)
        step = 1 if lines > 0 else -1
        for _ in range(abs(lines)):
            before = choices.highlighted
            (choices.action_cursor_down if step > 0 else choices.action_cursor_up)()
            after = choices.highlighted
            if before is not None and after is not None and (after - before) * step < 0:
                choices.highlighted = before
                break

    def action_close(self) -> None:
        self.dismiss(None)

    @property
    def shown_items(self) -> tuple[Item[V], ...]:
        """The items that match what was typed."""
        return tuple(self._shown)

    @property
    def chosen(self) -> Item[V] | None:
        """The highlighted item."""
        index = self.query_one(Lines).highlighted
        return self._at[index] if index is not None else None

    def _take(self) -> None:
        item = self.chosen
        if item is not None and item.enabled:
            self.dismiss(item.value)
            self.take(item.value)

    def _fill(self, text: str) -> None:
        terms = text.lower().split()
        self._shown = [item for item in self._items if item.matches(terms)]
        if self._typed is not None and (own := self._typed(text.strip())) is not None:
            self._shown.insert(0, own)
        lines: list[Line] = []
        self._at = []
        section = ""
        start: int | None = None
        for item in self._shown:
            if item.section and item.section != section:
                section = item.section
                lines.append(Line(Content.styled(section, "$foreground bold"), disabled=True))
                self._at.append(None)
            if item.enabled and (start is None or (not text and item.value == self._selected)):
                start = len(lines)
            lines.append(Line(self._line(item), disabled=not item.enabled))
            self._at.append(item)
        choices = self.query_one(Lines)
        choices.set_lines(lines, start)
        if start is not None:
            choices.scroll_to_highlight()
        self.query_one(".dialog-keys", Static).update(Content(self.keys_words()))

    def keys_words(self) -> str:
        """The last line: the keys, and how many items are shown."""
        count = f"{len(self._shown)} of {len(self._items)}"
        return f"enter {self.VERB}   esc Close   {count if self._shown else 'nothing matches'}"

    def _line(self, item: Item[V]) -> Content:
        first = item.cells[0].ljust(self._first)
        rest = [(f"  {cell}", "$secondary") for cell in item.cells[1:] if cell]
        indent = "  " if item.section else ""
        return Content.assemble(indent, first, *rest)
