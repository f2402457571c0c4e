"""Many imported runs in planning: trees over skeletons where they beat one factor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from memx_engine.plan import Provenance
from memx_engine.predict.calibrated import Calibrated
from memx_engine.predict.compositions import find_runs
from memx_engine.predict.run_level import LEAST_LAYOUTS
from tests.cost.shapes import A100_40G, A800, LLAMA2_7B, plan, skeleton
from tests.predict.measured import CLUSTER, JOB
from tests.predict.test_compositions import shape_of, stored, timed


def many(miss: dict[int, float], noise: float = 0.02) -> Calibrated:
    """Layouts over TP, DP, micro-batch and batch, ``miss[tp]`` times as long as first principles says."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for tp, dp in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1)):
        for mbs in (1, 2, 4, 8):
            for gbs in (64, 128, 256):
                time = miss[tp] * math.exp(noise * rng.normal())
                rows.append(timed(time, tp=tp, pp=2, dp=dp, mbs=mbs, gbs=gbs, num_gpus=2 * tp * dp))
    assert len(rows) > LEAST_LAYOUTS
    runs = find_runs(CLUSTER, JOB, [stored(row, n) for n, row in enumerate(rows)])
    return Calibrated.fit(CLUSTER, LLAMA2_7B, JOB, (), runs)


@pytest.fixture(scope="module")
def estimator() -> Calibrated:
    return many({1: 1.0, 2: 1.4, 4: 2.0})


def alone(tp: int, dp: int) -> Any:
    """A skeleton on the type that was run."""
    shape = skeleton(CLUSTER, tp, 2, dp, micro_batch=1, seq_len=4096, global_batch=64)
    return shape if set(shape.type_order) == {A800.name} else None


def test_trees_tell_layouts_apart_where_one_factor_cannot(estimator: Calibrated) -> None:
    assert estimator.runs is not None and estimator.runs.layouts == 60
    assert estimator.runs.error < 0.06 < 0.2 < estimator.runs.factor_error
    said = " ".join(estimator.assumed)
    assert "trees over 60 imported layouts" in said and "one factor for all" in said
    plain = Calibrated.fit(CLUSTER, LLAMA2_7B, JOB, [])
    for tp, miss in ((1, 1.0), (2, 1.4), (4, 2.0)):
        shape = alone(tp, 1)
        assert shape is not None
        made = plan(shape, [16, 16])
        ratio = estimator.estimate(made).iteration_time_s / plain.estimate(made).iteration_time_s
        assert ratio == pytest.approx(miss, rel=0.08)
        # The solver's tables are scaled by exactly the same, whatever the split.
        before, after = plain.stage_table(shape), estimator.stage_table(shape)
        finite = np.isfinite(before.forward_s)
        assert after.forward_s[finite] == pytest.approx(ratio * before.forward_s[finite])
        assert estimator.iteration_times([made]).tolist() == [estimator.estimate(made).iteration_time_s]


def test_plans_get_the_interval_of_held_out_runs_and_their_word(estimator: Calibrated) -> None:
    shape = alone(2, 1)
    made = estimator.estimate(plan(shape, [16, 16]))
    assert made.provenance is Provenance.MEASURED and made.interval_s is not None
    low, high = made.interval_s
    assert low < made.iteration_time_s < high < 1.3 * made.iteration_time_s
    assert made.extrapolated == ()
    shorter = estimator.estimate(plan(shape_of(2, 2, 1), [16, 16]))
    assert shorter.extrapolated == ("seq_len",) and shorter.half_width > made.half_width


def test_a_type_that_was_never_run_keeps_what_it_had(estimator: Calibrated) -> None:
    mixed = shape_of(4, 4, 1)
    assert A100_40G.name in mixed.type_order
    made = estimator.estimate(plan(mixed, [8] * 4))
    assert made.interval_s is None and made.provenance is Provenance.UNCALIBRATED


def test_one_miss_for_all_stays_one_factor() -> None:
    same = many({1: 1.5, 2: 1.5, 4: 1.5})
    assert same.runs is None
    assert same.compositions[A800.name].factor.value == pytest.approx(1.5, rel=0.02)


def test_another_runs_another_fingerprint(estimator: Calibrated) -> None:
    other = many({1: 1.0, 2: 1.4, 4: 2.1})
    assert other.fingerprint != estimator.fingerprint
    derived = estimator.derive(CLUSTER, LLAMA2_7B, JOB)
    made = plan(alone(2, 1), [16, 16])
    assert derived.estimate(made).iteration_time_s == estimator.estimate(made).iteration_time_s
