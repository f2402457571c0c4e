"""First phase: every skeleton is looked at once. Memory rule, bounds, even splits, and how many plans there are."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from memx_engine.cost.sketch import Sketch
from memx_engine.cost.table import Estimator, StageTable
from memx_engine.plan import Recompute, Skeleton
from memx_engine.search.bounds import Bounds, compute_bounds
from memx_engine.search.control import Control
from memx_engine.search.counting import count_plans, count_shape
from memx_engine.search.fitting import BoundColumns, Fitting
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.priority import varied_first
from memx_engine.search.sketch_bounds import at_once, sketched_bounds

_KEPT_TABLE_BYTES = 128 << 20
_WINDOW = 4096
"""So many skeletons are sorted by stages: those of one TP and DP, which share rows, stay near each other."""
_LONGEST_S = 0.03
"""About how long one step takes, so that progress is told and the operator's wish to stop is heard."""
_FIRST = 16
_BOUNDING_SHARE = 0.5


class Tables:
    """Stage tables, the first of them kept from the bounds to the solver as far as memory goes."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._kept: dict[Skeleton, StageTable] = {}
        self._bytes = 0

    def get(self, skeleton: Skeleton) -> StageTable:
        table = self._kept.get(skeleton)
        if table is None:
            table = self._estimator.stage_table(skeleton)
            size = 3 * table.memory_bytes.nbytes
            if self._bytes + size <= _KEPT_TABLE_BYTES:
                self._kept[skeleton] = table
                self._bytes += size
        return table


@dataclass
class BoundedSpace:
    """What the first phase leaves behind.

    Attributes:
        fitting: Skeletons that pass the memory rule.
        nearest: The skeleton that exceeds its memory least. unbounded: How many were not looked at.
        plans_covered: Complete plans of those that were. recompute: Every strategy that they have.
    """

    fitting: Fitting
    nearest: tuple[Skeleton, Bounds] | None = None
    unbounded: int = 0
    plans_covered: int = 0
    recompute: dict[Recompute, None] = field(default_factory=dict)


@dataclass
class _Made:
    """By number of the skeleton: what it was bounded by, and the bounds of those with a table of their own."""

    sketches: list[Sketch | None]
    own: dict[int, Bounds]


class Bounder:
    """Bounds skeletons, many at once where the estimator shares rows between them, else one after another."""

    def __init__(
        self,
        estimator: Estimator,
        tables: Tables,
        limits: OperatorLimits,
        control: Control,
        *,
        one_recompute: bool,
        variance_kind: str,
    ) -> None:
        self._tables, self._limits, self._control = tables, limits, control
        self._one_recompute, self._variance_kind = one_recompute, variance_kind
        sketch: Callable[..., Sketch] | None = getattr(estimator, "sketch", None)
        self._sketch = partial(sketch, limits=limits) if sketch is not None and limits.holds_stages else sketch
        self._estimator = estimator
        self._shapes: dict[tuple[int, int, int, int], tuple[Sketch, int]] = {}

    def bound(self, skeletons: Sequence[Skeleton], *, scattered: bool) -> BoundedSpace:
        """Look at all; under a time limit at most for half of it, and (``scattered``) all over the space first,
        what the predictor finds important varied before the rest.

        Otherwise a few from all over the space and a few that need least memory come first, so that some plan that fits
        is soon known.
        """
        order = list(range(len(skeletons)))
        if scattered:
            gains: Mapping[str, float] = getattr(self._estimator, "dimension_gains", {})
            order = varied_first(skeletons, gains)
        else:
            light = heapq.nsmallest(_FIRST, order, key=lambda i: (_weight(skeletons[i]), i))
            spread = order[:: -max(1, len(order) // _FIRST)]
            first = list(dict.fromkeys(i for pair in zip(spread, light, strict=False) for i in pair))
            order = first + sorted(set(order).difference(first))
        known = BoundColumns.unknown(len(skeletons))
        made = _Made([None] * len(skeletons), {})
        out = BoundedSpace(_fitting(skeletons, known, made))
        control = self._control
        waiting = self._batches(skeletons, order, scattered)
        done = 0
        while waiting:
            if control.cancels() or (control.feasible and control.elapsed_share() > _BOUNDING_SHARE):
                out.unbounded = len(order) - done
                break
            some = waiting.pop()
            columns = self._some([skeletons[i] for i in some], some, made, out)
            if len(columns) < len(some):
                waiting.append(some[len(columns) :])
                some = some[: len(columns)]
            known.put(some, columns)
            k = int(columns.excess_bytes.argmin())
            if out.nearest is None or columns.excess_bytes[k] < out.nearest[1].excess_bytes:
                out.nearest = (skeletons[some[k]], columns.bounds(k, None))
            done += len(some)
            control.feasible += int((columns.excess_bytes <= 0.0).sum())
            control.counts = replace(control.counts, memory=done - control.feasible)
            control.report("bounding", done, len(order))
        out.fitting = _fitting(skeletons, known, made)
        return out

    def _batches(self, skeletons: Sequence[Skeleton], order: Sequence[int], scattered: bool) -> list[list[int]]:
        """``order`` in steps of skeletons with equally many stages, the first step at the end.

        The first few keep to the order much as it is; scattered, more of them.
        """
        if self._sketch is None:
            return [[i] for i in reversed(order)]
        out: list[list[int]] = []
        start, step = 0, 1
        while start < len(order):
            alike: dict[tuple[int, int], list[int]] = {}
            for i in order[start : start + step]:
                skeleton = skeletons[i]
                alike.setdefault((skeleton.pp, skeleton.virtual_stages), []).append(i)
            out += [alike[key] for key in sorted(alike)]
            start += step
            step = min(2 * step, _WINDOW) if scattered or start < 2 * _FIRST else _WINDOW
        return out[::-1]

    def _some(
        self, skeletons: Sequence[Skeleton], places: Sequence[int], made: _Made, out: BoundedSpace
    ) -> BoundColumns:
        """Bounds of the first of them, at least of one; fewer than all where they take long or the operator stops."""
        if self._sketch is not None:
            sketches: list[Sketch] = []
            until = time.monotonic() + _LONGEST_S
            for i, skeleton in zip(places, skeletons, strict=True):
                if sketches and (time.monotonic() > until or self._control.cancels()):
                    break
                sketch = made.sketches[i] = self._sketch(skeleton)
                sketches.append(sketch)
                out.plans_covered += self._plans(sketch, out)
                if len(sketches) >= at_once(sketch.book.units, skeleton.pp):
                    break
            return sketched_bounds(
                sketches,
                variance_kind=self._variance_kind,
                max_layer_difference=self._limits.max_layer_difference,
            )
        every = []
        for i, skeleton in zip(places, skeletons, strict=True):
            table = self._tables.get(skeleton)
            bounds = compute_bounds(table, one_recompute=self._one_recompute, variance_kind=self._variance_kind)
            out.recompute |= dict.fromkeys(table.options)
            out.plans_covered += count_plans(
                table,
                one_recompute=self._one_recompute,
                max_layer_difference=self._limits.max_layer_difference,
            )
            every.append(self._limits.bounds_within(bounds))
            made.own[i] = every[-1]
        return BoundColumns.of(every)

    def _plans(self, sketch: Sketch, out: BoundedSpace) -> int:
        """Plans of a skeleton; equal options and limits are one object, so that they need no comparing."""
        key = (id(sketch.options), id(sketch.limits), len(sketch.rows), sketch.virtual_stages)
        known = self._shapes.get(key)
        if known is None:
            count = count_shape(
                sketch.options,
                sketch.layers,
                sketch.virtual_stages,
                len(sketch.rows),
                sketch.limits,
                one_recompute=self._one_recompute,
                max_layer_difference=self._limits.max_layer_difference,
            )
            # The sketch is kept with it, or another object could take the place of its options.
            known = self._shapes[key] = (sketch, count)
            out.recompute |= dict.fromkeys(sketch.options)
        return known[1]


def _fitting(skeletons: Sequence[Skeleton], known: BoundColumns, made: _Made) -> Fitting:
    at = np.flatnonzero(known.excess_bytes <= 0.0)
    places = at.tolist()
    own = {k: bounds for k, i in enumerate(places) if (bounds := made.own.get(i)) is not None}
    return Fitting(
        **{name: values[at] for name, values in known.columns().items()},
        skeletons=[skeletons[i] for i in places],
        sketches=[made.sketches[i] for i in places],
        own_evens={k: bounds.even for k, bounds in own.items() if bounds.even is not None},
        own_events={k: bounds.events for k, bounds in own.items() if bounds.events is not None},
    )


def _weight(skeleton: Skeleton) -> float:
    """Roughly the memory that a GPU needs: states are divided by TP and PP, activations grow with the micro-batch."""
    return skeleton.micro_batch / (skeleton.tp * skeleton.pp)
