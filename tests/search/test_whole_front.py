"""The front of the whole space against every complete plan of small random instances."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.errors import InputError, NoFeasiblePlanError
from memx_engine.search.bounding import Bounder, Tables
from memx_engine.search.control import Control
from memx_engine.search.options import SearchOptions
from memx_engine.search.result import SearchProgress, SearchResult
from memx_engine.search.run import search
from memx_engine.search.solving import Solver
from memx_engine.search.space import enumerate_space
from memx_engine.search.whole_front import WholeFront
from tests.builders import make_cluster, make_job, make_model
from tests.search.exhaustive import exhaust
from tests.search.fakes import TableEstimator
from tests.search.random_instances import RandomTables, random_instance


@pytest.mark.parametrize("k", range(12))
def test_no_plan_of_any_skeleton_dominates_a_proven_one(k: int) -> None:
    rng = np.random.default_rng([2040, k])
    instance = random_instance(rng)
    estimator = RandomTables(instance, k, rough=k % 3 == 0, tightness=rng.uniform(0, 1.0))
    where = (instance.cluster, instance.model, instance.job)
    options = SearchOptions(top=2, front=0)
    try:
        objective = search(*where, options=options, estimator=estimator).objective
    except NoFeasiblePlanError:
        return
    control, tables = Control(None, None, None), Tables(estimator)
    one = instance.job.framework.value == "megatron"
    bounder = Bounder(estimator, tables, options.limits, control, one_recompute=one, variance_kind="bytes")
    bounded = bounder.bound(list(enumerate_space(*where).skeletons()), scattered=False).fitting
    solver = Solver(instance.cluster, instance.model, instance.job.framework, tables, options, control)
    solver.solve(bounded, objective)
    front = WholeFront(solver, bounded, objective, control, None)
    report = front.seek(2)

    plain = [p for p in exhaust(*where, estimator).plans if p.table.virtual_stages == 1 and p.fits.any()]
    if not plain:
        assert not front.points
        return
    assert report.complete and front.points
    every = np.concatenate([np.column_stack([p.time_s, p.peak, p.variance])[p.fits] for p in plain])
    scale = every.max(axis=0) + 1e-300
    for point in front.points:
        values = np.array([point.time_s, point.peak_bytes, point.variance_bytes2])
        no_worse = (every <= values + 1e-9 * scale).all(axis=1)
        better = (every < values - 1e-9 * scale).any(axis=1)
        assert not (no_worse & better).any(), f"instance {k}"
        # It is one of the plans there are.
        assert (np.abs(every - values) <= 1e-9 * scale).all(axis=1).any()


def run(front: int, nodes: int | None = None, seen: list[SearchProgress] | None = None) -> SearchResult:
    cluster, model, job = make_cluster(), make_model(layers=12), make_job(global_batch=16)
    options = SearchOptions(front=front, front_nodes=nodes)
    report = None if seen is None else seen.append
    return search(
        cluster, model, job, options=options, estimator=TableEstimator(cluster, model, job), on_progress=report
    )


def dominates(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a <= b).all() and (a < b).any())


def test_the_whole_front_is_part_of_the_result() -> None:
    seen: list[SearchProgress] = []
    coarse, fine = run(0), run(3, seen=seen)
    assert not coarse.front.complete and fine.front.complete and fine.front.proven == fine.front.trades == 19
    # The answer does not change, and a plan that another one dominates is on no front.
    assert [p.plan for p in fine.plans] == [p.plan for p in coarse.plans]
    measures = [
        np.array([e.iteration_time_s, e.peak_bytes, e.memory_variance_bytes2])
        for e in (p.estimate for p in fine.pareto)
    ]
    assert not any(dominates(a, b) for a in measures for b in measures)
    # What leaves the table's front is dominated by what is shown; a plan of which nothing can be proven leaves it too.
    old = [
        np.array([e.iteration_time_s, e.peak_bytes, e.memory_variance_bytes2])
        for e in (p.estimate for p in coarse.pareto)
    ]
    assert sum(not any((new <= point * (1 + 1e-12)).all() for new in measures) for point in old) <= 1
    assert [p.estimate.iteration_time_s for p in fine.pareto] == sorted(
        p.estimate.iteration_time_s for p in fine.pareto
    )
    assert {"front"} <= {report.phase for report in seen}
    assert run(3).pareto == fine.pareto
    # How many of its plans are proven is told: all that the trades led to and events leave undominated.
    assert 0 < fine.front.plans <= len(fine.pareto) and coarse.front.plans == 0


def test_limited_work_says_how_far_it_came() -> None:
    part = run(3, nodes=20)
    assert 0 < part.front.proven < part.front.trades and not part.front.complete
    assert f"{part.front.proven} of 19 trades" in str(part.front)
    assert part.front.plans <= len(part.pareto) and f"{part.front.plans} of them proven" in str(part.front)


def test_a_negative_resolution_is_refused() -> None:
    with pytest.raises(InputError, match="front -1"):
        SearchOptions(front=-1)
