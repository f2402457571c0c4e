"""The Pareto front over iteration time, peak memory and memory variance; all three are minimised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pareto_mask(time_s: Array, peak_bytes: Array, variance_bytes2: Array) -> NDArray[np.bool_]:
    """(n,) True where no other point is at least as good in all three and better in one.

    Equal points keep only the first, so that a front lists a plan once. Points that are not finite are never on it.
    """
    points = np.column_stack([time_s, peak_bytes, variance_bytes2]).astype(np.float64)
    mask = np.zeros(len(points), dtype=np.bool_)
    finite = np.all(np.isfinite(points), axis=1).tolist()
    # Sorted by time, peak, variance: a point can only be dominated by an earlier one.
    order = np.lexsort((np.arange(len(points)), points[:, 2], points[:, 1], points[:, 0]))
    front = np.empty((0, 3))
    for i in order:
        if not finite[i] or bool((front <= points[i]).all(axis=1).any()):
            continue
        mask[i] = True
        front = np.vstack([front, points[i]])
    return mask


class Front:
    """A front that grows: is a point dominated by one seen so far?"""

    def __init__(self) -> None:
        self._points = np.empty((0, 3))

    def add(self, time_s: float, peak_bytes: float, variance_bytes2: float) -> None:
        """Take in a point; those it dominates leave."""
        point = np.array([time_s, peak_bytes, variance_bytes2])
        if self.dominates(time_s, peak_bytes, variance_bytes2):
            return
        kept = self._points[~(self._points >= point).all(axis=1)]
        self._points = np.vstack([kept, point])

    def dominates(self, time_s: float, peak_bytes: float, variance_bytes2: float) -> bool:
        """Whether some point seen is at least as good in all three."""
        return bool((self._points <= np.array([time_s, peak_bytes, variance_bytes2])).all(axis=1).any())

    def __len__(self) -> int:
        return len(self._points)
