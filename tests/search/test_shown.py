"""What is shown does not depend on how much is shown, and the fastest plan is the fastest that time alone finds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from memx_engine.errors import NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster, parse_cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model
from memx_engine.search.objective import Weights
from memx_engine.search.run import SearchOptions, search
from tests.export.test_searched_plans import LAB
from tests.search.random_instances import RandomTables, random_instance

BY_TIME = Weights("time", 1.0, 0.0, 0.0)
Inputs = tuple[Cluster, TransformerSpec, Job]


@cache
def lab() -> Inputs:
    cluster, model = parse_cluster(LAB), load_model("qwen2.5-7b")
    return cluster, model, resolve_job(cluster, model, global_batch=512)


@cache
def small_sample() -> Inputs:
    cluster, model = load_cluster("paper-20gpu"), load_model("llama2-7b")
    return cluster, model, resolve_job(cluster, model, global_batch=512, micro_batch_sizes=(1, 2), tp_sizes=(1, 2))


def test_the_first_plans_are_the_same_however_few_are_shown() -> None:
    # By time alone the best plan by events of this cluster is the additive optimum of a skeleton that is not the best.
    first = [search(*lab(), options=SearchOptions(weights=BY_TIME, top=top, front=0)).plans[:10] for top in (1, 3, 10)]
    assert first[0] == first[1] == first[2]


@pytest.mark.parametrize("inputs", (lab, small_sample))
def test_the_fastest_plan_is_not_slower_than_what_time_alone_shows_first(inputs: object) -> None:
    assert callable(inputs)
    cluster, model, job = inputs()
    alone = search(cluster, model, job, options=SearchOptions(weights=BY_TIME)).plans[0]
    for weights in (None, Weights("safety", 0.3, 0.5, 0.2)):
        result = search(cluster, model, job, options=SearchOptions(weights=weights, front=0))
        fastest = result.time_optimal.estimate.iteration_time_s
        assert fastest <= alone.estimate.iteration_time_s * (1 + 1e-12)
        assert fastest == min(p.estimate.iteration_time_s for p in (*result.plans, *result.pareto, result.time_optimal))


def test_the_same_of_random_clusters_with_events_unlike_the_additive_time() -> None:
    judged = 0
    for k in range(24):
        instance = random_instance(np.random.default_rng([2041, k]), most_plans=1500)
        inputs = instance.cluster, instance.model, instance.job
        estimator = RandomTables(instance, k, tightness=0.5)
        try:
            alone = search(*inputs, options=SearchOptions(weights=BY_TIME), estimator=estimator)
        except NoFeasiblePlanError:
            continue
        judged += 1
        shown = search(*inputs, options=SearchOptions(weights=Weights("peak", 0.1, 0.8, 0.1)), estimator=estimator)
        fastest = shown.time_optimal.estimate.iteration_time_s
        assert fastest <= alone.plans[0].estimate.iteration_time_s * (1 + 1e-12), f"instance {k}"
    assert judged > 12
