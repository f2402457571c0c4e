"""The rule that names disturbed runs, on made-up logarithms."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.predict.contaminated import beyond_neighbours, beyond_type, far_above


def scattered(count: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    places = rng.integers(0, 4, (count, 2)) * np.log(2.0)
    logs = 0.3 * places[:, 0] + rng.normal(0, 0.03, count)
    return logs, places, np.array([f"c{i}" for i in range(count)]), np.array(["x"] * count)


def test_a_slow_run_is_named_and_a_fast_one_is_not() -> None:
    logs, places, groups, types = scattered()
    assert not beyond_neighbours(logs, places, groups, types).any() and not beyond_type(logs, types).any()
    logs[7] += 1.0
    logs[9] -= 1.0
    assert np.flatnonzero(beyond_neighbours(logs, places, groups, types)).tolist() == [7]


def test_slow_siblings_are_named_by_their_type() -> None:
    """All neighbours of one shape are ten times slow: only the rest of the type tells."""
    logs, places, groups, types = scattered()
    same = (places == places[0]).all(axis=1)
    logs[same] += np.log(10.0)
    assert (beyond_type(logs, types) == same).all()


def test_repeats_are_held_against_each_other() -> None:
    logs, places, groups, types = scattered()
    groups[:3], places[:3], logs[:3] = "r", 50.0, [2.0, 2.02, 3.0]
    assert beyond_neighbours(logs, places, groups, types)[:3].tolist() == [False, False, True]


@pytest.mark.parametrize("values", [[], [5.0], [0.0] * 6 + [9.0], [np.nan] * 20])
def test_too_few_to_tell(values: list[float]) -> None:
    assert not far_above(np.array(values)).any()


def test_times_that_are_not_known_are_passed_over() -> None:
    logs, places, groups, types = scattered()
    logs[:5] = np.nan
    logs[10] += 2.0
    assert np.flatnonzero(beyond_neighbours(logs, places, groups, types)).tolist() == [10]
