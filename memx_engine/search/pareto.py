"""The Pareto front over iteration time, peak memory and memory variance; all three are minimised."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pareto_mask(time_s: Array, peak_bytes: Array, variance_bytes2: Array) -> NDArray[np.bool_]:
    """(n,) True where no other point is at least as good in all three and better in one.

    Equal points keep only the first, so that a front lists a plan once. Points that are not finite are never on it.
    """
    mask = np.zeros(len(time_s), dtype=np.bool_)
    finite = np.isfinite(time_s) & np.isfinite(peak_bytes) & np.isfinite(variance_bytes2)
    left = np.flatnonzero(finite)
    if len(left) > _FEW:
        left = _without_most(np.stack((time_s[left], peak_bytes[left], variance_bytes2[left])), left)
    # Sorted by time, peak, variance: a point can only be dominated by an earlier one. Of the earlier ones a staircase
    # is kept, peaks rising and variances falling: the last step at or below a peak has the least variance there.
    order = left[np.lexsort((variance_bytes2[left], peak_bytes[left], time_s[left]))]
    peaks: list[float] = []
    variances: list[float] = []
    for i, peak, variance in zip(
        order.tolist(), peak_bytes[order].tolist(), variance_bytes2[order].tolist(), strict=True
    ):
        step = bisect_right(peaks, peak)
        if step and variances[step - 1] <= variance:
            continue
        mask[i] = True
        start = bisect_left(peaks, peak)
        stop = start
        while stop < len(peaks) and variances[stop] >= variance:
            stop += 1
        peaks[start:stop] = [peak]
        variances[start:stop] = [variance]
    return mask


_FEW = 200
"""Points that are compared one by one at once."""


def _without_most(points: Array, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """``rows`` of (3, n) ``points`` without many of those that some other point is better than in all three."""
    place = np.empty_like(points)
    for own, values in zip(place, points, strict=True):
        own[values.argsort()] = np.arange(len(rows))
    # Points that are good in all three, and each time one that trades two of them for the third.
    for weights in (
        (1.0, 1.0, 1.0),
        (4.0, 1.0, 1.0),
        (1.0, 4.0, 1.0),
        (1.0, 1.0, 4.0),
        (1.0, 4.0, 4.0),
        (4.0, 1.0, 4.0),
    ):
        best = (np.array(weights) @ place).argmin()
        kept = ~(points > points[:, best, None]).all(axis=0)
        points, place, rows = points[:, kept], place[:, kept], rows[kept]
    return rows
