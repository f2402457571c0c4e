"""What the chosen weights cost in time, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_tui.text import numbers

if TYPE_CHECKING:
    from memx_engine import RankedPlan, SearchResult

WORTH_SAYING = 0.10
"""From this saving of iteration time on, the fastest plan is named beside the chosen one."""


def is_dear(result: SearchResult, chosen: RankedPlan) -> bool:
    """The fastest plan found takes at least a tenth less time than the chosen one."""
    quick = result.time_optimal.estimate.iteration_time_s
    return quick < (1.0 - WORTH_SAYING) * chosen.estimate.iteration_time_s


def price_words(result: SearchResult, chosen: RankedPlan) -> str:
    """The fastest plan with its fullest GPU, and how to lean towards it; empty where the chosen one is near it."""
    if not is_dear(result, chosen):
        return ""
    return f"The fastest plan found takes {_figures(result, chosen)}: --weights throughput, or 1,0,0."


def short_price(result: SearchResult, chosen: RankedPlan) -> tuple[str, ...]:
    """The same for the status, longest first; empty where the chosen plan is near the fastest."""
    if not is_dear(result, chosen):
        return ()
    quick = result.time_optimal.estimate
    time, shorter = (
        numbers.seconds(quick.iteration_time_s),
        numbers.change(quick.iteration_time_s, chosen.estimate.iteration_time_s),
    )
    return (
        f"fastest {_figures(result, chosen)}: weights throughput or 1,0,0",
        f"fastest {time} s ({shorter}): weights 1,0,0",
        f"fastest {shorter}: weights 1,0,0",
    )


def _figures(result: SearchResult, chosen: RankedPlan) -> str:
    quick, ours = result.time_optimal.estimate, chosen.estimate
    return (
        f"{numbers.seconds(quick.iteration_time_s)} s "
        f"({numbers.change(quick.iteration_time_s, ours.iteration_time_s)}) at "
        f"{numbers.percent(quick.worst_gpu.used_fraction)} memory"
    )
