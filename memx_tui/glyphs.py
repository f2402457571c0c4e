"""The characters that carry meaning, in Unicode and in ASCII; every screen reads without colour by these alone."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter


@dataclass(frozen=True)
class Glyphs:
    """One set of characters, each one cell wide unless said otherwise.

    Attributes:
        weights, optimizer, activations, other, free, over: Segments of a memory bar.
        tick: Where a GPU's capacity ends.
        recompute: Plot glyph of each recompute class of :data:`memx_tui.columns.RECOMPUTE_CLASSES`, in that order.
        at_most: Written before a time that is an upper bound.
    """

    weights: str = "█"
    optimizer: str = "▓"
    activations: str = "▒"
    other: str = "░"
    free: str = "·"
    over: str = "!"
    tick: str = "│"
    cursor: str = "▶"
    worst: str = "◀"
    selected: str = "◉"
    recompute: tuple[str, ...] = ("•", "+", "×", "○", "◇")
    horizontal: str = "─"
    vertical: str = "│"
    corner: str = "┐"
    ascending: str = "▲"
    descending: str = "▼"
    at_most: str = "≤"
    dot: str = "·"
    phi: str = "Φ"
    ellipsis: str = "…"


UNICODE = Glyphs()
ASCII = Glyphs(
    weights="#",
    optimizer="=",
    activations="~",
    other="+",
    free="-",
    over="!",
    tick="|",
    cursor=">",
    worst="<",
    selected="@",
    recompute=(".", "+", "x", "o", "*"),
    horizontal="-",
    vertical="|",
    corner="+",
    ascending="^",
    descending="v",
    at_most="<",
    dot="-",
    phi="Phi",
    ellipsis="~",
)

_TABLE = {
    **dict.fromkeys(map(ord, "─━═╌╍┄┅┈┉▔▁⎯‐‑‒–—−"), "-"),
    **dict.fromkeys(map(ord, "│┃║╎╏┆┇┊┋▏▕▎▍▌▐❘"), "|"),
    **dict.fromkeys(map(ord, "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╰╯┡┢┩┪╇╈╞╡╪"), "+"),
    **dict.fromkeys(map(ord, "█▇▆▅▉▊▋■▪"), "#"),
    **dict.fromkeys(map(ord, "▓▄▃▀▂"), "="),
    **dict.fromkeys(map(ord, "▒"), "~"),
    **dict.fromkeys(map(ord, "░·•∙…"), "."),
    **dict.fromkeys(map(ord, "×✕✗✘╳"), "x"),
    **dict.fromkeys(map(ord, "○◯⬤●◌"), "o"),
    **dict.fromkeys(map(ord, "◇◆★☆"), "*"),
    **dict.fromkeys(map(ord, "▶▸►→❯›≥"), ">"),
    **dict.fromkeys(map(ord, "◀◂◄←❮‹≤"), "<"),
    **dict.fromkeys(map(ord, "▲△↑⇧"), "^"),
    **dict.fromkeys(map(ord, "▼▽↓"), "v"),
    **dict.fromkeys(map(ord, "‘’′"), "'"),
    **dict.fromkeys(map(ord, "“”″"), '"'),
    **dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2009"), " "),
    ord("◉"): "@",
    ord("Φ"): "P",
    ord("±"): "~",
    ord("≈"): "~",
    ord("✓"): "v",
}


def to_ascii(text: str) -> str:
    """``text`` with every drawing character replaced by one ASCII character; letters a user typed stay as they are."""
    if text.isascii():
        return text
    translated = text.translate(_TABLE)
    return "".join(
        "." if 0x2800 <= ord(char) <= 0x28FF or 0x2190 <= ord(char) <= 0x2BFF else char for char in translated
    )


class AsciiFilter(LineFilter):
    """Replaces drawing characters in everything that reaches the terminal, whichever widget drew them."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control or segment.text.isascii() else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]
