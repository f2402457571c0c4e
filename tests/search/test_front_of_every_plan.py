"""The Pareto front of a search against every plan of small instances."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.search.objective import PROFILES, Weights
from memx_engine.search.run import SearchOptions, search
from tests.search.exhaustive import dominated, exhaust, measure
from tests.search.random_instances import RandomTables, physical_instance, random_instance


@pytest.mark.parametrize("batch", range(2))
def test_no_plan_dominates_the_front(batch: int) -> None:
    judged = 0
    for k in range(batch * 100, batch * 100 + 25):
        rng = np.random.default_rng([2034, k])
        physical = k % 4 == 3
        instance = physical_instance(rng) if physical else random_instance(rng, most_plans=6000)
        estimator: Estimator = RandomTables(instance, k, rough=k % 3 == 0, tightness=rng.uniform(0, 1.5))
        if physical:
            estimator = FirstPrinciples(instance.cluster, instance.model, instance.job)
        everything = exhaust(instance.cluster, instance.model, instance.job, estimator)
        every = everything.points()
        if not len(every):
            continue
        profile = sorted(PROFILES)[k % 3]
        options = SearchOptions(weights=Weights(profile, *PROFILES[profile]), front_nodes=None)
        result = search(instance.cluster, instance.model, instance.job, options=options, estimator=estimator)
        judged += 1

        # As it is shown, by event times, no plan of the front dominates another one, nor the answer.
        shown = np.array(
            [
                (r.estimate.iteration_time_s, r.estimate.peak_bytes, r.estimate.memory_variance_bytes2)
                for r in (*result.pareto, result.plans[0])
            ]
        )
        assert not dominated(shown, shown).any(), f"instance {k}"
        assert result.front.complete, f"instance {k}"
        # By the additive form no 1F1B plan of the whole space dominates a plan of the front, nor the answer. Only the
        # fastest plan by events may stand there for its event time alone.
        plain = [r.plan for r in (*result.pareto, result.plans[0]) if r.plan.skeleton.virtual_stages == 1]
        proven = [plan for plan in plain if plan != result.time_optimal.plan]
        measures = np.array([measure(everything, plan)[:3] for plan in proven]).reshape(-1, 3)
        assert not dominated(measures, every).any(), f"instance {k}"
    assert judged > 12
