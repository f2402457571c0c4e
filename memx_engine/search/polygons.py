"""Least value of a concave increasing function over regions known by their supporting lines, many regions at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

VERTICES = 16
"""A region with more vertices falls back to its lower left corner, which bounds it too."""


class Regions:
    """B regions open to the upper right, each by its lower left boundary.

    Attributes:
        x, y: (B, VERTICES) x increasing and y decreasing along the boundary, which goes straight up from the first
            vertex and straight right from the last. count: (B,) how many there are.
    """

    def __init__(self, x: Array, y: Array, count: Ints) -> None:
        self.x, self.y, self.count = x, y, count

    @classmethod
    def corners(cls, x: Array, y: Array) -> Regions:
        """(B,) least x and least y."""
        wide = np.zeros((2, len(x), VERTICES))
        wide[0, :, 0], wide[1, :, 0] = x, y
        return cls(wide[0], wide[1], np.ones(len(x), dtype=np.intp))

    @property
    def there(self) -> Bools:
        return np.asarray(np.arange(VERTICES) < self.count[:, None])

    def corner(self) -> tuple[Array, Array]:
        """(B,) least x and least y."""
        nodes = np.arange(len(self.count))
        return self.x[:, 0], self.y[nodes, self.count - 1]

    def clip(self, a: Array, b: Array, least: Array, far_x: Array, far_y: Array, active: Bools) -> None:
        """Cut ``a·x + b·y >= least`` into the active regions; a, b >= 0, not both zero.

        No plan lies above or right of ``far``: a nearly level or nearly upright line is cut off there, where its end
        would be so far away that rounding swallows the rest.
        """
        height = a[:, None] * self.x + b[:, None] * self.y
        outside = (height < least[:, None]) & self.there & active[:, None]
        at = np.flatnonzero(outside.any(axis=1))
        if not len(at):
            return
        x, y, count, out = self.x[at], self.y[at], self.count[at], outside[at]
        a, b, least, far_x, far_y = a[at], b[at], least[at], far_x[at], far_y[at]
        rows = np.arange(len(at))
        start = out.argmax(axis=1)
        stop = VERTICES - out[:, ::-1].argmax(axis=1)
        over = height[at] - least[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            # The end on the upper left: on the edge to the vertex before, else on the way up from the first one.
            up_y = (least - a * x[:, 0]) / b
            high = (up_y > far_y) & (a > 0)
            left = np.where(high, (least - b * far_y) / a, x[:, 0]), np.where(high, far_y, up_y)
            left = _where(start > 0, _crossing(x, y, over, rows, np.maximum(start - 1, 0), start), left)
            last = count - 1
            right_x = (least - b * y[rows, last]) / a
            wide = (right_x > far_x) & (b > 0)
            right = np.where(wide, far_x, right_x), np.where(wide, (least - a * far_x) / b, y[rows, last])
            inner = stop < count
            right = _where(inner, _crossing(x, y, over, rows, np.minimum(stop, last), stop - 1), right)
        has_left, has_right = (start > 0) | (b > 0), inner | (a > 0)
        added = has_left.astype(np.intp) + has_right
        behind = start + added
        place = np.arange(VERTICES)
        source = np.clip(
            np.where(place < start[:, None], place, place - behind[:, None] + stop[:, None]), 0, VERTICES - 1
        )
        new_count = behind + count - stop
        at_left = (place == start[:, None]) & has_left[:, None]
        at_right = (place == behind[:, None] - 1) & has_right[:, None]
        for k, old in enumerate((x, y)):
            made = np.where(at_left, left[k][:, None], old[rows[:, None], source])
            made = np.where(at_right, right[k][:, None], made)
            (self.x, self.y)[k][at] = made
        self.count[at] = np.minimum(new_count, VERTICES)
        for k in np.flatnonzero(new_count > VERTICES).tolist():
            # Of what does not fit, only the last vertex counts: it has the least y.
            j, i = at[k], count[k] - 1
            lowest = y[k, i] if stop[k] < count[k] else min(right[1][k], y[k, i])
            self.y[j, 0], self.count[j] = lowest, 1


def _crossing(x: Array, y: Array, over: Array, rows: Ints, inside: Ints, outside: Ints) -> tuple[Array, Array]:
    share = over[rows, inside] / (over[rows, inside] - over[rows, outside])
    x0, y0 = x[rows, inside], y[rows, inside]
    return x0 + share * (x[rows, outside] - x0), y0 + share * (y[rows, outside] - y0)


def _where(chosen: Bools, one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    return np.where(chosen, one[0], other[0]), np.where(chosen, one[1], other[1])
