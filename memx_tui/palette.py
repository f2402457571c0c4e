"""The command palette: every action, cluster, theme and sort key by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape
from textual.screen import Screen

from memx_tui.keys import entries
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

    title: str
    explanation: str
    run: Callable[[], Any]


def commands(app: MemxApp, screen: Screen[Any]) -> Iterator[Command]:
    """Everything the palette offers over ``screen``, actions first."""
    from memx_engine import sample_clusters

    for entry in entries(screen):
        if entry.enabled and entry.binding_id != "palette":
            keys = ", ".join(entry.keys)
            yield Command(f"{entry.label} ({keys})", entry.tooltip, entry.run)
    titles = {sample.name: sample.title for sample in sample_clusters()}
    for name, title in titles.items():
        yield Command(f"Open cluster: {name}", title, partial(app.open_cluster, name))
    for source in app.session.recent:
        if source not in titles:
            yield Command(f"Open recent cluster: {source}", "opened before", partial(app.open_cluster, source))
    for name, theme in app.themes.items():
        yield Command(f"Theme: {name}", theme.title, partial(app.choose_theme, name))
    for key in SORT_KEYS:
        word = SORT_WORDS.get(key, key)
        yield Command(f"Sort plans by {word}", "list the plans in this order", partial(app.sort_plans, key))


class MemxCommands(Provider):
    """Feeds Textual's palette; names and explanations are shown literally, never as markup."""

    @property
    def _commands(self) -> Iterator[Command]:
        return commands(cast("MemxApp", self.app), self.screen)

    async def discover(self) -> Hits:
        for command in self._commands:
            yield DiscoveryHit(escape(command.title), command.run, text=command.title, help=escape(command.explanation))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in self._commands:
            score = matcher.match(f"{command.title} {command.explanation}")
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(command.title),
                    command.run,
                    text=command.title,
                    help=escape(command.explanation),
                )
