"""The ranked table: a line-API widget, so that 30,000 plans are as quick as thirty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, MouseMove
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from memx_tui.columns import RECOMPUTE_CLASSES, PlanColumns
from memx_tui.glyphs import UNICODE, Glyphs
from memx_tui.text import numbers
from memx_tui.widgets.chrome import fit

_GIB = float(1 << 30)
_SHORT = {"none": "none", "selective": "sel", "full": "full", "block": "block", "mixed": "mixed"}
Cell = Callable[[PlanColumns, int, Glyphs], str]


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: What :class:`PlanTable` sorts by.
        keep: Columns with a higher value go first when the table is narrow; 0 always stays.
    """

    key: str
    title: str
    width: int
    keep: int
    cell: Cell
    right: bool = True


def _time(columns: PlanColumns, row: int, glyphs: Glyphs) -> str:
    text = numbers.seconds(float(columns.time_s[row]))
    return text if columns.by_events[row] else glyphs.at_most + text


def _pp(columns: PlanColumns, row: int, glyphs: Glyphs) -> str:
    pp, vpp = int(columns.pp[row]), int(columns.vpp[row])
    return str(pp) if vpp == 1 else f"{pp}v{vpp}"


COLUMNS = (
    Column("rank", "#", 5, 0, lambda c, r, g: str(r + 1)),
    Column("mark", "mk", 2, 0, lambda c, r, g: "", right=False),
    Column("tp", "tp", 2, 0, lambda c, r, g: str(c.tp[r])),
    Column("pp", "pp", 4, 0, _pp),
    Column("dp", "dp", 3, 0, lambda c, r, g: str(c.dp[r])),
    Column("mb", "mb", 2, 5, lambda c, r, g: str(c.mb[r])),
    Column("recompute", "recmp", 5, 6, lambda c, r, g: _SHORT[RECOMPUTE_CLASSES[c.recompute[r]]], right=False),
    Column("time", "time s", 7, 0, _time),
    Column("tokens", "tok/s", 7, 7, lambda c, r, g: numbers.rate(float(c.tokens_per_s[r]))),
    Column("worst", "worst GPU", 14, 2, lambda c, r, g: c.worst_type[r], right=False),
    Column("worst", "", 4, 0, lambda c, r, g: numbers.percent(float(c.worst[r]))),
    Column("fit", "fit", 5, 1, lambda c, r, g: "", right=False),
    Column("spread", "spread", 6, 3, lambda c, r, g: f"{c.spread_bytes[r] / _GIB:.2f}"),
    Column("phi", "phi", 6, 4, lambda c, r, g: numbers.phi(float(c.phi[r]))),
    Column("peak", "peak GiB", 8, 8, lambda c, r, g: f"{c.peak_bytes[r] / _GIB:.1f}"),
)
"""``mark`` and ``fit`` are not in the columns: the table asks for them."""
BAR_MIN = 12
"""Cells that must be left over before a bar of the worst GPU is drawn behind the columns."""


@dataclass(frozen=True)
class Widths:
    """Cells that the data at hand need where they vary: rank, stages, replicas, name of the worst GPU."""

    rank: int = 3
    pp: int = 2
    dp: int = 2
    worst_type: int = 9

    @classmethod
    def of(cls, columns: PlanColumns | None) -> Widths:
        if columns is None or not len(columns):
            return cls()
        name = max(cell_len(name) for name in set(columns.worst_type))
        stages = set(zip(columns.pp.tolist(), columns.vpp.tolist(), strict=True))
        pp = max(len(f"{pp}v{vpp}" if vpp > 1 else str(pp)) for pp, vpp in stages)
        dp = max(2, len(str(int(columns.dp.max()))))
        return cls(max(3, len(str(len(columns)))), max(2, pp), dp, min(max(name, 9), 18))


@lru_cache(256)
def layout(width: int, widths: Widths) -> tuple[tuple[Column, int], ...]:
    """Columns with their cells that fit in ``width``; the worst GPU's name is cut before a column goes."""
    given = {"#": widths.rank, "pp": widths.pp, "dp": widths.dp}
    chosen = list(COLUMNS)

    def total(name_cells: int) -> int:
        return 2 + sum(1 + (name_cells if c.title == "worst GPU" else given.get(c.title, c.width)) for c in chosen)

    smallest = min(widths.worst_type, 9)
    for keep in range(8, 0, -1):
        if total(smallest) <= width:
            break
        chosen = [c for c in chosen if c.keep != keep]
    room = max(smallest, min(widths.worst_type, smallest + width - total(smallest)))
    return tuple((c, room if c.title == "worst GPU" else given.get(c.title, c.width)) for c in chosen)


