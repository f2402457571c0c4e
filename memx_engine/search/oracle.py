"""Min-plus dynamic programme: the cheapest way to lay all layers on the stages when costs add up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cheapest_split(cost: Array, layers: int) -> list[int] | None:
    """Layers per stage (each at least 1) minimising the sum of costs; None where no finite sum exists.

    Args:
        cost: (P, N), ``cost[i, n - 1]`` of n layers on stage i; infinite where impossible.
        layers: How many layers there are in all.

    Ties go to more layers on later stages' predecessors, so that the answer depends on the costs alone.
    """
    stages, most = cost.shape
    finite = np.isfinite(cost)
    any_finite = finite.any(axis=1)
    if not any_finite.all():
        return None
    least = finite.argmax(axis=1) + 1
    largest = most - finite[:, ::-1].argmax(axis=1)
    least_sum, largest_sum = np.cumsum(least), np.cumsum(largest)
    if not least_sum[-1] <= layers <= largest_sum[-1]:
        return None
    # Layers placed on stages 0..i that can still be completed to ``layers``.
    first = np.maximum(least_sum, layers - (largest_sum[-1] - largest_sum)).tolist()
    final = np.minimum(largest_sum, layers - (least_sum[-1] - least_sum)).tolist()

    # Row i: cost of placing k layers on the first i stages at column most + k; the columns before stand for k < 0.
    sums = np.full((stages + 1, most + layers + 1), np.inf)
    sums[0, most] = 0.0
    reverse = np.ascontiguousarray(cost[:, ::-1])
    rows = np.arange(layers + 1)
    chosen: list[NDArray[np.intp]] = []
    for i, (low, high, start, stop) in enumerate(zip(least.tolist(), largest.tolist(), first, final, strict=True)):
        height, width = stop - start + 1, high - low + 1
        # window[k, j] is the sum of start + k layers less high - j of them: consecutive rows shift by one.
        window = np.ndarray((height, width), np.float64, sums[i], (most + start - high) * 8, (8, 8))
        total = window + reverse[i, most - high : most - low + 1]
        best = total.argmin(axis=1)
        sums[i + 1, most + start : most + stop + 1] = total[rows[:height], best]
        chosen.append(best)
    if not np.isfinite(sums[stages, most + layers]):
        return None
    split = [0] * stages
    left = layers
    for i in range(stages - 1, -1, -1):
        split[i] = int(largest[i]) - int(chosen[i][left - first[i]])
        left -= split[i]
    return split
