"""Rows that skeletons share under the operator's limits, against each skeleton's own table under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator, StageTable
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import FULL, Estimate, Plan, Recompute, Skeleton
from memx_engine.search.bounds import compute_bounds
from memx_engine.search.counting import count_plans, count_shape
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.sketch_bounds import sketched_bounds
from memx_engine.search.space import enumerate_space
from memx_engine.units import GIB
from tests.search.test_sketch_bounds import numbers

CLUSTER, MODEL = load_cluster("paper-20gpu"), load_model("llama2-7b")
TYPE = CLUSTER.gpu_types[0].name

LIMITS = {
    "none": NO_OPERATOR_LIMITS,
    "a stage's layers": OperatorLimits(layers=((0, 4),)),
    "a type's layers": OperatorLimits(layers=((TYPE, 8),)),
    "one recompute": OperatorLimits(recompute=((None, FULL),)),
    "a stage's recompute": OperatorLimits(recompute=((0, Recompute("block", 3)), (1, Recompute("uniform", 2)))),
    "a type's recompute": OperatorLimits(recompute=((TYPE, Recompute("block", 16)),)),
    "memory": OperatorLimits(keep_free_bytes=((None, 5.3 * GIB), (TYPE, 20 * GIB))),
    "difference": OperatorLimits(max_layer_difference=1),
    "all": OperatorLimits(
        layers=((1, 6),), recompute=((TYPE, FULL),), keep_free_bytes=((None, 1 * GIB),), max_layer_difference=3
    ),
}


def job(framework: Framework) -> Job:
    return resolve_job(
        CLUSTER,
        MODEL,
        global_batch=64,
        framework=framework.value,
        virtual_stages=(1, 2) if framework is not Framework.FLAGSCALE else None,
    )


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.FLAGSCALE, Framework.ANY])
@pytest.mark.parametrize("name", LIMITS)
def test_shared_rows_bound_as_the_tables_within_the_limits_do(name: str, framework: Framework) -> None:
    limits, one = LIMITS[name], framework is Framework.MEGATRON
    estimator = FirstPrinciples(CLUSTER, MODEL, job(framework))
    skeletons = list(enumerate_space(CLUSTER, MODEL, estimator.job, limits).skeletons())[::11]
    sketches = [estimator.sketch(s, limits=limits if limits.holds_stages else None) for s in skeletons]
    most = limits.max_layer_difference
    columns = sketched_bounds(sketches, variance_kind="utilization", max_layer_difference=most)
    fit = 0
    for k, (skeleton, sketch) in enumerate(zip(skeletons, sketches, strict=True)):
        table = limits.within(estimator.stage_table(skeleton), skeleton)
        expected = limits.bounds_within(compute_bounds(table, one_recompute=one, variance_kind="utilization"))
        made = columns.bounds(k, columns.even_of(k, sketch))
        assert made.fits == expected.fits, skeleton
        assert (made.even is None) == (expected.even is None), skeleton
        assert np.allclose(numbers(made), numbers(expected), rtol=1e-9, atol=1e-12), skeleton
        if made.even and expected.even:
            assert (made.even.layers, made.even.recompute) == (expected.even.layers, expected.even.recompute)
        shape = (sketch.options, sketch.layers, sketch.virtual_stages, skeleton.pp, sketch.limits)
        count = count_shape(*shape, one_recompute=one, max_layer_difference=most)
        assert count == count_plans(table, one_recompute=one, max_layer_difference=most), skeleton
        fit += made.fits
    assert fit > 5 and len(skeletons) > 20


class Unshared:
    """An estimator that shares nothing: every skeleton is bounded by its own table."""

    def __init__(self, base: FirstPrinciples) -> None:
        self.base, self.provenance, self.fingerprint = base, base.provenance, base.fingerprint

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        return self.base.stage_table(skeleton)

    def estimate(self, plan: Plan) -> Estimate:
        return self.base.estimate(plan)

    def derive(self, *where: object) -> Estimator:
        raise NotImplementedError


@pytest.mark.parametrize(("name", "framework"), [("all", Framework.ANY), ("memory", Framework.MEGATRON)])
def test_sharing_changes_no_result(name: str, framework: Framework) -> None:
    small = replace(job(framework), micro_batch_sizes=(1, 2), tp_sizes=(2, 4))
    options = SearchOptions(limits=LIMITS[name], front=0)
    estimator = FirstPrinciples(CLUSTER, MODEL, small)
    made = [search(CLUSTER, MODEL, small, options=options, estimator=e) for e in (estimator, Unshared(estimator))]

    def told(result: SearchResult) -> tuple[object, ...]:
        # Beyond the N best a skeleton shows some plan that fits, whichever the order of the work left it with.
        best = [p.plan for p in result.plans[: options.top]]
        return result.plans_covered, result.pruned.memory, result.feasible, result.space, best

    assert told(made[0]) == told(made[1])
    first, second = (result.objective.references for result in made)
    assert first.time_s == pytest.approx(second.time_s, rel=1e-12)
    assert first.epsilon_bytes2 == pytest.approx(second.epsilon_bytes2, rel=1e-12)
