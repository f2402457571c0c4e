"""The summary of a cluster: problems that lead to their line, figures, assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import OptionList

from memx_tui.cluster_view import Row
from memx_tui.widgets.fields import MOTION
from memx_tui.widgets.lines import Line, Lines

_TONES = {"error": "$error", "warning": "$warning", "muted": "$secondary", "": ""}
LABEL_WIDTH = 9


class Summary(Lines):
    """Lines that wrap; Enter on a problem goes to its line."""

    DEFAULT_CSS = """
    Summary { text-wrap: wrap; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOTION,
        Binding("enter", "select", "Go to line", id="summary.line", show=False, tooltip="Go to the problem's line"),
    ]

    @dataclass
    class LineChosen(Message):
        """Enter or a click on a problem."""

        line: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own parameter name
        super().__init__(id=id)
        self._rows: tuple[Row, ...] = ()
        self._width = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """The lines as they stand."""
        return self._rows

    def show(self, rows: Sequence[Row]) -> None:
        if tuple(rows) != self._rows:
            self._rows = tuple(rows)
            self._fill()

    def on_resize(self, event: Resize) -> None:
        if event.size.width != self._width:
            self._fill()

    def _fill(self) -> None:
        self._width = self.size.width
        at = self.highlighted or 0
        lines = [Line(self._line(row, index)) for index, row in enumerate(self._rows)]
        self.set_lines(lines, min(at, len(lines) - 1) if lines else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        row = self._rows[event.option_index]
        if row.line:
            self.post_message(self.LineChosen(row.line))

    def _line(self, row: Row, index: int) -> Content:
        tone = _TONES[row.tone]
        if not row.label:
            return Content.styled(row.text, tone)
        repeated = index > 0 and self._rows[index - 1].label == row.label == "assumed"
        label = "" if repeated else row.label
        # Two cells stay free for the scroll bar, so that its coming does not wrap the lines anew.
        room = max(12, self._width - LABEL_WIDTH - 2)
        lines = wrap(row.text, room, break_long_words=True) or [""]
        text = f"\n{' ' * LABEL_WIDTH}".join(lines)
        return Content.assemble((label.ljust(LABEL_WIDTH), tone if row.tone == "error" else "$secondary"), (text, tone))
