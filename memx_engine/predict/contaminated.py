"""Runs that something disturbed: far slower than the rest of their GPU type, their repeats or their neighbours.

A disturbance only adds time, so only slow runs are named. Logarithms of measured over composed are held against
medians; what lies above by more than robust scatter explains is named. Nothing here knows which table it looks at.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memx_engine.predict.booster import Array

Mask = NDArray[np.bool_]

NEIGHBOURS = 7
"""Odd, so that the median is one of them; three disturbed ones among them do no harm."""

SPREADS = 5.0
"""Robust standard deviations above what is expected."""

LEAST = math.log(1.5)
"""Runs that take less than half as long again are never named: ordinary repeats differ by up to a seventh."""

LEAST_ROWS = 8


def far_above(excess: Array) -> Mask:
    """Which of these lie far above the bulk; none of fewer than :data:`LEAST_ROWS`. NaN never does."""
    known = np.isfinite(excess)
    out = np.zeros(len(excess), dtype=np.bool_)
    if known.sum() >= LEAST_ROWS:
        middle = float(np.median(excess[known]))
        spread = 1.4826 * float(np.median(np.abs(excess[known] - middle)))
        out[known] = excess[known] - middle > max(SPREADS * spread, LEAST)
    return out


def beyond_type(logs: Array, types: NDArray[np.str_]) -> Mask:
    """Runs far slower than the others of their GPU type."""
    out = np.zeros(len(logs), dtype=np.bool_)
    for name in np.unique(types):
        own = types == name
        out[own] = far_above(logs[own])
    return out


def beyond_neighbours(logs: Array, places: Array, groups: NDArray[np.str_], types: NDArray[np.str_]) -> Mask:
    """Runs far slower than three or more repeats, or else than the nearest in size on their GPU type.

    Args:
        logs: (n,) log(measured / composed), NaN without a time. places: (n, F) logarithms of sizes, not scaled.
    """
    spread = places.std(axis=0)
    scaled = places[:, spread > 0] / spread[spread > 0]
    known = np.isfinite(logs)
    excess = np.full(len(logs), np.nan)
    for i in np.flatnonzero(known):
        repeats = known & (groups == groups[i])
        if repeats.sum() >= 3:
            excess[i] = logs[i] - np.median(logs[repeats])
            continue
        others = known & (types == types[i]) & (groups != groups[i])
        if others.any():
            far = ((scaled[others] - scaled[i]) ** 2).sum(axis=1)
            excess[i] = logs[i] - np.median(logs[others][np.argsort(far, kind="stable")[:NEIGHBOURS]])
    return far_above(excess)
