"""The numbered screens: their keys, names, and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from textual.screen import Screen


@dataclass(frozen=True)
class Mode:
    """One numbered screen; ``screen`` is ``module:class``, imported when it is first opened."""

    key: str
    name: str
    label: str
    screen: str

    def build(self) -> Screen[None]:
        module, _, name = self.screen.partition(":")
        screen: Screen[None] = getattr(import_module(module), name)()
        return screen


MODE_TABLE = (
    Mode("1", "cluster", "Cluster", "memx_tui.screens.cluster:ClusterScreen"),
    Mode("2", "profile", "Profile", "memx_tui.screens.profile:ProfileScreen"),
    Mode("3", "plans", "Plans", "memx_tui.screens.plans:PlansScreen"),
    Mode("4", "compare", "Compare", "memx_tui.screens.compare:CompareScreen"),
)
"""The screens by their keys."""
