"""Parts of measured peaks, told apart from their mixtures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from memx_engine.predict.memory_shares import MemoryShares, Sizes, fit_memories

MIXTURES = [
    Sizes(held, working, passing, logits, passing / 2)
    for held in (1.0, 4.0, 16.0)
    for working in (0.0, 1.0, 4.0, 12.0)
    for logits in (0.0, 2.0, 5.0)
    for passing in (0.1, 0.3, 0.9)
]


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_the_parts_of_mixtures_are_found(together: float) -> None:
    truth = MemoryShares(1.1, 1.3, 0.7, 1.05, together)
    logs = np.log([truth.bytes(s) for s in MIXTURES])
    found = fit_memories(MIXTURES, ["a"] * len(MIXTURES), logs)["a"]
    unseen = Sizes(0.5, 20.0, 0.3, 9.0, 0.2)
    assert found.bytes(unseen) == pytest.approx(truth.bytes(unseen), rel=0.05)
    assert found.together == pytest.approx(together, abs=0.1)


def test_outliers_and_missing_sizes_do_not_move_the_parts() -> None:
    truth = MemoryShares(0.9, 1.0, 1.0, 1.0, 0.0)
    logs = np.log([truth.bytes(s) for s in MIXTURES])
    logs[3], logs[4] = logs[3] + 2.0, math.nan
    found = fit_memories(MIXTURES, ["a"] * len(MIXTURES), logs)["a"]
    assert found.held == pytest.approx(0.9, rel=0.03)


def test_one_point_moves_all_parts_alike_and_half_the_way() -> None:
    size = Sizes(4.0, 1.0, 0.3, 0.0, 0.2)
    found = fit_memories([size], ["a"], np.log([2.0 * MemoryShares().bytes(size)]))["a"]
    assert 1.3 < found.held < 2.0 and 1.3 < found.logits < 2.0
    assert fit_memories([size], ["a"], np.array([math.nan]))["a"] == MemoryShares()
