"""Bounds of event times and of Phi by events, against every plan of random instances timed by a second simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Framework
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.search.bounds import compute_bounds
from memx_engine.search.event_times import EventTimes, StageRows
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import PROFILES, Weights
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.space import enumerate_space
from memx_engine.units import GIB
from tests.cost.naive_events import naive_iteration_time
from tests.search.exhaustive import Plans, exhaust, phi_of
from tests.search.random_instances import Instance, RandomTables, physical_instance, random_instance


def instances(first: int, count: int) -> Iterator[tuple[int, Instance, Estimator, list[Plans]]]:
    """Instances with the plans of every skeleton that fits; every fourth with the cost model's tables."""
    for k in range(first * 1000, first * 1000 + count):
        rng = np.random.default_rng([2031, k])
        physical = k % 4 == 3
        instance = physical_instance(rng) if physical else random_instance(rng, most_plans=1500, woven=k % 4 > 0)
        estimator: Estimator = RandomTables(instance, k, rough=k % 3 == 0, tightness=rng.uniform(0, 1.5))
        if physical:
            estimator = FirstPrinciples(instance.cluster, instance.model, instance.job)
        everything = exhaust(instance.cluster, instance.model, instance.job, estimator)
        fitting = [plans for plans in everything.plans if plans.fits.any()]
        if fitting and everything.covered <= 3000:
            yield k, instance, estimator, fitting


def event_time(plans: Plans, k: int) -> float:
    """Of plan ``k``, its chunks equal, by the second simulator."""
    table, v = plans.table, plans.table.virtual_stages
    at = (np.arange(table.stages), plans.layers[k], plans.options[k])
    chunks = [np.repeat(times[at][:, None] / v, v, axis=1).tolist() for times in (table.forward_s, table.backward_s)]
    return naive_iteration_time(
        *chunks,
        table.p2p_s.tolist(),
        table.micro_batches,
        wrap_s=table.wrap_s,
        tails_s=table.tail_s[at[:2]].tolist(),
        fixed_s=table.fixed_s,
    )


def test_no_plan_is_faster_by_events_than_its_skeleton_s_bounds() -> None:
    judged = {False: 0, True: 0}
    tightest = {False: 0.0, True: 0.0}
    rng = np.random.default_rng(5)
    for k, _, _, every in instances(0, 160):
        for plans in every:
            events = compute_bounds(plans.table).events
            assert events is not None
            fitting = np.flatnonzero(plans.fits)
            woven = plans.table.virtual_stages > 1
            for i in rng.choice(fitting, min(len(fitting), 400 if woven else 10), replace=False).tolist():
                took = event_time(plans, i)
                judged[woven] += 1
                from_closed = (plans.time_s[i] - events.less_s) / events.times
                tightest[woven] = max(tightest[woven], events.least_s / took)
                assert events.least_s <= took * (1 + 1e-12), f"instance {k}, {plans.skeleton}"
                assert from_closed <= took * (1 + 1e-12), f"instance {k}, {plans.skeleton}"
    assert judged[True] >= 2000 and judged[False] >= 1000
    assert min(tightest.values()) > 0.999


def test_ends_that_hold_the_token_table_and_the_head_break_no_bound() -> None:
    # The cost model's own events: unequal first and last chunks, which the estimate's chunks are not.
    cluster = load_cluster("h100-mi300x")
    model = replace(load_model("llama2-7b"), layers=12, vocab=128_000)
    job = replace(resolve_job(cluster, model, global_batch=16, micro_batch_sizes=(1,)), virtual_stages=(2, 3))
    estimator = FirstPrinciples(cluster, model, job)
    result = search(cluster, model, job, options=SearchOptions(top=1000, rescored=1000, front=0), estimator=estimator)
    woven = 0
    for ranked in result.plans:
        skeleton, estimate = ranked.plan.skeleton, ranked.estimate
        events = compute_bounds(estimator.stage_table(skeleton)).events
        assert events is not None
        woven += skeleton.virtual_stages > 1
        assert events.least_s <= estimate.iteration_time_s * (1 + 1e-12)
        assert (estimate.additive_time_s - events.less_s) / events.times <= estimate.iteration_time_s * (1 + 1e-12)
    assert woven >= 20


@pytest.mark.parametrize("first", [1, 2])
def test_no_plan_of_the_space_has_less_phi_by_events(first: int) -> None:
    judged, shares = 0, []
    for k, instance, estimator, every in instances(first, 24):
        profile = sorted(PROFILES)[k % 3]
        options = SearchOptions(weights=Weights(profile, *PROFILES[profile]), top=(1, 10)[k % 2], front=0)
        result = search(instance.cluster, instance.model, instance.job, options=options, estimator=estimator)
        bound = result.certificate.event_lower_bound
        assert bound is not None and bound > 0
        least = np.inf
        for plans in every:
            at = np.flatnonzero(plans.fits)
            if isinstance(estimator, FirstPrinciples) and plans.table.virtual_stages > 1:
                continue  # the ends' chunks are unequal there; the test before this one covers them
            times = np.array([event_time(plans, i) for i in at.tolist()])
            phi = phi_of(result.objective, times, plans.peak[at], plans.variance[at])
            least = min(least, float(phi.min()))
        assert bound <= least * (1 + 1e-9), f"instance {k}"
        assert bound <= result.plans[0].phi * (1 + 1e-9), f"instance {k}"
        judged += 1
        shares.append(bound / result.plans[0].phi)
    assert judged >= 12 and np.median(shares) > 0.8


def test_a_shared_row_says_what_a_table_of_its_own_says() -> None:
    cluster, model = load_cluster("paper-20gpu"), load_model("llama2-7b")
    job = resolve_job(cluster, model, global_batch=64)
    estimator = FirstPrinciples(cluster, model, job)
    kinds = set()
    for skeleton in list(enumerate_space(cluster, model, job).skeletons())[::29]:
        own = compute_bounds(estimator.stage_table(skeleton)).events
        if own is None:
            continue
        shared = EventTimes.of(StageRows.of_sketches([estimator.sketch(skeleton)]))
        kinds.add(skeleton.virtual_stages)
        assert own.least_s == pytest.approx(shared.least_s, rel=1e-9)
        assert own.times == pytest.approx(shared.times, rel=1e-9)
        assert own.less_s == pytest.approx(shared.less_s, rel=1e-9, abs=1e-12)
    assert kinds == {1, 2}


def test_limits_and_one_recompute_for_all_raise_the_bound_and_a_time_limit_leaves_none() -> None:
    cluster, model = load_cluster("a800x8"), load_model("llama3-8b")
    job = resolve_job(cluster, model, global_batch=64)
    free = search(cluster, model, job, options=SearchOptions(front=0))
    known = free.certificate.event_lower_bound
    assert known is not None and 0.8 * free.plans[0].phi < known <= free.plans[0].phi
    limits = OperatorLimits(keep_free_bytes=((None, 40 * GIB),))
    for narrower, options in (
        (job, SearchOptions(front=0, objective=free.objective, limits=limits)),
        (replace(job, framework=Framework.MEGATRON), SearchOptions(front=0, objective=free.objective)),
    ):
        result = search(cluster, model, narrower, options=options)
        bound = result.certificate.event_lower_bound
        assert bound is not None and known * (1 - 1e-6) <= bound <= result.plans[0].phi
    hurried = search(cluster, model, job, options=SearchOptions(front=0, time_limit_s=1e-6))
    assert hurried.certificate.event_lower_bound is None
