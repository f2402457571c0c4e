"""The programme over (stage, layers) against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from memx_engine.cost.table import StageTable
from memx_engine.search.bounds import compute_bounds, figures
from memx_engine.search.counting import count_plans
from memx_engine.search.dynamic import solve
from memx_engine.search.objective import Objective, Weights, compute_references
from tests.search.fakes import random_table


def every_plan(table: StageTable):
    """(layers, options) of every assignment that exists."""
    for layers in product(range(1, table.layers + 1), repeat=table.stages):
        if sum(layers) != table.layers:
            continue
        for options in product(range(len(table.options)), repeat=table.stages):
            if all(
                np.isfinite(table.memory_bytes[i, n, r]) for i, (n, r) in enumerate(zip(layers, options, strict=True))
            ):
                yield layers, options


def fitting_plans(table: StageTable):
    for layers, options in every_plan(table):
        held = [table.memory_bytes[i, n, r] for i, (n, r) in enumerate(zip(layers, options, strict=True))]
        if all(m <= c for m, c in zip(held, table.capacity_bytes, strict=True)):
            yield layers, options


def random_objective(rng: np.random.Generator, table: StageTable) -> Objective:
    found = [figures(table, *plan) for plan in fitting_plans(table)]
    if not found:
        return Objective(Weights("test", 0.4, 0.2, 0.4), compute_references([1.0], [1.0], [1.0]))
    references = compute_references(
        [f.time_s for f in found], [f.peak_bytes for f in found], [f.variance_bytes2 for f in found]
    )
    time, peak, variance = rng.dirichlet([1.0, 1.0, 1.0])
    return Objective(Weights("test", time, peak, 1.0 - time - peak), references)


@pytest.mark.parametrize("seed", range(200))
def test_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_table(rng, int(rng.integers(1, 5)), int(rng.integers(4, 9)), int(rng.integers(1, 4)))
    objective = random_objective(rng, table)
    best = min(
        (
            objective.phi(f.time_s, f.peak_bytes, f.variance_bytes2)
            for f in (figures(table, *plan) for plan in fitting_plans(table))
        ),
        default=None,
    )
    solution = solve(table, objective, width=10_000)
    if best is None:
        assert solution is None
        return
    assert solution is not None and solution.optimal
    assert solution.phi == pytest.approx(best, rel=1e-9)
    assert sum(solution.layers) == table.layers and all(n >= 1 for n in solution.layers)
    found = figures(table, solution.layers, solution.options)
    assert (solution.time_s, solution.peak_bytes) == (found.time_s, found.peak_bytes)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_hold_for_every_plan(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    table = random_table(rng, int(rng.integers(1, 4)), int(rng.integers(3, 8)), int(rng.integers(1, 4)))
    bounds = compute_bounds(table)
    plans = list(fitting_plans(table))
    if plans:
        assert bounds.fits
    for plan in plans:
        found = figures(table, *plan)
        assert bounds.time_s <= found.time_s * (1 + 1e-12)
        assert bounds.peak_bytes <= found.peak_bytes
        assert bounds.variance_bytes2 <= found.variance_bytes2 * (1 + 1e-12)
        layers, options = plan
        held = table.memory_bytes[np.arange(table.stages), layers, options]
        used = float((held / table.capacity_bytes).max())
        assert bounds.utilization <= used


@pytest.mark.parametrize("seed", range(30))
def test_count_of_plans_is_exact(seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    table = random_table(rng, int(rng.integers(1, 4)), int(rng.integers(3, 8)), int(rng.integers(1, 4)))
    assert count_plans(table) == sum(1 for _ in every_plan(table))
    same = sum(1 for _, options in every_plan(table) if len(set(options)) == 1)
    assert count_plans(table, one_recompute=True) == same
