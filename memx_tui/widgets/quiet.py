"""Inputs whose cursor does not blink: an idle screen sends nothing over the line."""

from __future__ import annotations

from textual.reactive import reactive
from textual.widgets import Input


class QuietInput(Input):
    """Textual's input with a steady cursor."""

    cursor_blink = reactive(False, init=False)
