"""The exact solver against brute force, its certificate, its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from memx_engine.errors import InputError
from memx_engine.inputs.job import Job
from memx_engine.plan import Skeleton, StagePlacement
from memx_engine.search.branch_and_bound import BranchAndBound
from memx_engine.search.choices import build_choices
from memx_engine.search.problem import OPTION, PLACE, STAGE_BITS, Problem, criterion_of, problem_of, regions_of
from memx_engine.search.solver import Limits, solve
from tests.search.exhaustive import all_plans
from tests.search.instances import ALL_WEIGHTS, PURE, brute_force, evaluate_split, make_objective, random_table

KINDS = ("bytes", "utilization")


def random_limits(rng: np.random.Generator, stages: int, options: int) -> Limits:
    some = tuple(int(rng.integers(0, options)) if rng.random() < 0.2 else None for _ in range(stages))
    return Limits(
        recompute=some if rng.random() < 0.5 else None,
        max_layer_difference=int(rng.integers(0, 4)) if rng.random() < 0.4 else None,
        same_recompute=bool(rng.random() < 0.3),
    )


@pytest.mark.parametrize("seed", range(26))
def test_equals_brute_force(seed: int) -> None:
    # 26 x 20 instances: every weight profile and every pure objective, both variance kinds, every third with limits.
    rng = np.random.default_rng(seed)
    for k in range(20):
        stages = int(rng.integers(1, 5))
        layers = int(rng.integers(stages, stages + 6))
        table = random_table(rng, stages, layers, tightness=rng.uniform(0, 1.1), blocks=stages < 4 and k % 2 == 0)
        weights = list(ALL_WEIGHTS.values())[(seed + k) % len(ALL_WEIGHTS)]
        objective = make_objective(table, weights, KINDS[(seed + k // 8) % 2])
        limits = random_limits(rng, stages, len(table.options)) if k % 3 == 0 else Limits()
        best, plans = brute_force(table, objective, limits)
        solution = solve(table, objective, limits=limits)
        if solution is None:
            assert not plans
            continue
        assert solution.phi == pytest.approx(best, rel=1e-9)
        assert solution.optimal
        assert not solution.closed
        assert best * (1 - 2e-9) <= solution.lower_bound_phi <= solution.phi
        # The plan is what it says: complete, within limits, with these values.
        assert sum(solution.layers) == layers
        stage = np.arange(stages)
        memory = table.memory_bytes[stage, list(solution.layers), list(solution.options)]
        assert (memory <= table.capacity_bytes).all()
        values = evaluate_split(table, solution.layers, solution.options, objective.variance_kind)
        assert values == pytest.approx((solution.time_s, solution.peak_bytes, solution.variance), rel=1e-9, abs=1e-12)


@pytest.mark.filterwarnings("ignore:divide by zero")  # log of phi = 0 is meant
def test_without_epsilon_a_zero_variance_plan_is_found() -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        table = random_table(rng, 3, 6, tightness=0.2)
        table = replace(table, memory_bytes=np.where(np.isfinite(table.memory_bytes), 3e9, np.inf))
        objective = make_objective(table, (0.4, 0.2, 0.4))
        objective = replace(objective, references=replace(objective.references, epsilon_bytes2=0.0))
        solution = solve(table, objective)
        assert solution is not None
        assert solution.variance == 0
        assert solution.phi == 0
        assert solution.optimal


def test_tiny_epsilon_equals_brute_force() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        table = random_table(rng, 3, 7, tightness=0.3)
        objective = make_objective(table, (0.4, 0.2, 0.4))
        objective = replace(objective, references=replace(objective.references, epsilon_bytes2=1.0))
        best, plans = brute_force(table, objective)
        solution = solve(table, objective)
        assert (solution is None) == (not plans)
        if solution is not None:
            assert solution.phi == pytest.approx(best, rel=1e-9)


def test_closes_on_an_incumbent() -> None:
    rng = np.random.default_rng(9)
    closed_early = 0
    for _ in range(40):
        table = random_table(rng, 4, 9, tightness=0.3)
        objective = make_objective(table, (0.4, 0.2, 0.4))
        free = solve(table, objective)
        if free is None:
            continue
        worse = solve(table, objective, incumbent_phi=free.phi * 1.01)
        assert worse is not None
        assert worse.phi == pytest.approx(free.phi, rel=1e-9)
        assert worse.optimal and not worse.closed
        for factor in (0.99, 0.5, 1e-6):
            better = solve(table, objective, incumbent_phi=free.phi * factor)
            assert better is not None
            assert better.closed and not better.optimal
            assert free.phi * factor * (1 - 1e-9) <= better.lower_bound_phi <= free.phi * (1 + 1e-9)
            assert better.phi >= free.phi * (1 - 1e-9)
            closed_early += better.nodes == 1
    assert closed_early > 20


def test_stopping_gives_an_honest_bound() -> None:
    rng = np.random.default_rng(10)
    stopped = 0
    for _ in range(20):
        table = random_table(rng, 6, 16, tightness=0.3)
        objective = make_objective(table, (0.4, 0.2, 0.4))
        full = solve(table, objective)
        early = solve(table, objective, should_stop=lambda: True)
        if full is None:
            assert early is None
            continue
        assert early is not None
        assert early.lower_bound_phi <= full.phi * (1 + 1e-9) <= early.phi * (1 + 2e-9)
        if not early.optimal:
            assert not early.closed
            stopped += 1
    assert stopped > 5


def test_more_memory_never_hurts_and_time_scales() -> None:
    rng = np.random.default_rng(11)
    for _ in range(25):
        table = random_table(rng, 4, 10, tightness=rng.uniform(0.2, 0.9))
        objective = make_objective(table, (0.4, 0.2, 0.4))
        before = solve(table, objective)
        after = solve(replace(table, capacity_bytes=table.capacity_bytes * 1.2), objective)
        if before is None:
            continue
        assert after is not None
        assert after.phi <= before.phi * (1 + 1e-9)
        slower = replace(
            table,
            forward_s=3 * table.forward_s,
            backward_s=3 * table.backward_s,
            tail_s=3 * table.tail_s,
            p2p_s=3 * table.p2p_s,
            fixed_s=3 * table.fixed_s,
        )
        scaled = solve(slower, objective)
        assert scaled is not None
        assert scaled.phi == pytest.approx(before.phi * 3**0.4, rel=1e-9)
        assert scaled.time_s == pytest.approx(3 * before.time_s, rel=1e-9)


def test_same_input_same_answer() -> None:
    for seed in range(5):
        first, second = (
            solve(table, make_objective(table, (0.4, 0.2, 0.4)))
            for table in (random_table(np.random.default_rng(seed), 5, 12, tightness=0.3) for _ in range(2))
        )
        assert first == second


def test_ties_take_the_faster_plan() -> None:
    # Peak alone counts, and the heavy first stage fixes it: the second stage must not recompute for nothing.
    table = random_table(np.random.default_rng(3), 2, 4, tightness=0.0)
    memory = table.memory_bytes.copy()
    memory[0] += 1e11
    table = replace(table, memory_bytes=memory, capacity_bytes=np.full(2, 1e12))
    objective = make_objective(table, PURE["peak"])
    solution = solve(table, objective)
    assert solution is not None
    _, plans = brute_force(table, objective)
    fastest = min(time for time, peak, _ in plans if peak <= solution.peak_bytes * (1 + 1e-12))
    assert solution.time_s == pytest.approx(fastest)


def test_interleaved_is_solved_but_never_certified() -> None:
    rng = np.random.default_rng(13)
    solved = 0
    for _ in range(40):
        table = random_table(rng, 3, 12, tightness=0.4, virtual_stages=2)
        objective = make_objective(table, (0.4, 0.2, 0.4))
        best, plans = brute_force(table, objective)
        solution = solve(table, objective)
        assert (solution is None) == (not plans)
        if solution is not None:
            solved += 1
            assert solution.phi == pytest.approx(best, rel=1e-9)
            assert all(n % 2 == 0 for n in solution.layers)
            assert not solution.optimal
            assert solution.lower_bound_phi == 0
    assert solved > 10


def test_fewer_layers_than_stages_is_infeasible() -> None:
    table = random_table(np.random.default_rng(1), 4, 3)
    objective = make_objective(table, (0.4, 0.2, 0.4))
    assert solve(table, objective) is None


def test_limits_are_checked() -> None:
    table = random_table(np.random.default_rng(1), 3, 6)
    objective = make_objective(table, (0.4, 0.2, 0.4))
    for limits in (
        Limits(recompute=(0, 1)),
        Limits(recompute=(0, 1, 9)),
        Limits(max_layer_difference=-1),
    ):
        with pytest.raises(InputError):
            solve(table, objective, limits=limits)


@pytest.mark.parametrize("seed", range(4))
def test_equals_brute_force_where_plans_are_many(seed: int) -> None:
    # Up to 1.2 million plans each, listed by other code than the search's.
    rng = np.random.default_rng([77, seed])
    stages, layers = [(5, 14), (6, 12), (6, 13), (4, 18)][seed]
    table = random_table(rng, stages, layers, tightness=rng.uniform(0, 0.6))
    placements = tuple(StagePlacement("a", 1, 1, (i,)) for i in range(stages))
    skeleton = Skeleton(1, stages, 1, 1, 1, 1, placements)
    for kind in KINDS:
        objective = make_objective(table, list(ALL_WEIGHTS.values())[seed], kind)
        best = float(all_plans(skeleton, table, Job(1, 1), kind=kind).phi(objective).min())
        solution = solve(table, objective)
        assert solution is not None and solution.optimal
        assert solution.phi == pytest.approx(best, rel=1e-9)
        assert best * (1 - 2e-9) <= solution.lower_bound_phi <= best * (1 + 1e-12)


def test_a_limit_of_nodes_waits_for_a_plan() -> None:
    # One region per recompute option, of which only the last fits: giving up before it would call this infeasible.
    table = random_table(np.random.default_rng(4), 3, 6, options=3, tightness=0.0)
    memory = table.memory_bytes.copy()
    memory[:, :, :2] = np.where(np.isfinite(memory[:, :, :2]), 1e13, np.inf)
    memory[:, 1, :2] = 1e9  # every stage could take one layer, and no split of six layers is made of these
    table = replace(table, memory_bytes=memory, capacity_bytes=np.full(3, 1e12))
    solution = solve(table, make_objective(table, (0.4, 0.2, 0.4)), limits=Limits(same_recompute=True), most_nodes=1)
    assert solution is not None
    assert set(solution.options) == {2}


class _One:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def foresee(self, numbers: Sequence[int], targets: NDArray[np.float64]) -> None:
        pass

    def problem(self, number: int, target: float) -> Problem:
        return self._problem


def test_a_glance_finds_a_plan_and_proves_nothing() -> None:
    beaten = 0
    for seed in range(20):
        table = random_table(np.random.default_rng([21, seed]), 4, 9, tightness=0.3)
        objective = make_objective(table, (0.4, 0.2, 0.4))
        choices = build_choices(table, "bytes", Limits())
        solution = solve(table, objective)
        if choices is None or solution is None:
            continue
        corner = math.log(solution.phi) - 0.1
        search = BranchAndBound(
            criterion_of(objective),
            np.array([corner]),
            _One(problem_of(choices, objective, Limits())),
            cutoffs=lambda best: np.full_like(best, -math.inf),
        )
        assert search.run()
        search.glance([0])
        beaten += search.found[0].log_phi > math.log(solution.phi) + 1e-6
        assert search.lower_bounds()[0] == corner
    assert beaten > 5


def test_without_epsilon_and_weight_the_variance_does_not_count() -> None:
    table = random_table(np.random.default_rng(1), 1, 4, tightness=0.0)
    objective = make_objective(table, PURE["time"])
    objective = replace(objective, references=replace(objective.references, epsilon_bytes2=0.0))
    solution = solve(table, objective)
    assert solution is not None and solution.optimal and solution.variance == 0
    assert solution.phi == pytest.approx(solution.time_s / objective.references.time_s, rel=1e-12)


def test_regions_together_hold_what_the_limits_allow_and_nothing_else() -> None:
    stages, layers, options = 3, 7, 2
    counts = range(1, 6)
    columns = [[0.0] * 5 + [(s << STAGE_BITS) + n, r] for s in range(stages) for n in counts for r in range(options)]
    root = np.array(columns, dtype=float).T
    for difference, same in ((None, False), (0, False), (1, True), (2, False), (4, True), (None, True)):
        regions = regions_of(root, Limits(max_layer_difference=difference, same_recompute=same), stages, layers)
        held = set()
        for region in regions:
            places = region[PLACE].astype(int)
            stage, n = places >> STAGE_BITS, places % (1 << STAGE_BITS)
            each = [
                zip(n[stage == s].tolist(), region[OPTION, stage == s].tolist(), strict=True) for s in range(stages)
            ]
            held |= {plan for plan in product(*each) if sum(n for n, _ in plan) == layers}
        every = product(product(counts, map(float, range(options))), repeat=stages)
        allowed = {
            plan
            for plan in every
            if sum(n for n, _ in plan) == layers
            and (difference is None or max(plan)[0] - min(plan)[0] <= difference)
            and not (same and len({option for _, option in plan}) > 1)
        }
        assert held == allowed
