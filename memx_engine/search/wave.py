"""Array work of the branch and bound on many nodes at once, of whatever skeletons: what remains, bounds, the oracle.

Arrays over nodes have the node as their last axis (B nodes); those over stages (P, B) are padded to the longest
pipeline. A *segment* is what one node may choose from for one stage and one count of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.problem import (
    BALANCE,
    CONSTANT_S,
    EPSILON,
    FAR_X,
    FAR_Y,
    LAYERS,
    MEMORY,
    OFFSET,
    OPTION,
    PERIOD,
    PERIOD_FACTOR,
    PLACE,
    STAGE_BITS,
    STAGES,
    SUM_FACTOR,
    TAIL,
    TIME,
)

Array = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Plans:
    """One plan per node, as the oracle chose it and truly evaluated; every array (B,) but ``chosen``.

    Attributes:
        exists: Whether the node holds a plan at all; the other values mean nothing where not.
        x, y, terms: Σ time, the bound of its variance, and the size of that bound's terms.
        chosen: (P, B) columns of the wave's choices.
    """

    exists: Bools
    x: Array
    y: Array
    terms: Array
    time_s: Array
    peak: Array
    variance: Array
    period_s: Array
    tail_s: Array
    mean: Array
    chosen: Ints


class Wave:
    """Some nodes' choices side by side; :meth:`narrow` drops those that cannot be part of a plan that is looked for.

    Attributes:
        alive: (B,) False where no plan is left.

    Args:
        shares: Per node (P,) of all GPUs. numbers: (NUMBERS, B) of the nodes' problems. choices: Per node (7, F).
    """

    def __init__(self, shares: Sequence[Array], numbers: Array, choices: Sequence[Array]) -> None:
        self.size = len(shares)
        self.stages, self.layers = numbers[STAGES].astype(np.intp), numbers[LAYERS].astype(np.intp)
        self.period_factor, self.sum_factor, self.constant_s = numbers[[PERIOD_FACTOR, SUM_FACTOR, CONSTANT_S]]
        self.epsilon, self.offset = numbers[[EPSILON, OFFSET]]
        self.far = numbers[[FAR_X, FAR_Y]]
        self.depth = int(self.stages.max())
        self.there: Bools = np.arange(self.depth)[:, None] < self.stages
        self.share = np.zeros((self.size, self.depth))
        self.share[self.there.T] = np.concatenate(shares)
        self.share = np.ascontiguousarray(self.share.T)
        self.data: Array = np.concatenate(choices, axis=1)
        self.node: Ints = np.repeat(np.arange(self.size), [c.shape[1] for c in choices])
        place = self.data[PLACE].astype(np.intp)
        self._n: Ints = place & ((1 << STAGE_BITS) - 1)
        self._pair: Ints = (place >> STAGE_BITS) * self.size + self.node
        self.alive: Bools = np.ones(self.size, dtype=np.bool_)
        self._spread: Array = np.zeros(0)

    # --- what remains ----------------------------------------------------------------------------------------------

    def narrow(self, most: Sequence[Array]) -> None:
        """Keep choices up to ``most``, (B,) each: period, peak, tail; then those that leave the others their layers."""
        data, node = self.data, self.node
        # ``take`` and ``compress`` are several times as fast as the brackets that do the same.
        keep = data[PERIOD] <= most[0].take(node)
        keep &= data[MEMORY] <= most[1].take(node)
        keep &= data[TAIL] <= most[2].take(node)
        self._keep(keep)
        self._count()
        fewest, largest = self._fewest, self._largest
        spare = self.layers - fewest.sum(axis=0)
        room = largest.sum(axis=0) - self.layers
        self.alive &= (spare >= 0) & (room >= 0)
        # A stage leaves the others at least what they must have, and no more than they can take.
        low, high = np.maximum(fewest, largest - room), np.minimum(largest, fewest + spare)
        keep = (self._n >= low.take(self._pair)) & (self._n <= high.take(self._pair)) & self.alive.take(self.node)
        if not keep.all():
            self._keep(keep)
            self._count()
        self._lay_out()

    def _keep(self, keep: Bools) -> None:
        if not keep.all():
            self.data, self.node = self.data.compress(keep, axis=1), self.node.compress(keep)
            self._n, self._pair = self._n.compress(keep), self._pair.compress(keep)

    def _count(self) -> None:
        """Find the segments, and the fewest and most layers of every stage."""
        pair, n = self._pair, self._n
        self._starts: Ints = np.zeros(0, dtype=np.intp)
        self._fewest = np.zeros((self.depth, self.size), dtype=np.intp)
        self._largest = np.zeros((self.depth, self.size), dtype=np.intp)
        if len(pair):
            change = (pair[1:] != pair[:-1]) | (n[1:] != n[:-1])
            self._starts = np.concatenate(([0], np.flatnonzero(change) + 1))
        self._seg_pair, self._seg_n = pair.take(self._starts), n.take(self._starts)
        present = np.zeros(self.depth * self.size, dtype=np.bool_)
        present[self._seg_pair] = True
        # Segments are sorted by layers: of several writes to one place the last one stays.
        self._largest.ravel()[self._seg_pair] = self._seg_n
        self._fewest.ravel()[self._seg_pair[::-1]] = self._seg_n[::-1]
        self.alive &= (present.reshape(self.depth, self.size) == self.there).all(axis=0)

    def _lay_out(self) -> None:
        """Where segments lie in dense arrays over (stage, layers above the fewest, node)."""
        self._lengths = np.diff(np.append(self._starts, len(self._pair)))
        self._offset = self._seg_n - self._fewest.take(self._seg_pair)
        self._width = int(self._offset.max(initial=0)) + 1
        self._spare = np.where(self.alive, self.layers - self._fewest.sum(axis=0), 0)
        self.alive &= self._spare >= 0
        self._spare = np.maximum(self._spare, 0)
        stage, self._seg_node = np.divmod(self._seg_pair, self.size)
        # The oracle's dense arrays count layers downwards, so that their windows run forward.
        self._dense = (stage * self._width + (self._width - 1 - self._offset)) * self.size + self._seg_node
        self._by_node = (3 * self._offset * self.size + self._seg_node) * self.depth + stage

    def least_ends(self) -> tuple[Array, Array, Array]:
        """(B,) the least longest period, peak and longest tail that still hold all layers; infinite where none does."""
        if not len(self._starts):
            nothing = np.full(self.size, np.inf)
            return nothing, nothing, nothing
        size = self.size * self.depth
        rising = np.full((self._width, 3, self.size, self.depth), np.inf)
        flat = rising.reshape(-1)
        at = self._by_node
        flat[at] = np.minimum.reduceat(self.data[PERIOD], self._starts)
        flat[at + size] = np.minimum.reduceat(self.data[MEMORY], self._starts)
        flat[at + 2 * size] = self.data[TAIL].take(self._starts)
        for w in range(self._width - 2, -1, -1):
            np.minimum(rising[w], rising[w + 1], out=rising[w])
        ends = np.where(self.there.T, rising[0], -np.inf).max(axis=-1)
        spare = self._spare
        if self._width > 1 and spare.any():
            # A stage takes as many layers more as it has values up to a limit.
            more = np.sort(rising[1:].transpose(1, 2, 3, 0).reshape(3, self.size, -1), axis=-1)
            at = np.minimum(np.maximum(spare - 1, 0), more.shape[-1] - 1)
            ends = np.maximum(ends, np.where(spare > 0, more[:, np.arange(self.size), at], -np.inf))
        ends = np.where(self.alive, ends, np.inf)
        return ends[0], ends[1], ends[2]

    def corner(self) -> tuple[Array, Array, Array]:
        """(B,) least x and least y, each stage on its own, and the size of y's terms."""
        if not len(self._spread):
            return self.least_total_s(), np.zeros(self.size), np.zeros(self.size)
        least = self._over_stages(np.minimum, self._spread)
        return self.least_total_s(), least.sum(axis=0), np.abs(least).sum(axis=0)

    def least_total_s(self) -> Array:
        """(B,) Σ over stages of the least time of any choice."""
        return np.asarray(self._over_stages(np.minimum, self.data[TIME]).sum(axis=0))

    def mean_ends(self) -> tuple[Array, Array]:
        """(B,) least and most mean of the balance."""
        balance = self.data[BALANCE]
        low, high = self._over_stages(np.minimum, balance), self._over_stages(np.maximum, balance)
        return (self.share * low).sum(axis=0), (self.share * high).sum(axis=0)

    def _over_stages(self, ufunc: np.ufunc, values: Array) -> Array:
        """(P, B) of (F,) values; 0 where a stage is not there, or has no choice."""
        out = np.zeros(self.depth * self.size)
        if len(self._pair):
            starts = np.concatenate(([0], np.flatnonzero(self._pair[1:] != self._pair[:-1]) + 1))
            out[self._pair[starts]] = ufunc.reduceat(values, starts)
        return out.reshape(self.depth, self.size)

    def set_means(self, low: Array, high: Array) -> None:
        """Fix the interval of the mean, which the bound y of the variance is for."""
        balance, node = self.data[BALANCE], self.node
        share = self.share.take(self._pair)
        self._spread = share * (balance - low.take(node)) * (balance - high.take(node))

    # --- the oracle ------------------------------------------------------------------------------------------------

    def ask(self, a: Array, b: Array, active: Bools) -> Plans:
        """The plan with least ``a·x + b·y`` of every active node, by a min-plus dynamic programme over the stages.

        Of equals the later stages take more layers, and the first option is taken.
        """
        size, depth, width = self.size, self.depth, self._width
        alive = self.alive & active
        if not len(self._starts) or not alive.any():
            nothing = np.zeros(size)
            none = np.zeros(size, dtype=np.bool_)
            return Plans(none, *(nothing,) * 9, np.zeros((depth, size), dtype=np.intp))
        cost = a.take(self.node) * self.data[TIME]
        if b.any():
            cost += b.take(self.node) * self._spread
        least = np.minimum.reduceat(cost, self._starts)
        dense = np.full((depth, width, size), np.inf)
        dense.ravel()[self._dense] = least
        # A stage that is not there takes nothing.
        dense[:, width - 1, :][~self.there] = 0.0
        spare = self._spare
        reach = int(spare.max()) + 1
        # Row i: the sum of the first i stages with e layers above their fewest, at column width - 1 + e.
        sums = np.full((depth + 1, size, width - 1 + reach), np.inf)
        sums[0, :, width - 1] = 0.0
        row_bytes = sums.strides[1]
        for i in range(depth):
            window = np.ndarray((width, size, reach), np.float64, sums, i * sums.strides[0], (8, row_bytes, 8))
            (window + dense[i][:, :, None]).min(axis=0, out=sums[i + 1, :, width - 1 :])
        nodes = np.arange(size)
        exists = alive & np.isfinite(sums[depth, nodes, width - 1 + spare])
        left = np.where(exists, spare, 0)
        steps = np.arange(width)[:, None]
        taken = np.empty((depth, size), dtype=np.intp)
        for i in range(depth - 1, -1, -1):
            taken[i] = (sums[i, nodes, left + steps] + dense[i]).argmin(axis=0)
            left = np.maximum(left - (width - 1 - taken[i]), 0)
        return self._evaluate(exists, self._choose(exists, taken, cost, least))

    def _choose(self, exists: Bools, taken: Ints, cost: Array, least: Array) -> Ints:
        """(P, B) the column of the first cheapest choice of every segment taken."""
        segment_at = np.zeros(self.depth * self._width * self.size, dtype=np.intp)
        segment_at[self._dense] = np.arange(len(self._starts))
        used = self.there & exists
        stage, node = np.nonzero(used)
        segments = segment_at[(stage * self._width + taken[used]) * self.size + node]
        lengths = self._lengths[segments]
        owner = np.repeat(np.arange(len(segments)), lengths)
        first = np.cumsum(lengths) - lengths
        columns = np.arange(len(owner)) + np.repeat(self._starts[segments] - first, lengths)
        hits = np.flatnonzero(cost.take(columns) == least.take(segments).take(owner))
        chosen = np.zeros((self.depth, self.size), dtype=np.intp)
        chosen[used] = columns[hits[np.searchsorted(owner[hits], np.arange(len(segments)))]]
        return chosen

    def _evaluate(self, exists: Bools, chosen: Ints) -> Plans:
        there = self.there & exists
        data = self.data

        def total(values: Array) -> Array:
            # Stage after stage, so that padding does not change the rounding.
            return np.asarray(np.add.accumulate(np.where(there, values, 0.0), axis=0)[-1])

        def largest(row: int) -> Array:
            return np.asarray(np.where(there, data[row].take(chosen), -np.inf).max(axis=0))

        balance, terms = data[BALANCE].take(chosen), np.zeros(chosen.shape)
        if len(self._spread):
            terms = self._spread.take(chosen)
        x, mean = total(data[TIME].take(chosen)), total(self.share * balance)
        period_s, tail_s = largest(PERIOD), largest(TAIL)
        with np.errstate(invalid="ignore"):
            time_s = self.period_factor * period_s + self.sum_factor * x + self.constant_s + tail_s
        return Plans(
            exists=exists,
            x=x,
            y=total(terms),
            terms=total(np.abs(terms)),
            time_s=time_s,
            peak=largest(MEMORY),
            variance=total(self.share * (balance - mean) ** 2),
            period_s=period_s,
            tail_s=tail_s,
            mean=mean,
            chosen=chosen,
        )

    def plan_of(self, plans: Plans, node: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Layers, options and bytes of a node's plan."""
        chosen = plans.chosen[: self.stages[node], node]
        option, memory = self.data[OPTION, chosen].astype(int), self.data[MEMORY, chosen]
        return tuple(self._n[chosen].tolist()), tuple(option.tolist()), tuple(memory.tolist())

    # --- for the split ---------------------------------------------------------------------------------------------

    def around(self, which: Ints, cut: Array) -> tuple[Array, Array]:
        """(B,) the largest value up to ``cut`` and the least above it, of period (0), peak (1) or tail (2) as ``which``
        says; infinite where there is none."""
        count = self.data.shape[1]
        rows = np.array([PERIOD, MEMORY, TAIL]).take(which)
        values = self.data.take(rows.take(self.node) * count + np.arange(count))
        below = values <= cut.take(self.node)
        starts = np.concatenate(([0], np.flatnonzero(self.node[1:] != self.node[:-1]) + 1))
        at = self.node[starts]
        lower, upper = np.full(self.size, -np.inf), np.full(self.size, np.inf)
        lower[at] = np.maximum.reduceat(np.where(below, values, -np.inf), starts)
        upper[at] = np.minimum.reduceat(np.where(below, np.inf, values), starts)
        return lower, upper

    def choices(self) -> list[Array]:
        """Per node (7, F) what is left to it, as views."""
        ends = np.searchsorted(self.node, np.arange(self.size + 1)).tolist()
        return [self.data[:, start:stop] for start, stop in pairwise(ends)]
