from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.impact import Impact, amplitude, judge, peak_bytes
from tests.builders import make_model
from tests.profile.fakes import ok

POINT = Point("gpu", make_model(), tp=1, micro_batch=1, seq_len=1024, layers=4)
POINTS = [replace(POINT, layers=n) for n in (2, 4, 6)]


def never_asked(_point: Point) -> float:
    raise AssertionError("the cost model is not needed")


def test_amplitude_is_the_range_over_the_mean() -> None:
    assert amplitude([2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert amplitude([5.0, 5.0]) == 0.0
    assert amplitude([5.0]) is None and amplitude([]) is None and amplitude([0.0, 0.0]) is None


def test_a_parameter_is_judged_by_its_larger_amplitude() -> None:
    impact = judge("layers", POINTS, ok, never_asked, never_asked, 0.05)
    assert impact.time_amplitude == pytest.approx(1.0) and impact.memory_amplitude == pytest.approx(1.0)
    assert impact.high and not impact.predicted
    assert not Impact("x", 0.05, 0.01, threshold=0.05).high
    assert Impact("x", 0.01, 0.051, threshold=0.05).high


def test_failed_points_do_not_count() -> None:
    def two_of_three(point: Point) -> Measurement | None:
        return replace(ok(point), outcome=Outcome.OOM) if point.layers == 6 else ok(point)

    impact = judge("layers", POINTS, two_of_three, never_asked, never_asked, 0.05)
    assert impact.time_amplitude == pytest.approx((4 - 2) / 3)


def test_the_cost_model_answers_where_nothing_came_back() -> None:
    impact = judge("layers", POINTS, lambda _p: None, lambda p: float(p.layers), lambda _p: 7.0, 0.05)
    assert impact.predicted and impact.time_amplitude == pytest.approx(1.0) and impact.memory_amplitude == 0.0


def test_what_was_handed_out_counts_before_what_was_reserved() -> None:
    m = replace(ok(POINT), peak_allocated_bytes=3, peak_reserved_bytes=5)
    assert peak_bytes(m) == 3
    assert peak_bytes(replace(m, peak_allocated_bytes=None)) == 5
    assert peak_bytes(replace(m, peak_allocated_bytes=None, peak_reserved_bytes=None)) is None
