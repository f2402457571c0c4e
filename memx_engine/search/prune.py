"""When a skeleton is not part of the answer: the memory rule and the time rule (placement is :mod:`.space`'s)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.fitting import Fitting
from memx_engine.search.pareto import pareto_mask

TIME_RULES = ("corner", "paper")
"""``corner``: the skeleton's corner of bounds is worse than the N-th best Phi and dominated by the plans found so far.
``paper``: its time bound alone is worse than the N-th fastest plan found; this can delete a better Phi."""

_AT_ONCE = 1 << 20


def removed_by_corner(fitting: Fitting, found: Sequence[tuple[float, float, float]]) -> NDArray[np.bool_]:
    """(n,) skeletons of which some plan found is at least as good as the bounds in time, peak and variance."""
    out = np.zeros(len(fitting), dtype=np.bool_)
    if not found:
        return out
    points = np.array(found)
    points = points[pareto_mask(*points.T)]
    corners = np.column_stack([fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2])
    step = max(1, _AT_ONCE // (3 * max(len(points), 1)))
    for start in range(0, len(corners), step):
        some = corners[start : start + step]
        out[start : start + step] = np.any((points <= some[:, None, :]).all(axis=2), axis=1)
    return out


def removed_by_paper(time_s: float, found_s: Sequence[float], keep: int) -> bool:
    """Whether a bound of the time is above the ``keep``-th fastest plan found."""
    return len(found_s) >= keep and time_s > sorted(found_s)[keep - 1]
