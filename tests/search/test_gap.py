"""The gap of a plan to the best, and remedies that are tried with the estimator that judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import NoFeasiblePlanError
from memx_engine.inputs.job import Optimizer
from memx_engine.plan import Verdict
from memx_engine.search.explain import PlanRequest, explain_plan, explain_request
from memx_engine.search.gap import gap_by_certificate
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.run import SearchOptions, search
from memx_engine.units import GIB
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.search.fakes import TableEstimator

CLUSTER, MODEL, JOB = make_cluster(H100, MI300X, gpus_per_node=2), make_model(layers=6), make_job(8)
REQUEST = PlanRequest(1, 4, 1, 1, layers=(1, 1, 1, 3))


@pytest.fixture(scope="module")
def estimator() -> TableEstimator:
    return TableEstimator(CLUSTER, MODEL, JOB)


def test_the_best_plan_has_no_gap_and_others_have(estimator: TableEstimator) -> None:
    result = search(CLUSTER, MODEL, JOB, estimator=estimator)
    best = explain_plan(CLUSTER, MODEL, JOB, result.plans[0].plan, result=result)
    assert best.gap is not None and best.gap.excess == pytest.approx(0.0) and best.gap.ahead == 0
    assert best.gap.bound_gap == pytest.approx(0.0, abs=1e-9)
    for ranked in result.plans[1:10]:
        gap = explain_plan(CLUSTER, MODEL, JOB, ranked.plan, result=result).gap
        assert gap is not None and gap.phi == ranked.phi
        assert gap.excess == pytest.approx(ranked.phi / result.plans[0].phi - 1.0)
        assert gap.ahead is not None and gap.ahead <= ranked.rank - 1
        assert gap.bound_gap is not None and gap.bound_gap >= -1e-12
        by_file = gap_by_certificate(result.certificate, result.objective, ranked.estimate)
        assert by_file.bound_gap == gap.bound_gap and by_file.ahead is None


def test_the_gap_is_that_within_the_limits(estimator: TableEstimator) -> None:
    free = search(CLUSTER, MODEL, JOB, estimator=estimator)
    options = SearchOptions(objective=free.objective, limits=OperatorLimits(layers=((0, 1),)))
    limited = search(CLUSTER, MODEL, JOB, options=options, estimator=estimator)
    gaps = [explain_request(CLUSTER, MODEL, JOB, REQUEST, result=result).gap for result in (free, limited)]
    assert gaps[0] is not None and gaps[1] is not None
    assert gaps[0].phi == gaps[1].phi and gaps[0].excess >= gaps[1].excess
    said = explain_request(CLUSTER, MODEL, JOB, REQUEST, result=limited).reasons
    assert any("within the limits" in reason.message for reason in said)


def test_no_gap_without_a_search_or_for_an_invalid_plan(estimator: TableEstimator) -> None:
    assert explain_request(CLUSTER, MODEL, JOB, REQUEST, estimator=estimator).gap is None
    result = search(CLUSTER, MODEL, JOB, estimator=estimator)
    invalid = explain_request(CLUSTER, MODEL, JOB, replace(REQUEST, tp=3), result=result)
    assert invalid.verdict is Verdict.INVALID and invalid.gap is None


def test_remedies_are_tried_with_the_estimator_that_judged() -> None:
    cluster, model = make_cluster(H100, gpus_per_node=8), make_model(32)
    job = replace(make_job(8), optimizer=Optimizer.REPLICATED)
    request = PlanRequest(1, 1, 8, 1)
    plain = explain_request(cluster, model, job, request, estimator=FirstPrinciples(cluster, model, job))
    assert plain.verdict is Verdict.DOES_NOT_FIT and "fit: a sharded optimizer" in plain.reasons[0].remedy
    # A measured context of half the device leaves less room: what would fit is more.
    heavy = FirstPrinciples(cluster, model, job, {H100.name: Correction(context=13.0)})
    judged = explain_request(cluster, model, job, request, estimator=heavy)
    assert judged.verdict is Verdict.DOES_NOT_FIT
    assert "fit: a sharded optimizer" not in judged.reasons[0].remedy


def test_a_search_that_finds_nothing_also_asks_its_own_estimator() -> None:
    cluster, model, job = make_cluster(H100, gpus_per_node=2), make_model(32), make_job(8)
    context = {H100.name: Correction(context=(H100.memory_bytes - 2 * GIB) / H100.context_bytes)}
    with pytest.raises(NoFeasiblePlanError) as caught:
        search(cluster, model, job, estimator=FirstPrinciples(cluster, model, job, context))
    # First principles alone would say that 2 GPUs and a shorter sequence do; with this context nothing does.
    assert "a sequence of" not in caught.value.hint
