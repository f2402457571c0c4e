"""Windows of layers against every plan of small instances of the cost model."""

from __future__ import annotations

import numpy as np

from memx_engine.search.objective import Objective, References, Weights
from memx_engine.search.windows import windows
from tests.search.exhaustive import all_plans
from tests.search.random_instances import physical_instance
from tests.search.spaces import Ground

PROFILES = ((0.4, 0.2, 0.4), (0.7, 0.2, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.4, 0.6), (0.0, 0.0, 1.0))


def test_every_plan_that_matters_lies_in_the_window() -> None:
    mattered, narrower = np.zeros(3), 0
    for k in range(30):
        rng = np.random.default_rng([71, k])
        instance = physical_instance(rng, layers=8)
        ground = Ground.made(instance.cluster, instance.model, instance.job)
        fitting = ground.fitting()
        time_s, peak = fitting.time_s, fitting.peak_bytes
        sketches = [sketch for sketch in fitting.sketches if sketch is not None]
        assert len(sketches) == len(fitting)
        every = [all_plans(s, ground.estimator.stage_table(s), ground.job) for s in fitting.skeletons]
        epsilon = float((0.1 * peak.max(initial=1.0)) ** 2)
        references = References(time_s.max(initial=1.0), peak.max(initial=1.0), epsilon, epsilon)
        for weights in PROFILES:
            objective = Objective(Weights("test", *weights), references)
            corner = objective.phi_array(time_s, peak, fitting.variance_bytes2)
            for room in (rng.uniform(0.0, 0.4, len(fitting)), np.full(len(fitting), np.inf)):
                made = windows(sketches, objective, time_s, peak, room)
                for i, (plans, window) in enumerate(zip(every, made, strict=True)):
                    v = plans.skeleton.virtual_stages
                    matters = plans.phi(objective) < corner[i] * np.exp(room[i])
                    units = plans.layers[matters] // v
                    assert (units >= window.fewest).all() and (units <= window.most).all(), (weights, plans.skeleton)
                    mattered[min(v, 3) - 1] += len(units)
                    fits = plans.layers[plans.fits] // v
                    narrower += int(((fits < window.fewest) | (fits > window.most)).any())
    assert mattered[0] > 1000 and mattered[1:].sum() > 100 and narrower > 50, (mattered, narrower)
