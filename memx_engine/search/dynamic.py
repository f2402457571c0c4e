"""Choosing layer split and recompute of one skeleton together, by dynamic programming over (stage, layers placed).

A partial assignment is summarised by six numbers that decide what any completion of it is worth: the longest stage
period, the sum of stage times, the longest tail, the highest peak, and the weighted sums of memory and of its square
(the variance is E[m^2] - E[m]^2, so a smaller square and a larger sum are better). Of partial assignments with the same
layers placed, one that is no better in any of the six can be dropped. Without the width limit the answer is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable
from memx_engine.search.bounds import figures, transfer_s
from memx_engine.search.objective import Objective

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

_WIDTH = 24
_PERIOD, _TIME, _TAIL, _PEAK, _SUM, _SQUARE = range(6)


@dataclass(frozen=True)
class Solution:
    """The best assignment found of one skeleton.

    Attributes:
        layers, options: Per stage; options index the table's strategies.
        time_s: By the additive form. lower_bound_phi: No assignment is better; equals ``phi`` when ``optimal``.
        nodes: Partial assignments looked at.
    """

    layers: tuple[int, ...]
    options: tuple[int, ...]
    time_s: float
    peak_bytes: float
    variance_bytes2: float
    phi: float
    lower_bound_phi: float
    optimal: bool
    nodes: int


def solve(
    table: StageTable,
    objective: Objective,
    *,
    incumbent_phi: float = float("inf"),
    width: int = _WIDTH,
    should_stop: Callable[[], bool] | None = None,
) -> Solution | None:
    """The best layer split and recompute of a 1F1B table; None where nothing fits.

    Args:
        table: Counts layers 0..L; every stage gets at least one.
        objective: Phi, with the additive time.
        incumbent_phi: Accepted for the seam's sake; the programme always returns the skeleton's own best.
        width: Partial assignments kept per number of layers placed; the answer is exact while none is dropped.
        should_stop: Asked before every stage; None is returned when it says so.
    """
    del incumbent_phi
    weights = table.gpus / table.gpus.sum()
    transfers = transfer_s(table)
    fixed = table.fixed_s + 2.0 * float(table.p2p_s.sum())
    left = table.layers
    placed = np.zeros(1, dtype=np.int64)
    labels = np.zeros((1, 6))
    parents: list[tuple[Ints, Ints, Ints]] = []
    exact, nodes = True, 0
    for stage in range(table.stages):
        if should_stop is not None and should_stop():
            return None
        layers, options, step = _steps(table, stage, float(weights[stage]), float(transfers[stage]))
        after = table.stages - stage - 1
        total = placed[:, None] + layers[None, :]
        allowed = total == left if after == 0 else total <= left - after
        at, choice = np.nonzero(allowed)
        if not len(at):
            return None
        nodes += len(at)
        new = labels[at] + step[choice]
        for column in (_PERIOD, _TAIL, _PEAK):
            new[:, column] = np.maximum(labels[at, column], step[choice, column])
        placed_now = placed[at] + layers[choice]
        score = _score(new, table.micro_batches, fixed, objective)
        kept, dropped = _keep(placed_now, new, score, width)
        exact &= not dropped
        placed, labels = placed_now[kept], new[kept]
        parents.append((at[kept], layers[choice[kept]], options[choice[kept]]))
    best = int(
        np.lexsort((labels[:, _PEAK], labels[:, _TIME], _score(labels, table.micro_batches, fixed, objective)))[0]
    )
    split, picks = [], []
    for back, layers, options in reversed(parents):
        split.append(int(layers[best]))
        picks.append(int(options[best]))
        best = int(back[best])
    chosen = tuple(reversed(split)), tuple(reversed(picks))
    found = figures(table, *chosen)
    phi = objective.phi(found.time_s, found.peak_bytes, found.variance_bytes2)
    return Solution(
        *chosen,
        found.time_s,
        found.peak_bytes,
        found.variance_bytes2,
        phi,
        phi if exact else 0.0,
        exact,
        nodes,
    )


def _steps(table: StageTable, stage: int, weight: float, transfer: float) -> tuple[Ints, Ints, Array]:
    """The stage's choices that fit: layers (n,), option (n,), and their six figures (n, 6)."""
    memory = table.memory_bytes[stage]
    layers, options = np.nonzero(memory[1:] <= min(float(table.capacity_bytes[stage]), np.finfo(float).max))
    layers = layers + 1
    time = table.forward_s[stage, layers, options] + table.backward_s[stage, layers, options]
    held = memory[layers, options]
    step = np.column_stack([time + transfer, time, table.tail_s[stage, layers], held, weight * held, weight * held**2])
    return layers.astype(np.int64), options.astype(np.int64), step


def _score(labels: Array, micro_batches: int, fixed: float, objective: Objective) -> Array:
    """Phi of the labels as if they were whole plans."""
    time = (micro_batches - 1) * labels[:, _PERIOD] + labels[:, _TIME] + labels[:, _TAIL] + fixed
    share = np.maximum(labels[:, _SQUARE] - labels[:, _SUM] ** 2, 0.0)
    return objective.phi_array(time, labels[:, _PEAK], share)


def _keep(placed: Ints, labels: Array, score: Array, width: int) -> tuple[Ints, bool]:
    """Indices of the labels kept, at most ``width`` per number of layers placed, and whether good ones were dropped."""
    goodness = labels.copy()
    goodness[:, _SUM] *= -1.0
    kept: list[int] = []
    dropped = False
    for count in np.unique(placed):
        members = np.flatnonzero(placed == count)
        members = members[np.lexsort((members, score[members]))]
        front = np.empty((0, 6))
        for member in members:
            if bool((front <= goodness[member]).all(axis=1).any()):
                continue
            if len(front) == width:
                dropped = True
                break
            front = np.vstack([front, goodness[member]])
            kept.append(int(member))
    return np.asarray(kept, dtype=np.int64), dropped
