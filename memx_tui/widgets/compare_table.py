"""Plans in columns: values with their differences, and memory bars mirrored around the base's edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from memx_tui.comparing import Cell, CompareRow
from memx_tui.glyphs import UNICODE, Glyphs
from memx_tui.text import numbers
from memx_tui.widgets.chrome import fit
from memx_tui.widgets.memory_bars import BarRow, bar_cells

MIN_COLUMN = 26
"""Narrower columns would cut differences; fewer plans are shown instead."""
_LONGEST_LABEL = 24
_NUMBER_CELLS = 9


class CompareTable(ScrollView, can_focus=True):
    """The base at the left, then the other plans; ``current`` is the column that actions speak of."""

    DEFAULT_CSS = """
    CompareTable { height: 1fr; overflow-x: hidden; background: $background; scrollbar-size-vertical: 1; }
    CompareTable > .compare--header { text-style: bold; color: $foreground; background: $surface; }
    CompareTable > .compare--current { text-style: bold; color: $accent; background: $surface; }
    CompareTable > .compare--label { color: $text-muted; }
    CompareTable > .compare--value { color: $foreground; }
    CompareTable > .compare--same { color: $text-muted; }
    CompareTable > .compare--better { color: $text-success; }
    CompareTable > .compare--worse { color: $text-error; }
    CompareTable > .compare--changed { color: $text-warning; }
    CompareTable > .compare--weights { color: $memory-weights; }
    CompareTable > .compare--optimizer { color: $memory-optimizer; }
    CompareTable > .compare--activations { color: $memory-activations; }
    CompareTable > .compare--other { color: $memory-other; }
    CompareTable > .compare--free { color: $memory-free; }
    CompareTable > .compare--tick { color: $foreground; }
    CompareTable > .compare--over { color: $memory-over; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"compare--{name}"
        for name in (
            *("header", "current", "label", "value", "same", "better", "worse", "changed"),
            *("weights", "optimizer", "activations", "other", "free", "tick", "over"),
        )
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", id="compare-table.up", show=False, tooltip="Scroll up"),
        Binding("down,j", "scroll_down", "Down", id="compare-table.down", show=False, tooltip="Scroll down"),
        Binding("pageup", "page_up", "Page up", id="compare-table.page-up", show=False, tooltip="One page up"),
        Binding(
            "pagedown", "page_down", "Page down", id="compare-table.page-down", show=False, tooltip="One page down"
        ),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.glyphs = glyphs
        self.titles: tuple[str, ...] = ()
        self.rows: tuple[CompareRow, ...] = ()
        self.base = 0
        self.current = 0
        self.note: tuple[str, ...] = ()

    def show(self, titles: Sequence[str], rows: Sequence[CompareRow], base: int, current: int) -> None:
        """Show plans; ``base`` and ``current`` index ``titles``."""
        self.titles, self.rows = tuple(titles), tuple(rows)
        self.base, self.current = base, current
        self._update_size()
        self.refresh()

    def show_note(self, *lines: str) -> None:
        """What is said when there is nothing to compare."""
        self.note = lines
        self.refresh()

    def on_resize(self) -> None:
        self._update_size()

    def _update_size(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)

    def visible_columns(self) -> list[int]:
        """Indices of the plans drawn, the base first; as many others as fit, the current one among them."""
        if not self.titles:
            return []
        others = [i for i in range(len(self.titles)) if i != self.base]
        room = max(1, (self.size.width - self._label_cells) // MIN_COLUMN - 1)
        if len(others) <= room:
            return [self.base, *others]
        at = others.index(self.current) if self.current in others else 0
        start = min(max(0, at - room + 1), len(others) - room)
        return [self.base, *others[start : start + room]]

    @property
    def _label_cells(self) -> int:
        longest = max((cell_len(row.label) for row in self.rows), default=14)
        return min(longest, _LONGEST_LABEL if self.size.width >= 100 else 15) + 2

    def on_click(self, event: Click) -> None:
        columns = self.visible_columns()
        if event.y == 0 and columns:
            width = (self.size.width - self._label_cells) // len(columns)
            index = (event.x - self._label_cells) // max(1, width)
            if 0 <= index < len(columns):
                self.current = columns[index]
                self.refresh()

    def text(self) -> str:
        """The whole table as plain text, for the clipboard."""
        lines = []
        for y in range(len(self.rows) + 1):
            lines.append("".join(segment.text for segment in self._line(y, self.size.width)).rstrip())
        return "\n".join(lines) + "\n"

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self.titles:
            text = f"  {self.note[y - 1]}" if 0 < y <= len(self.note) else ""
            return Strip([Segment(set_cell_size(fit(text, width), width), self._style("label"))], width)
        line = 0 if y == 0 else y + self.scroll_offset.y
        if line > len(self.rows):
            return Strip.blank(width, self.rich_style)
        return Strip(self._line(line, width)).adjust_cell_length(width, self._style("header" if y == 0 else "value"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"compare--{name}")

    def _line(self, line: int, width: int) -> list[Segment]:
        columns = self.visible_columns()
        label = self._label_cells
        each = max(10, (width - label) // len(columns))
        if line == 0:
            segments = [Segment(" " * label, self._style("header"))]
            for index in columns:
                text = self.titles[index] + (" (base)" if index == self.base else "")
                arrow = f"{self.glyphs.cursor} " if index == self.current else "  "
                style = self._style("current" if index == self.current else "header")
                segments.append(Segment(set_cell_size(fit(arrow + text, each - 1), each), style))
            return segments
        row = self.rows[line - 1]
        name = self.glyphs.phi if row.label == "phi" else row.label
        segments = [Segment(set_cell_size(" " + fit(name, label - 2), label), self._style("label"))]
        for index in columns:
            cell = row.cells[index]
            if row.bars:
                segments += self._bar(row.bars[index], cell, each, mirrored=index == self.base)
            else:
                segments += self._cell(cell, each)
        return segments

    def _cell(self, cell: Cell, each: int) -> list[Segment]:
        """Numbers stand in a column of their own; the difference is shortened before the verdict is."""
        room = each - 4
        value = cell.text
        options = [f"{cell.delta} {cell.verdict}", f"{cell.delta.rpartition(' ')[2]} {cell.verdict}", cell.verdict]
        cells = (
            max(_NUMBER_CELLS, cell_len(value)) if cell.delta or cell_len(value) <= _NUMBER_CELLS else cell_len(value)
        )
        tail = next((text.strip() for text in options if cells + cell_len(text.strip()) <= room), cell.verdict)
        if cells + cell_len(tail) > room:
            cells = max(4, room - cell_len(tail))
        segments = [Segment("  " + set_cell_size(fit(value, cells), cells) + "  ", self._style("value"))]
        segments.append(Segment(tail, self._style(cell.verdict or "value")))
        used = sum(cell_len(s.text) for s in segments)
        return [*segments, Segment(" " * max(0, each - used), self._style("value"))]

    def _bar(self, row: BarRow | None, cell: Cell, each: int, *, mirrored: bool) -> list[Segment]:
        """The base's bar grows to the left, the others' to the right, so that zero meets in the middle."""
        if row is None:
            return self._cell(cell, each)
        percent = "OOM" if row.fraction > 1 else numbers.percent(row.fraction)
        style = self._style("over" if row.fraction > 1 else "value")
        number = f"{cell.text:>10} {percent:>4} " if mirrored or each >= 44 else f" {percent:>4} "
        delta = cell.delta.split(" ")[0]
        tail = "" if mirrored else f"{delta:>6} {cell.verdict:<7}" if delta else f"{cell.verdict:<14}"
        cells = max(4, each - cell_len(number) - cell_len(tail) - (2 if mirrored else 0))
        parts = bar_cells(row, cells, self.glyphs, overflow=1)
        drawn = [Segment(text, self._style(role)) for text, role in parts]
        if mirrored:
            drawn = [Segment(s.text[::-1], s.style) for s in reversed(drawn)]
            segments = [Segment(f"  {number}", style), *drawn]
        else:
            segments = [*drawn, Segment(number, style), Segment(tail, self._style(cell.verdict or "value"))]
        used = sum(cell_len(s.text) for s in segments)
        pad = Segment(" " * max(0, each - used), self._style("value"))
        return [pad, *segments] if mirrored else [*segments, pad]
