"""The whole search against every complete plan of small random instances.

Skeletons, splits, recompute, memory, time and Phi are worked out a second time (:mod:`tests.search.exhaustive`), on
random stage tables whose event times come from a second simulator. ``MEMX_PROOF_INSTANCES=5000`` looks at more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.errors import InputError, NoFeasiblePlanError
from memx_engine.plan import Recompute
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import PROFILES, Objective, Weights
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from tests.search.exhaustive import (
    NO_PINS,
    Everything,
    Pins,
    assert_legal,
    close,
    exhaust,
    measure,
    median_references,
    phi_of,
)
from tests.search.random_instances import Instance, RandomTables, physical_instance, random_instance, random_pins

INSTANCES = int(os.environ.get("MEMX_PROOF_INSTANCES", "500"))
_BATCH = 20
_TOPS = (1, 3, 10, 1000)


@dataclass(frozen=True)
class Case:
    """Instance number ``k`` and how it is searched."""

    instance: Instance
    estimator: Estimator
    options: SearchOptions
    pins: Pins
    monotone: bool


def as_limits(pins: Pins) -> OperatorLimits:
    """The same limits in the search's own words."""
    return OperatorLimits(
        layers=pins.layers,
        recompute=tuple((target, Recompute.parse(word)) for target, word in pins.recompute),
        forbidden=pins.forbidden,
        keep_free_bytes=pins.keep_free,
        max_layer_difference=pins.most_difference,
        type_order=pins.order,
        all_orders=pins.all_orders,
    )


