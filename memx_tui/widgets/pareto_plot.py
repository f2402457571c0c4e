"""The Pareto plot: iteration time against worst peak or memory spread, one glyph per recompute strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from memx_tui.columns import RECOMPUTE_CLASSES, FrontPoints, PlanColumns
from memx_tui.glyphs import UNICODE, Glyphs
from memx_tui.plotting import Drawing, draw_pareto, frontier

_GIB = float(1 << 30)
AXIS_WORDS = {"time-peak": "time s x worst peak GiB", "time-spread": "time s x memory spread GiB"}


class ParetoPlot(Widget, can_focus=True):
    """Draws when its data, size or selection changes, and keeps the drawing otherwise."""

    DEFAULT_CSS = """
    ParetoPlot { height: 1fr; background: $background; }
    ParetoPlot > .plot--axis { color: $text-muted; }
    ParetoPlot > .plot--frontier { color: $accent; }
    ParetoPlot > .plot--selected { color: $accent; text-style: bold reverse; }
    ParetoPlot > .plot--mark { color: $foreground; text-style: bold; }
    ParetoPlot > .plot--error { color: $error; }
    ParetoPlot > .plot--none { color: $recompute-none; }
    ParetoPlot > .plot--selective { color: $recompute-selective; }
    ParetoPlot > .plot--full { color: $recompute-full; }
    ParetoPlot > .plot--block { color: $recompute-block; }
    ParetoPlot > .plot--mixed { color: $recompute-mixed; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--axis",
        "plot--frontier",
        "plot--selected",
        "plot--mark",
        "plot--error",
        *(f"plot--{name}" for name in RECOMPUTE_CLASSES),
    }

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.glyphs = glyphs
        self.axes = "time-peak"
        self.columns: PlanColumns | None = None
        self.selected: int | None = None
        self.marks: Mapping[str, int] = {}
        self.draws = 0
        self._drawing: Drawing | None = None
        self._error = ""
        self._frontier_size = 0
        self._kinds: list[int] = []
        self._rows = np.zeros(0, dtype=np.int64)
        self._beside: FrontPoints | None = None

    def show_plans(
        self, columns: PlanColumns | None, rows: np.ndarray, axes: str, beside: FrontPoints | None = None
    ) -> None:
        """Plot ``rows`` of ``columns`` (table rows, any order), and ``beside`` them plans of the front."""
        self.columns, self._rows, self.axes, self._beside = columns, np.sort(rows), axes, beside
        self._kinds = np.unique(columns.recompute[rows]).tolist() if columns is not None else []
        self._redraw()

    def show_selection(self, row: int | None, marks: Mapping[str, int]) -> None:
        """Move the selected marker and the letters."""
        if (row, dict(marks)) != (self.selected, dict(self.marks)):
            self.selected, self.marks = row, dict(marks)
            self._redraw()

    @property
    def drawing(self) -> Drawing:
        """What is drawn at the present size; an error is kept and shown in its place."""
        width, height = self.size.width, self.size.height - len(self.legend())
        drawing = self._drawing
        if drawing is None or len(drawing.lines) != height or (height and len(drawing.lines[0]) != width):
            drawing = self._drawing = self._draw(width, height)
        return drawing

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the plotted rows in the units of the axes; those beside the table last."""
        if self.columns is None:
            return np.zeros(0), np.zeros(0)
        by_peak, beside = self.axes == "time-peak", self._beside
        y = (self.columns.peak_bytes if by_peak else self.columns.spread_bytes)[self._rows] / _GIB
        x = self.columns.time_s[self._rows]
        if beside is None:
            return x, y
        more = beside.peak_bytes if by_peak else beside.spread_bytes
        return np.append(x, beside.time_s), np.append(y, more / _GIB)

    def legend(self) -> list[list[tuple[str, str]]]:
        """What the glyphs mean: lines of (text, style name); only strategies that occur."""
        if self.columns is None or self.size.height < 8:
            return []
        row = f" #{self.selected + 1}  " if self.selected is not None else " selected  "
        entries = [[(self.glyphs.selected, "selected"), (row, "axis")]]
        entries.append([(self.glyphs.horizontal, "frontier"), (f" frontier {self._frontier_size}  ", "axis")])
        for kind in self._kinds:
            name = RECOMPUTE_CLASSES[kind]
            entries.append([(self.glyphs.recompute[kind], name), (f" {name}  ", "axis")])
        if self._drawing is not None and self._drawing.outside:
            entries.append([(f"{self._drawing.outside:,} beyond the edge", "axis")])
        lines: list[list[tuple[str, str]]] = [[]]
        used = 2
        for entry in entries:
            cells = sum(cell_len(text) for text, _ in entry)
            if used + cells > self.size.width + 2 and lines[-1]:
                lines.append([])
                used = 2
            lines[-1] += entry
            used += cells
        return lines[:2]

    def _redraw(self) -> None:
        self._drawing = None
        self.refresh()

    def _draw(self, width: int, height: int) -> Drawing:
        self._error = ""
        self.draws += 1
        x, y = self.points()
        self._frontier_size = len(frontier(x, y))
        kinds = self.columns.recompute[self._rows] if self.columns is not None else np.zeros(0, dtype=np.int64)
        if self.columns is not None and self._beside is not None:
            kinds = np.append(kinds, self._beside.recompute)
        labels = [(self._place(row), letter) for letter, row in self.marks.items()]
        try:
            return draw_pareto(
                x,
                y,
                kinds,
                width,
                height,
                selected=self._place(self.selected),
                labels=[(index, letter) for index, letter in labels if index is not None],
                glyphs=self.glyphs,
            )
        except Exception as error:  # plotext is foreign code: a broken plot says so in its pane, the rest lives on
            self._error = f"the plot failed: {type(error).__name__}: {error}"
            blank = (" " * width,) * height
            return Drawing(blank, blank)

    def _place(self, row: int | None) -> int | None:
        """Index of a table row among the plotted ones."""
        if row is None:
            return None
        index = int(np.searchsorted(self._rows, row))
        return index if index < len(self._rows) and self._rows[index] == row else None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        drawing = self.drawing
        if self._error:
            style = self.get_component_rich_style("plot--error")
            return Strip([Segment(self._error if y == 0 else "", style)]).adjust_cell_length(width, style)
        segments: list[Segment] = []
        if y >= len(drawing.lines):
            words = self.legend()[y - len(drawing.lines)]
            segments = [Segment(text, self.get_component_rich_style(f"plot--{name}")) for text, name in words]
            return Strip([Segment("  ", self.rich_style), *segments]).adjust_cell_length(width, self.rich_style)
        line, roles = drawing.lines[y], drawing.roles[y]
        start = 0
        for i in range(1, width + 1):
            if i == width or roles[i] != roles[start]:
                segments.append(Segment(line[start:i], self._role_style(roles[start])))
                start = i
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _role_style(self, role: str) -> Style:
        if role == " ":
            return self.get_component_rich_style("plot--axis")
        if role in "01234":
            return self.get_component_rich_style(f"plot--{RECOMPUTE_CLASSES[int(role)]}") + Style(dim=True)
        if role in "abcde":
            return self.get_component_rich_style(f"plot--{RECOMPUTE_CLASSES['abcde'.index(role)]}") + Style(bold=True)
        name = {"-": "frontier", "@": "selected", "M": "mark"}[role]
        return self.get_component_rich_style(f"plot--{name}")
