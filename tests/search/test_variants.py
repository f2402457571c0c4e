"""Free hyper-parameters: compared per token, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.errors import InputError, NoFeasiblePlanError
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.options import SearchOptions
from memx_engine.search.result import SearchResult
from memx_engine.search.run import search
from memx_engine.search.space import enumerate_space
from memx_engine.search.variants import free_variants, per_token, search_variants
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.search.brute import best_of, plain
from tests.search.fakes import TableEstimator

CLUSTER, MODEL, JOB = make_cluster(H100, MI300X, gpus_per_node=2), make_model(layers=6), plain(make_job(8))


def search_one(model: TransformerSpec, job: Job, options: SearchOptions) -> SearchResult:
    return search(CLUSTER, model, job, options=options, estimator=TableEstimator(CLUSTER, model, job))


def test_the_best_combination_is_that_of_brute_force_per_token() -> None:
    variants = free_variants(CLUSTER, MODEL, JOB, global_batches=(8, 16), seq_lens=(4096, 1024), kv_heads=(8, 32))
    assert len(variants) == 8 and len({(v.model.kv_heads, v.job.global_batch, v.job.seq_len) for v in variants}) == 8
    free = search_variants(variants, SearchOptions(front=0), search_one)
    first = free.searched[0].result
    assert first is not None
    least = {}
    for i, one in enumerate(free.searched):
        assert one.result is not None
        estimator = TableEstimator(CLUSTER, one.variant.model, one.variant.job)
        skeletons = list(enumerate_space(CLUSTER, one.variant.model, one.variant.job).skeletons())
        # The first one's objective, its reference time for as many tokens as this one has.
        references = first.objective.references
        tokens = one.variant.tokens / (JOB.global_batch * JOB.seq_len)
        expected = replace(first.objective, references=replace(references, time_s=references.time_s * tokens))
        assert one.result.objective.weights == expected.weights
        assert one.result.objective.references.time_s == pytest.approx(expected.references.time_s)
        least[i] = best_of(skeletons, estimator, expected)
        assert one.result.certificate.best == pytest.approx(least[i], rel=1e-9)
        assert one.s_per_token == one.result.plans[0].estimate.iteration_time_s / one.variant.tokens
    assert free.best == min(least, key=least.__getitem__)
    assert free.lower_bound == pytest.approx(min(least.values()), rel=1e-9) and free.optimal


def test_the_same_work_in_other_numbers_has_the_same_phi() -> None:
    result = search_one(MODEL, JOB, SearchOptions(front=0))
    estimate = result.plans[0].estimate
    doubled = per_token(result.objective, 1000, 2000)
    twice = replace(estimate, iteration_time_s=2 * estimate.iteration_time_s)
    assert doubled.phi_of(twice) == pytest.approx(result.objective.phi_of(estimate))


def test_a_given_objective_is_that_of_the_first_combination() -> None:
    given = search_one(MODEL, JOB, SearchOptions(front=0)).objective
    variants = free_variants(CLUSTER, MODEL, JOB, global_batches=(8, 16))
    free = search_variants(variants, SearchOptions(objective=given, front=0), search_one)
    results = [one.result for one in free.searched]
    assert results[0] is not None and results[0].objective == given
    assert results[1] is not None
    assert results[1].objective.references.time_s == pytest.approx(2 * given.references.time_s)


def test_combinations_that_do_not_fit_are_kept_with_their_reason() -> None:
    variants = free_variants(CLUSTER, MODEL, JOB, seq_lens=(8192, 1024))

    def heavy(model: TransformerSpec, job: Job, options: SearchOptions) -> SearchResult:
        scale = 300.0 if job.seq_len == 8192 else 1.0
        estimator = TableEstimator(CLUSTER, model, job, memory_scale=scale)
        return search(CLUSTER, model, job, options=options, estimator=estimator)

    free = search_variants(variants, SearchOptions(front=0), heavy)
    assert free.best == 1 and free.searched[0].result is None and "GiB short" in free.searched[0].problem
    assert free.searched[0].s_per_token == float("inf")
    with pytest.raises(NoFeasiblePlanError):
        search_variants(variants[:1], SearchOptions(front=0), heavy)


def test_a_time_limit_is_shared_out() -> None:
    variants = free_variants(CLUSTER, MODEL, JOB, global_batches=(8, 16))
    seen: list[float | None] = []

    def one(model: TransformerSpec, job: Job, options: SearchOptions) -> SearchResult:
        seen.append(options.time_limit_s)
        return search_one(model, job, options)

    search_variants(variants, SearchOptions(time_limit_s=20.0), one)
    assert seen == [10.0, 10.0]


def test_heads_follow_the_width_and_kv_heads_the_heads() -> None:
    # Llama-2-7B's attention: 32 heads of 128 make the width of 4096, as many KV heads.
    model = replace(MODEL, kv_heads=32)
    (variant,) = free_variants(CLUSTER, model, JOB, heads=(64,))
    assert (variant.model.heads, variant.model.head_dim, variant.model.kv_heads) == (64, 64, 64)
    assert variant.model.parameters == model.parameters
    assert "64 heads of size 64 and 64 KV heads instead of 32 and 32" in variant.model.assumed[-1]
    # Gemma-like: heads x size is not the width, so the size stays and parameters change.
    wide = replace(MODEL, head_dim=256)
    (other,) = free_variants(CLUSTER, wide, JOB, heads=(16,))
    assert other.model.head_dim == 256 and other.model.parameters < wide.parameters
    # Grouped queries stay grouped; what does not divide is no model.
    assert [v.model.kv_heads for v in free_variants(CLUSTER, MODEL, JOB, heads=(16, 32))] == [8, 8]
    assert len(free_variants(CLUSTER, MODEL, JOB, heads=(32, 64), kv_heads=(8, 64))) == 3
    assert free_variants(CLUSTER, MODEL, JOB)[0].model is MODEL


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="do not divide the hidden size 4096") as caught:
        free_variants(CLUSTER, MODEL, JOB, heads=(40,))
    assert "32" in caught.value.hint
    with pytest.raises(InputError, match="none of the KV heads 7"):
        free_variants(CLUSTER, MODEL, JOB, kv_heads=(7,), heads=(32,))
    with pytest.raises(InputError, match="at most 64"):
        free_variants(CLUSTER, MODEL, JOB, global_batches=range(1, 66))
    with pytest.raises(InputError, match="0"):
        free_variants(CLUSTER, MODEL, JOB, seq_lens=(0,))
