"""Fields to type in: a steady cursor, so that an idle screen sends nothing, and editing keys taken in order."""

from __future__ import annotations

from textual.events import Key
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input


async def take_in_order(widget: Widget, event: Key) -> None:
    """Run an editing key of the widget's own as it arrives.

    Textual inserts a character at once, but runs a binding only after its key has bubbled up to the app: of backspace
    and a digit that arrive together the digit would come first, and be what backspace deletes. Enter is no editing key:
    it must not overtake an arrow that the dialog around the field takes.
    """
    if event.is_printable:
        return
    for binding in widget._bindings.key_to_bindings.get(event.key, ()):
        if binding.action != "submit" and await widget.app.run_action(binding.action, widget):
            event.stop()
            event.prevent_default()
            return


class QuietInput(Input):
    """Textual's input with a steady cursor and its keys in order."""

    cursor_blink = reactive(False, init=False)

    async def _on_key(self, event: Key) -> None:
        await take_in_order(self, event)
