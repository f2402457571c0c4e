"""Parts of measured times, told apart from their mixtures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from memx_engine.predict.time_shares import Seconds, TimeShares, fit_times

MIXTURES = [
    Seconds(layers, 0.002 * ends, 0.1 * ends, layers * share, 0.02 * share * ends)
    for layers in (0.3, 1.0, 3.0)
    for share in (0.0, 0.4, 2.0)
    for ends in (0.0, 0.0, 1.0)
    for _ in range(5)
]


def test_the_parts_of_mixtures_are_found() -> None:
    truth = TimeShares(layers=0.9, head=0.6, collectives=2.5, end_collectives=2.5)
    logs = np.log([truth.seconds(s) for s in MIXTURES])
    found = fit_times(MIXTURES, ["a"] * len(MIXTURES), logs)["a"]
    unseen = Seconds(0.1, 0.0, 0.1, 0.05, 0.02)
    assert found.seconds(unseen) == pytest.approx(truth.seconds(unseen), rel=0.06)
    assert found.layers == pytest.approx(0.9, rel=0.03)
    assert found.collectives == pytest.approx(2.5, rel=0.06)


def test_ends_that_were_not_measured_compute_like_layers() -> None:
    plain = [s for s in MIXTURES if s.head == 0]
    truth = TimeShares(layers=0.8, collectives=2.0)
    logs = np.log([truth.seconds(s) for s in plain])
    found = fit_times(plain, ["a"] * len(plain), logs)["a"]
    assert found.head == pytest.approx(found.layers) and found.embedding == pytest.approx(found.layers)
    assert found.end_collectives == pytest.approx(found.collectives)


def test_one_point_moves_all_parts_alike_and_half_the_way() -> None:
    point = Seconds(1.0, 0.0, 0.0, 0.2, 0.0)
    found = fit_times([point], ["a"], np.log([2.4]))["a"]
    assert 1.3 < found.layers < 2.0 and 1.3 < found.collectives < 2.0
    assert fit_times([point], ["a"], np.array([math.nan]))["a"] == TimeShares()
