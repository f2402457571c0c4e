"""The Plans screen: ranked table, memory, Pareto plot and reasons; one selection."""

from __future__ import annotations

from memx_tui.screens.base import ModeScreen


class PlansScreen(ModeScreen):
    """Every feasible skeleton's best plan."""

    MODE = "plans"
