from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.search.pareto import pareto_mask

POINTS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=0, max_size=40)


def dominates(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


@given(POINTS)
def test_mask_equals_brute_force(points: list[tuple[int, int, int]]) -> None:
    columns = np.array(points, dtype=float).reshape(-1, 3)
    mask = pareto_mask(columns[:, 0], columns[:, 1], columns[:, 2])
    for i, point in enumerate(points):
        first = points.index(point) == i
        assert mask[i] == (first and not any(dominates(other, point) for other in points))


def test_values_that_are_not_finite_are_never_on_the_front() -> None:
    nan, inf = float("nan"), float("inf")
    mask = pareto_mask(np.array([1.0, nan, inf]), np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert mask.tolist() == [True, False, False]


def test_many_points_are_thinned_out_without_losing_any_of_the_front() -> None:
    rng = np.random.default_rng(3)
    for coarse in (3.0, 40.0, 1e9):
        columns = np.floor(rng.gamma(2.0, size=(900, 3)) * coarse)
        columns[rng.integers(0, 900, 40)] = columns[rng.integers(0, 900, 40)]
        columns[7, 1] = float("inf")
        mask = pareto_mask(columns[:, 0], columns[:, 1], columns[:, 2])
        points = [tuple(row) for row in columns.tolist()]
        for i, point in enumerate(points):
            beaten = ((columns <= columns[i]).all(axis=1) & (columns != columns[i]).any(axis=1)).any()
            assert mask[i] == (i != 7 and points.index(point) == i and not beaten)
