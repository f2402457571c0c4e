"""What measured times are made of: factors per GPU type on computing layers, on the ends, and on collectives.

They carry over to sizes that were not measured, where trees know only steps: between tensor-parallel 2 and 8 no 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRIOR_POINTS = 1.0
"""First principles weighs as much as this many measured points."""


@dataclass(frozen=True)
class Seconds:
    """One micro-batch, forward and backward, as first principles expects it.

    Attributes:
        layers: Computing, recompute included. ends: Computing of embedding and head.
        collectives: Of tensor parallelism.
    """

    layers: float
    ends: float
    collectives: float


@dataclass(frozen=True)
class TimeShares:
    """Factors on the parts."""

    layers: float = 1.0
    ends: float = 1.0
    collectives: float = 1.0

    def seconds(self, parts: Seconds) -> float:
        """What the parts come to."""
        return self.layers * parts.layers + self.ends * parts.ends + self.collectives * parts.collectives


def fit_times(seconds: Sequence[Seconds], types: Sequence[str], logs: Array) -> dict[str, TimeShares]:
    """Least relative squares per type, pulled towards one common factor by :data:`PRIOR_POINTS` points.

    Args:
        logs: (n,) logarithms of measured seconds, NaN where not known.
    """
    out = {}
    for name in sorted(set(types)):
        own = [k for k, kind in enumerate(types) if kind == name and not np.isnan(logs[k])]
        out[name] = _fit([seconds[k] for k in own], logs[own]) if own else TimeShares()
    return out


def _fit(seconds: Sequence[Seconds], logs: Array) -> TimeShares:
    parts = np.array([[s.layers, s.ends, s.collectives] for s in seconds])
    # The median, shrunk: what a single straggling point cannot move.
    middle = float(np.median(logs - np.log(parts.sum(axis=1)))) * len(logs) / (len(logs) + PRIOR_POINTS)
    common = math.exp(middle)
    # Each row over what was measured, so that every point counts by its relative error.
    matrix = parts * np.exp(-logs)[:, None]
    pull = math.sqrt(PRIOR_POINTS) / common * np.eye(3)
    left = np.concatenate([np.ones(len(logs)), np.full(3, math.sqrt(PRIOR_POINTS))])
    found = np.linalg.lstsq(np.concatenate([matrix, pull]), left, rcond=None)[0]
    layers, ends, collectives = (float(x) for x in np.maximum(found, common / 10.0))
    return TimeShares(layers, ends, collectives)
