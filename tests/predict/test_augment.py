from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.predict.augment import MOST_GROWTH, augment
from tests.builders import make_model

POINT = Point("gpu", make_model(), tp=1, micro_batch=1, seq_len=1024, layers=4)


def measured(point: Point, *, noise: float = 1.0) -> Measurement:
    """Time and memory straight in layers, micro-batches in flight, micro-batch and sequence."""
    work = point.layers * point.micro_batch * point.seq_len
    return Measurement(
        point,
        Outcome.OK,
        Truth.TESTBED,
        "testbed:0",
        forward_s=1e-7 * work * noise,
        backward_s=2e-7 * work * noise,
        repetitions_s=(3e-7 * work,),
        peak_allocated_bytes=int(1e6 * point.layers + 10 * work * point.in_flight),
        peak_reserved_bytes=None,
    )


def grid(**levels: tuple[int, ...]) -> list[Measurement]:
    points = [POINT]
    for name, values in levels.items():
        points = [replace(p, **{name: v}) for p in points for v in values]
    return [measured(p) for p in points]


def test_rows_between_points_lie_on_the_line_and_are_marked() -> None:
    rows = grid(layers=(2, 5, 8))
    made = augment(rows)
    assert [s.measurement.point.layers for s in made.rows] != []
    assert {s.measurement.point.layers for s in made.rows} == {3, 4, 6, 7}
    keys = {m.point.layers: m.point.key for m in rows}
    for row in made.rows:
        m, truth = row.measurement, measured(row.measurement.point)
        assert m.forward_s == pytest.approx(truth.forward_s) and m.backward_s == pytest.approx(truth.backward_s)
        assert m.peak_allocated_bytes == pytest.approx(truth.peak_allocated_bytes, abs=1)
        assert m.repetitions_s == () and m.peak_reserved_bytes is None
        low, high = (2, 5) if m.point.layers < 5 else (5, 8)
        assert row.parents == {keys[low], keys[high]}


def test_crossed_points_grow_five_to_ten_times() -> None:
    rows = grid(layers=(2, 5, 8), in_flight=(1, 2, 4), micro_batch=(1, 2, 8), seq_len=(1024, 2048, 4096))
    made = augment(rows)
    total = (len(rows) + len(made.rows)) / len(rows)
    assert 5 <= total <= MOST_GROWTH
    measured_keys = {m.point.key for m in rows}
    assert not measured_keys & {s.measurement.point.key for s in made.rows}
    assert all(s.parents <= measured_keys for s in made.rows)
    # Powers of two stay powers of two.
    assert {s.measurement.point.micro_batch for s in made.rows} <= {1, 2, 4, 8}


def test_an_interval_whose_line_does_not_hold_is_not_filled() -> None:
    crooked = [measured(replace(POINT, layers=n), noise=f) for n, f in ((2, 1.0), (5, 1.6), (8, 1.0))]
    made = augment(crooked)
    # Time is no line: rows have memory alone.
    assert made.rows and all(s.measurement.forward_s is None for s in made.rows)
    assert all(s.measurement.peak_allocated_bytes for s in made.rows)
    both = [replace(m, peak_allocated_bytes=p) for m, p in zip(crooked, (10, 40, 11), strict=True)]
    none = augment(both)
    assert none.rows == () and none.refused == 1 and none.filled == 0


def test_one_types_line_does_not_speak_for_a_crooked_other() -> None:
    straight = grid(layers=(2, 3, 4, 5, 6))
    other = [measured(replace(POINT, gpu_type="other", layers=n), noise=f) for n, f in ((2, 1.0), (5, 1.6), (8, 1.0))]
    made = augment([*straight, *other])
    assert {s.measurement.point.gpu_type for s in made.rows} == {"other"}
    assert all(s.measurement.forward_s is None for s in made.rows)


def test_two_points_and_failures_make_nothing() -> None:
    assert augment(grid(layers=(2, 8))).rows == ()
    rows = grid(layers=(2, 5, 8))
    assert augment([*rows[:2], replace(rows[2], outcome=Outcome.OOM)]).rows == ()


def test_grounds_are_not_mixed() -> None:
    rows = grid(layers=(2, 5, 8))
    other = replace(rows[1], truth=Truth.GPU, truth_name="gpu")
    assert augment([rows[0], other, rows[2]]).rows == ()
