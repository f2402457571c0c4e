"""The plans that a search holds as columns."""

from __future__ import annotations

import numpy as np

from memx_engine.search.assign import Assigned, assign_split, build_plan
from memx_engine.search.found import Found
from memx_engine.search.sketch_bounds import balanced_splits
from tests.search.spaces import Ground

COLUMNS = ("time_s", "peak_bytes", "variance_bytes2", "spread_bytes2", "phi", "worst_fraction")


def make() -> tuple[Ground, Found, dict[int, Assigned], np.ndarray]:
    """Every third skeleton with a plan of its own, some with the even split alone, the others removed."""
    ground = Ground.of("paper-20gpu", "llama2-7b")
    fitting = ground.fitting(9)
    splits = balanced_splits([sketch for sketch in fitting.sketches if sketch is not None])
    where = (ground.cluster, ground.model)
    made = {
        i: assign_split(*where, fitting.skeletons[i], split, 1.0 + i / 1000)
        for i, split in enumerate(splits)
        if split is not None and i % 3 == 0
    }
    numbers = np.array([i for i in range(len(fitting)) if i in made or (i % 3 == 1 and fitting.has_even[i])])
    even_phi, lower = np.linspace(2.0, 3.0, len(fitting)), np.linspace(0.5, 2.5, len(fitting))
    plain = np.array([s.virtual_stages == 1 for s in fitting.skeletons])
    found = Found(fitting, where, numbers, dict(reversed(made.items())), even_phi, lower, plain)
    return ground, found, made, lower


def test_columns_are_those_of_the_plans() -> None:
    ground, found, made, lower = make()
    fitting = ground.fitting(9)
    own = 0
    assert len(found) == len(found.numbers) > 20
    for row, (i, plan) in enumerate(zip(found.numbers.tolist(), found, strict=True)):
        for name in COLUMNS:
            assert getattr(plan, name) == getattr(found, name)[row], name
        assert plan.plain == found.plain[row]
        assert plan.worst_type == found.worst_types()[row]
        assert found.closed_form_phi[row] == min(lower[i], plan.phi)
        assert found.lower_bound_phi[row] == (min(lower[i], plan.phi) if plan.plain else 0.0)
        if i in made:
            assert plan is made[i]
            own += 1
        else:
            even = fitting.even(i)
            assert even is not None and (plan.layers, plan.recompute) == (even.layers, even.recompute)
            assert plan.plan == build_plan(ground.cluster, ground.model, plan.skeleton, even.layers, even.recompute)
    assert 5 < own < len(found) - 5
    assert not found.plain.all() and found.plain.any()


def test_what_even_splits_measure_is_what_the_cost_model_says_of_their_plans() -> None:
    ground, found, made, _ = make()
    evens = [plan for i, plan in zip(found.numbers.tolist(), found, strict=True) if i not in made and plan.plain]
    for plan in evens[:8]:
        estimate = ground.estimator.estimate(plan.plan)
        assert np.isclose(plan.time_s, estimate.additive_time_s, rtol=1e-9)
        assert np.isclose(plan.peak_bytes, estimate.peak_bytes, rtol=1e-9)
        assert np.isclose(plan.spread_bytes2, estimate.memory_variance_bytes2, rtol=1e-6, atol=1.0)
        fullest = max(estimate.gpus, key=lambda gpu: gpu.peak_bytes / gpu.capacity_bytes)
        assert np.isclose(plan.worst_fraction, fullest.peak_bytes / fullest.capacity_bytes, rtol=1e-9)


def test_a_plan_is_made_once_when_it_is_asked_for() -> None:
    _, found, made, _ = make()
    row = next(k for k, i in enumerate(found.numbers.tolist()) if i not in made)
    plan = found[row]
    assert callable(plan.split), "the split is not looked up yet"
    assert found[row] is plan is found.of_skeleton(int(found.numbers[row]))
    assert plan.plan is plan.plan and not callable(plan.split)
    assert plan.same_as(plan) and not plan.same_as(found[row + 1])
    assert [p is q for p, q in zip(found[1:3], (found[1], found[2]), strict=True)] == [True, True]


def test_skeletons_by_number_and_mark() -> None:
    ground, found, made, _ = make()
    absent = set(range(len(ground.fitting(9)))) - set(found.numbers.tolist())
    assert absent and all(found.of_skeleton(i) is None for i in (*absent, 10**6))
    assert all(found.of_skeleton(i) is plan for i, plan in made.items())
    assert len(set(found.marks.tolist())) == len(found)


def test_nothing_found() -> None:
    ground = Ground.of("paper-small", "gpt2")
    none = Found.nothing(ground.fitting(9), (ground.cluster, ground.model))
    assert len(none) == 0 and list(none) == [] and none.of_skeleton(0) is None and none.worst_types() == []
