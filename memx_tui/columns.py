"""A search result as numpy columns, for the table, the filter and the plot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from memx_engine import Plan, PlanTable, SearchResult

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RECOMPUTE_CLASSES = ("none", "selective", "full", "block", "mixed")
"""How a plan recomputes, coarsely: the same on every stage, or ``mixed``. ``full`` includes ``uniform:N``."""


def recompute_class(plan: Plan) -> int:
    """Index into :data:`RECOMPUTE_CLASSES`."""
    kinds = {stage.recompute.kind for stage in plan.stages}
    if len(kinds) > 1:
        return 4
    kind = kinds.pop()
    return {"none": 0, "selective": 1, "full": 2, "uniform": 2, "block": 3}[kind]


def recompute_words(plan: Plan) -> str:
    """Recompute of all stages in the method's words, neighbours folded: ``full x2, none``."""
    parts: list[tuple[str, int]] = []
    for stage in plan.stages:
        word = str(stage.recompute)
        if parts and parts[-1][0] == word:
            parts[-1] = (word, parts[-1][1] + 1)
        else:
            parts.append((word, 1))
    if len(parts) == 1:
        return parts[0][0]
    return ", ".join(word if count == 1 else f"{word} x{count}" for word, count in parts)


@dataclass(frozen=True)
class FrontPoints:
    """Plans of the front that are no rows of the table: another plan of their skeleton has less Phi."""

    recompute: Ints
    time_s: Floats
    peak_bytes: Floats
    spread_bytes: Floats

    @classmethod
    def beside(cls, result: SearchResult) -> FrontPoints:
        table = result.table
        plans = [p for p in result.pareto if not (p.rank <= len(table) and table.plans[p.rank - 1] == p.plan)]
        return cls(
            np.array([recompute_class(p.plan) for p in plans], dtype=np.int64),
            np.array([p.estimate.iteration_time_s for p in plans]),
            np.array([p.estimate.peak_bytes for p in plans]),
            np.sqrt(np.array([p.estimate.memory_variance_bytes2 for p in plans])),
        )


@dataclass(frozen=True, eq=False)
class PlanColumns:
    """Columns of length n in rank order, one per thing that can be shown, sorted or filtered.

    Attributes:
        spread_bytes: Standard deviation of the peaks over the plan's GPUs, in bytes.
        worst: Highest peak / capacity as a fraction.
        recompute: Index into :data:`RECOMPUTE_CLASSES`.
    """

    tp: Ints
    pp: Ints
    dp: Ints
    mb: Ints
    vpp: Ints
    recompute: Ints
    time_s: Floats
    tokens_per_s: Floats
    peak_bytes: Floats
    spread_bytes: Floats
    worst: Floats
    phi: Floats
    worst_type: tuple[str, ...]
    by_events: NDArray[np.bool_]
    pareto: NDArray[np.bool_]
    beside: FrontPoints | None = None

    def __len__(self) -> int:
        return len(self.time_s)

    @classmethod
    def of_result(cls, result: SearchResult) -> PlanColumns:
        """Columns of the result's table, and what its front has beside it."""
        return replace(cls.of(result.table), beside=FrontPoints.beside(result))

    @classmethod
    def of(cls, table: PlanTable) -> PlanColumns:
        """Columns of ``table``; about 2 microseconds a row."""
        n = len(table)
        numbers = np.empty((7, n), dtype=np.int64)
        for row, plan in enumerate(table.plans):
            s = plan.skeleton
            numbers[:, row] = (
                s.tp,
                s.pp,
                s.dp,
                s.micro_batch,
                s.virtual_stages,
                recompute_class(plan),
                s.global_batch * s.seq_len,
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            tokens = numbers[6] / table.time_s
        return cls(
            tp=numbers[0],
            pp=numbers[1],
            dp=numbers[2],
            mb=numbers[3],
            vpp=numbers[4],
            recompute=numbers[5],
            time_s=table.time_s,
            tokens_per_s=tokens,
            peak_bytes=table.peak_bytes,
            spread_bytes=np.sqrt(np.maximum(table.variance_bytes2, 0.0)),
            worst=table.worst_fraction,
            phi=table.phi,
            worst_type=table.worst_type,
            by_events=table.by_events,
            pareto=table.pareto,
        )
