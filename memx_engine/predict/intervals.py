"""How far off predictions are: split-conformal widths from rows that the model did not see, in logarithms.

A width is the ``ceil((n + 1) * level)``-th smallest absolute residual of n held-out rows (Vovk et al. 2005; Lei et al.
2018): an interval of that width covers the next measurement with at least the level's probability, whatever the
distribution, as long as it comes from where the held-out ones came from. Outside the measured range it does not, so
there the width grows with the distance.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
LEAST_PER_TYPE = 40
"""Held-out rows of a GPU type from which on it has a width of its own: twice what a 95 % quantile needs."""

FEW = 1.5
"""With fewer held-out rows than the quantile needs, the largest residual times this."""


def conformal_width(residuals: Sequence[float] | Array, level: float = LEVEL) -> float | None:
    """The width of ``level`` from signed residuals; None without any."""
    sizes = np.sort(np.abs(np.asarray(residuals, dtype=np.float64)))
    sizes = sizes[np.isfinite(sizes)]
    if not len(sizes):
        return None
    place = math.ceil((len(sizes) + 1) * level)
    return float(sizes[place - 1]) if place <= len(sizes) else float(sizes[-1]) * FEW


@dataclass(frozen=True)
class Widths:
    """Half widths of the interval of a logarithm.

    Attributes:
        overall: None where nothing was held out.
        by_type: GPU types with enough rows of their own.
        residuals: The sorted held-out residuals, for probabilities.
    """

    overall: float | None = None
    by_type: Mapping[str, float] = field(default_factory=dict)
    residuals: tuple[float, ...] = ()

    @classmethod
    def of(cls, residuals: Array, types: Sequence[str], level: float = LEVEL) -> Widths:
        """From held-out residuals and the GPU type of each; residuals that are not numbers are passed over."""
        names = np.array(types)
        by_type = {}
        for name in sorted(set(types)):
            own = residuals[names == name]
            own = own[np.isfinite(own)]
            width = conformal_width(own, level)
            if len(own) >= LEAST_PER_TYPE and width is not None:
                by_type[name] = width
        kept = np.sort(residuals[np.isfinite(residuals)])
        return cls(conformal_width(kept, level), by_type, tuple(float(x) for x in kept))

    def width(self, gpu_type: str, distance: float = 0.0) -> float | None:
        """The half width for a GPU type; ``distance`` is how far outside the measured range, in ranges."""
        base = self.by_type.get(gpu_type, self.overall)
        return None if base is None else base * (1.0 + 2.0 * distance)

    def exceeds(self, margin: float, distance: float = 0.0) -> float | None:
        """Probability that the truth's logarithm lies more than ``margin`` above the prediction's.

        From the held-out residuals, stretched outside the measured range, never quite 0 or 1: n of them tell no more
        than ``1 / (n + 1)``. None where nothing was held out.
        """
        if not self.residuals:
            return None
        scaled = margin / (1.0 + 2.0 * distance)
        above = len(self.residuals) - bisect_right(self.residuals, scaled)
        return (above + 1) / (len(self.residuals) + 2)
