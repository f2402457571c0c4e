from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from memx_engine.errors import CancelledError, InputError
from memx_engine.inputs.job import Framework
from memx_engine.search.objective import parse_weights
from memx_engine.search.pareto import pareto_mask
from memx_engine.search.result import SearchProgress, SearchResult
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.space import enumerate_space
from tests.builders import H100, make_cluster, make_job, make_model
from tests.search.fakes import OPTIONS, TableEstimator


def run(weights: str = "auto", **options: object) -> SearchResult:
    cluster, model, job = make_cluster(), make_model(layers=12), make_job(global_batch=16)
    # The front of the whole space has its own tests: here it is that of the table.
    chosen = SearchOptions(weights=parse_weights(weights), **{"front": 0, **options})  # type: ignore[arg-type]
    return search(cluster, model, job, options=chosen, estimator=TableEstimator(cluster, model, job))


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return run()


def test_counts_add_up(result: SearchResult) -> None:
    pruned = result.pruned
    assert result.skeletons == pruned.placement + pruned.memory + pruned.time + result.feasible
    assert result.feasible == len(result.table)
    assert result.plans_covered > result.skeletons
    assert set(map(str, OPTIONS)) == set(result.space["recompute"])


def test_table_is_in_rank_order(result: SearchResult) -> None:
    assert np.all(np.diff(result.table.phi) >= 0)
    assert [p.rank for p in result.plans] == list(range(1, len(result.plans) + 1))
    assert [p.phi for p in result.plans] == result.table.phi[: len(result.plans)].tolist()
    assert result.table.by_events[: len(result.plans)].all()


def test_head_carries_event_times(result: SearchResult) -> None:
    for row, ranked in enumerate(result.plans):
        assert result.table.time_s[row] == ranked.estimate.iteration_time_s
        expected = result.objective.phi(
            ranked.estimate.iteration_time_s, ranked.estimate.peak_bytes, ranked.estimate.memory_variance_bytes2
        )
        assert ranked.phi == expected


def test_front_is_that_of_the_table_and_the_fastest_plan(result: SearchResult) -> None:
    table, fastest = result.table, result.time_optimal.estimate
    beside = result.time_optimal.plan not in table.plans
    columns = [
        np.append(column, [value] * beside)
        for column, value in (
            (table.time_s, fastest.iteration_time_s),
            (table.peak_bytes, fastest.peak_bytes),
            (table.variance_bytes2, fastest.memory_variance_bytes2),
        )
    ]
    mask = pareto_mask(*columns)
    assert mask[: len(table)].tolist() == table.pareto.tolist()
    assert result.plans[0].pareto
    times = [r.estimate.iteration_time_s for r in result.pareto]
    assert times == sorted(times) and len(result.pareto) == mask.sum()
    assert times[0] == fastest.iteration_time_s


def test_every_plan_places_every_layer_and_fits(result: SearchResult) -> None:
    assert result.table.worst_fraction.max() <= 1.0
    for plan in result.table.plans:
        assert sum(plan.layers) == 12 and len(plan.stages) == plan.skeleton.pp


def test_time_optimal_is_the_fastest_and_has_its_price(result: SearchResult) -> None:
    fastest = result.time_optimal
    assert fastest.estimate.iteration_time_s <= result.table.time_s.min() * (1 + 1e-12)
    assert fastest.phi >= result.plans[0].phi


def test_same_inputs_same_answer(result: SearchResult) -> None:
    again = run()
    assert again.table.plans == result.table.plans
    assert again.table.phi.tolist() == result.table.phi.tolist()


def test_time_weights_alone_give_the_fastest_plan() -> None:
    result = run("1,0,0")
    assert result.plans[0].estimate.iteration_time_s == result.time_optimal.estimate.iteration_time_s
    assert result.plans[0].pareto


def test_auto_weights_say_why(result: SearchResult) -> None:
    assert result.objective.weights.reason


def test_paper_rule_prunes_on_time_alone() -> None:
    assert run(time_rule="paper", top=1).pruned.time > 0


def test_one_recompute_for_the_whole_job_under_megatron() -> None:
    cluster, model = make_cluster(), make_model(layers=12)
    job = make_job(global_batch=16)
    job = type(job)(job.global_batch, job.seq_len, framework=Framework.MEGATRON)
    result = search(cluster, model, job, estimator=TableEstimator(cluster, model, job, memory_scale=4.0))
    assert all(len(set(plan.recompute)) == 1 for plan in result.table.plans)


def test_stopping_before_any_plan_is_cancelled() -> None:
    cluster, model, job = make_cluster(), make_model(), make_job()
    with pytest.raises(CancelledError):
        search(cluster, model, job, estimator=TableEstimator(cluster, model, job), should_stop=lambda: True)


def test_stopping_later_returns_the_best_so_far() -> None:
    cluster, model, job = make_cluster(H100), make_model(layers=12), make_job(global_batch=16)
    skeletons = len(list(enumerate_space(cluster, model, job).skeletons()))
    seen: list[SearchProgress] = []
    # Asked once per skeleton while bounding, then before every visit while solving.
    asked = count()
    result = search(
        cluster,
        model,
        job,
        estimator=TableEstimator(cluster, model, job),
        on_progress=seen.append,
        should_stop=lambda: next(asked) >= skeletons,
    )
    # Plans that fit are known of many skeletons; the bounds of all of them were there before the first visit.
    assert result.cancelled and len(result.table) >= 1
    assert result.certificate.gap is not None and 0.0 <= result.certificate.gap < 1.0
    assert seen and [s.feasible for s in seen] == sorted(s.feasible for s in seen)


def test_stopping_while_ranking_keeps_what_is_simulated(result: SearchResult) -> None:
    cluster, model, job = make_cluster(), make_model(layers=12), make_job(global_batch=16)
    estimator = TableEstimator(cluster, model, job)
    stopped = search(cluster, model, job, estimator=estimator, should_stop=lambda: estimator.estimates >= 5)
    assert stopped.cancelled and stopped.table.plans
    assert 1 <= len(stopped.plans) < len(result.plans)
    assert stopped.table.by_events[: len(stopped.plans)].all()


def test_a_time_limit_still_gives_a_plan() -> None:
    result = run(time_limit_s=1e-6)
    assert len(result.table) >= 1 and not result.cancelled
    assert any("time limit" in line for line in result.assumed)
    # What was not looked at cannot be certified.
    assert result.certificate.gap is None and not result.certificate.optimal


@pytest.mark.parametrize("options", [{"top": 0}, {"time_limit_s": -1.0}, {"time_rule": "none"}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SearchOptions(**options)  # type: ignore[arg-type]


def test_skeletons_that_cannot_be_among_the_best_keep_their_even_split(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(top=3, rescored=3)
    monkeypatch.setattr("memx_engine.search.solving._SOLVED_AT_LEAST", 0)
    quick = run(top=3, rescored=3)
    assert [p.plan for p in quick.plans[:3]] == [p.plan for p in whole.plans[:3]]
    assert quick.certificate.optimal == whole.certificate.optimal
    assert quick.certificate.best == whole.certificate.best
    # Another front closes other skeletons by the time rule, but none is lost.
    assert quick.feasible + quick.pruned.time == whole.feasible + whole.pruned.time
    shapes = {p.skeleton: p for p in whole.table.plans}
    assert all(sum(p.layers) == 12 for p in quick.table.plans)
    assert any(p != shapes.get(p.skeleton, p) for p in quick.table.plans)
