"""Help: every key, the focused pane's first; type to filter, Enter runs the line."""

from __future__ import annotations

from typing import cast

from textual.content import Content
from textual.screen import Screen

from memx_tui.keys import Entry, entries
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.widgets.pane import Pane


class HelpDialog(PickDialog[Entry]):
    """All bindings of a screen.

    Args:
        screen: The screen to explain; the one that is open when None.
    """

    VERB = "Run"
    MAX_FIRST = 14

    def __init__(self, screen: Screen[object] | None = None) -> None:
        super().__init__("Help", (), placeholder="type to filter: a key, a word")
        self._explained = screen

    def on_mount(self) -> None:
        screen = self._explained or cast("Screen[object]", self.app.screen_stack[-2])
        found = entries(screen)
        items = [
            Item(
                entry,
                (", ".join(entry.keys), entry.label, "" if entry.tooltip == entry.label else entry.tooltip),
                section=_heading(entry, screen),
                words=entry.binding_id,
                enabled=entry.enabled,
            )
            for entry in found
        ]
        self.set_items(items)
        self._label = max((len(item.cells[1]) for item in items), default=0)
        super().on_mount()

    def _line(self, item: Item[Entry]) -> Content:
        keys, label, tooltip = item.cells
        quiet = "$secondary"
        return Content.assemble(
            "  ",
            (keys.ljust(self._first), "$accent bold" if item.enabled else quiet),
            "  ",
            (label.ljust(self._label), "" if item.enabled else quiet),
            (f"  {tooltip}" if item.enabled else "  not now", quiet),
        )

    def take(self, value: Entry) -> None:
        self.app.call_later(value.run)


def _heading(entry: Entry, screen: Screen[object]) -> str:
    if entry.section == "This screen" and screen.title:
        return f"This screen: {screen.title}"
    if entry.section == "This pane":
        pane = next((node for node in entry.node.ancestors_with_self if isinstance(node, Pane)), None)
        if pane is not None and pane.title_bar.text:
            return f"This pane: {pane.title_bar.text}"
    return entry.section
