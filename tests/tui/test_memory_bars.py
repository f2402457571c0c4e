"""Memory bars: what a row says agrees with the estimate, the table and the drawing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine import MemoryBreakdown, gib
from memx_engine.plan import GpuEstimate
from memx_tui.glyphs import ASCII, UNICODE
from memx_tui.text import numbers
from memx_tui.widgets.memory_bars import SEGMENTS, BarRow, amount, bar_cells, rows_of, segments_of, split_cells
from tests.builders import make_estimate, make_plan, make_result

GIB = 1 << 30


def make_row(fraction: float, capacity_gib: int = 40) -> BarRow:
    part = fraction * capacity_gib * GIB / 4
    return BarRow("n0", "a100", (0,), 0, (part,) * 4, capacity_gib * GIB, False)


def test_check_15_segments_sum_to_the_number_shown() -> None:
    result = make_result(12)
    for row_number in range(12):
        for row in rows_of(result.detail(row_number).estimate.gpus, fold=True):
            used, capacity = amount(row).split("/")
            assert abs(sum(gib(part) for part in row.segments) - float(used)) < 0.1
            assert abs(gib(row.capacity_bytes) - float(capacity)) < 0.1


def test_check_15_the_worst_gpu_is_that_of_the_table() -> None:
    result = make_result(12)
    for row_number in range(12):
        rows = rows_of(result.detail(row_number).estimate.gpus, fold=True)
        worst = max(rows, key=lambda row: row.fraction)
        assert worst.worst
        assert worst.gpu_type == result.table.worst_type[row_number]
        assert numbers.percent(worst.fraction) == numbers.percent(float(result.table.worst_fraction[row_number]))


@given(st.builds(MemoryBreakdown, *[st.floats(0, 1e11) for _ in range(8)]))
def test_the_segments_are_a_partition_of_the_breakdown(breakdown: MemoryBreakdown) -> None:
    assert sum(segments_of(breakdown)) == pytest.approx(breakdown.total, abs=1)


@given(st.lists(st.floats(0, 50), min_size=4, max_size=4), st.integers(1, 200))
def test_cells_never_exceed_the_bar_while_memory_fits(values: list[float], cells: int) -> None:
    parts = split_cells(values, 200.0, cells)
    assert all(part >= 0 for part in parts) and sum(parts) == round(sum(values) / 200 * cells)


@given(st.floats(0, 4), st.integers(5, 120))
def test_a_bar_fills_its_cells_and_ticks_the_capacity_once(fraction: float, cells: int) -> None:
    drawn = bar_cells(make_row(fraction), cells, UNICODE)
    text = "".join(text for text, _ in drawn)
    assert len(text) == max(cells, 5)
    assert text.count(UNICODE.tick) == 1
    assert (UNICODE.over in text) == (fraction > 1)


def test_bars_read_without_colour() -> None:
    for glyphs in (UNICODE, ASCII):
        shown = [getattr(glyphs, name) for name in (*SEGMENTS, "free", "over", "tick")]
        assert len(set(shown)) == len(shown)
    text = "".join(text for text, _ in bar_cells(make_row(0.8), 44, ASCII))
    assert text == "########========~~~~~~~~++++++++--------|   "


def test_equal_ranks_of_a_node_fold_and_unfold() -> None:
    gpus = make_estimate(make_plan(tp=4, layers=(9, 9, 7, 7))).gpus
    folded = rows_of(gpus, fold=True)
    assert [(row.node, row.stage, len(row.ranks)) for row in folded] == [
        ("node-0-h100-sxm-80g", 0, 4),
        ("node-0-h100-sxm-80g", 1, 4),
        ("node-1-mi300x", 2, 4),
        ("node-1-mi300x", 3, 4),
    ]
    assert [row.ranks for row in rows_of(gpus, fold=False)] == [(rank,) for rank in range(16)]


def test_ranks_that_differ_in_capacity_do_not_fold() -> None:
    breakdown = MemoryBreakdown(weights=GIB)
    gpus = [
        GpuEstimate(rank, "n0", "a100", 0, breakdown.total, capacity, breakdown)
        for rank, capacity in enumerate((40 * GIB, 40 * GIB, 36 * GIB))
    ]
    assert [row.ranks for row in rows_of(gpus, fold=True)] == [(0, 1), (2,)]
    assert [row.worst for row in rows_of(gpus, fold=True)] == [False, True]
