"""How text may look here: width, glyphs, colour. Meaning never rests on colour alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from memx_tui.terminal import text_width, wants_colour, wants_unicode

_CODES = {"bold": "1", "dim": "2", "good": "32", "warn": "33", "bad": "31", "accent": "36"}


@dataclass(frozen=True)
class Glyphs:
    """Characters for bars and marks. ``segments``: weights and gradients, optimizer, activations, the rest, free."""

    segments: str
    over: str
    tick: str
    pareto: str
    rule: str
    dot: str
    times: str
    minus: str
    phi: str
    ellipsis: str


UNICODE = Glyphs(
    segments="█▓▒░·", over="!", tick="│", pareto="◆", rule="─", dot=" · ", times="×", minus="−", phi="Φ", ellipsis="…"
)
ASCII = Glyphs(
    segments="#=~+.", over="!", tick="|", pareto="*", rule="-", dot=" - ", times="x", minus="-", phi="phi", ellipsis="~"
)


@dataclass(frozen=True)
class Style:
    """Everything a renderer needs to know about the place it draws for."""

    width: int = 100
    unicode: bool = True
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """The style that fits ``stream``."""
        return cls(text_width(stream), wants_unicode(stream), wants_colour(stream))

    @property
    def glyphs(self) -> Glyphs:
        return UNICODE if self.unicode else ASCII

    def paint(self, text: str, look: str) -> str:
        """``text`` in the colour called ``look`` (bold, dim, good, warn, bad, accent); unchanged without colour."""
        return f"\x1b[{_CODES[look]}m{text}\x1b[0m" if self.colour and text else text

    def plain(self, text: str) -> str:
        """``text`` with the few non-ASCII characters this tool writes itself replaced where Unicode is not wanted."""
        if self.unicode:
            return text
        for character, replacement in (("×", "x"), ("−", "-"), ("·", "-"), ("≥", ">="), ("≤", "<="), ("Φ", "phi")):
            text = text.replace(character, replacement)
        return text

    def section(self, title: str, note: str = "") -> str:
        """A heading rule over the whole width, with an optional note at its right end."""
        rule = self.glyphs.rule
        tail = f" {note} {rule}" if note else ""
        fill = max(1, self.width - len(title) - len(tail) - 4)
        return (
            self.paint(f"{rule * 2} ", "dim") + self.paint(title, "bold") + self.paint(f" {rule * fill}{tail}", "dim")
        )

    def wrap(self, text: str, indent: str = "  ", first: str | None = None) -> list[str]:
        """``text`` folded at the width; long words (paths) are left whole."""
        import textwrap

        return textwrap.wrap(
            self.plain(text),
            self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
