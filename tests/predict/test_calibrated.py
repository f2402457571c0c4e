from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.cost.pipeline import additive_time
from memx_engine.inputs.job import Precision
from memx_engine.measurement import Outcome, Point, Truth
from memx_engine.plan import Provenance
from memx_engine.predict.calibrated import Calibrated
from memx_engine.predict.calibration import calibrate
from memx_engine.predict.factors import shrunk_factor
from memx_engine.testbed.testbed import Testbed
from tests.cost.shapes import A100_40G, A800, plan, skeleton
from tests.predict.measured import CLUSTER, FIRST, JOB, SMALL, measured, points

LAYOUTS = [(1, 2, 8), (2, 4, 2), (8, 2, 1), (4, 1, 4), (2, 8, 1), (1, 4, 4)]


def fit(*measurements: Any) -> Calibrated:
    return Calibrated.fit(CLUSTER, SMALL, JOB, measurements)


def test_factors_are_medians_of_logs_shrunk_towards_one() -> None:
    # By hand: the median log of 2, 4 and 8 is log 4; with n = 3 and k = 1 three quarters of it are taken.
    assert shrunk_factor([2.0, 8.0, 4.0]).value == pytest.approx(4.0**0.75)
    assert shrunk_factor([4.0]).value == pytest.approx(2.0)
    assert shrunk_factor([]).value == 1.0
    assert shrunk_factor([2.0, float("nan"), 0.0, -1.0]).points == 1


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30), st.floats(0.5, 2.0))
def test_a_factor_lies_between_one_and_what_is_measured(ratios: list[float], center: float) -> None:
    factor = shrunk_factor([center * r for r in ratios])
    assert min(1.0, *(center * r for r in ratios)) - 1e-12 <= factor.value
    assert factor.value <= max(1.0, *(center * r for r in ratios)) + 1e-12


def test_every_metric_of_a_type_gets_its_own_factor() -> None:
    made = [measured(p, time=1.4, activations=0.7, reserved=1.2, context=0.3) for p in points()]
    factors = calibrate(CLUSTER, SMALL, JOB, made).types[A800.name].factors
    shrink = 12 / 13
    assert factors["time"].value == pytest.approx(1.4**shrink)
    assert factors["activations"].value == pytest.approx(0.7**shrink, rel=1e-6)
    assert factors["fragmentation"].value == pytest.approx((1.2 / 1.08) ** shrink, rel=1e-6)
    assert factors["context"].value == pytest.approx(0.3**shrink, rel=1e-6)
    assert {f.points for f in factors.values()} == {12}


def test_outliers_and_repeats_do_not_move_the_factor() -> None:
    plain = [measured(p, time=1.4) for p in points()]
    before = fit(*plain).calibration.types[A800.name].factors["time"]
    # A straggler in one of three repeats of one point, and two points that are ten times slow.
    repeats = [measured(points()[0], time=14.0), measured(points()[0], time=1.4)]
    slow = [measured(p, time=14.0) if i in (3, 7) else m for i, (p, m) in enumerate(zip(points(), plain, strict=True))]
    after = fit(*slow, *repeats).calibration.types[A800.name].factors["time"]
    assert after.points == before.points == 12
    assert after.value == pytest.approx(before.value)


