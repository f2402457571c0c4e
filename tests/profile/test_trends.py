from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.inputs.job import Attention
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.trends import (
    Verdict,
    attention_doubt,
    judge_trend,
    log_slope,
    measured_trends,
    r_squared,
    trends,
)
from tests.builders import make_model
from tests.profile.fakes import ok

POINT = Point("gpu", make_model(), tp=1, micro_batch=1, seq_len=1024, layers=4)


@given(st.floats(-1e3, 1e3), st.floats(0.1, 1e3), st.integers(3, 9))
def test_a_straight_line_has_r_squared_one(start: float, slope: float, count: int) -> None:
    x = [float(i) for i in range(count)]
    assert r_squared(x, [start + slope * v for v in x]) == pytest.approx(1.0, abs=1e-6)


def test_r_squared_of_a_parabola() -> None:
    # y = x² over 0..4, by hand: sxy = 40, sxx = 10, syy = 174, and 40² / (10·174) = 0.9195.
    assert r_squared([0, 1, 2, 3, 4], [0, 1, 4, 9, 16]) == pytest.approx(1600 / 1740)
    assert r_squared([1, 2, 3], [5, 5, 5]) == 1.0


@given(st.floats(0.1, 3.0), st.floats(0.01, 100.0))
def test_the_slope_of_the_logarithms_is_the_power(power: float, scale: float) -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert log_slope(x, [scale * v**power for v in x]) == pytest.approx(power)
    assert log_slope([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) is None


def line(*values: float) -> list[tuple[float, float]]:
    return [(float(x), y) for x, y in enumerate(values, start=1)]


def test_verdicts_follow_the_papers_classes() -> None:
    straight = judge_trend("g", "layers", "memory", line(10, 20, 30, 40.5, 50))
    assert straight.verdict is Verdict.LINEAR and straight.done == "large steps between points"
    flat = judge_trend("g", "kv_heads", "time", line(100, 100.5, 100, 101, 100))
    assert flat.verdict is Verdict.CONSTANT and flat.amplitude == pytest.approx(1 / 100.3)
    # Flat to 4, then steep: two straight pieces, one line does not do.
    bent = judge_trend("g", "layers", "time", line(10, 10.1, 10.2, 10.3, 30, 50, 70))
    assert bent.verdict is Verdict.PIECEWISE and bent.split == 4.0 and "split at 4" in bent.done
    power = judge_trend("g", "seq_len", "time", [(x, x**4.0) for x in (1.0, 2.0, 4.0, 8.0)])
    assert power.verdict is Verdict.POWER and power.exponent == pytest.approx(4.0) and "x^4.00" in power.done
    noise = judge_trend("g", "layers", "time", line(10, 30, 8, 25, 12))
    assert noise.verdict is Verdict.IRREGULAR and noise.done == "not interpolated"
    with pytest.raises(ValueError, match="three points"):
        judge_trend("g", "layers", "time", line(1, 2))


def test_micro_batches_run_over_log2_for_throughput() -> None:
    found = judge_trend("g", "micro_batch", "throughput", [(1.0, 10.0), (2.0, 12.0), (4.0, 14.0), (8.0, 16.0)])
    assert found.verdict is Verdict.LINEAR and found.r_squared == pytest.approx(1.0)
    assert found.between((1.0, 10.0), (4.0, 14.0), 2.0) == pytest.approx(12.0)


def test_interpolation_keeps_to_the_verdict() -> None:
    bent = judge_trend("g", "layers", "time", line(10, 10.1, 10.2, 10.3, 30, 50, 70))
    assert bent.between((3.0, 10.2), (5.0, 30.0), 4.0) is None
    assert bent.between((5.0, 30.0), (7.0, 70.0), 6.0) == pytest.approx(50.0)
    power = judge_trend("g", "seq_len", "time", [(x, x**4.0) for x in (1.0, 2.0, 4.0, 8.0)])
    assert power.between((2.0, 16.0), (8.0, 4096.0), 4.0) == pytest.approx(256.0)
    assert power.worst == pytest.approx(0.0, abs=1e-12)
    noise = judge_trend("g", "layers", "time", line(10, 30, 8, 25, 12))
    assert noise.between((1.0, 10.0), (3.0, 8.0), 2.0) is None


def test_trends_of_layers_and_micro_batches() -> None:
    dense = {
        "layers": [(n, replace(POINT, layers=n)) for n in range(2, 9)],
        "micro_batch": [(b, replace(POINT, micro_batch=b)) for b in (1, 2, 4, 8, 16)],
        "seq_len": [(512, replace(POINT, seq_len=512)), (1024, POINT)],
    }
    found = {(t.parameter, t.metric): t for t in trends("gpu", dense, ok)}
    assert found["layers", "memory"].verdict is Verdict.LINEAR and found["layers", "time"].verdict is Verdict.LINEAR
    assert found["layers", "time"].points == 7
    # The fake's time grows with the micro-batch, so its throughput is flat.
    assert found["micro_batch", "throughput"].verdict is Verdict.CONSTANT
    assert not any(name == "seq_len" for name, _ in found)


def test_failed_points_are_not_on_the_line() -> None:
    def half(point: Point) -> Measurement | None:
        return replace(ok(point), outcome=Outcome.OOM) if point.layers > 4 else ok(point)

    dense = {"layers": [(n, replace(POINT, layers=n)) for n in range(2, 9)]}
    assert {t.points for t in trends("gpu", dense, half)} == {3}


def test_stored_measurements_show_their_longest_line() -> None:
    rows = [ok(replace(POINT, layers=n)) for n in (2, 3, 4, 5)] + [
        ok(replace(POINT, layers=n, tp=2)) for n in (2, 3, 4)
    ]
    found = measured_trends(rows)
    assert {(t.parameter, t.metric, t.points) for t in found} == {("layers", "memory", 4), ("layers", "time", 4)}
    assert measured_trends(rows[:2]) == ()


def test_memory_that_outgrows_the_sequence_casts_doubt_on_fused_attention() -> None:
    # 2 GiB of state and 1 MiB per token, and in the second case score matrices of 512 bytes per pair of tokens.
    tokens = (1024, 2048, 3072, 4096)
    fused = judge_trend("g", "seq_len", "memory", [(s, 2.0**31 + 2.0**20 * s) for s in tokens])
    kept = judge_trend("g", "seq_len", "memory", [(s, 2.0**31 + 2.0**20 * s + 512.0 * s * s) for s in tokens])
    assert attention_doubt([fused], Attention.FUSED) == ""
    words = attention_doubt([fused, kept], Attention.FUSED)
    assert "g: memory per added token grows 1.8-fold" in words and "--attention unfused" in words
    assert attention_doubt([kept], Attention.UNFUSED) == ""
