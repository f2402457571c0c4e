from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.inputs.job import Precision
from memx_engine.measurement import Point
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute
from memx_engine.predict.points import point_estimate
from tests.cost.shapes import A800, plan, skeleton
from tests.predict.measured import CLUSTER, FIRST, JOB, SMALL

SIZES: dict[str, int] = {"micro_batch": 2, "seq_len": 2048, "global_batch": 64}


@pytest.mark.parametrize("recompute", [NONE, FULL, SELECTIVE, Recompute("block", 2), Recompute("uniform", 2)])
@pytest.mark.parametrize("tp", [2, 4])
def test_a_point_costs_what_its_stage_costs_in_a_plan(recompute: Recompute, tp: int) -> None:
    pp = 8 // tp
    layers = 12 // pp
    made = plan(skeleton(CLUSTER, tp, pp, 1, **SIZES), [layers] * pp, [recompute] * pp)
    estimate = FIRST.estimate(made)
    for stage, flights in ((0, pp), (pp - 1, 1)):
        point = Point(
            A800.name,
            SMALL,
            tp,
            2,
            2048,
            layers,
            embedding=stage == 0,
            head=stage == pp - 1,
            recompute=recompute,
            in_flight=flights,
        )
        said = point_estimate(FIRST, point)
        assert said.forward_s == pytest.approx(estimate.stage_forward_s[stage])
        assert said.backward_s == pytest.approx(estimate.stage_backward_s[stage])
        there = next(gpu.breakdown for gpu in estimate.gpus if gpu.stage == stage)
        assert said.memory.weights == there.weights
        assert said.memory.gradients == there.gradients
        assert said.memory.optimizer == 0.0
        assert said.memory.activations == pytest.approx(there.activations)
        assert said.memory.logits == pytest.approx(there.logits)
        assert said.memory.context == there.context


def test_a_correction_scales_its_own_part_only() -> None:
    point = Point(A800.name, SMALL, 2, 1, 2048, 4, head=True)
    plain = point_estimate(FIRST, point)
    moved = FirstPrinciples(CLUSTER, SMALL, JOB, {A800.name: Correction(1.5, 0.5, 1.1, 0.25)})
    said = point_estimate(moved, point)
    assert said.time_s == pytest.approx(1.5 * plain.time_s)
    assert said.dynamic_bytes == pytest.approx(0.5 * plain.dynamic_bytes)
    assert said.memory.weights == plain.memory.weights
    assert said.memory.context == 0.25 * plain.memory.context
    held = said.memory.total - said.memory.context
    assert held == pytest.approx(1.08 * 1.1 * (held - said.memory.fragmentation))


def test_points_of_other_models_and_precisions_are_asked_for_as_they_are() -> None:
    point = Point(A800.name, SMALL, 1, 1, 2048, 4)
    wide = replace(point, model=replace(SMALL, hidden=8192, ffn=22016, heads=64, kv_heads=64))
    assert point_estimate(FIRST, wide).time_s > 3 * point_estimate(FIRST, point).time_s
    single = point_estimate(FIRST, replace(point, precision=Precision.FP32))
    assert single.memory.weights == 2 * point_estimate(FIRST, point).memory.weights
    with pytest.raises(InputError, match="block:9"):
        point_estimate(FIRST, replace(point, recompute=Recompute("block", 9)))