def test_without_usable_measurements_it_is_first_principles() -> None:
    other = measured(points()[0], time=3.0)
    unusable = [
        replace(other, point=replace(other.point, gpu_type="b200")),
        replace(other, outcome=Outcome.CRASHED),
        replace(other, point=replace(other.point, precision=Precision.FP16)),
    ]
    for made in ([], unusable):
        estimator = fit(*made)
        assert estimator.provenance is Provenance.UNCALIBRATED
        assert estimator.fingerprint == FIRST.fingerprint
        assert "nothing is measured" in " ".join(estimator.assumed)
    assert any("1 measurements of a800-sxm-80g in fp16 are left out" in line for line in fit(*unusable).assumed)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from([1, 2]),
    st.tuples(*[st.floats(0.4, 2.5)] * 2, st.floats(1.0, 1.4), st.floats(0.2, 2.0)),
    st.data(),
)
def test_a_plan_costs_what_the_table_says(
    layout: tuple[int, int, int], v: int, factors: tuple[float, float, float, float], data: st.DataObject
) -> None:
    time, activations, reserved, context = factors
    made = [measured(p, time=time, activations=activations, reserved=reserved, context=context) for p in points()]
    estimator = fit(*made)
    tp, pp, dp = layout
    v = v if pp > 1 and 12 // pp >= v else 1
    shape = skeleton(CLUSTER, tp, pp, dp, micro_batch=1, seq_len=2048, global_batch=64, v=v)
    table = estimator.stage_table(shape)
    layers, left = [], 12 // v
    for i in range(pp):
        n = left if i == pp - 1 else data.draw(st.integers(1, left - (pp - 1 - i)))
        layers.append(n * v)
        left -= n
    picks = [data.draw(st.sampled_from(range(len(table.options)))) for _ in range(pp)]
    picks = [r if np.isfinite(table.memory_bytes[i, layers[i], r]) else 0 for i, r in enumerate(picks)]
    estimate = estimator.estimate(plan(shape, layers, [table.options[r] for r in picks]))
    peaks = {gpu.stage: gpu.peak_bytes for gpu in estimate.gpus}
    for i, r in enumerate(picks):
        assert estimate.stage_forward_s[i] == pytest.approx(table.forward_s[i, layers[i], r], rel=1e-12)
        assert estimate.stage_backward_s[i] == pytest.approx(table.backward_s[i, layers[i], r], rel=1e-12)
        assert peaks[i] == pytest.approx(table.memory_bytes[i, layers[i], r], rel=1e-12)
        assert estimate.tail_s[i] == pytest.approx(table.tail_s[i, layers[i]], rel=1e-12)
    assert estimate.lower_bound_s <= estimate.iteration_time_s
    assert sum(estimate.time_breakdown_s.values()) == pytest.approx(estimate.iteration_time_s, rel=1e-12)
    if v == 1:
        additive = additive_time(
            [table.time_s[i, layers[i], r] for i, r in enumerate(picks)],
            table.micro_batches,
            p2p_s=table.p2p_s,
            tails_s=[table.tail_s[i, n] for i, n in enumerate(layers)],
            fixed_s=table.fixed_s,
        )
        assert estimate.additive_time_s == pytest.approx(additive)


def test_only_the_measured_type_moves() -> None:
    estimator = fit(*(measured(p, time=2.0) for p in points()))
    shape = skeleton(CLUSTER, 4, 4, 1, micro_batch=1, seq_len=2048, global_batch=64)
    before, after = FIRST.stage_table(shape), estimator.stage_table(shape)
    types = [placement.gpu_type for placement in shape.placements]
    for i, name in enumerate(types):
        ratio = after.time_s[i, 3, 0] / before.time_s[i, 3, 0]
        assert ratio == pytest.approx(2.0 ** (12 / 13) if name == A800.name else 1.0)
    assert any(line.startswith("a100-sxm-40g: nothing is measured") for line in estimator.assumed)


def test_provenance_is_the_weakest_word_among_a_plans_types() -> None:
    real = [measured(p) for p in points()]
    simulated = [measured(p, truth=Truth.TESTBED, name="testbed:3") for p in points(A100_40G.name)]
    one = skeleton(CLUSTER, 2, 4, 1, micro_batch=1, seq_len=2048, global_batch=64)
    both = skeleton(CLUSTER, 4, 4, 1, micro_batch=1, seq_len=2048, global_batch=64)
    assert {p.gpu_type for p in one.placements} == {A800.name}

    half, whole = fit(*real), fit(*real, *simulated)
    assert half.provenance is Provenance.UNCALIBRATED
    assert half.estimate(plan(one, [3] * 4)).provenance is Provenance.MEASURED
    assert half.estimate(plan(both, [3] * 4)).provenance is Provenance.UNCALIBRATED
    assert whole.provenance is Provenance.SIMULATED
    assert whole.estimate(plan(one, [3] * 4)).provenance is Provenance.MEASURED
    assert whole.estimate(plan(both, [3] * 4)).provenance is Provenance.SIMULATED
    said = " ".join(whole.assumed)
    assert "12 points of testbed:3 (simulated)" in said and "12 points of gpu" in said


