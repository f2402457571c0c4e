"""Plans side by side as rows: what each has, how it differs from the base, and whether that is better or worse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memx_engine import gib
from memx_tui.columns import recompute_words
from memx_tui.text import numbers
from memx_tui.widgets.memory_bars import BarRow, rows_of

if TYPE_CHECKING:
    from memx_engine import RankedPlan


@dataclass(frozen=True)
class Metric:
    """A number to compare.

    Attributes:
        better: -1 where less is better, 1 where more is, 0 where neither can be said.
        unit: Written after value and difference.
        points: The value is a share; its difference is given in points, not relative to itself.
    """

    name: str
    value: Callable[[RankedPlan], float]
    show: Callable[[float], str]
    better: int
    unit: str = ""
    points: bool = False


def _part(name: str) -> Callable[[RankedPlan], float]:
    return lambda plan: float(plan.estimate.time_breakdown_s.get(name, 0.0))


_TOTALS = (
    Metric("iteration time", lambda p: p.estimate.iteration_time_s, numbers.seconds, -1, " s"),
    Metric("tokens/s", lambda p: p.estimate.tokens_per_s, numbers.rate, 1),
    Metric("worst GPU", lambda p: p.estimate.worst_gpu.used_fraction, numbers.percent, -1, points=True),
    Metric("peak memory", lambda p: gib(p.estimate.peak_bytes), lambda v: f"{v:.1f}", -1, " GiB"),
    Metric(
        "memory spread",
        lambda p: numbers.spread_gib(p.estimate.memory_variance_bytes2),
        lambda v: f"{v:.2f}",
        -1,
        " GiB",
    ),
    Metric("phi", lambda p: p.phi, numbers.phi, -1),
)

_TIME_PARTS = (
    Metric("  compute", _part("compute"), numbers.seconds, -1, " s"),
    Metric("  recompute", _part("recompute"), numbers.seconds, -1, " s"),
    Metric("  tp comm", _part("tp_comm"), numbers.seconds, -1, " s"),
    Metric("  pp comm", _part("pp_comm"), numbers.seconds, -1, " s"),
    Metric("  bubble", _part("bubble"), numbers.seconds, -1, " s"),
    Metric("  dp sync", _part("dp_comm"), numbers.seconds, -1, " s"),
    Metric("  optimizer", _part("optimizer"), numbers.seconds, -1, " s"),
)

METRICS = _TOTALS + _TIME_PARTS


@dataclass(frozen=True)
class Cell:
    """What one plan has in a row.

    Attributes:
        delta: The difference from the base in numbers; "" on the base.
        verdict: ``better``, ``worse``, ``same`` or ``changed``; "" on the base.
    """

    text: str
    delta: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class CompareRow:
    """One row: a cell for each plan, the base included; ``bars`` only on rows of memory."""

    label: str
    cells: tuple[Cell, ...]
    bars: tuple[BarRow | None, ...] = ()

    @property
    def differs(self) -> bool:
        return any(cell.verdict not in ("", "same") for cell in self.cells)


def compare_rows(plans: Sequence[RankedPlan], base: int) -> list[CompareRow]:
    """Every row for ``plans``, differences against ``plans[base]``."""
    words: list[tuple[str, Callable[[RankedPlan], str]]] = [
        ("tp pp dp mb", _numbers),
        ("schedule", _schedule),
        ("GPU types", lambda p: " > ".join(p.plan.skeleton.type_order)),
        ("layers", lambda p: _folded([str(n) for n in p.plan.layers])),
        ("recompute", lambda p: recompute_words(p.plan)),
    ]
    rows = [CompareRow(label, _word_cells([show(p) for p in plans], base)) for label, show in words]
    rows += [CompareRow(metric.name, _metric_cells(metric, plans, base)) for metric in _TOTALS]
    # Stages differ in what they do: a plan may recompute everywhere but on the stage that sets the pace.
    rows.append(CompareRow("time of slowest", _word_cells([_slowest(p) for p in plans], base)))
    rows += [CompareRow(metric.name, _metric_cells(metric, plans, base)) for metric in _TIME_PARTS]
    return rows + _memory_rows(plans, base)


def metric_cell(metric: Metric, value: float, base: float | None) -> Cell:
    """The cell of a number; ``base`` is None on the base itself."""
    text = metric.show(value) + metric.unit
    if base is None:
        return Cell(text)
    change = numbers.change(value, base)
    if change == "same" or metric.show(value) == metric.show(base):
        return Cell(text, "", "same")
    sign = "+" if value > base else "-"
    absolute = f"{sign}{metric.show(abs(value - base))}{metric.unit}"
    verdict = "changed" if not metric.better else "better" if (value - base) * metric.better > 0 else "worse"
    if metric.points:
        absolute, change = f"{sign}{abs(value - base) * 100:.0f} points", "-"
    return Cell(text, absolute if change == "-" else f"{absolute} {change}", verdict)


def near_tie(plans: Sequence[RankedPlan], base: int) -> tuple[str, ...]:
    """A caution where the 95 % intervals of the times overlap, longest version first; empty without intervals."""
    mine = plans[base].estimate.interval_s
    if mine is None:
        return ()
    tied = []
    for index, plan in enumerate(plans):
        other = plan.estimate.interval_s
        if index != base and other is not None and other[0] <= mine[1] and mine[0] <= other[1]:
            tied.append(f"#{plan.rank}")
    if not tied:
        return ()
    others = ", ".join(tied)
    return (
        f"intervals of time overlap with {others}: a near tie on speed",
        f"near tie on time with {others}",
        "near tie",
    )


def _numbers(plan: RankedPlan) -> str:
    s = plan.plan.skeleton
    return f"{s.tp}  {s.pp}  {s.dp}  {s.micro_batch}"


def _slowest(plan: RankedPlan) -> str:
    stage = plan.estimate.slowest_stage
    return f"stage {stage}, {plan.plan.stages[stage].gpu_type}"


def _schedule(plan: RankedPlan) -> str:
    s = plan.plan.skeleton
    name = s.schedule if s.virtual_stages == 1 else f"interleaved x{s.virtual_stages}"
    return f"{name}, {s.micro_batches} micro-batches"


def _folded(words: Sequence[str]) -> str:
    """``9, 9, 7`` as ``9 x2, 7``."""
    runs: list[tuple[str, int]] = []
    for word in words:
        if runs and runs[-1][0] == word:
            runs[-1] = (word, runs[-1][1] + 1)
        else:
            runs.append((word, 1))
    return ", ".join(word if n == 1 else f"{word} x{n}" for word, n in runs)


def _word_cells(texts: Sequence[str], base: int) -> tuple[Cell, ...]:
    return tuple(
        Cell(text) if i == base else Cell(text, "", "same" if text == texts[base] else "changed")
        for i, text in enumerate(texts)
    )


def _metric_cells(metric: Metric, plans: Sequence[RankedPlan], base: int) -> tuple[Cell, ...]:
    value = metric.value(plans[base])
    return tuple(metric_cell(metric, metric.value(p), None if i == base else value) for i, p in enumerate(plans))


def _memory_rows(plans: Sequence[RankedPlan], base: int) -> list[CompareRow]:
    """One row for each node and device type: the fullest GPU there under each plan."""
    per_plan: list[dict[tuple[str, str], BarRow]] = []
    places: dict[tuple[str, str], None] = {}
    for plan in plans:
        fullest: dict[tuple[str, str], BarRow] = {}
        for row in rows_of(plan.estimate.gpus, fold=True):
            key = (row.node, row.gpu_type)
            places.setdefault(key)
            if key not in fullest or row.fraction > fullest[key].fraction:
                fullest[key] = row
        per_plan.append(fullest)
    metric = Metric("memory", lambda p: 0.0, lambda v: f"{v:.1f}", -1, " GiB")
    rows = []
    for place in places:
        bars = tuple(fullest.get(place) for fullest in per_plan)
        mine = bars[base]
        cells = []
        for index, bar in enumerate(bars):
            if bar is None:
                cells.append(Cell("not used", "", "" if index == base else "changed" if mine else "same"))
                continue
            reference = None if index == base or mine is None else gib(mine.peak_bytes)
            cells.append(metric_cell(metric, gib(bar.peak_bytes), reference))
        rows.append(CompareRow(f"{place[0]} {place[1]}", tuple(cells), bars))
    return rows
