from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.profile.progress import ETA_POINTS, Pace, ProfileProgress, TypeProgress, TypeState


def test_nothing_is_promised_before_five_points() -> None:
    pace = Pace()
    for _ in range(ETA_POINTS - 1):
        pace.add(1.0, 2.0)
        assert pace.remaining_s(10, 10.0) is None
    pace.add(1.0, 2.0)
    assert pace.remaining_s(10, 10.0) == pytest.approx(20.0)


def test_a_steady_profiler_is_steady_whatever_the_cost_model_thinks() -> None:
    pace = Pace()
    for work in (1.0, 9.0, 2.0, 7.0, 3.0, 5.0):
        pace.add(work, 10.0)
    assert pace.remaining_s(20, 500.0) == pytest.approx(200.0)


def test_a_start_up_and_a_slow_device_are_both_learned() -> None:
    pace = Pace()
    for work in (1.0, 9.0, 2.0, 7.0, 3.0, 5.0):
        pace.add(work, 10.0 + 3.0 * work)
    assert pace.remaining_s(4, 40.0) == pytest.approx(4 * 10.0 + 3.0 * 40.0)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-10, 1e6)), min_size=5, max_size=80), st.integers(0, 500))
def test_time_left_is_never_negative(points: list[tuple[float, float]], left: int) -> None:
    pace = Pace()
    for work, took in points:
        pace.add(work, took)
    remaining = pace.remaining_s(left, 3.0 * left)
    assert remaining is not None and remaining >= 0.0


def progress(state: TypeState, eta_s: float | None, **counts: int) -> TypeProgress:
    return TypeProgress("gpu", state, counts.pop("planned", 10), eta_s=eta_s, rate_per_s=0.5, **counts)


def test_the_whole_waits_for_the_slowest_and_keeps_quiet_while_one_cannot_tell() -> None:
    measuring, slow = progress(TypeState.MEASURING, 10.0), progress(TypeState.MEASURING, 30.0)
    queued, done = progress(TypeState.PENDING, None), progress(TypeState.DONE, 0.0)
    assert ProfileProgress(1.0, (measuring, slow, done)).eta_s == 30.0
    assert ProfileProgress(1.0, (measuring, queued)).eta_s is None
    assert ProfileProgress(1.0, (done,)).eta_s is None
    assert ProfileProgress(1.0, (measuring, slow, done)).rate_per_s == 1.0


def test_counts_add_up() -> None:
    one = progress(TypeState.MEASURING, None, measured=3, cached=2, skipped=1, failed=1)
    whole = ProfileProgress(1.0, (one, one))
    assert (whole.planned, whole.finished, whole.measured, whole.cached, whole.skipped, whole.failed) == (
        20, 14, 6, 4, 2, 2,
    )  # fmt: skip
    assert whole.fraction == pytest.approx(0.7)
    assert ProfileProgress(0.0, ()).fraction == 1.0
