"""A table of plain text that fits the width: optional columns go first, then long cells are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memx_tui.text.style import Style


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: Shown above; its length counts.
        cells: One text per row.
        right: Aligned right (numbers).
        drop: Where the width is short, columns go in the order of this number; 0 never goes.
        shrink: The width below which the column is not cut; 0 forbids cutting.
        look: Chooses the colour of a row's cell; None leaves it plain.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    drop: int = 0
    shrink: int = 0
    look: Callable[[int], str | None] | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        return max([len(self.title), *map(len, self.cells)])


def table(columns: Sequence[Column], style: Style, *, gap: int = 2, highlight: int | None = None) -> list[str]:
    """The lines of a table, header first; row ``highlight`` is bold."""
    kept = [column for column in columns if any(column.cells) or not column.drop]
    while _total(kept, gap) > style.width:
        candidates = [column for column in kept if column.drop]
        if not candidates or _total(kept, gap) - style.width <= _slack(kept):
            break
        kept.remove(min(candidates, key=lambda column: column.drop))
    widths = _fit(kept, style.width, gap)
    between = " " * gap
    header = between.join(_align(c.title, w, c.right, style) for c, w in zip(kept, widths, strict=True)).rstrip()
    lines = [style.paint(header, "dim")]
    for row in range(len(kept[0].cells) if kept else 0):
        parts = []
        for column, width in zip(kept, widths, strict=True):
            text = _align(column.cells[row], width, column.right, style)
            look = column.look(row) if column.look else None
            parts.append(style.paint(text, look) if look else style.paint(text, "bold") if row == highlight else text)
        lines.append(between.join(parts).rstrip())
    return lines


def _total(columns: Sequence[Column], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _slack(columns: Sequence[Column]) -> int:
    return sum(max(0, column.width - max(column.shrink, len(column.title))) for column in columns if column.shrink)


def _fit(columns: Sequence[Column], width: int, gap: int) -> list[int]:
    """Widths after taking the excess, one character at a time, from the widest column that may shrink."""
    widths = [column.width for column in columns]
    excess = sum(widths) + gap * (len(widths) - 1) - width
    while excess > 0:
        able = [i for i, c in enumerate(columns) if c.shrink and widths[i] > max(c.shrink, len(c.title))]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1
    return widths


def _align(text: str, width: int, right: bool, style: Style) -> str:
    if len(text) > width:
        text = text[: max(0, width - 1)] + style.glyphs.ellipsis
    return text.rjust(width) if right else text.ljust(width)
