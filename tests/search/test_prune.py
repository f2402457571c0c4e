"""The time rules against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.search import prune
from memx_engine.search.prune import removed_by_corner, removed_by_paper
from tests.search.spaces import Ground


def test_a_corner_goes_where_one_plan_is_as_good_in_all_three(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = Ground.of("paper-small", "gpt2").fitting(5)
    rng = np.random.default_rng(1)
    # Few distinct values, so that there are equal ones.
    fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2 = rng.integers(1, 9, (3, len(fitting))).astype(float)
    corners = list(zip(fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2, strict=True))
    monkeypatch.setattr(prune, "_AT_ONCE", 300)  # so that the corners are looked at in several steps
    seen = set()
    for count in (1, 3, 12):
        found = [tuple(row) for row in rng.integers(2, 10, (count, 3)).astype(float).tolist()]
        found += [corners[0], (2.0, np.inf, 2.0)]
        removed = removed_by_corner(fitting, found)
        for corner, is_removed in zip(corners, removed.tolist(), strict=True):
            assert is_removed == any(all(a <= b for a, b in zip(plan, corner, strict=True)) for plan in found)
        assert removed[0], "an equal plan is enough"
        seen |= set(removed.tolist())
    assert seen == {True, False}
    assert not removed_by_corner(fitting, []).any()


def test_a_time_bound_goes_where_it_is_above_the_nth_fastest() -> None:
    assert not removed_by_paper(9.0, [], 1)
    assert not removed_by_paper(9.0, [3.0, 1.0], 3), "fewer plans than are kept"
    assert removed_by_paper(2.5, [3.0, 1.0, 2.0], 2)
    assert not removed_by_paper(2.0, [3.0, 1.0, 2.0], 2), "as fast is not slower"
    assert not removed_by_paper(2.5, [3.0, 1.0, 2.0], 3)
