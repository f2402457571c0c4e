"""Comparison rows: words for differences, and their direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.search.result import RankedPlan
from memx_tui.comparing import METRICS, CompareRow, compare_rows, metric_cell, near_tie
from tests.builders import make_estimate, make_plan


def ranked(rank: int = 1, *, scale: float = 1.0, calibrated: bool = False, recompute: str = "none") -> RankedPlan:
    plan = make_plan(recompute=recompute)
    estimate = make_estimate(plan, memory_scale=scale, calibrated=calibrated)
    return RankedPlan(rank, plan, estimate, 0.5, True)


def row(rows: list[CompareRow], label: str) -> CompareRow:
    return next(r for r in rows if r.label == label)


def test_check_17_equal_plans_are_the_same_everywhere() -> None:
    rows = compare_rows([ranked(1), ranked(2)], 0)
    assert {r.cells[1].verdict for r in rows} == {"same"}
    assert {r.cells[0].verdict for r in rows} == {""}
    assert not any(r.differs for r in rows)


@pytest.mark.parametrize("metric", [m for m in METRICS if m.better], ids=lambda m: m.name.strip())
def test_check_17_differences_carry_better_or_worse_by_direction(metric: object) -> None:
    from memx_tui.comparing import Metric

    assert isinstance(metric, Metric)
    more, less = metric_cell(metric, 0.9, 0.5), metric_cell(metric, 0.5, 0.9)
    assert (more.verdict, less.verdict) == (("better", "worse") if metric.better > 0 else ("worse", "better"))
    if metric.show(0.9) != metric.show(0.5):
        assert more.delta.startswith("+") and less.delta.startswith("-")


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_check_17_no_number_is_called_both(value: float, base: float) -> None:
    for metric in METRICS:
        there, back = metric_cell(metric, value, base), metric_cell(metric, base, value)
        assert {there.verdict, back.verdict} in ({"better", "worse"}, {"same"})


def test_check_17_more_memory_is_worse_and_is_given_in_gib() -> None:
    rows = compare_rows([ranked(1), ranked(2, scale=1.5)], 0)
    peak = row(rows, "peak memory").cells[1]
    assert peak.verdict == "worse" and " GiB +" in peak.delta
    assert row(rows, "iteration time").cells[1].verdict == "same"
    bars = [r for r in rows if r.bars]
    assert bars and all(r.cells[1].verdict == "worse" and len(r.bars) == 2 for r in bars)


def test_words_that_differ_are_changed_not_judged() -> None:
    rows = compare_rows([ranked(1), ranked(2, recompute="full")], 0)
    assert row(rows, "recompute").cells[1].verdict == "changed"
    assert row(rows, "tp pp dp mb").cells[1].verdict == "same"
    assert [r.cells[0].verdict for r in rows if r.differs] == [""] * sum(r.differs for r in rows)


def test_the_base_can_be_any_plan() -> None:
    rows = compare_rows([ranked(1), ranked(2, scale=1.5)], 1)
    peak = row(rows, "peak memory")
    assert peak.cells[1].verdict == "" and peak.cells[0].verdict == "better"


def test_overlapping_intervals_are_a_near_tie() -> None:
    assert near_tie([ranked(1, calibrated=True), ranked(2, calibrated=True)], 0)[0].endswith("a near tie on speed")
    assert near_tie([ranked(1), ranked(2)], 0) == ()


def test_whose_time_is_broken_down_is_said_above_its_parts() -> None:
    rows = compare_rows([ranked(1), ranked(2)], 0)
    labels = [r.label for r in rows]
    assert labels[labels.index("time of slowest") + 1] == "  compute"
    plan = ranked(1)
    slowest = plan.estimate.slowest_stage
    said = row(rows, "time of slowest").cells[0].text
    assert said == f"stage {slowest}, {plan.plan.stages[slowest].gpu_type}"
