"""The learned estimator on the simulated cluster: better than first principles, and in agreement with itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.cluster_file import cluster_text, load_cluster, parse_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import FULL, NONE, Plan, Provenance, Recompute, Stage
from memx_engine.predict.compared import StageDescriber
from memx_engine.predict.iteration_features import reference_plan
from memx_engine.predict.points import PointEstimator
from memx_engine.predict.predicted import Predicted
from memx_engine.predict.stage_model import StageModel, fit_stages, stage_factors
from memx_engine.profile.loop import run_profile
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.search.bounds import compute_bounds
from memx_engine.search.sketch_bounds import sketched_bounds
from memx_engine.search.space import enumerate_space
from memx_engine.testbed.testbed import Testbed

CLUSTER = load_cluster("paper-20gpu")
MODEL = load_model("llama2-7b")
JOB = resolve_job(CLUSTER, MODEL)
SKELETONS = list(enumerate_space(CLUSTER, MODEL, JOB).skeletons())


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    store = MemoryStore()
    run_profile(CLUSTER, MODEL, JOB, TestbedRunner(), store)
    return list(store.measurements())


@pytest.fixture(scope="module")
def learned(measured: list[Measurement]) -> Predicted:
    made = Predicted.fit(CLUSTER, MODEL, JOB, measured)
    assert isinstance(made, Predicted)
    return made


def fitting_plans(learned: Predicted, count: int) -> list[Plan]:
    rng = np.random.default_rng(0)
    out: list[Plan] = []
    while len(out) < count:
        plan = reference_plan(SKELETONS[rng.integers(len(SKELETONS))], MODEL.layers)
        if min(plan.layers) > 0 and all(g.used_fraction < 0.9 for g in learned.estimate(plan).gpus):
            out.append(plan)
    return out


def test_whole_plans_nobody_measured_are_predicted_from_the_minimal_set(learned: Predicted) -> None:
    bed, plain = Testbed(CLUSTER, seed=0), FirstPrinciples(CLUSTER, MODEL, JOB)
    errors: dict[str, list[float]] = {"ours": [], "plain": [], "memory": [], "covered": []}
    for plan in fitting_plans(learned, 25):
        truth, made = bed.run(plan, MODEL, JOB), learned.estimate(plan)
        assert truth.iteration_time_s is not None and made.interval_s is not None
        errors["ours"].append(abs(made.iteration_time_s / truth.iteration_time_s - 1))
        errors["plain"].append(abs(plain.estimate(plan).iteration_time_s / truth.iteration_time_s - 1))
        errors["memory"] += [abs(g.peak_bytes / truth.peak_bytes[g.rank] - 1) for g in made.gpus]
        errors["covered"].append(made.interval_s[0] <= truth.iteration_time_s <= made.interval_s[1])
    assert np.mean(errors["plain"]) > 0.15
    assert np.mean(errors["ours"]) < 0.06 and max(errors["ours"]) < 0.20
    assert np.mean(errors["memory"]) < 0.03
    assert np.mean(errors["covered"]) > 0.85


def test_times_alone_are_those_of_complete_estimates(learned: Predicted) -> None:
    plans = [reference_plan(skeleton, MODEL.layers) for skeleton in SKELETONS[::9]]
    plans = [plan for plan in plans if min(min(stage.chunk_layers) for stage in plan.stages) > 0]
    plans += [
        replace(plan, stages=tuple(replace(stage, recompute=option) for stage in plan.stages))
        for plan in plans[:40]
        for option in (FULL, Recompute("block", 1), Recompute("uniform", 2))
    ]
    assert any(plan.skeleton.virtual_stages > 1 for plan in plans)
    assert learned.iteration_times(plans).tolist() == [learned.estimate(plan).iteration_time_s for plan in plans]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(SKELETONS) - 1), st.data())
def test_tables_and_estimates_agree(learned: Predicted, index: int, data: st.DataObject) -> None:
    skeleton = SKELETONS[index]
    table = learned.stage_table(skeleton)
    plan = reference_plan(skeleton, MODEL.layers)
    if min(min(stage.chunk_layers) for stage in plan.stages) < 1 or len({*plan.stages[0].chunk_layers}) > 1:
        return
    stages = []
    for i, stage in enumerate(plan.stages):
        chunk = stage.chunk_layers[0]
        equal = (chunk,) * skeleton.virtual_stages
        possible = [r for k, r in enumerate(table.options) if math.isfinite(table.memory_bytes[i, sum(equal), k])]
        stages.append(Stage(stage.placement, equal, data.draw(st.sampled_from(possible))))
    if sum(s.layers for s in stages) != MODEL.layers:
        return
    plan = replace(plan, stages=tuple(stages), untied=learned.must_untie(skeleton))
    made = learned.estimate(plan)
    for i, stage in enumerate(plan.stages):
        option = table.options.index(stage.recompute)
        peak = next(gpu.peak_bytes for gpu in made.gpus if gpu.stage == i)
        assert table.memory_bytes[i, stage.layers, option] == pytest.approx(peak, rel=1e-9)
        time = made.stage_forward_s[i] + made.stage_backward_s[i]
        assert table.time_s[i, stage.layers, option] == pytest.approx(time, rel=1e-9)
        assert table.tail_s[i, stage.layers] == pytest.approx(made.tail_s[i], rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, len(SKELETONS) - 1))
def test_more_layers_never_need_less(learned: Predicted, index: int) -> None:
    table = learned.stage_table(SKELETONS[index])
    for values in (table.memory_bytes, table.time_s):
        steps = np.diff(np.where(np.isfinite(values), values, np.nan), axis=1)
        assert not (steps < -1e-6 * np.nanmax(np.abs(np.where(np.isfinite(values), values, np.nan)))).any()


def test_a_larger_micro_batch_never_needs_less(measured: list[Measurement], learned: Predicted) -> None:
    model = learned.stages
    describer = StageDescriber(CLUSTER, JOB)
    base = next(m.point for m in measured if m.point.layers == 5)
    for recompute in (NONE, FULL, Recompute("block", 2)):
        points = [replace(base, recompute=recompute, micro_batch=1 << k) for k in range(6)]
        sizes = predicted_bytes(model, describer, points)
        assert sizes == sorted(sizes)


def predicted_bytes(model: StageModel, describer: StageDescriber, points: list[Point]) -> list[float]:
    factors, _, _, _ = stage_factors(model, describer, points)
    plain = [model.memories[p.gpu_type].bytes(describer.sizes(p)) for p in points]
    return [float(factor[1]) * size for factor, size in zip(factors, plain, strict=True)]


def test_trees_that_contradict_physics_are_repaired_and_the_repair_is_told(measured: list[Measurement]) -> None:
    """A device that needs far less at its largest micro-batch, as no device does."""
    odd = [
        replace(m, peak_reserved_bytes=int(3e8) + known_bytes(m.point))
        if m.outcome is Outcome.OK and m.point.micro_batch == 8
        else m
        for m in measured
    ]
    model = fit_stages(CLUSTER, MODEL, JOB, odd)
    assert model is not None
    base = next(m.point for m in measured if m.point.layers == 5)
    points = [replace(base, micro_batch=1 << k) for k in range(4)]
    _, _, _, repaired = stage_factors(model, StageDescriber(CLUSTER, JOB), points)
    assert repaired
    sizes = predicted_bytes(model, StageDescriber(CLUSTER, JOB), points)
    assert sizes == sorted(sizes)
    estimator = Predicted(CLUSTER, MODEL, JOB, model)
    for skeleton in SKELETONS[:40]:
        estimator.stage_table(skeleton)
    assert any("were held at the smaller one" in words for words in estimator.assumed)


def known_bytes(point: Point) -> int:
    memory = PointEstimator(FirstPrinciples(CLUSTER, MODEL, JOB)).estimate(point).memory
    return int(memory.weights + memory.gradients)


def test_provenance_and_probabilities(learned: Predicted) -> None:
    assert learned.provenance is Provenance.SIMULATED
    plan = fitting_plans(learned, 1)[0]
    made = learned.estimate(plan)
    assert made.provenance is Provenance.SIMULATED
    assert all(gpu.oom_probability is not None and 0 <= gpu.oom_probability <= 1 for gpu in made.gpus)
    assert any("predictor learned from" in words and "(simulated)" in words for words in learned.assumed)
    assert sum(learned.importances.values()) == pytest.approx(1.0)


def test_one_type_unmeasured_leaves_it_to_first_principles(measured: list[Measurement]) -> None:
    some = [m for m in measured if m.point.gpu_type != "vendor-c"][::4]
    made = Predicted.fit(CLUSTER, MODEL, JOB, some)
    assert isinstance(made, Predicted)
    assert made.provenance is Provenance.UNCALIBRATED
    plain = FirstPrinciples(CLUSTER, MODEL, JOB)
    skeleton = next(s for s in SKELETONS if s.type_order == ("vendor-c",) and s.virtual_stages == 1)
    plan = reference_plan(skeleton, MODEL.layers)
    ours, theirs = made.estimate(plan), plain.estimate(plan)
    assert ours.iteration_time_s == theirs.iteration_time_s
    assert ours.peak_bytes == theirs.peak_bytes
    assert ours.interval_s is None and ours.gpus[0].oom_probability is None


@pytest.mark.parametrize("keep", [0, 3])
def test_few_points_are_never_a_confident_number(measured: list[Measurement], keep: int) -> None:
    some = [m for m in measured if m.outcome is Outcome.OK][:keep]
    made = Predicted.fit(CLUSTER, MODEL, JOB, some)
    if not keep:
        assert isinstance(made, FirstPrinciples) and made.provenance is Provenance.UNCALIBRATED
        return
    assert isinstance(made, Predicted)
    assert made.stages.model.booster is None
    assert made.provenance is Provenance.UNCALIBRATED


def test_real_measurements_are_never_moved_by_simulated_ones(measured: list[Measurement]) -> None:
    real = [
        replace(m, truth=Truth.GPU, truth_name="g", forward_s=2 * m.forward_s, backward_s=2 * m.backward_s)
        for m in measured
        if m.point.gpu_type == "vendor-b" and m.forward_s is not None and m.backward_s is not None
    ][:60]
    simulated = [m for m in measured if m.point.gpu_type == "vendor-b"]
    alone, both = fit_stages(CLUSTER, MODEL, JOB, real), fit_stages(CLUSTER, MODEL, JOB, [*simulated, *real])
    assert alone is not None and both is not None
    assert both.provenance["vendor-b"] is Provenance.MEASURED
    assert both.times["vendor-b"] == alone.times["vendor-b"]
    assert both.left_out


def test_another_predictor_has_another_fingerprint(measured: list[Measurement], learned: Predicted) -> None:
    some = measured[:80]
    first, again = (Predicted.fit(CLUSTER, MODEL, JOB, some) for _ in range(2))
    fewer = Predicted.fit(CLUSTER, MODEL, JOB, some[:-40])
    assert again.fingerprint == first.fingerprint
    assert len({first.fingerprint, fewer.fingerprint, learned.fingerprint}) == 3
    assert learned.fingerprint != FirstPrinciples(CLUSTER, MODEL, JOB).fingerprint


def test_rows_that_skeletons_share_bound_as_the_learned_tables_do(learned: Predicted) -> None:
    some = SKELETONS[::40]
    sketches = [learned.sketch(skeleton) for skeleton in some]
    made = sketched_bounds(sketches)
    for k, skeleton in enumerate(some):
        bounds = made.bounds(k, made.even_of(k, sketches[k]))
        expected = compute_bounds(learned.stage_table(skeleton))
        assert bounds.fits == expected.fits
        if not expected.fits:
            assert bounds.excess_bytes == pytest.approx(expected.excess_bytes, rel=1e-9)
        assert bounds.time_s == pytest.approx(expected.time_s, rel=1e-9)
        assert bounds.peak_bytes == pytest.approx(expected.peak_bytes, rel=1e-9)
        assert (bounds.even is None) == (expected.even is None)


def test_slow_hosts_between_vendors_widen_the_interval_of_plans_that_cross_them(learned: Predicted) -> None:
    """Nobody measured what crosses vendors; where it can set the pace, that is how unsure a plan's time is."""
    host = "host: {bandwidth_gb_s: 28"
    assert host in cluster_text(CLUSTER)
    slow = parse_cluster(cluster_text(CLUSTER).replace(host, "host: {bandwidth_gb_s: 2"))
    other = Predicted(slow, MODEL, JOB, learned.stages)

    def widths(types: int) -> list[tuple[float, float]]:
        out = []
        for skeleton in SKELETONS:
            names = [p.gpu_type for p in skeleton.placements]
            plan = reference_plan(skeleton, MODEL.layers)
            if len(set(names)) == types and skeleton.virtual_stages == 1 and skeleton.pp > 1 and min(plan.layers) > 0:
                pair = learned.estimate(plan).half_width, other.estimate(plan).half_width
                if None not in pair:
                    out.append((float(pair[0] or 0), float(pair[1] or 0)))
        return out[:40]

    crossing, alone = widths(3), widths(1)
    assert len(crossing) == 40 and alone
    assert np.mean([b for _, b in crossing]) > 1.5 * np.mean([a for a, _ in crossing])
    assert [b for _, b in alone] == pytest.approx([a for a, _ in alone])
