"""Ranking by iteration times alone: the order of complete estimates, of which few are made."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Timer, iteration_times
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, Plan
from memx_engine.search.limits import OperatorLimits, limited
from memx_engine.search.result import RankedPlan, SearchResult
from memx_engine.search.run import SearchOptions, search
from tests.builders import H100, MI300X, make_cluster, make_estimate, make_job, make_model, make_plan

CLUSTER, MODEL = make_cluster(H100, MI300X, gpus_per_node=4), make_model(layers=8)


class Counting(FirstPrinciples):
    """Counts complete estimates."""

    estimates = 0

    def estimate(self, plan: Plan, *rest: Any) -> Estimate:
        self.estimates += 1
        return super().estimate(plan, *rest)


class Whole:
    """Only complete estimates, as an estimator has that predicts no times alone."""

    def __init__(self, base: FirstPrinciples) -> None:
        self.base = base
        self.provenance, self.fingerprint = base.provenance, base.fingerprint

    def stage_table(self, skeleton: Any) -> Any:
        return self.base.stage_table(skeleton)

    def sketch(self, skeleton: Any) -> Any:
        return self.base.sketch(skeleton)

    def estimate(self, plan: Plan) -> Estimate:
        return self.base.estimate(plan)

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> Whole:
        return Whole(self.base.derive(cluster, model, job))


def searched(estimator: Any, **options: Any) -> SearchResult:
    return search(
        CLUSTER, MODEL, estimator_job(estimator), options=SearchOptions(front=0, **options), estimator=estimator
    )


def estimator_job(estimator: Any) -> Job:
    job: Job = getattr(estimator, "base", estimator).job
    return job


@pytest.mark.parametrize("kind", ["bytes", "utilization"])
@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.FLAGSCALE])
def test_the_order_is_that_of_complete_estimates(framework: Framework, kind: str) -> None:
    base = FirstPrinciples(CLUSTER, MODEL, replace(make_job(global_batch=64), framework=framework))
    quick, slow = (searched(e, variance_kind=kind) for e in (base, Whole(base)))
    assert isinstance(base, Timer) and not isinstance(Whole(base), Timer)
    assert any(p.plan.skeleton.virtual_stages > 1 for p in quick.plans) or framework is Framework.FLAGSCALE
    assert [p.plan for p in quick.plans] == [p.plan for p in slow.plans] and len(quick.plans) > 40
    assert quick.table.phi == pytest.approx(slow.table.phi, rel=1e-12)
    assert [p.plan for p in quick.pareto] == [p.plan for p in slow.pareto]
    assert quick.time_optimal.estimate == slow.time_optimal.estimate
    for ranked in (*quick.plans, *quick.pareto, quick.time_optimal):
        assert ranked.phi == pytest.approx(quick.objective.phi_of(ranked.estimate), rel=1e-9)
    # As if peak and variance were the estimates' too.
    whole = np.array([quick.objective.phi_of(p.estimate) for p in quick.plans])
    assert (np.diff(whole) >= -1e-9 * whole[1:]).all()
    for row, ranked in enumerate(quick.plans):
        assert quick.table.time_s[row] == ranked.estimate.iteration_time_s
        assert quick.table.peak_bytes[row] == pytest.approx(ranked.estimate.peak_bytes, rel=1e-12)
        variance = ranked.estimate.memory_variance_bytes2
        assert quick.table.variance_bytes2[row] == pytest.approx(variance, rel=1e-9, abs=1e-9 * 2**60)


def test_a_search_makes_the_estimates_that_are_asked_for() -> None:
    estimator = Counting(CLUSTER, MODEL, make_job(global_batch=64))
    result = searched(estimator)
    assert estimator.estimates == 1 and len(result.plans) == 64
    for _ in range(2):
        assert result.detail(5).estimate == FirstPrinciples.estimate(estimator, result.plans[5].plan)
        assert estimator.estimates == 2
    # One estimate for a plan wherever it is listed.
    assert result.plans[0].plan in [p.plan for p in result.pareto]
    before = estimator.estimates
    fronts = [p for p in result.pareto if p.plan == result.plans[0].plan]
    assert fronts[0].estimate is result.plans[0].estimate and estimator.estimates == before


def test_a_plan_with_a_later_estimate_is_like_one_that_has_it() -> None:
    plan = make_plan()
    estimate = make_estimate(plan)
    made: list[int] = []

    def make() -> Estimate:
        made.append(1)
        return estimate

    def later() -> RankedPlan:
        return RankedPlan.later(1, plan, make, 0.5, True)

    whole = RankedPlan(1, plan, estimate, 0.5, True)
    ranked = later()
    assert not made and ranked.rank == 1 and ranked.plan is plan and ranked.phi == 0.5 and ranked.pareto
    assert ranked.estimate is estimate and ranked.estimate is estimate and made == [1]
    assert ranked == whole and whole == later() and later() != replace(whole, phi=0.6)
    assert repr(later()) == repr(whole)
    assert replace(later(), rank=2) == replace(whole, rank=2)
    assert pickle.loads(pickle.dumps(later())) == whole and copy.deepcopy(later()) == whole
    with pytest.raises(AttributeError, match="estimates"):
        later().estimates  # type: ignore[attr-defined]  # noqa: B018  # it must not be there


def test_an_estimate_that_cannot_be_made_is_asked_for_again() -> None:
    plan = make_plan()
    answers = [ArithmeticError("once"), make_estimate(plan)]

    def make() -> Estimate:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ranked = RankedPlan.later(1, plan, make, 0.5, True)
    with pytest.raises(ArithmeticError, match="once"):
        _ = ranked.estimate
    assert ranked.estimate.iteration_time_s > 0


def test_times_within_limits_are_those_without() -> None:
    base = FirstPrinciples(CLUSTER, MODEL, make_job(global_batch=64))
    plans = [p.plan for p in searched(base).plans[:9]]
    expected = [base.estimate(plan).iteration_time_s for plan in plans]
    limits = OperatorLimits(keep_free_bytes=((None, 1e9),))
    for estimator in (base, Whole(base)):
        assert iteration_times(limited(estimator, limits), plans).tolist() == expected
