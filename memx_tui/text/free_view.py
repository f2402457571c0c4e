"""Free hyper-parameters: every combination with its best plan."""

from __future__ import annotations

from collections.abc import Callable

from memx_engine import FreeSearch, SearchResult
from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import layers_by_type
from memx_tui.text.style import Style


def free_text(free: FreeSearch, style: Style) -> list[str]:
    """A section above the answer: the combinations, the best one first."""
    rows = sorted(
        free.searched,
        key=lambda one: (one is not free.searched[free.best], one.result is None, _phi(one.result)),
    )

    def cells(show: Callable[[SearchResult], str], none: str = "") -> list[str]:
        return [none if one.result is None else show(one.result) for one in rows]

    columns = [
        Column("batch", [str(one.variant.job.global_batch) for one in rows], right=True),
        Column("seq", [str(one.variant.job.seq_len) for one in rows], right=True),
        Column("heads", [f"{one.variant.model.heads}/{one.variant.model.kv_heads}" for one in rows], right=True),
        Column(style.glyphs.phi, cells(lambda r: numbers.phi(r.plans[0].phi), "-"), right=True),
        Column("us/token", [f"{one.s_per_token * 1e6:.2f}" if one.result else "-" for one in rows], right=True),
        Column("time s", cells(lambda r: numbers.seconds(r.plans[0].estimate.iteration_time_s)), right=True),
        Column("tok/s", cells(lambda r: numbers.rate(r.plans[0].estimate.tokens_per_s)), right=True),
        Column("tp pp dp mbs", cells(_shape), drop=1),
        Column("layers", cells(lambda r: layers_by_type(r.plans[0].plan, style), "nothing fits"), shrink=12),
    ]
    proven = "Proven optimal over all of them." if free.optimal else "Not proven optimal."
    words = (
        "Compared by time per token, with one set of references; what a batch, a sequence or heads are worth to the "
        f"trained model is not weighed. {proven} "
        "Below, the best of these."
    )
    lines = [style.section("Free hyper-parameters"), *table(columns, style, highlight=0)]
    return [*lines, *style.wrap(words, " "), ""]


def _phi(result: SearchResult | None) -> float:
    return float("inf") if result is None else result.plans[0].phi


def _shape(result: SearchResult) -> str:
    s = result.plans[0].plan.skeleton
    return f"{s.tp} {s.pp} {s.dp} {s.micro_batch}"
