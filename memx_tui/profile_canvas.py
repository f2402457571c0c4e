"""What the Profile screen's lines are drawn with: a width, characters and colours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from memx_tui.glyphs import Glyphs

NARROW = 60
"""Below this width words give way: bars, times and padding go before numbers do."""


@dataclass(frozen=True)
class Colors:
    """Rich styles made of the theme's variables."""

    bar: Style
    quiet: Style
    good: Style
    warning: Style
    bad: Style


@dataclass(frozen=True)
class Canvas:
    """What lines are drawn with."""

    width: int
    glyphs: Glyphs
    colors: Colors

    @property
    def wide(self) -> bool:
        return self.width >= 100

    def line(self, *parts: str | tuple[str, Style]) -> Text:
        text = Text(no_wrap=True)
        for part in parts:
            if isinstance(part, tuple):
                text.append(*part)
            else:
                text.append(part)
        return text

    def bar(self, fraction: float, width: int) -> tuple[tuple[str, Style], tuple[str, Style]]:
        full = int(width * min(max(fraction, 0.0), 1.0))
        return (self.glyphs.weights * full, self.colors.bar), (self.glyphs.free * (width - full), self.colors.quiet)

    def cell(self, text: str, width: int) -> str:
        """``text`` in exactly ``width`` cells, its end replaced where it is too long."""
        if cell_len(text) > width:
            return set_cell_size(text, max(0, width - 1)) + self.glyphs.ellipsis
        return set_cell_size(text, width)


def name_width(names: Iterable[str], canvas: Canvas) -> int:
    """Cells for the GPU types' names."""
    return min(24 if canvas.wide else 16 if canvas.width >= NARROW else 9, max(map(cell_len, names), default=1))


def bar_width(canvas: Canvas) -> int:
    """Cells for a GPU type's bar."""
    return 24 if canvas.wide else 10 if canvas.width >= 70 else 4


def rough(seconds: float) -> str:
    """``45 s``, ``62 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def wrapped(words: str, width: int) -> list[str]:
    """``words`` in lines of at most ``width`` with a space at both ends."""
    return wrap(words, max(20, width - 2), initial_indent=" ", subsequent_indent=" ")
