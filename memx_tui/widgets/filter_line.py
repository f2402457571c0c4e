"""The filter line: applied while typing, bad tokens red with the reason, Enter keeps, esc clears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.highlighter import Highlighter
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from memx_tui.filter import FIELDS, WORDS, Filter, parse_filter
from memx_tui.widgets.chrome import fit
from memx_tui.widgets.quiet import QuietInput

HELP = f"{' '.join(FIELDS)}  {' '.join(WORDS)}   enter keeps, esc clears"
SHORT_HELP = "tp pp dp mb v rank phi time tok worst peak spread type feasible fits tight"
"""What fits 80 columns; the help (?) has the rest."""


class _BadTokens(Highlighter):
    """Colours what the filter cannot use."""

    def __init__(self) -> None:
        self.style = Style(underline=True)

    def highlight(self, text: Text) -> None:
        for bad in parse_filter(text.plain).bad:
            text.stylize(self.style, bad.start, bad.end)


class FilterLine(Vertical):
    """Hidden until it is opened."""

    DEFAULT_CSS = """
    FilterLine { dock: bottom; height: 2; display: none; margin-bottom: 1; background: $surface; }
    FilterLine.-open { display: block; }
    FilterLine > Input { padding: 0 1; background: $surface; }
    FilterLine > Static { height: 1; padding: 0 1; color: $text-muted; }
    FilterLine > Static.-bad { color: $text-error; }
    FilterLine > .filter--bad { color: $error; text-style: bold underline; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"filter--bad"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Clear", id="filter.clear", show=False, tooltip="Clear the filter and close it"),
    ]

    @dataclass
    class Changed(Message):
        """The text is another; ``parsed`` is what can be used of it."""

        text: str
        parsed: Filter

    @dataclass
    class Closed(Message):
        """The line was left with Enter or esc."""

    def __init__(self) -> None:
        super().__init__()
        self._highlighter = _BadTokens()
        self._input = QuietInput(
            placeholder="tp<=4 pp>=2 worst<90 feasible", highlighter=self._highlighter, compact=True
        )
        self._reason = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._input
        yield self._reason

    def open(self, text: str) -> None:
        """Show the line with ``text`` in it and take the keys."""
        self._highlighter.style = self.get_component_rich_style("filter--bad", partial=True)
        self.add_class("-open")
        with self._input.prevent(Input.Changed):
            self._input.value = text
        self._input.cursor_position = len(text)
        self._say(parse_filter(text))
        self._input.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        parsed = parse_filter(event.value)
        self._say(parsed)
        self.post_message(self.Changed(event.value, parsed))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close()

    def action_clear(self) -> None:
        self._input.value = ""
        self._close()

    def _close(self) -> None:
        self.remove_class("-open")
        self.post_message(self.Closed())

    def _say(self, parsed: Filter) -> None:
        self._reason.set_class(bool(parsed.bad), "-bad")
        room = max(20, self.size.width - 2)
        words = parsed.bad[-1].reason if parsed.bad else HELP if len(HELP) <= room else SHORT_HELP
        self._reason.update(Text(fit(words, room), no_wrap=True))
