"""Every plan of small instances timed by events, against the order that a search shows.

What a search claims of its order: each skeleton stands with its additive optimum, and these optima are ordered by
Phi of their event times. Over all plans it claims this: none has an additive Phi below the shown plan's event Phi.
"""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.search.objective import PROFILES, Objective, Weights
from memx_engine.search.run import SearchOptions, search
from tests.cost.naive_events import naive_iteration_time
from tests.search.exhaustive import Plans, exhaust, phi_of
from tests.search.random_instances import RandomTables, physical_instance, random_instance


def event_times(plans: Plans) -> np.ndarray:
    """(n,) iteration time of every 1F1B plan that fits by the second simulator, infinite for the others."""
    table, out = plans.table, np.full(len(plans.layers), np.inf)
    stage = np.arange(table.stages)
    for k in np.flatnonzero(plans.fits):
        at = (stage, plans.layers[k], plans.options[k])
        out[k] = naive_iteration_time(
            table.forward_s[at][:, None].tolist(),
            table.backward_s[at][:, None].tolist(),
            table.p2p_s.tolist(),
            table.micro_batches,
            tails_s=table.tail_s[at[:2]].tolist(),
            fixed_s=table.fixed_s,
        )
    return out


def optimum_of(plans: Plans, objective: Objective) -> int:
    """The plan of least additive Phi; ties within rounding go to less time, peak, variance, split, options."""
    phi = plans.phi(objective)
    ties = np.flatnonzero(phi <= phi.min() * (1 + 1e-12))
    return min(
        ties.tolist(),
        key=lambda k: (
            plans.time_s[k], plans.peak[k], plans.variance[k], tuple(plans.layers[k]), tuple(plans.options[k])
        ),
    )  # fmt: skip


@pytest.mark.parametrize("batch", range(4))
def test_order_and_claim_over_all_plans(batch: int) -> None:
    judged = 0
    for k in range(batch * 100, batch * 100 + 40):
        rng = np.random.default_rng([2029, k])
        physical = k % 4 == 3
        instance = physical_instance(rng) if physical else random_instance(rng, most_plans=1500)
        estimator: Estimator = RandomTables(instance, k, tightness=rng.uniform(0, 1.5))
        if physical:
            estimator = FirstPrinciples(instance.cluster, instance.model, instance.job)
        everything = exhaust(instance.cluster, instance.model, instance.job, estimator)
        if everything.feasible < 2 or everything.covered > 1500:
            continue
        judged += 1
        profile = sorted(PROFILES)[k % 3]
        options = SearchOptions(weights=Weights(profile, *PROFILES[profile]), top=1000, rescored=1000)
        result = search(instance.cluster, instance.model, instance.job, options=options, estimator=estimator)
        objective, shown = result.objective, result.plans[0]
        plain = [p for p in everything.plans if p.table.virtual_stages == 1 and p.fits.any()]
        event_phi = []
        for plans in plain:
            times = event_times(plans)
            event_phi.append(np.where(plans.fits, phi_of(objective, times, plans.peak, plans.variance), np.inf))
            # The additive form is an upper bound of the events on which its order rests.
            assert (times[plans.fits] <= plans.time_s[plans.fits] * (1 + 1e-12)).all()
            assert shown.phi <= plans.phi(objective).min() * (1 + 1e-9), f"instance {k}"

        optima = [optimum_of(plans, objective) for plans in plain]
        expected = {plans.skeleton: float(phi[i]) for plans, phi, i in zip(plain, event_phi, optima, strict=True)}
        rows = [r for r in result.plans if r.plan.skeleton.virtual_stages == 1]
        assert [r.phi for r in rows] == pytest.approx(sorted(expected.values()), rel=1e-9), f"instance {k}"
        for ranked in rows:
            assert ranked.phi == pytest.approx(expected[ranked.plan.skeleton], rel=1e-9), f"instance {k}"
    assert judged >= 10


def test_the_additive_form_is_the_event_time_of_one_stage_and_of_one_micro_batch_without_tails() -> None:
    judged = 0
    for k in range(40):
        rng = np.random.default_rng([2030, k])
        instance = random_instance(rng, most_plans=3000)
        estimator = RandomTables(instance, k, tightness=rng.uniform(0, 1))
        everything = exhaust(instance.cluster, instance.model, instance.job, estimator)
        single = [p for p in everything.plans if p.table.stages == 1 or p.table.micro_batches == 1]
        if not any(p.fits.any() for p in single):
            continue
        for plans in single:
            several = plans.table.stages > 1
            if plans.table.virtual_stages > 1 or (several and plans.table.tail_s.any()) or not plans.fits.any():
                continue
            judged += 1
            times = event_times(plans)
            assert times[plans.fits] == pytest.approx(plans.time_s[plans.fits], rel=1e-12)
    assert judged >= 10
