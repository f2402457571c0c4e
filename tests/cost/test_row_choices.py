"""The choices of single rows against the stage tables of the same skeletons."""

from __future__ import annotations

import pytest

from memx_engine.cost.row_choices import MEMORY, OPTION, TAIL, TIME, UNITS, Kind
from memx_engine.cost.sketch import Sketch
from memx_engine.cost.table import StageTable
from memx_engine.plan import FULL, Recompute
from memx_engine.search.bounds import as_1f1b
from memx_engine.search.limits import OperatorLimits, limited
from memx_engine.units import GIB
from tests.search.spaces import Ground

Choice = tuple[int, Recompute]
Values = tuple[float, float, float]

GROUNDS = [("paper-20gpu", "llama2-7b", 47), ("paper-small", "gpt2", 11), ("two-sites", "llama2-13b", 383)]
KINDS: tuple[Kind, ...] = ("all", "distinct", "fastest")
KEPT_FREE = OperatorLimits(keep_free_bytes=((None, 9 * GIB),))


@pytest.mark.parametrize("limits", [OperatorLimits(), KEPT_FREE], ids=["free", "kept free"])
@pytest.mark.parametrize(("cluster", "model", "step"), GROUNDS)
def test_rows_hold_the_choices_of_the_stage_tables(cluster: str, model: str, step: int, limits: OperatorLimits) -> None:
    ground = Ground.of(cluster, model)
    tables = limited(ground.estimator, limits)
    judged, renamed, schedules = 0, 0, set()
    for skeleton in ground.skeletons(step):
        sketch = ground.estimator.sketch(skeleton, limits=limits if limits.holds_stages else None)
        table = as_1f1b(tables.stage_table(skeleton))
        schedules.add(skeleton.virtual_stages)
        for stage in range(skeleton.pp):
            expected = fitting(table, stage)
            made = {kind: named(sketch, stage, kind, expected) for kind in KINDS}
            assert set(made["all"]) == set(expected)
            same = {(n, r) for n, r in expected if r.kind == "block" and r.n == n} & {
                (n, r) for n, r in expected if expected[n, r] == expected.get((n, FULL))
            }
            assert len(made["distinct"]) == len(set(made["distinct"]))
            assert set(made["distinct"]) == set(expected) - same
            fastest = dict(made["fastest"])
            assert list(fastest) == sorted({n for n, _ in expected}) and len(fastest) == len(made["fastest"])
            for n, chosen in fastest.items():
                least_s = min(expected[m, r][0] for m, r in made["distinct"] if m == n)
                assert expected[n, chosen][0] == pytest.approx(least_s, rel=1e-12)
            row = int(sketch.rows[stage])
            every, first = sketch.book.choices(row, "distinct"), sketch.book.choices(row, "fastest")
            of_each = zip(every.starts[:-1], every.starts[1:], strict=True)
            quickest = [start + every.values[TIME, start:stop].argmin() for start, stop in of_each if start < stop]
            assert (first.values == every.values[:, quickest]).all(), "the first of the fastest"
            judged, renamed = judged + len(expected), renamed + len(same)
    assert judged > 500 and renamed > 10
    assert schedules == {1, 2} or cluster == "two-sites"


def fitting(table: StageTable, stage: int) -> dict[Choice, Values]:
    """Time, memory and tail of what fits on a stage, by units and strategy."""
    time_s, memory, tail_s = table.time_s[stage], table.memory_bytes[stage], table.tail_s[stage]
    return {
        (n, option): (float(time_s[n, r]), float(memory[n, r]), float(tail_s[n]))
        for n in range(1, table.layers - table.stages + 2)
        for r, option in enumerate(table.options)
        if memory[n, r] <= table.capacity_bytes[stage]
    }


def named(sketch: Sketch, stage: int, kind: Kind, expected: dict[Choice, Values]) -> list[Choice]:
    """The choices of a stage's row as far as the skeleton can have them, which are what is expected of them."""
    book, stages = sketch.book, len(sketch.rows)
    made = book.choices(int(sketch.rows[stage]), kind)
    units, options = made.values[[UNITS, OPTION]].astype(int).tolist()
    keys = list(zip(units, options, strict=True))
    assert keys == sorted(set(keys)), "by units, then by option"
    assert made.starts.tolist() == [sum(n < least for n in units) for least in range(len(made.starts))]
    assert made.starts[-1] == len(units)
    strategies, out = book.strategies(stages), []
    for k, (n, r) in enumerate(keys):
        if n <= book.units - stages + 1:
            out.append((n, strategies[r]))
            assert made.values[[TIME, MEMORY, TAIL], k] == pytest.approx(expected[out[-1]], rel=1e-9)
    return out
