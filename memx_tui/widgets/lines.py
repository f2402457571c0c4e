"""A list of lines in several colours, whose cursor line has one, so that it reads on the cursor's background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option


@dataclass(frozen=True)
class Line:
    """One line; disabled ones are passed over by the cursor."""

    content: Content
    disabled: bool = False


class Lines(OptionList):
    """An option list that is set as a whole; its text is never markup."""

    DEFAULT_CSS = """
    Lines {
        border: none; padding: 0; background: transparent; scrollbar-size-vertical: 1;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Lines:focus { border: none; }
    Lines > .option-list--option-highlighted { background: transparent; color: $foreground; text-style: none; }
    Lines:focus > .option-list--option-highlighted, Lines.-always > .option-list--option-highlighted {
        background: $block-cursor-background; color: $block-cursor-foreground;
        text-style: $block-cursor-text-style;
    }
    Lines > .option-list--option-disabled { color: $secondary; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # Textual's own parameter name
        super().__init__(id=id, classes=classes, markup=False)
        self._shown_lines: tuple[Line, ...] = ()
        self._plain_at: int | None = None

    def set_lines(self, lines: Sequence[Line], at: int | None) -> None:
        """Replace all lines and put the cursor on line ``at``."""
        self._shown_lines = tuple(lines)
        self._plain_at = None
        self.clear_options()
        self.add_options([Option(line.content, disabled=line.disabled) for line in self._shown_lines])
        self.highlighted = at
        self._restyle()

    def set_line(self, index: int, line: Line) -> None:
        """Replace one line."""
        self._shown_lines = (*self._shown_lines[:index], line, *self._shown_lines[index + 1 :])
        plain = index == self._plain_at
        self.replace_option_prompt_at_index(index, Content(line.content.plain) if plain else line.content)

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        self._restyle()

    def on_focus(self) -> None:
        self._restyle()

    def on_blur(self) -> None:
        self._restyle()

    def _restyle(self) -> None:
        shown = self.has_focus or self.has_class("-always")
        at = self.highlighted if shown else None
        if at == self._plain_at:
            return
        if self._plain_at is not None and self._plain_at < len(self._shown_lines):
            self.replace_option_prompt_at_index(self._plain_at, self._shown_lines[self._plain_at].content)
        self._plain_at = at
        if at is not None and at < len(self._shown_lines):
            self.replace_option_prompt_at_index(at, Content(self._shown_lines[at].content.plain))
