"""The command palette: every action, cluster, theme and sort key by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.screen import Screen

from memx_tui.keys import entries
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.session import SORT_KEYS

if TYPE_CHECKING:
    from memx_tui.app import MemxApp

SORT_WORDS = {
    "rank": "rank",
    "phi": "objective (phi)",
    "time": "iteration time",
    "tokens": "tokens per second",
    "worst": "worst GPU's memory",
    "spread": "memory spread",
    "peak": "peak memory",
    "tp": "tensor parallel size",
    "pp": "pipeline stages",
    "dp": "data parallel size",
    "mb": "micro-batch",
    "recompute": "recompute",
}


@dataclass(frozen=True)
class Command:
    """One line of the palette. ``run`` may be a coroutine function."""

    section: str
    title: str
    explanation: str
    run: Callable[[], Any]


def commands(app: MemxApp, screen: Screen[Any]) -> Iterator[Command]:
    """Everything the palette offers over ``screen``, actions first."""
    from memx_engine import sample_clusters

    for entry in entries(screen):
        if entry.enabled and entry.binding_id not in ("palette", "help"):
            title = f"{entry.label} ({entry.keys[0]})" if entry.keys else entry.label
            yield Command("Actions", title, entry.tooltip, entry.run)
    samples = {sample.name: sample.title for sample in sample_clusters()}
    for source in app.session.recent:
        if source not in samples:
            yield Command("Recent clusters", f"Open {source}", "", partial(app.open_cluster, source))
    for name, title in samples.items():
        yield Command("Sample clusters", f"Open {name}", title, partial(app.open_cluster, name))
    for key in SORT_KEYS:
        yield Command("Order of plans", f"Sort by {SORT_WORDS.get(key, key)}", "", partial(app.sort_plans, key))
    for name, theme in app.themes.items():
        yield Command("Themes", f"Theme {name}", theme.title, partial(app.choose_theme, name))


class Palette(PickDialog[Command]):
    """Every command; type to filter, Enter runs."""

    VERB = "Run"

    def __init__(self, screen: Screen[Any] | None = None) -> None:
        super().__init__("Commands", (), placeholder="type to filter: an action, a cluster, a theme")
        self._over = screen

    def on_mount(self) -> None:
        screen = self._over or self.app.screen_stack[-2]
        found = commands(cast("MemxApp", self.app), screen)
        self.set_items([Item(c, (c.title, c.explanation), c.section) for c in found])
        super().on_mount()

    def take(self, value: Command) -> None:
        self.app.call_later(value.run)
