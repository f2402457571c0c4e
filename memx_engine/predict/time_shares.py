"""What measured times are made of: factors per GPU type on layers, on each end, and on collectives.

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

_LIKENESS = 0.02
"""That the ends compute and communicate as layers do weighs as much as this share of a point: they are a small part of
any, so little is known of them, but what is known must count."""


@dataclass(frozen=True)
class Seconds:
    """One micro-batch, forward and backward, as first principles expects it.

    Attributes:
        layers: Computing, recompute included. embedding, head: Computing of these.
        collectives, end_collectives: Of tensor parallelism, in layers and at the ends.
    """

    layers: float
    embedding: float
    head: float
    collectives: float
    end_collectives: float

    @property
    def parts(self) -> tuple[float, ...]:
        return self.layers, self.embedding, self.head, self.collectives, self.end_collectives


@dataclass(frozen=True)
class TimeShares:
    """Factors on the parts."""

    layers: float = 1.0
    embedding: float = 1.0
    head: float = 1.0
    collectives: float = 1.0
    end_collectives: float = 1.0

    def seconds(self, parts: Seconds) -> float:
        """What the parts come to."""
        factors = (self.layers, self.embedding, self.head, self.collectives, self.end_collectives)
        return sum(factor * part for factor, part in zip(factors, parts.parts, strict=True))


def fit_times(seconds: Sequence[Seconds], types: Sequence[str], logs: Array) -> dict[str, TimeShares]:
    """Least relative squares per type, pulled towards one common factor by :data:`PRIOR_POINTS` points.

    The ends are pulled towards layers, lightly.

    Args:
        logs: (n,) logarithms of measured seconds, NaN where not known.
    """
    out = {}
    for name in sorted(set(types)):
        own = [k for k, kind in enumerate(types) if kind == name and not np.isnan(logs[k])]
        out[name] = _fit([seconds[k] for k in own], logs[own]) if own else TimeShares()
    return out


def _fit(seconds: Sequence[Seconds], logs: Array) -> TimeShares:
    parts = np.array([s.parts for s in seconds])
    # The median, shrunk: what a single straggling point cannot move.
    middle = float(np.median(logs - np.log(parts.sum(axis=1)))) * len(logs) / (len(logs) + PRIOR_POINTS)
    common = math.exp(middle)
    # Each row over what was measured, so that every point counts by its relative error.
    matrix = parts * np.exp(-logs)[:, None]
    # Columns: layers, embedding, head, collectives, collectives of the ends.
    own, alike = math.sqrt(PRIOR_POINTS) / common, math.sqrt(_LIKENESS) / common
    pull = np.array(
        [
            [own, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, own, 0.0],
            [-alike, alike, 0.0, 0.0, 0.0],
            [-alike, 0.0, alike, 0.0, 0.0],
            [0.0, 0.0, 0.0, -alike, alike],
        ]
    )
    left = np.concatenate([np.ones(len(logs)), np.full(2, math.sqrt(PRIOR_POINTS)), np.zeros(3)])
    found = np.linalg.lstsq(np.concatenate([matrix, pull]), left, rcond=None)[0]
    return TimeShares(*(float(x) for x in np.maximum(found, common / 10.0)))
