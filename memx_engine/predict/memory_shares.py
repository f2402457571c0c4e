"""What measured peaks are made of: one factor per GPU type for each part that the cost model tells apart.

Points mix the parts in different proportions (recompute leaves little but work space, a head adds logits), so that the
parts of a peak nobody measured can be put together again: trees, which know only proportions they saw, cannot do that.
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

_TOGETHER_PRIOR = 0.2
_OUTLIER = 0.1


@dataclass(frozen=True)
class Sizes:
    """Bytes of one rank's peak beside weights and gradients, as first principles expects them.

    Attributes:
        held: Activations of all micro-batches in flight. working: Layers that exist whole while they are recomputed.
        transient: One layer's gradients passing through. buffers: Of communication.
    """

    held: float
    working: float
    transient: float
    logits: float
    buffers: float


@dataclass(frozen=True)
class MemoryShares:
    """Factors on the parts; ``together``: see :class:`memx_engine.cost.memory.StageMemory`."""

    held: float = 1.0
    working: float = 1.0
    passing: float = 1.0
    logits: float = 1.0
    together: float = 0.0

    def bytes(self, sizes: Sizes) -> float:
        """What the parts come to."""
        work = self.working * sizes.working + self.passing * sizes.transient
        logits = self.logits * sizes.logits
        peak = max(work, logits) + self.together * min(work, logits)
        return self.held * sizes.held + peak + self.passing * sizes.buffers


def fit_memories(sizes: Sequence[Sizes], types: Sequence[str], logs: Array) -> dict[str, MemoryShares]:
    """Least relative squares per type, pulled towards one common factor by :data:`PRIOR_POINTS` points.

    Args:
        logs: (n,) logarithms of measured bytes, NaN where not known.
    """
    out = {}
    for name in sorted(set(types)):
        own = [k for k, kind in enumerate(types) if kind == name and not np.isnan(logs[k])]
        out[name] = _fit([sizes[k] for k in own], logs[own]) if own else MemoryShares()
    return out


def _fit(sizes: Sequence[Sizes], logs: Array) -> MemoryShares:
    from scipy.optimize import least_squares

    parts = np.array([[s.held, s.working, s.transient, s.logits, s.buffers] for s in sizes])
    held, working, transient, logits, buffers = parts.T
    plain = np.array([MemoryShares().bytes(s) for s in sizes])
    common = float(np.median(logs - np.log(plain))) * len(logs) / (len(logs) + PRIOR_POINTS)

    def left(x: Array) -> Array:
        a, b, c, d = np.exp(x[:4])
        work, top = b * working + c * transient, d * logits
        made = a * held + np.maximum(work, top) + x[4] * np.minimum(work, top) + c * buffers
        prior = math.sqrt(PRIOR_POINTS) * (x[:4] - common)
        return np.concatenate([np.log(made) - logs, prior, [_TOGETHER_PRIOR * x[4]]])

    start = np.array([common] * 4 + [0.1])
    span = math.log(10.0)
    bounds = ([common - span] * 4 + [0.0], [common + span] * 4 + [1.0])
    found = least_squares(left, start, bounds=bounds, loss="soft_l1", f_scale=_OUTLIER).x
    a, b, c, d = (float(v) for v in np.exp(found[:4]))
    return MemoryShares(a, b, c, d, float(found[4]))
