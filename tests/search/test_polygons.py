"""Regions under many cuts against exact half-plane clipping with fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from memx_engine.search.polygons import VERTICES, Regions

FAR = 1e6
SLOPES = ((1, 0), (0, 1), (1, 1), (1, 7), (9, 2), (100, 1))

Line = tuple[Fraction, Fraction, Fraction]


def exact_vertices(lines: list[Line]) -> list[tuple[Fraction, Fraction]]:
    """Of the intersection of half-planes a·x + b·y >= c."""
    out = []
    for (a, b, c), (d, e, f) in combinations(lines, 2):
        det = a * e - b * d
        if det:
            x, y = (c * e - b * f) / det, (a * f - c * d) / det
            if all(p * x + q * y >= r for p, q, r in lines):
                out.append((x, y))
    return out


def cut(regions: Regions, a: float, b: float, least: float, far: float = FAR, active: bool = True) -> None:
    one = np.ones(len(regions.count))
    regions.clip(a * one, b * one, least * one, far * one, far * one, one.astype(bool) & active)


def vertices(regions: Regions, k: int) -> list[tuple[float, float]]:
    n = regions.count[k]
    return list(zip(regions.x[k, :n].tolist(), regions.y[k, :n].tolist(), strict=True))


def test_many_regions_are_what_exact_clipping_leaves() -> None:
    rng = np.random.default_rng(3)
    size, rounds = 60, 7
    start = rng.integers(-3, 4, (2, size))
    regions = Regions.corners(*start.astype(float))
    lines: list[list[Line]] = [
        [(Fraction(1), Fraction(0), Fraction(int(x))), (Fraction(0), Fraction(1), Fraction(int(y)))] for x, y in start.T
    ]
    for _ in range(rounds):
        a, b = rng.integers(0, 4, (2, size))
        b[(a == 0) & (b == 0)] = 1  # level and upright lines among them, and some that are drawn twice
        least = rng.integers(-6, 13, size)
        active = rng.random(size) < 0.8
        far = np.full(size, FAR)
        before = [vertices(regions, k) for k in range(size)]
        regions.clip(a.astype(float), b.astype(float), least.astype(float), far, far, active)
        for k in range(size):
            if not active[k]:
                assert vertices(regions, k) == before[k]
                continue
            lines[k].append((Fraction(int(a[k])), Fraction(int(b[k])), Fraction(int(least[k]))))
            exact, made = exact_vertices(lines[k]), vertices(regions, k)
            xs, ys = zip(*made, strict=True)
            assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)
            for p, q in SLOPES:
                expected = float(min(p * x + q * y for x, y in exact))
                assert min(p * x + q * y for x, y in made) == pytest.approx(expected, abs=1e-9)
            low, down = regions.corner()
            assert (low[k], down[k]) == pytest.approx(tuple(float(min(axis)) for axis in zip(*exact, strict=True)))
            # Every vertex lies within all the lines.
            assert all(float(p) * x + float(q) * y >= float(r) - 1e-9 for x, y in made for p, q, r in lines[k])
    assert regions.count.max() >= 4


def test_lines_that_touch_or_lie_below_change_nothing() -> None:
    regions = Regions.corners(np.array([1.0]), np.array([2.0]))
    cut(regions, 1, 1, 6)
    known = vertices(regions, 0)
    assert known == [(1.0, 5.0), (4.0, 2.0)]
    for a, b, least in ((1, 1, 6), (2, 2, 11), (1, 0, 1), (0, 1, 2), (3, 1, 8), (1, 2, 8)):
        cut(regions, a, b, least)
        assert vertices(regions, 0) == known


@pytest.mark.parametrize(
    ("a", "b", "least", "expected"),
    [
        (1, 0, 3, [(3.0, 3.0), (4.0, 2.0)]),
        (0, 1, 4, [(1.0, 5.0), (2.0, 4.0)]),
        (1, 0, 9, [(9.0, 2.0)]),
        (0, 1, 9, [(1.0, 9.0)]),
        (2, 2, 20, [(1.0, 9.0), (8.0, 2.0)]),
    ],
)
def test_level_upright_and_parallel_lines(a: int, b: int, least: int, expected: list[tuple[float, float]]) -> None:
    regions = Regions.corners(np.array([1.0]), np.array([2.0]))
    cut(regions, 1, 1, 6)
    cut(regions, a, b, least)
    assert vertices(regions, 0) == expected


def test_nothing_within_the_far_limits_is_lost_and_ends_stay_there() -> None:
    rng = np.random.default_rng(4)
    size, far = 200, 10.0
    regions = Regions.corners(np.zeros(size), np.zeros(size))
    points = rng.uniform(0.0, far, (40, 2))
    inside = np.ones((size, len(points)), dtype=bool)
    for _ in range(4):
        # Nearly level and nearly upright lines, whose ends would be as far as 1e15.
        a, b = 10.0 ** rng.uniform(-15, 0, (2, size))
        least = (a + b) * rng.uniform(0.0, far / 2, size)
        regions.clip(a, b, least, np.full(size, far), np.full(size, far), np.ones(size, dtype=bool))
        inside &= a[:, None] * points[:, 0] + b[:, None] * points[:, 1] >= least[:, None]
    assert inside.any(axis=1).mean() > 0.9
    for k in range(size):
        made = np.array(vertices(regions, k))
        assert made.max() <= far * (1 + 1e-9)
        for p, q in (*SLOPES, (1, 1e6)):
            for x, y in points[inside[k]]:
                assert (made @ (p, q)).min() <= (p * x + q * y) * (1 + 1e-9)


def test_more_vertices_than_there_is_room_for_still_bound_every_point() -> None:
    # Tangents of the hyperbola x·y = 1, every one of which adds a vertex.
    rng = np.random.default_rng(5)
    curve = np.exp(np.linspace(-3.0, 3.0, 61))
    points = np.column_stack([curve, 1 / curve])
    fell_back = False
    for turn in range(6):
        at = np.exp(rng.permutation(np.linspace(-2.5, 2.5, 3 * VERTICES)))
        if turn == 0:
            at = np.sort(at)
        if turn == 1:
            at = np.sort(at)[::-1]
        regions = Regions.corners(np.zeros(1), np.zeros(1))
        low = np.zeros(2)
        for x in at.tolist():
            before = int(regions.count[0])
            cut(regions, 1 / x, x, 2.0)
            fell_back |= regions.count[0] < before - 1 and before == VERTICES
            made = np.array(vertices(regions, 0))
            assert 1 <= len(made) <= VERTICES
            for p in (0.01, 0.1, 1.0, 10.0, 100.0):
                assert (made @ (p, 1.0)).min() <= (points @ (p, 1.0)).min() * (1 + 1e-9)
            corner = np.concatenate(regions.corner())
            assert (corner >= low - 1e-12).all(), "a corner never moves back"
            assert (corner <= points.min(axis=0)).all()
            low = corner
    assert fell_back
