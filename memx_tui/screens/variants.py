"""The list of combinations of free hyper-parameters; the one that is chosen is shown with all its plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_tui.screens.pick import Item, PickDialog
from memx_tui.text import numbers

if TYPE_CHECKING:
    from memx_engine import FreeSearch, SearchResult
    from memx_tui.glyphs import Glyphs


def variants_dialog(free: FreeSearch, shown: SearchResult, glyphs: Glyphs) -> PickDialog[int]:
    """Every combination with its best plan, the best first; the value is its place in ``free.searched``."""
    searched = free.searched
    order = sorted(range(len(searched)), key=lambda i: (i != free.best, searched[i].s_per_token))
    items = []
    for i in order:
        variant, result = searched[i].variant, searched[i].result
        name = f"batch {variant.job.global_batch}, seq {variant.job.seq_len}"
        heads = f"heads {variant.model.heads}/{variant.model.kv_heads}"
        if result is None:
            items.append(Item(i, (name, heads, "nothing fits"), words=searched[i].problem, enabled=False))
            continue
        best = result.plans[0]
        figures = (
            f"{glyphs.phi} {numbers.phi(best.phi)}  {searched[i].s_per_token * 1e6:.2f} us/token  "
            f"{numbers.seconds(best.estimate.iteration_time_s)} s"
        )
        items.append(Item(i, (name, heads, figures)))
    at = next((i for i, one in enumerate(searched) if one.result is shown), free.best)
    return PickDialog("Combinations by time per token, the best first", items, selected=at)
