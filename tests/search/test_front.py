"""The front inside one skeleton against all plans of small instances."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.search.front import skeleton_front
from memx_engine.search.solver import Limits
from tests.search.instances import brute_force, evaluate_split, make_objective, random_table

WEIGHTS = (0.4, 0.2, 0.4)


@pytest.mark.parametrize("kind", ["bytes", "utilization"])
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_the_front_is_dominated_and_extremes_are_there(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(6):
        stages = int(rng.integers(1, 5))
        table = random_table(rng, stages, int(rng.integers(4, 9)), tightness=rng.uniform(0, 0.9))
        _, plans = brute_force(table, make_objective(table, WEIGHTS, kind))
        front = skeleton_front(table, variance_kind=kind)
        if not plans:
            assert front == ()
            continue
        every = np.array(plans)
        top = every.max(axis=0)
        scale = np.array([top[0], top[1], top[1] ** 2 if kind == "bytes" else 1.0])
        for plan in front:
            values = np.array([plan.time_s, plan.peak_bytes, plan.variance])
            assert values / scale == pytest.approx(
                np.array(evaluate_split(table, plan.layers, plan.options, kind)) / scale, rel=1e-9, abs=1e-12
            )
            no_worse = (every <= values + 1e-9 * scale).all(axis=1)
            better = (every < values - 1e-9 * scale).any(axis=1)
            assert not (no_worse & better).any()
        assert [plan.time_s for plan in front] == sorted(plan.time_s for plan in front)
        least = np.array([[p.time_s, p.peak_bytes, p.variance] for p in front]).min(axis=0)
        assert least / scale == pytest.approx(every.min(axis=0) / scale, rel=1e-9, abs=1e-9)
        # Of the fastest plans one with the least peak comes first.
        fastest = every[every[:, 0] <= every[:, 0].min() * (1 + 1e-12)]
        assert front[0].peak_bytes == pytest.approx(fastest[:, 1].min(), rel=1e-9)


def test_finer_resolution_finds_more() -> None:
    table = random_table(np.random.default_rng(5), 4, 10, tightness=0.1)
    coarse, fine = skeleton_front(table, resolution=1), skeleton_front(table, resolution=8)
    assert len(fine) > len(coarse)
    assert skeleton_front(table, resolution=8) == fine


def test_limits_hold() -> None:
    table = random_table(np.random.default_rng(6), 3, 9, tightness=0.1)
    front = skeleton_front(table, limits=Limits(layers=(None, 3, None), same_recompute=True))
    assert front
    for plan in front:
        assert plan.layers[1] == 3
        assert len(set(plan.options)) == 1


def test_stopping_returns_the_extremes() -> None:
    table = random_table(np.random.default_rng(7), 3, 9, tightness=0.1)
    full, stopped = skeleton_front(table), skeleton_front(table, should_stop=lambda: True)
    assert stopped
    assert stopped[0].time_s == full[0].time_s
    assert min(p.peak_bytes for p in stopped) == min(p.peak_bytes for p in full)


def test_resolution_is_checked() -> None:
    with pytest.raises(ValueError, match="resolution"):
        skeleton_front(random_table(np.random.default_rng(7), 2, 4), resolution=0)