def test_a_simulation_never_moves_what_is_real() -> None:
    real = [measured(p, time=1.2) for p in points()]
    simulated = [measured(p, time=5.0, truth=Truth.TESTBED, name="testbed:0") for p in points()]
    both = fit(*simulated, *real)
    alone = fit(*real)
    assert both.calibration.corrections == alone.calibration.corrections
    assert any("12 measurements of a800-sxm-80g from testbed:0 are left out" in line for line in both.assumed)


def test_the_fingerprint_follows_the_data() -> None:
    made = [measured(p, time=1.2) for p in points()]
    prints = {fit(*made[:n]).fingerprint for n in (0, 3, 6, 12)}
    assert len(prints) == 4
    assert fit(*made).fingerprint == fit(*made).fingerprint
    # Even data that leaves every factor at one: the numbers rest on something else now.
    assert fit(measured(points()[0])).fingerprint != FIRST.fingerprint


def test_points_out_of_memory_are_bounds_that_the_report_holds_against_the_model() -> None:
    small, large = points()[0], Point(A800.name, SMALL, 1, 64, 2048, 12, in_flight=8)
    failed = [replace(measured(p), outcome=Outcome.OOM, forward_s=None, backward_s=None) for p in (small, large)]
    learned = fit(measured(points()[1]), *failed).calibration.types[A800.name]
    assert (learned.out_of_memory, learned.out_of_memory_missed) == (2, 1)
    assert "of 2 points that ran out of memory 1 would be taken to fit" in str(learned)


def test_missing_parts_leave_their_metric_alone() -> None:
    made = [measured(p, time=1.3, outside_bytes=None, peak_reserved_bytes=None) for p in points()]
    learned = fit(*made).calibration.types[A800.name]
    assert learned.factors["context"].points == learned.factors["fragmentation"].points == 0
    assert learned.factors["activations"].points == 12
    assert "fragmentation, context not measured" in str(learned)
    whole = [replace(m, forward_s=None, backward_s=None, whole_s=m.time_s) for m in made]
    assert fit(*whole).calibration.corrections == fit(*made).calibration.corrections


def test_calibration_brings_the_testbeds_stages_closer() -> None:
    bed = Testbed(CLUSTER, seed=1)
    seen = [bed.measure(p) for name in (A800.name, A100_40G.name) for p in points(name)]
    unseen = [bed.measure(replace(p, layers=6, in_flight=3, micro_batch=4)) for p in points()]
    estimator = fit(*seen)
    assert estimator.provenance is Provenance.SIMULATED

    def misses(corrections: Any) -> float:
        from memx_engine.cost.first_principles import FirstPrinciples
        from memx_engine.predict.points import point_estimate

        model = FirstPrinciples(CLUSTER, SMALL, JOB, corrections)
        totals = [
            abs(point_estimate(model, m.point).memory.total / (m.peak_reserved_bytes + m.outside_bytes) - 1)
            for m in unseen
            if m.peak_reserved_bytes and m.outside_bytes
        ]
        assert totals
        return sum(totals) / len(totals)

    assert misses(estimator.calibration.corrections) < 0.6 * misses({})


def test_times_alone_are_those_of_complete_estimates() -> None:
    made = [measured(p, time=1.4, activations=0.7) for p in points()]
    for estimator in (fit(), fit(*made)):
        plans = [
            plan(skeleton(CLUSTER, tp, pp, dp, micro_batch=1, seq_len=2048, global_batch=64, v=v), [12 // pp] * pp)
            for tp, pp, dp in LAYOUTS
            for v in ((1, 2) if 12 % (2 * pp) == 0 else (1,))
        ]
        expected = [estimator.estimate(p).iteration_time_s for p in plans]
        assert estimator.iteration_times(plans).tolist() == expected
