"""Bounds and counts of a skeleton against every plan of it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from memx_engine.cost.table import StageTable
from memx_engine.search.bounds import compute_bounds, figures
from memx_engine.search.counting import count_plans
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
    for difference in range(4):
        near = [options for layers, options in every_plan(table) if max(layers) - min(layers) <= difference]
        assert count_plans(table, max_layer_difference=difference) == len(near)
        same = sum(len(set(options)) == 1 for options in near)
        assert count_plans(table, one_recompute=True, max_layer_difference=difference) == same
