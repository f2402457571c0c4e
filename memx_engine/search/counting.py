"""How many complete plans a search covers: every layer split crossed with every recompute, as an exact integer."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.origins import StageLimits
from memx_engine.cost.sketch import existing
from memx_engine.cost.table import StageTable
from memx_engine.plan import Recompute
from memx_engine.search.bounds import as_1f1b


def count_plans(table: StageTable, *, one_recompute: bool = False, max_layer_difference: int | None = None) -> int:
    """Plans of one skeleton, whether they fit or not.

    Args:
        one_recompute: The same strategy on every stage.
        max_layer_difference: Most that two stages' layer counts may differ; None counts every split.
    """
    exists = np.isfinite(as_1f1b(table).memory_bytes)
    return _count_existing(exists, table.virtual_stages, one_recompute, max_layer_difference)


def _count_existing(
    exists: NDArray[np.bool_], virtual_stages: int, one_recompute: bool, max_layer_difference: int | None
) -> int:
    """Plans of which (P, U+1, R) parts exist, in units of v layers."""
    difference = None if max_layer_difference is None else max_layer_difference // virtual_stages
    options = range(exists.shape[2]) if one_recompute else ()
    ways = [exists[:, :, r].astype(np.int64) for r in options] or [exists.sum(axis=2).astype(np.int64)]
    return sum(_splits(w, exists.shape[1] - 1, difference) for w in ways)


def _splits(ways: NDArray[np.int64], layers: int, difference: int | None) -> int:
    """Ways to place all layers on stages of which the i-th has ``ways[i, n]`` ways to hold n."""
    stages, n = len(ways), np.arange(layers + 1)
    if difference is None:
        return _count(ways.tobytes(), stages, layers)

    def within(low: int, high: int) -> int:
        return _count(np.where((n >= low) & (n <= high), ways, 0).tobytes(), stages, layers) if low <= high else 0

    # A split whose least count is ``low`` lies in that window, and not in the one that begins above it.
    lows = range(max(1, -(-layers // stages) - difference), layers // stages + 1)
    return sum(within(low, low + difference) - within(low + 1, low + difference) for low in lows)


@lru_cache(maxsize=4096)
def count_shape(
    options: tuple[Recompute, ...],
    layers: int,
    virtual_stages: int,
    stages: int,
    limits: tuple[StageLimits, ...] | None = None,
    *,
    one_recompute: bool = False,
    max_layer_difference: int | None = None,
) -> int:
    """The same of a skeleton whose every stage has exactly these strategies, as far as the limits leave them."""
    exists = np.repeat(existing(layers, options, virtual_stages)[None], stages, axis=0)
    n = virtual_stages * np.arange(exists.shape[1])
    for i, stage in enumerate(limits or ()):
        exists[i, (n < stage.fewest) | (n > stage.most)] = False
        if stage.recompute is not None:
            exists[i, :, [other != stage.recompute for other in options]] = False
    return _count_existing(exists, virtual_stages, one_recompute, max_layer_difference)


@lru_cache(maxsize=4096)
def _count(choices: bytes, stages: int, layers: int) -> int:
    """Ways to place all layers, where stage i with n layers has ``choices[i][n]`` ways.

    The product of the polynomials sum_n choices[i][n] x^n, evaluated at a power of two large enough that the
    coefficients cannot touch each other (Kronecker substitution): big-integer products do the convolution.
    """
    rows = Counter(map(tuple, np.frombuffer(choices, dtype=np.int64).reshape(stages, layers + 1).tolist()))
    total = 1
    for row, times in rows.items():
        total *= max(1, sum(row[1:])) ** times
    shift = total.bit_length() + 1
    # Beyond x^layers nothing is asked for: cut off after every multiplication, or the numbers grow past all measure.
    kept = (1 << (shift * (layers + 1))) - 1
    product = 1
    for row, times in rows.items():
        factor = sum(ways << (shift * n) for n, ways in enumerate(row) if n and ways)
        while times:
            if times & 1:
                product = product * factor & kept
            times >>= 1
            if times:
                factor = factor * factor & kept
    return product >> (shift * layers)
