"""An editor for a cluster file that marks the lines that have problems."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar

from rich.text import Text
from textual.events import Key
from textual.reactive import reactive
from textual.widgets import TextArea

from memx_tui.widgets.quiet import take_in_order

_KEY = re.compile(r"^(\s*(?:- )?)([\w.\-]+)(?=:)")
_COMMENT = re.compile(r"(^|\s)#.*$")


class YamlEditor(TextArea):
    """Plain text with quiet comments, coloured keys and marked lines."""

    DEFAULT_CSS = """
    YamlEditor { border: none; padding: 0; background: transparent; scrollbar-size-vertical: 1; }
    YamlEditor:focus { border: none; }
    YamlEditor .text-area--cursor-line { background: $block-hover-background; }
    YamlEditor .text-area--gutter { color: $text-muted; }
    YamlEditor .text-area--cursor-gutter { color: $foreground; background: $block-hover-background; }
    YamlEditor > .yaml--key { color: $primary; }
    YamlEditor > .yaml--comment { color: $text-muted; }
    YamlEditor > .yaml--bad { color: $error; text-style: underline; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"yaml--key", "yaml--comment", "yaml--bad"}

    cursor_blink = reactive(False, init=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own parameter name
        super().__init__("", id=id, soft_wrap=False, show_line_numbers=True, tab_behavior="focus", theme="css")
        self._bad: frozenset[int] = frozenset()

    async def _on_key(self, event: Key) -> None:
        await take_in_order(self, event)

    def show(self, text: str, bad_lines: Collection[int]) -> None:
        """Set text and marked lines (from 1); the cursor stays on its line."""
        bad = frozenset(bad_lines)
        if text != self.text:
            row, column = self.cursor_location
            self.load_text(text)
            self.move_cursor((min(row, self.document.line_count - 1), column))
        if bad != self._bad:
            self._bad = bad
            self.notify_style_update()
            self.refresh()

    def go_to_line(self, line: int) -> None:
        """Put the cursor at the start of a line, counted from 1."""
        self.move_cursor((max(0, min(line - 1, self.document.line_count - 1)), 0), center=True)

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        plain = line.plain
        if line_index + 1 in self._bad:
            line.stylize(self.get_component_rich_style("yaml--bad", partial=True))
            return line
        if match := _KEY.match(plain):
            line.stylize(self.get_component_rich_style("yaml--key", partial=True), *match.span(2))
        if match := _COMMENT.search(plain):
            line.stylize(self.get_component_rich_style("yaml--comment", partial=True), *match.span())
        return line
