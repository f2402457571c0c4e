"""A pane: one title line with a rule, and the content below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from memx_tui.widgets.chrome import fit


class PaneTitle(Widget):
    """``-- Memory, plan #1 -------------- legend --``; the right side goes when it does not fit."""

    DEFAULT_CSS = """
    PaneTitle { height: 1; color: $text-muted; }
    PaneTitle > .pane--title { color: $foreground; text-style: bold; }
    PaneTitle.-focused > .pane--title { color: $accent; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"pane--title"}

    def __init__(self, title: str, rule: str) -> None:
        super().__init__()
        self._title = title
        self._rule = rule
        self._right: Sequence[Text] = ()

    def show(self, title: str, right: Sequence[Text] = ()) -> None:
        """Set the line. ``right``: versions, longest first; the longest that fits is shown."""
        if title != self._title or list(right) != list(self._right):
            self._title, self._right = title, right
            self.refresh()

    @property
    def text(self) -> str:
        return self._title

    def render(self) -> Text:
        width = self.size.width
        title = fit(self._title, max(0, width - 6))
        text = Text(no_wrap=True, overflow="crop")
        text.append(self._rule * 2 + " ").append(title, self.get_component_rich_style("pane--title", partial=True))
        text.append(" ")
        room = width - text.cell_len - 4
        right = next((r for r in self._right if r.cell_len <= room), None)
        if right is None:
            return text.append(self._rule * max(0, width - text.cell_len))
        text.append(self._rule * max(1, width - text.cell_len - right.cell_len - 4) + " ")
        return text.append_text(right).append(" " + self._rule * 2)


class Pane(Vertical):
    """A titled region of a screen. ``title``: at start; :attr:`title_bar` changes it."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """

    def __init__(self, title: str, content: Widget, *, rule: str = "─", id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.title_bar = PaneTitle(title, rule)
        self.content = content

    def compose(self) -> ComposeResult:
        yield self.title_bar
        yield self.content

    def on_descendant_focus(self) -> None:
        self.title_bar.add_class("-focused")

    def on_descendant_blur(self) -> None:
        self.title_bar.remove_class("-focused")