def make_case(k: int) -> Case:
    rng = np.random.default_rng([2026, k])
    woven = k % 10 in (1, 2)
    instance = random_instance(rng, woven=woven)
    pins = random_pins(rng, instance) if k % 2 else NO_PINS
    if pins.all_orders:
        # Orders multiply the plans, so the instance is a small one, under that limit alone.
        instance, pins = random_instance(rng, gpus=5, most_plans=4000), replace(NO_PINS, all_orders=True)
    estimator = RandomTables(instance, k, rough=k % 3 == 0, tightness=rng.uniform(0, 1.5), woven=woven)
    profile = sorted(PROFILES)[k % 3]
    weights: Weights | None = Weights(profile, *PROFILES[profile])
    if k % 8 == 5:
        weights = None
    elif k % 8 == 6:
        weights = Weights("custom", *[(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5), (0.5, 0.5, 0.0)][k // 8 % 4])
    options = SearchOptions(
        limits=as_limits(pins),
        weights=weights,
        top=_TOPS[k // 2 % 4],
        variance_kind=("bytes", "utilization")[k // 3 % 2],
        epsilon_rule="paper" if k % 7 == 0 else "memx",
    )
    return Case(instance, estimator, options, pins, not estimator.rough)


def make_physical_case(k: int) -> Case:
    """Like :func:`make_case`, with the cost model's own tables."""
    rng = np.random.default_rng([2027, k])
    instance = physical_instance(rng)
    estimator = FirstPrinciples(instance.cluster, instance.model, instance.job)
    pins = random_pins(rng, instance, words=("none", "full", "block:1")) if k % 3 == 2 else NO_PINS
    options = SearchOptions(
        limits=as_limits(replace(pins, all_orders=False)),
        weights=None if k % 4 == 3 else Weights("", *PROFILES[sorted(PROFILES)[k % 4]]),
        top=_TOPS[k // 2 % 4],
        variance_kind=("bytes", "utilization")[k // 3 % 2],
    )
    return Case(instance, estimator, options, replace(pins, all_orders=False), True)


def run(case: Case) -> SearchResult | None:
    where = case.instance
    try:
        return search(where.cluster, where.model, where.job, options=case.options, estimator=case.estimator)
    except NoFeasiblePlanError:
        return None


@pytest.mark.parametrize("batch", range(-(-INSTANCES // _BATCH)))
def test_agrees_with_every_plan(batch: int) -> None:
    for k in range(batch * _BATCH, min((batch + 1) * _BATCH, INSTANCES)):
        judge(k, make_case(k))


@pytest.mark.parametrize("batch", range(-(-INSTANCES // (4 * _BATCH))))
def test_agrees_with_every_plan_of_the_cost_model(batch: int) -> None:
    for k in range(batch * _BATCH, (batch + 1) * _BATCH):
        judge(k, make_physical_case(k))


@pytest.mark.parametrize("batch", range(-(-INSTANCES // (5 * _BATCH))))
def test_agrees_where_skeletons_wait_and_even_splits_are_kept(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What large searches do, in small ones: one node at first, nothing solved that the bounds close.
    monkeypatch.setattr("memx_engine.search.branch_and_bound._WIDTHS", (1, 2))
    monkeypatch.setattr("memx_engine.search.solving._SOLVED_AT_LEAST", 0)
    for k in range(10_000 + batch * _BATCH, 10_000 + (batch + 1) * _BATCH):
        judge(k, make_physical_case(k) if k % 4 == 3 else make_case(k))


def test_a_second_look_into_a_skeleton_keeps_the_plan_of_the_first() -> None:
    judge(1265, make_physical_case(1265))


def test_the_fastest_plan_may_be_an_even_split_that_is_not_the_best_of_its_skeleton() -> None:
    judge(20_908, make_case(20_908))
    judge(20_927, make_case(20_927))


def test_what_the_paper_s_time_rule_removes_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memx_engine.search.solving._CLOSED_BY", 1)
    case = make_case(60_031)
    options = replace(case.options, time_rule="paper", top=1, front=0, weights=Weights("custom", 0.02, 0.5, 0.48))
    result = run(replace(case, options=options))
    where = case.instance
    everything = exhaust(where.cluster, where.model, where.job, case.estimator, kind=options.variance_kind)
    assert result is not None and result.certificate.lower_bound is not None
    best = everything.best(result.objective)
    assert result.certificate.best > 1.5 * best, "the rule removed the best plan"
    assert result.certificate.lower_bound <= best and not result.certificate.optimal


def judge(k: int, case: Case) -> None:
    """Search instance ``k`` and hold everything the result says against every plan there is."""
    where = case.instance
    everything = exhaust(
        where.cluster, where.model, where.job, case.estimator, kind=case.options.variance_kind, pins=case.pins
    )
    try:
        result = run(case)
    except InputError:
        # Limits that contradict each other or the inputs: no plan keeps them, whatever the memory.
        assert everything.covered == 0, f"instance {k}: refused"
        return
    assert (result is None) == (everything.feasible == 0), f"instance {k}: feasible or not"
    if result is not None:
        check_counts(k, case, result, everything)
        check_objective(k, case, result, everything)
        check_certificate(k, result, everything)
        check_table(k, case, result, everything)
        check_events(k, case, result, everything)


def check_counts(k: int, case: Case, result: SearchResult, everything: Everything) -> None:
    pruned, legal = result.pruned, len(everything.listing.legal)
    assert result.plans_covered == everything.covered, f"instance {k}"
    assert result.skeletons - pruned.placement == legal, f"instance {k}"
    if case.instance.job.pp_sizes is None:
        assert pruned.placement == everything.listing.refused, f"instance {k}"
    assert pruned.memory + pruned.time + result.feasible == legal, f"instance {k}"
    if case.options.top >= legal:
        # Nothing is closed then: every skeleton is either in the table or does not fit.
        assert pruned.time == 0 and result.feasible == everything.feasible, f"instance {k}"
    assert result.feasible <= everything.feasible and pruned.memory <= legal - everything.feasible, f"instance {k}"


def check_objective(k: int, case: Case, result: SearchResult, everything: Everything) -> None:
    """References are medians over even splits; ``auto`` follows the largest of the smallest margins."""
    objective, cluster, kind = result.objective, case.instance.cluster, case.options.variance_kind
    assert objective.variance_kind == kind
    expected = median_references(everything, kind, case.options.epsilon_rule)
    if expected is not None:
        ref = objective.references
        tiny = 1e-12 * ref.peak_bytes**2
        assert close(ref.time_s, expected[0]) and close(ref.peak_bytes, expected[1]), f"instance {k}"
        assert abs(ref.variance_bytes2 - expected[2]) <= 1e-9 * expected[2] + tiny, f"instance {k}"
        assert close(ref.epsilon_bytes2, expected[3], 1e-6), f"instance {k}"
    if case.options.weights is None and case.monotone:
        margin = max(p.least_margin[p.fits].max(initial=0.0) for p in everything.plans)
        rates = [gpu.gpu_type.bf16_flops for gpu in cluster.gpus if gpu.gpu_type.bf16_flops]
        uniform = np.std(rates) / np.mean(rates) <= 0.1
        chosen = "safety" if margin < 0.1 else "throughput" if uniform else "heterogeneous"
        assert (objective.weights.profile == chosen) or abs(margin - 0.1) < 1e-9, f"instance {k}"


def check_certificate(k: int, result: SearchResult, everything: Everything) -> None:
    certificate, best = result.certificate, everything.best(result.objective)
    if best == float("inf"):
        assert certificate.lower_bound is None and certificate.gap is None and not certificate.optimal
        return
    assert close(certificate.best, best), f"instance {k}: {certificate.best} is not the optimum {best}"
    assert certificate.lower_bound is not None and certificate.gap is not None
    assert best * (1 - 2e-9) <= certificate.lower_bound <= best * (1 + 1e-12), f"instance {k}"
    assert certificate.optimal == (result.plans[0].plan.skeleton.virtual_stages == 1), f"instance {k}"


def check_table(k: int, case: Case, result: SearchResult, everything: Everything) -> None:
    """Every row is a legal plan that fits; the N best skeletons' rows are their optima."""
    where, objective = case.instance, result.objective
    rows = {}
    for plan in result.table.plans:
        assert_legal(where.cluster, where.model, where.job, plan, case.pins)
        time_s, peak, variance, fits = measure(everything, plan)
        assert fits, f"instance {k}"
        rows[plan.skeleton] = float(phi_of(objective, np.array(time_s), np.array(peak), np.array(variance)))
    assert len(rows) == len(result.table)
    optima = {p.skeleton: float(p.phi(objective).min(initial=np.inf)) for p in everything.plans}
    for skeleton, phi in rows.items():
        assert phi >= optima[skeleton] * (1 - 1e-9), f"instance {k}"
    # Estimates of interleaved plans close no 1F1B skeleton.
    for among in ([s for s in optima if s.virtual_stages == 1], list(optima)):
        head = sorted((s for s in among if np.isfinite(optima[s])), key=optima.__getitem__)[: case.options.top]
        for skeleton in head:
            assert skeleton in rows, f"instance {k}: one of the best skeletons is missing"
            assert close(rows[skeleton], optima[skeleton]), f"instance {k}: not the optimum of its skeleton"


def check_events(k: int, case: Case, result: SearchResult, everything: Everything) -> None:
    """The head is ordered by event times; no plan at all has an additive Phi below the shown plan's event Phi."""
    objective: Objective = result.objective
    table = result.table
    assert np.all(np.diff(table.phi) >= 0)
    assert table.by_events[: len(result.plans)].all()
    for row, ranked in enumerate(result.plans):
        again = case.estimator.estimate(ranked.plan)
        variance = again.memory_variance_bytes2
        if objective.variance_kind == "utilization":
            variance = measure(everything, ranked.plan)[2]
        expected = phi_of(objective, np.array(again.iteration_time_s), np.array(again.peak_bytes), np.array(variance))
        assert close(ranked.phi, float(expected), 1e-8) and ranked.plan == table.plans[row], f"instance {k}"
    # Events never exceed the additive form, so the best by events is at least as good as the additive optimum.
    best = everything.best(objective)
    assert result.plans[0].phi <= best * (1 + 1e-9), f"instance {k}"
    plain = [p.time_s[p.fits].min(initial=np.inf) for p in everything.plans if p.table.virtual_stages == 1]
    assert result.time_optimal.estimate.iteration_time_s <= min(plain, default=np.inf) * (1 + 1e-9), f"instance {k}"
