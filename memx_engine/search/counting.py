"""How many complete plans a search covers: every layer split crossed with every recompute, as an exact integer."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from memx_engine.cost.table import StageTable
from memx_engine.search.bounds import as_1f1b


def count_plans(table: StageTable, *, one_recompute: bool = False) -> int:
    """Plans of one skeleton, whether they fit or not; ``one_recompute``: the same strategy on every stage."""
    table = as_1f1b(table)
    exists = np.isfinite(table.memory_bytes)
    if not one_recompute:
        return _count(exists.sum(axis=2).astype(np.int64).tobytes(), table.stages, table.layers)
    return sum(
        _count(exists[:, :, r].astype(np.int64).tobytes(), table.stages, table.layers)
        for r in range(len(table.options))
    )


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
    product = 1
    for row, times in rows.items():
        product *= sum(ways << (shift * n) for n, ways in enumerate(row) if n and ways) ** times
    return (product >> (shift * layers)) & ((1 << shift) - 1)
