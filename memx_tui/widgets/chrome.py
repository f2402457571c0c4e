"""The rows that are on every screen: title, tabs and footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual.events import Click, Resize
from textual.message import Message
from textual.widget import Widget

MAX_HINTS_AT_80 = 8


@dataclass(frozen=True)
class Hint:
    """One footer entry: what to press, what it does, and the action a click runs."""

    key: str
    label: str
    action: str


@dataclass(frozen=True)
class Tab:
    """One screen in the tab row."""

    key: str
    label: str
    mode: str


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """``text`` cut to ``width`` cells, its end replaced by ``ellipsis`` where it is too long."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - cell_len(ellipsis))).rstrip() + ellipsis if width > 0 else ""


class TitleBar(Widget):
    """Program, cluster and job at the left; counts and provenance at the right, which go whole or not at all."""

    DEFAULT_CSS = """
    TitleBar { height: 1; background: $panel; color: $foreground; }
    TitleBar > .title--name { text-style: bold; color: $accent; }
    TitleBar > .title--right { color: $foreground; }
    TitleBar > .title--warning { color: $warning; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"title--name", "title--right", "title--warning"}

    def __init__(self) -> None:
        super().__init__()
        self._left: Sequence[str] = ()
        self._right: Sequence[tuple[str, bool]] = ()

    def show(self, left: Sequence[str], right: Sequence[tuple[str, bool]]) -> None:
        """Set the row.

        Args:
            left: Versions of the description, longest first; the longest that fits is shown.
            right: Words with whether each is a warning.
        """
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    def render(self) -> Text:
        width = self.size.width
        right = Text(no_wrap=True)
        for word, warning in self._right_words(width - 7):
            if word:
                style = self.get_component_rich_style("title--warning" if warning else "title--right", partial=True)
                right.append("  ").append(word, style)
        room = width - 6 - right.cell_len - 1
        left = next((text for text in self._left if cell_len(text) <= room), self._left[-1] if self._left else "")
        text = Text(no_wrap=True, overflow="crop")
        text.append(" memx ", self.get_component_rich_style("title--name", partial=True))
        text.append(fit(left, max(0, room)))
        text.append(" " * max(0, width - text.cell_len - right.cell_len - 1))
        return text.append_text(right)

    def _right_words(self, room: int) -> list[tuple[str, bool]]:
        """The right words; where they do not fit, plain ones go, the last, which says what all rests on, never."""
        words = [(word, warning) for word, warning in self._right if word]
        while sum(2 + cell_len(word) for word, _ in words) > room:
            plain = [index for index, (_, warning) in enumerate(words[:-1]) if not warning]
            if not plain:
                break
            del words[plain[-1]]
        return words


class TabBar(Widget):
    """The screens, the open one in brackets; status at the right."""

    DEFAULT_CSS = """
    TabBar { height: 1; background: $surface; color: $text-muted; }
    TabBar > .tab--open { text-style: bold; color: $accent; }
    TabBar > .tab--status { color: $foreground; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"tab--open", "tab--status"}

    @dataclass
    class Chosen(Message):
        """A tab was clicked."""

        mode: str

    def __init__(self) -> None:
        super().__init__()
        self._tabs: Sequence[Tab] = ()
        self._open = ""
        self._status: Sequence[str] = ()
        self._spans: list[tuple[int, int, str]] = []

    def show(self, tabs: Sequence[Tab], open_mode: str, status: Sequence[str]) -> None:
        """Set the row. ``status``: versions, longest first; the longest that fits is shown."""
        if (tabs, open_mode, status) != (self._tabs, self._open, self._status):
            self._tabs, self._open, self._status = tabs, open_mode, status
            self.refresh()

    def render(self) -> Text:
        text = Text(no_wrap=True, overflow="crop")
        self._spans = []
        labels = self._labels(self.size.width)
        for tab, label in zip(self._tabs, labels, strict=True):
            start = text.cell_len
            is_open = tab.mode == self._open
            text.append(label, self.get_component_rich_style("tab--open", partial=True) if is_open else Style())
            self._spans.append((start, text.cell_len, tab.mode))
        room = self.size.width - text.cell_len - 2
        status = next((s for s in self._status if cell_len(s) <= room), self._status[-1] if self._status else "")
        status = fit(status, max(0, room))
        text.append(" " * max(0, self.size.width - text.cell_len - cell_len(status) - 1))
        return text.append(status, self.get_component_rich_style("tab--status", partial=True))

    def _labels(self, width: int) -> list[str]:
        """The tabs' words; without the space between them, then the closed ones without names, where it is narrow."""
        words = [f"{tab.key} {tab.label}" for tab in self._tabs]
        is_open = [tab.mode == self._open for tab in self._tabs]
        wide = [f"[{word}]" if now else f" {word} " for word, now in zip(words, is_open, strict=True)]
        if sum(map(cell_len, wide)) <= width:
            return wide
        close = [f"[{word}]" if now else word for word, now in zip(words, is_open, strict=True)]
        for n in range(len(close) - 1):
            close[n] += "" if is_open[n] or is_open[n + 1] else " "
        if sum(map(cell_len, close)) <= width:
            return close
        return [
            f"[{word}]" if now else f" {tab.key} " for word, now, tab in zip(words, is_open, self._tabs, strict=True)
        ]

    def on_click(self, event: Click) -> None:
        for start, end, mode in self._spans:
            if start <= event.x < end:
                self.post_message(self.Chosen(mode))


def _hint_cells(hint: Hint) -> int:
    return 1 + cell_len(hint.key) + 1 + cell_len(hint.label) + 1


class FooterBar(Widget):
    """Key hints of the open screen. What does not fit whole is left out, the last first; ``?`` and quit stay."""

    DEFAULT_CSS = """
    FooterBar { height: 1; dock: bottom; background: $panel; color: $foreground; }
    FooterBar > .hint--key { text-style: bold; color: $accent; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"hint--key"}

    @dataclass
    class Pressed(Message):
        """A hint was clicked."""

        action: str

    def __init__(self) -> None:
        super().__init__()
        self._hints: Sequence[Hint] = ()
        self._spans: list[tuple[int, int, str]] = []

    def show(self, hints: Sequence[Hint]) -> None:
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    @property
    def shown(self) -> tuple[Hint, ...]:
        """The hints that fit at the present width."""
        width = self.size.width
        limit = MAX_HINTS_AT_80 if width <= 80 else 14
        out: list[Hint] = []
        used = 0
        last = next((hint for hint in reversed(self._hints) if hint.action == "request_quit"), None)
        kept = (last,) if last is not None and last not in self._hints[:limit] else ()
        width -= sum(_hint_cells(hint) for hint in kept)
        for hint in self._hints[: limit - len(kept)]:
            needed = _hint_cells(hint)
            if used + needed > width:
                break
            out.append(hint)
            used += needed
        return (*out, *(hint for hint in kept if hint not in out))

    def render(self) -> Text:
        text = Text(no_wrap=True, overflow="crop")
        key_style = self.get_component_rich_style("hint--key", partial=True)
        self._spans = []
        for hint in self.shown:
            start = text.cell_len
            text.append(" ").append(hint.key, key_style).append(f" {hint.label} ")
            self._spans.append((start, text.cell_len, hint.action))
        return text

    def on_resize(self, event: Resize) -> None:
        self.refresh()

    def on_click(self, event: Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                self.post_message(self.Pressed(action))
