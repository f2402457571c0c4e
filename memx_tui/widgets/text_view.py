"""Lines of text that scroll; at the end it stays at the end while lines are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

_AGAIN_S = 0.05
_TRIES = 40


class TextView(ScrollView, can_focus=True):
    """Shows lines as they are, cut at its width.

    Args:
        follow: Keep the last line in sight when the view stands there.
    """

    DEFAULT_CSS = """
    TextView { scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: auto; background: transparent; }
    TextView > .text--bar { color: $primary; }
    TextView > .text--quiet { color: $secondary; }
    TextView > .text--good { color: $success; }
    TextView > .text--warning { color: $warning; }
    TextView > .text--bad { color: $error; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "text--bar",
        "text--quiet",
        "text--good",
        "text--warning",
        "text--bad",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down", id="text.down", show=False, tooltip="A line down"),
        Binding("k", "scroll_up", "Up", id="text.up", show=False, tooltip="A line up"),
        Binding("g", "scroll_home", "First", id="text.first", show=False, tooltip="To the first line"),
        Binding("G", "scroll_end", "Last", id="text.last", show=False, tooltip="To the last line, and follow it"),
    ]

    def __init__(self, *, follow: bool = False, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.follow = follow
        self._lines: tuple[Text, ...] = ()
        self._pinned = True
        self._tries = 0

    @property
    def lines(self) -> tuple[Text, ...]:
        """What is shown."""
        return self._lines

    def set_lines(self, lines: Sequence[Text], *, top: bool = False) -> None:
        """Replace all lines. ``top``: show the first one, whatever was in sight."""
        new = tuple(lines)
        if new == self._lines and not top:
            return
        self._lines = new
        height = len(new)
        if self.virtual_size.height != height:
            self.virtual_size = Size(self.size.width, height)
        if top:
            self.scroll_to(y=0, animate=False, immediate=True)
        if self.follow and self._pinned and not top:
            self.chase()
        self.refresh()

    def chase(self) -> None:
        """Go to the last line, and stay there until somebody scrolls away from it."""
        self._pinned = True
        self._tries = _TRIES
        self.call_after_refresh(self._arrive)

    def _arrive(self) -> None:
        if not self._pinned:
            return
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
        # On a busy machine the layout may still be that of fewer lines or another height: look again soon.
        last = len(self._lines) - self.scrollable_content_region.height
        if self.scroll_offset.y < last and self._tries > 0:
            self._tries -= 1
            self._pinned = True
            self.set_timer(_AGAIN_S, self._arrive)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        # Only a move tells what the reader wants, and only one upwards leaves the end: lines that come, a size that
        # changes and an arrival in steps do not.
        if new_value >= self.max_scroll_y:
            self._pinned = True
        elif new_value < old_value:
            self._pinned = False

    def on_resize(self) -> None:
        if self.follow and self._pinned:
            self.chase()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self._lines))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        if not 0 <= index < len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[index].copy()
        line.truncate(width, overflow="ellipsis")
        strip = Strip(line.render(self.app.console), line.cell_len)
        return strip.apply_style(self.rich_style).adjust_cell_length(width, self.rich_style)
