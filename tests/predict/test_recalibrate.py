"""A few whole runs after many others: what they say of the parts that were not seen, on made-up runs."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.predict.recalibrate import recalibrated

NAMES = ("tp_across_share", "dp_comm_share", "bubble_share", "pp_comm_share")


def shares(*rows: tuple[float, float]) -> np.ndarray:
    """Across-node tensor and data parallelism's shares."""
    return np.array([[tp, dp, 0.0, 0.0] for tp, dp in rows]).reshape(-1, 4)


def left(values: list[float]) -> np.ndarray:
    return np.column_stack([values, np.full(len(values), np.nan)])


def test_a_slow_network_is_told_from_a_slow_run() -> None:
    """Two runs whose tensor groups cross nodes take longer, two others do not: only what crosses is corrected."""
    known = shares((0.5, 0.0), (0.4, 0.0), (0.0, 0.0), (0.0, 0.0))
    shift = recalibrated(known, NAMES, left([0.30, 0.24, 0.0, 0.0]), shares((0.5, 0.0), (0.0, 0.0)))
    assert shift[0, 0] == pytest.approx(0.3, abs=0.06)
    assert abs(shift[1, 0]) < 0.03
    assert (shift[:, 1] == 0).all()


def test_one_disturbed_run_of_four_moves_little() -> None:
    calm = recalibrated(shares(*[(0.0, 0.02)] * 4), NAMES, left([0.0, 0.01, -0.01, 0.0]), shares((0.0, 0.02)))
    torn = recalibrated(shares(*[(0.0, 0.02)] * 4), NAMES, left([0.0, 0.01, -0.01, 0.7]), shares((0.0, 0.02)))
    assert abs(torn[0, 0] - calm[0, 0]) < 0.02


def test_without_runs_nothing_moves() -> None:
    assert (recalibrated(shares(), NAMES, np.empty((0, 2)), shares((0.5, 0.1))) == 0).all()
