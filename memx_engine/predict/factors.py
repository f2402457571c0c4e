"""One factor from many measured-over-predicted ratios: robust to outliers, careful with few."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_POINTS = 1.0
"""The k of ``n / (n + k)``: first principles weighs as much as this many measured points."""


@dataclass(frozen=True)
class Factor:
    """A multiplicative correction.

    Attributes:
        value: ``exp(median log ratio * n / (n + k))``. points: n, distinct measured configurations.
        spread: Median absolute deviation of the log ratios: by how much single points miss the factor.
    """

    value: float = 1.0
    points: int = 0
    spread: float = 0.0

    def __str__(self) -> str:
        return f"x{self.value:.3g}"


def shrunk_factor(ratios: Sequence[float], *, prior_points: float = PRIOR_POINTS) -> Factor:
    """The factor of positive, finite ``ratios`` (others are passed over); 1 when there are none."""
    logs = [math.log(r) for r in ratios if r > 0 and math.isfinite(r)]
    if not logs:
        return Factor()
    middle = statistics.median(logs)
    spread = statistics.median(abs(x - middle) for x in logs)
    return Factor(math.exp(middle * len(logs) / (len(logs) + prior_points)), len(logs), spread)
