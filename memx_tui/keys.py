"""What can be done right now: every binding of the focused pane, its screen, the other panes and the app."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

_KEY_WORDS = {
    "question_mark": "?",
    "slash": "/",
    "space": "space",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "colon": ":",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "enter": "enter",
    "backspace": "backspace",
    "delete": "del",
    "pageup": "pgup",
    "pagedown": "pgdn",
}


@dataclass(frozen=True)
class Entry:
    """One action with its keys.

    Attributes:
        section: ``This pane``, ``This screen``, ``Other panes`` or ``Everywhere``.
        node: Where the action runs.
        enabled: The action can run now.
    """

    binding_id: str
    section: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    action: str
    node: DOMNode
    enabled: bool

    async def run(self) -> None:
        """Run the action where it belongs; a pane that is not focused is focused first."""
        if isinstance(self.node, Widget) and self.node.focusable:
            self.node.focus()
        await self.node.app.run_action(self.action, self.node)


def key_word(key: str) -> str:
    """A key as people write it: ``?``, ``ctrl+p``, ``S``."""
    key = key.strip()
    return _KEY_WORDS.get(key, key)


def declared(node: DOMNode | type[DOMNode]) -> Iterator[Binding]:
    """The bindings with an id that a node's class and its bases declare, nearest class first."""
    seen: set[str] = set()
    for cls in (node if isinstance(node, type) else type(node)).__mro__:
        for binding in vars(cls).get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id and binding.id not in seen:
                seen.add(binding.id)
                yield binding


def entries(screen: Screen[object]) -> list[Entry]:
    """Everything that can be pressed on ``screen``, the focused pane first; each binding once."""
    out: list[Entry] = []
    seen: set[str] = set()
    active: dict[str, tuple[list[str], bool]] = {}
    for key, found in screen.active_bindings.items():
        if found.binding.id:
            keys, _ = active.setdefault(found.binding.id, ([], found.enabled))
            keys.append(key_word(key))
    for section, node in _places(screen):
        for binding in declared(node):
            assert binding.id is not None
            if binding.id in seen:
                continue
            seen.add(binding.id)
            words = [key_word(key) for key in binding.key.split(",")]
            enabled = section == "Other panes"
            if binding.id in active:
                words, enabled = active[binding.id]
            label = binding.description or binding.tooltip
            out.append(Entry(binding.id, section, tuple(words), label, binding.tooltip, binding.action, node, enabled))
    return out


def _places(screen: Screen[object]) -> Iterator[tuple[str, DOMNode]]:
    focused = screen.focused
    chain = [node for node in focused.ancestors_with_self if node is not screen] if focused else []
    for node in chain:
        if isinstance(node, Widget):
            yield "This pane", node
    yield "This screen", screen
    for widget in screen.walk_children(Widget):
        if widget not in chain and widget.display:
            yield "Other panes", widget
    yield "Everywhere", screen.app


def binding_ids() -> set[str]:
    """Every binding id of the app, its screens, dialogs and panes."""
    import memx_tui

    for module in iter_modules(memx_tui.__path__, "memx_tui."):
        if module.ispkg and module.name in ("memx_tui.screens", "memx_tui.widgets"):
            for inner in iter_modules(import_module(module.name).__path__, f"{module.name}."):
                import_module(inner.name)
    found: set[str] = set()
    waiting: list[type[DOMNode]] = [DOMNode]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("memx_tui."):
            found |= {binding.id for binding in declared(cls) if binding.id}
    return found
