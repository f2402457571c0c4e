"""The gap of a plan to the best, and remedies that are tried with the estimator that judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import NoFeasiblePlanError
from memx_engine.inputs.job import Optimizer
from memx_engine.plan import FULL, NONE, Verdict
from memx_engine.search.explain import PlanRequest, explain_plan, explain_request
from memx_engine.search.gap import gap_by_certificate
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.run import SearchOptions, search
from memx_engine.units import GIB
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.search.brute import plain
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


def test_a_plan_that_breaks_limits_says_which_and_by_how_much() -> None:
    cluster, model, job = make_cluster(H100, MI300X, gpus_per_node=2), make_model(8), plain(make_job(8))
    request = PlanRequest(
        1, 4, 1, 1, layers=(1, 1, 2, 4), recompute=(NONE, FULL, NONE, NONE), type_order=(H100.name, MI300X.name)
    )
    estimator = TableEstimator(cluster, model, job)

    def reasons(**limits: object) -> list[tuple[int | None, str]]:
        asked = OperatorLimits(**limits)  # type: ignore[arg-type]
        found = explain_request(cluster, model, job, request, estimator=estimator, limits=asked).reasons
        return [(reason.stage, reason.message) for reason in found if reason.rule == "limit"]

    assert reasons() == []
    assert reasons(layers=((0, 1), (MI300X.name, 4))) == [(2, "stage 2 has 2 layers, pinned are 4")]
    assert reasons(layers=((5, 1),)) == [(None, "stage 5 is pinned to 1 layers, and there are 4 stages")]
    assert reasons(recompute=((H100.name, NONE),)) == [(1, "stage 1 has recompute full, pinned is none")]
    assert reasons(forbidden=("mi300x",)) == [(2, "mi300x is forbidden, and 2 stages are on it")]
    assert reasons(max_layer_difference=2) == [
        (None, "the layers of its stages differ by 3, at most 2 are allowed"),
    ]
    ((_, order),) = reasons(type_order=("mi300x", "h100"))
    assert order.endswith("fixed is mi300x > h100-sxm-80g")
    judged = explain_request(
        cluster,
        model,
        job,
        request,
        estimator=estimator,
        limits=OperatorLimits(keep_free_bytes=((MI300X.name, 191 * GIB),)),
    )
    assert judged.plan is not None and judged.verdict is not Verdict.DOES_NOT_FIT
    lacking = {r.stage: r.missing_bytes for r in judged.reasons if r.rule == "limit"}
    for stage in (2, 3):
        gpu = next(g for g in judged.plan.estimate.gpus if g.stage == stage)
        assert lacking[stage] == pytest.approx(191 * GIB - (gpu.capacity_bytes - gpu.peak_bytes))
    # A search's own limits are those that its plans are judged by.
    limits = OperatorLimits(recompute=((None, FULL),))
    result = search(cluster, model, job, options=SearchOptions(limits=limits), estimator=estimator)
    best = explain_plan(cluster, model, job, result.plans[0].plan, result=result)
    assert not any(reason.rule == "limit" for reason in best.reasons)
    against = explain_request(cluster, model, job, request, result=result).reasons
    assert [r.stage for r in against if r.rule == "limit"] == [0, 2, 3]
