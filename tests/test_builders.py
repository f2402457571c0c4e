"""The builders promise consistency; everything that is tested against them rests on it."""

from __future__ import annotations

import numpy as np

from tests.builders import make_cluster, make_estimate, make_plan, make_result


def test_result_is_consistent() -> None:
    result = make_result(n_plans=40)
    assert len(result.table) == 40
    assert list(result.table.phi) == sorted(result.table.phi)
    assert [plan.rank for plan in result.plans] == list(range(1, 9))
    for row in (0, 20, 39):
        ranked = result.detail(row)
        assert sum(ranked.plan.layers) == result.model.layers
        assert np.isclose(sum(ranked.estimate.time_breakdown_s.values()), ranked.estimate.iteration_time_s)
        assert all(np.isclose(gpu.peak_bytes, gpu.breakdown.total) for gpu in ranked.estimate.gpus)
        assert np.isclose(ranked.phi, result.table.phi[row])
    assert result.time_optimal.estimate.iteration_time_s == result.table.time_s.min()
    assert result.pareto


def test_memory_scale_provokes_oom() -> None:
    cluster = make_cluster()
    plan = make_plan(cluster)
    assert make_estimate(plan, cluster).verdict == "fits"
    assert make_estimate(plan, cluster, memory_scale=40.0).verdict == "does_not_fit"


def test_many_plans() -> None:
    assert len(make_result(n_plans=3000).table) == 3000
