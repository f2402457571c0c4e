"""Lower bound <= optimum <= incumbent, always: finished, stopped at any moment, or out of time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.errors import CancelledError
from memx_engine.search.objective import PROFILES, Objective, Weights
from memx_engine.search.result import SearchProgress, SearchResult
from memx_engine.search.run import SearchOptions, search
from tests.search.exhaustive import Everything, assert_legal, close, exhaust, measure
from tests.search.random_instances import Instance, RandomTables, physical_instance, random_instance

_SLACK = 1e-9


def instances(first: int, count: int) -> Iterator[tuple[int, Instance, Estimator, Everything, np.random.Generator]]:
    """Instances with several skeletons and a plan that fits; every fourth with the cost model's tables."""
    given = 0
    for k in itertools.count(first * 1000):
        rng = np.random.default_rng([2028, k])
        physical = k % 4 == 3
        instance = physical_instance(rng) if physical else random_instance(rng, most_plans=5000)
        estimator: Estimator = RandomTables(instance, k, rough=k % 3 == 0, tightness=rng.uniform(0, 1.5))
        if physical:
            estimator = FirstPrinciples(instance.cluster, instance.model, instance.job)
        everything = exhaust(instance.cluster, instance.model, instance.job, estimator)
        if everything.feasible >= 3:
            given += 1
            yield k, instance, estimator, everything, rng
        if given == count:
            return


def options_of(k: int, **more: float) -> SearchOptions:
    profile = sorted(PROFILES)[k % 3]
    return SearchOptions(weights=Weights(profile, *PROFILES[profile]), top=(1, 3, 10)[k // 3 % 3], **more)  # type: ignore[arg-type]  # limits in seconds


def is_honest(k: int, instance: Instance, result: SearchResult, everything: Everything) -> None:
    """What the certificate says against the truth under the result's own objective."""
    certificate, optimum = result.certificate, everything.best(result.objective)
    where = f"instance {k}"
    if certificate.lower_bound is not None:
        assert certificate.lower_bound <= optimum * (1 + _SLACK), where
        assert certificate.lower_bound <= certificate.best * (1 + _SLACK), where
        gap = (certificate.best - certificate.lower_bound) / certificate.best
        assert certificate.gap == pytest.approx(gap, abs=1e-12), where
    if any(plan.skeleton.virtual_stages == 1 for plan in result.table.plans):
        assert certificate.best >= optimum * (1 - _SLACK), where
    if certificate.optimal:
        assert close(certificate.best, optimum), where
        assert result.plans[0].plan.skeleton.virtual_stages == 1, where
    assert result.plans_covered <= everything.covered, where
    for plan in result.table.plans:
        assert_legal(instance.cluster, instance.model, instance.job, plan)
        assert measure(everything, plan)[3], where


def event_gap_is_honest(result: SearchResult, objective: Objective) -> None:
    shown = result.plans[0]
    least = objective.phi(
        shown.estimate.lower_bound_s, shown.estimate.peak_bytes, shown.estimate.memory_variance_bytes2
    )
    assert result.certificate.event_gap == pytest.approx(1 - least / shown.phi, abs=1e-12)
    assert 0 <= result.certificate.event_gap < 1


@pytest.mark.parametrize("first", range(6))
def test_stopped_at_a_random_moment(first: int) -> None:
    for k, instance, estimator, everything, rng in instances(first, 4):
        asked = itertools.count()
        whole = search(
            instance.cluster, instance.model, instance.job, options=options_of(k), estimator=estimator,
            should_stop=lambda asked=asked: next(asked) < 0,
        )  # fmt: skip
        is_honest(k, instance, whole, everything)
        event_gap_is_honest(whole, whole.objective)
        total = next(asked)
        for moment in {int(m) for m in rng.integers(0, total + 1, 4)}:
            asked = itertools.count()
            try:
                result = search(
                    instance.cluster, instance.model, instance.job, options=options_of(k), estimator=estimator,
                    should_stop=lambda asked=asked, moment=moment: next(asked) >= moment,
                )  # fmt: skip
            except CancelledError:
                continue
            assert result.cancelled or moment == total
            is_honest(k, instance, result, everything)


@pytest.mark.parametrize("first", range(8, 14))
def test_out_of_time_at_a_random_moment(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for k, instance, estimator, everything, rng in instances(first, 4):
        # A clock that goes one second on each time it is read: the same moments on every machine.
        for limit in {float(m) for m in rng.integers(1, 120, 4)}:
            clock = itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr("time.monotonic", lambda clock=clock: float(next(clock)))
                result = search(
                    instance.cluster, instance.model, instance.job, estimator=estimator,
                    options=options_of(k, time_limit_s=limit),
                )  # fmt: skip
            assert result.table.plans and not result.cancelled
            is_honest(k, instance, result, everything)


@pytest.mark.parametrize("first", range(14, 17))
def test_progress_tells_the_truth(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for k, instance, estimator, everything, _ in instances(first, 3):
        seen: list[SearchProgress] = []
        clock = itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr("time.monotonic", lambda clock=clock: float(next(clock)))
            result = search(
                instance.cluster, instance.model, instance.job, options=options_of(k), estimator=estimator,
                on_progress=seen.append,
            )  # fmt: skip
        optimum = everything.best(result.objective)
        either = min(optimum, everything.best(result.objective, plain=False))
        assert seen and seen[-1].phase == "done"
        assert any(progress.gap is not None for progress in seen) or optimum == float("inf")
        assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
        for before, after in itertools.pairwise(seen):
            assert before.pruned.memory <= after.pruned.memory and before.pruned.time <= after.pruned.time
            if before.best_phi is not None and after.best_phi is not None:
                assert after.best_phi <= before.best_phi
            if before.lower_bound_phi is not None and after.lower_bound_phi is not None:
                assert after.lower_bound_phi >= before.lower_bound_phi * (1 - _SLACK), f"instance {k}"
            if before.gap is not None and after.gap is not None:
                assert after.gap <= before.gap + _SLACK, f"instance {k}"
        for progress in seen:
            if progress.best_phi is not None:
                assert progress.best_phi >= either * (1 - _SLACK), f"instance {k}"
            lower = progress.lower_bound_phi
            if lower is not None:
                assert lower <= optimum * (1 + _SLACK), f"instance {k}"
            if progress.gap is not None:
                assert -_SLACK <= progress.gap <= 1