class PlanTable(ScrollView, can_focus=True):
    """Rows of a :class:`PlanColumns` in a given order, with cursor and marks.

    The table shows; sorting and filtering happen outside and arrive through :meth:`show_rows`.
    """

    DEFAULT_CSS = """
    PlanTable { height: 1fr; overflow-x: hidden; background: $background; scrollbar-size-vertical: 1; }
    PlanTable > .plans--header { color: $text-muted; text-style: bold; }
    PlanTable > .plans--sorted { color: $accent; text-style: bold; }
    PlanTable > .plans--row { color: $foreground; }
    PlanTable > .plans--dim { color: $text-muted; }
    PlanTable > .plans--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    PlanTable > .plans--cursor-blurred { background: $block-cursor-blurred-background; text-style: bold; }
    PlanTable > .plans--hover { background: $block-hover-background; }
    PlanTable > .plans--mark { color: $accent; text-style: bold; }
    PlanTable > .plans--tight { color: $warning; }
    PlanTable > .plans--over { color: $error; text-style: bold; }
    PlanTable > .plans--bar { color: $memory-weights; }
    PlanTable > .plans--bar-free { color: $memory-free; }
    PlanTable > .plans--empty { color: $text-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plans--header",
        "plans--sorted",
        "plans--row",
        "plans--dim",
        "plans--cursor",
        "plans--cursor-blurred",
        "plans--hover",
        "plans--mark",
        "plans--tight",
        "plans--over",
        "plans--bar",
        "plans--bar-free",
        "plans--empty",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", id="plans.up", show=False, tooltip="Previous plan"),
        Binding("down,j", "move(1)", "Down", id="plans.down", show=False, tooltip="Next plan"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", id="plans.page-up", show=False, tooltip="One page up"),
        Binding("pagedown", "page(1)", "Page down", id="plans.page-down", show=False, tooltip="One page down"),
        Binding("ctrl+u", "page(-0.5)", "Half page up", id="plans.half-up", show=False, tooltip="Half a page up"),
        Binding("ctrl+d", "page(0.5)", "Half page down", id="plans.half-down", show=False, tooltip="Half a page down"),
        Binding("home,g", "edge(0)", "First", id="plans.first", show=False, tooltip="First plan"),
        Binding("end,G", "edge(1)", "Last", id="plans.last", show=False, tooltip="Last plan"),
    ]

    @dataclass
    class Moved(Message):
        """The cursor is on another plan; ``row`` is its row in the result's table."""

        row: int

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, PlanTable.Moved)

    @dataclass
    class HeaderClicked(Message):
        """A column title was clicked."""

        key: str

    @dataclass
    class RowClicked(Message):
        """A row that already had the cursor was clicked."""

        row: int

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.glyphs = glyphs
        self.columns: PlanColumns | None = None
        self.order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.cursor = 0
        self.marks: Mapping[int, str] = {}
        self.fit_word: Callable[[int], str] = lambda row: ""
        """Row to ``fits``, ``tight`` or ``OOM``; asked for the rows in sight only."""
        self.sort_key, self.descending = "rank", False
        self.empty_text: tuple[str, ...] = ()
        self._widths = Widths()
        self._hover = -1

    # Data

    def show_rows(
        self,
        columns: PlanColumns | None,
        order: NDArray[np.int64],
        *,
        sort_key: str,
        descending: bool,
        selected: int | None = None,
    ) -> None:
        """Show ``columns`` at rows ``order``; the cursor stays on row ``selected`` when that is still there."""
        if columns is not self.columns:
            self.columns = columns
            self._widths = Widths.of(columns)
        self.order = order
        self.sort_key, self.descending = sort_key, descending
        found = np.flatnonzero(order == selected) if selected is not None else np.zeros(0, dtype=np.int64)
        self.cursor = int(found[0]) if len(found) else 0
        self._update_size()
        self._scroll_to_cursor()
        self.refresh()

    def show_marks(self, marks: Mapping[str, int]) -> None:
        """Show the letters of marked rows."""
        self.marks = {row: letter for letter, row in marks.items()}
        self.refresh()

    def show_empty(self, *lines: str) -> None:
        """What is said in place of rows when there are none."""
        if lines != self.empty_text:
            self.empty_text = lines
            self.refresh()

    @property
    def selected(self) -> int | None:
        """Row of the result's table under the cursor."""
        return int(self.order[self.cursor]) if 0 <= self.cursor < len(self.order) else None

    # Cursor

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, pages: float) -> None:
        self.move_to(self.cursor + int(pages * max(1, self._page - 1)))

    def action_edge(self, last: int) -> None:
        self.move_to(len(self.order) - 1 if last else 0)

    def move_to(self, index: int) -> None:
        """Put the cursor on row ``index`` of what is shown, clamped to it."""
        index = min(max(index, 0), len(self.order) - 1)
        if index < 0 or index == self.cursor:
            return
        before, self.cursor = self.cursor, index
        self.refresh_line(before + 1)
        self.refresh_line(index + 1)
        self._scroll_to_cursor()
        self.post_message(self.Moved(int(self.order[index])))

    @property
    def _page(self) -> int:
        return max(1, self.size.height - 1)

    def _scroll_to_cursor(self) -> None:
        top = round(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True, force=True)
        elif self.cursor >= top + self._page:
            self.scroll_to(y=self.cursor - self._page + 1, animate=False, immediate=True, force=True)

    def refresh_line(self, y: int) -> None:
        """Redraw virtual line ``y`` (row + 1); the header is line 0 and never scrolls."""
        shown = y - self.scroll_offset.y if y else 0
        if 0 <= shown < self.size.height:
            self.refresh(Region(0, shown, self.size.width, 1))

    def on_resize(self) -> None:
        self._update_size()
        self._scroll_to_cursor()

    def _update_size(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.order) + 1)

    # Mouse

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            key = self._key_at(offset.x)
            if key and key not in ("mark", "fit"):
                self.post_message(self.HeaderClicked(key))
            return
        index = offset.y - 1 + self.scroll_offset.y
        if index == self.cursor and event.chain == 2:
            self.post_message(self.RowClicked(int(self.order[index])))
        elif index < len(self.order):
            self.move_to(index)

    def on_mouse_move(self, event: MouseMove) -> None:
        index = event.y - 1 + self.scroll_offset.y if event.y > 0 else -1
        if index != self._hover:
            before, self._hover = self._hover, index
            self.refresh_line(before + 1)
            self.refresh_line(index + 1)

    def on_leave(self) -> None:
        before, self._hover = self._hover, -1
        self.refresh_line(before + 1)

    def _key_at(self, x: int) -> str:
        position = 2
        for column, width in layout(self.size.width, self._widths):
            if x < position + width + 1:
                return column.key
            position += width + 1
        return ""

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._header(width)
        index = y - 1 + self.scroll_offset.y
        if index < len(self.order) and self.columns is not None:
            return self._row(index, width)
        if len(self.order) == 0 and 0 <= y - 2 < len(self.empty_text):
            text = "  " + self.empty_text[y - 2]
            return Strip([Segment(set_cell_size(fit(text, width), width), self._style("empty"))], width)
        return Strip.blank(width, self.rich_style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"plans--{name}")

    def _header(self, width: int) -> Strip:
        segments = [Segment("  ", self._style("header"))]
        arrow = self.glyphs.descending if self.descending else self.glyphs.ascending
        arrow_shown = False
        for column, cells in layout(width, self._widths):
            title = self.glyphs.phi if column.key == "phi" else column.title
            is_sorted = column.key == self.sort_key and bool(column.title)
            if is_sorted and not arrow_shown:
                arrow_shown = True
                title = fit(title, cells - 1, "") + arrow
            text = self._align(title, cells, column.right)
            segments.append(Segment(text + " ", self._style("sorted" if is_sorted else "header")))
        return Strip(segments).adjust_cell_length(width, self._style("header"))

    @staticmethod
    def _align(text: str, cells: int, right: bool) -> str:
        text = fit(text, cells)
        return " " * (cells - cell_len(text)) + text if right else set_cell_size(text, cells)

    def _row(self, index: int, width: int) -> Strip:
        columns = self.columns
        assert columns is not None
        row = int(self.order[index])
        on_cursor = index == self.cursor
        ground = Style()
        if on_cursor:
            ground = self._style("cursor" if self.has_focus else "cursor-blurred")
        elif index == self._hover:
            ground = self._style("hover")
        base = self._style("row")
        worst = float(columns.worst[row])
        segments = [Segment(f"{self.glyphs.cursor if on_cursor else ' '} ", base + ground)]
        used = 2
        for column, cells in layout(width, self._widths):
            style = base
            if column.key == "mark":
                text, style = self.marks.get(row, ""), self._style("mark")
            elif column.key == "fit":
                text = self.fit_word(row)
                style = self._style({"tight": "tight", "OOM": "over"}.get(text, "dim"))
            else:
                text = column.cell(columns, row, self.glyphs)
            if column.key == "worst" and worst > 0.9:
                style = self._style("over" if worst > 1 else "tight")
            elif column.key in ("rank", "recompute"):
                style = self._style("dim")
            if column.key == "worst" and not column.title and worst > 1:
                text = "OOM"
            segments.append(Segment(self._align(text, cells, column.right) + " ", style + ground))
            used += cells + 1
        room = width - used - 1
        if room >= BAR_MIN and np.isfinite(worst):
            filled = min(room, round(worst * room))
            bar = self._style("over" if worst > 1 else "tight" if worst > 0.9 else "bar")
            segments.append(Segment(self.glyphs.weights * filled, bar + ground))
            segments.append(Segment(self.glyphs.free * (room - filled), self._style("bar-free") + ground))
        return Strip(segments).adjust_cell_length(width, base + ground)
