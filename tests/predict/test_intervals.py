"""Conformal widths: what they cover, and how they grow where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.evaluate.metrics import coverage_band_pct
from memx_engine.predict.intervals import LEAST_PER_TYPE, Widths, conformal_width


def test_the_width_is_the_quantile_of_one_more_row() -> None:
    # n = 39: the ceil(40 * 0.95) = 38th smallest.
    assert conformal_width(np.arange(1, 40, dtype=float)) == 38.0
    assert conformal_width([]) is None
    # Five rows cannot give 95 %: half as much again as the worst.
    assert conformal_width([0.1, -0.2, 0.1, 0.0, 0.1]) == pytest.approx(0.3)


def test_coverage_lies_in_the_beta_binomial_band() -> None:
    rng = np.random.default_rng(3)
    held_out, new = rng.standard_t(3, 400), rng.standard_t(3, 1000)
    width = conformal_width(held_out)
    assert width is not None
    low, high = coverage_band_pct(1000, 400)
    assert low <= 100 * (np.abs(new) <= width).mean() <= high
    assert low < 95 < high


def test_a_type_with_enough_rows_has_its_own_width() -> None:
    many, few = np.full(LEAST_PER_TYPE, 0.1), np.full(5, 0.5)
    widths = Widths.of(np.concatenate([many, few]), ["x"] * LEAST_PER_TYPE + ["y"] * 5)
    assert widths.width("x") == 0.1
    assert widths.width("y") == widths.overall
    assert "y" not in widths.by_type


@given(st.floats(0, 10), st.floats(0, 10))
def test_farther_outside_is_wider(near: float, far: float) -> None:
    widths = Widths.of(np.linspace(-1, 1, 50), ["x"] * 50)
    small, large = sorted((near, far))
    a, b = widths.width("x", small), widths.width("x", large)
    assert a is not None and b is not None and a <= b


def test_probabilities_fall_with_the_margin_and_are_never_certain() -> None:
    widths = Widths.of(np.linspace(-0.1, 0.1, 101), ["x"] * 101)
    found = [widths.exceeds(m) for m in (-1.0, 0.0, 0.05, 1.0)]
    assert all(p is not None and 0 < p < 1 for p in found)
    assert found == sorted(found, key=lambda p: -(p or 0))
    assert found[1] == pytest.approx(0.5, abs=0.02)
    assert Widths().exceeds(0.0) is None
