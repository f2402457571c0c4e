from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.search.bounds import Bounds, compute_bounds
from memx_engine.search.counting import count_plans, count_shape
from memx_engine.search.result import SearchProgress
from memx_engine.search.run import search
from memx_engine.search.sketch_bounds import sketched_bounds
from memx_engine.search.space import enumerate_space


def numbers(bounds: Bounds) -> list[float]:
    if not bounds.fits:
        return [bounds.excess_bytes, float(bounds.binding_stage)]
    out = [bounds.utilization, bounds.time_s, bounds.peak_bytes, bounds.variance_bytes2]
    even = bounds.even
    if even is not None:
        out += [even.time_s, even.peak_bytes, even.variance_bytes2, even.spread_bytes2]
        out += [even.worst_fraction, float(even.worst_stage)]
    return out


@pytest.mark.parametrize("kind", ["bytes", "utilization"])
@pytest.mark.parametrize(
    ("cluster_name", "model_name", "step"),
    [("paper-20gpu", "llama2-7b", 3), ("paper-small", "gpt2", 5), ("two-sites", "llama2-13b", 40)],
)
def test_shared_rows_bound_as_the_tables_do(cluster_name: str, model_name: str, step: int, kind: str) -> None:
    cluster, model = load_cluster(cluster_name), load_model(model_name)
    estimator = FirstPrinciples(cluster, model, resolve_job(cluster, model))
    skeletons = list(enumerate_space(cluster, model, estimator.job).skeletons())[::step]
    sketches = [estimator.sketch(skeleton) for skeleton in skeletons]
    columns = sketched_bounds(sketches, variance_kind=kind)
    for k, (skeleton, sketch) in enumerate(zip(skeletons, sketches, strict=True)):
        made = columns.bounds(k, columns.even_of(k, sketch))
        table = estimator.stage_table(skeleton)
        expected = compute_bounds(table, variance_kind=kind)
        assert made.fits == expected.fits
        assert np.allclose(numbers(made), numbers(expected), rtol=1e-9, atol=1e-6), skeleton
        assert (made.even is None) == (expected.even is None)
        if made.even and expected.even:
            assert (made.even.layers, made.even.recompute) == (expected.even.layers, expected.even.recompute)
        assert sketch.options == table.options
        shape = (sketch.layers, sketch.virtual_stages, skeleton.pp)
        assert count_shape(sketch.options, *shape) == count_plans(table)


def test_a_larger_cluster_of_the_same_types_adds_few_stage_evaluations() -> None:
    model = load_model("llama2-7b")
    misses, hits = [], []
    for name in ("paper-20gpu", "paper-40gpu"):
        cluster = load_cluster(name)
        estimator = FirstPrinciples(cluster, model, resolve_job(cluster, model))
        for skeleton in enumerate_space(cluster, model, estimator.job).skeletons():
            estimator.sketch(skeleton)
        misses.append(estimator.misses)
        hits.append(estimator.hits)
    assert min(h / m for h, m in zip(hits, misses, strict=True)) > 2


def test_progress_never_promises_more_than_the_truth() -> None:
    cluster, model = load_cluster("paper-20gpu"), load_model("llama2-7b")
    seen: list[SearchProgress] = []
    result = search(cluster, model, resolve_job(cluster, model), on_progress=seen.append)
    optimum = result.certificate.best
    solving = [report for report in seen if report.lower_bound_phi is not None]
    assert result.certificate.optimal and len(solving) >= 2
    for report in solving:
        assert report.lower_bound_phi is not None and report.gap is not None and report.best_phi is not None
        assert report.lower_bound_phi <= optimum * (1 + 1e-9)
        # The gap is to the best 1F1B plan so far, which is never better than the optimum.
        assert 0.0 <= report.gap < 1.0 and report.lower_bound_phi / (1.0 - report.gap) >= optimum * (1 - 1e-9)
    for before, after in pairwise(solving):
        assert after.lower_bound_phi >= before.lower_bound_phi and after.gap <= before.gap  # type: ignore[operator]
    assert solving[-1].gap is not None and solving[-1].gap < 1e-9
    first = next(report for report in seen if report.feasible)
    assert first.phase == "bounding"
