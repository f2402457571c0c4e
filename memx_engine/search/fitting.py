"""Bounds of many skeletons as columns, so that a whole space is compared in a few array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.origins import Ints
from memx_engine.cost.sketch import Sketch
from memx_engine.plan import Recompute, Skeleton
from memx_engine.search.bounds import Array, Bounds, EvenPlan, PlanFigures
from memx_engine.search.event_times import EventTimes
from memx_engine.search.space import even_split

Split = tuple[tuple[int, ...], tuple[Recompute, ...]]
"""Layers and recompute per stage."""


@dataclass(eq=False)
class BoundColumns:
    """:class:`Bounds` of n skeletons and the measures of their even splits: (n,) each.

    Infinite: ``time_s``, ``peak_bytes``, ``variance_bytes2`` where nothing fits, ``even_*`` where no even split does.
    ``closed_times``, ``closed_less_s``: event times are at least (closed form - less) / times.
    ``even_variance`` is of the kind that ``variance_bytes2`` is of; ``even_spread_bytes2`` always in bytes.
    """

    excess_bytes: Array
    binding_stage: Ints
    utilization: Array
    time_s: Array
    peak_bytes: Array
    variance_bytes2: Array
    closed_times: Array
    closed_less_s: Array
    even_time_s: Array
    even_peak_bytes: Array
    even_variance: Array
    even_spread_bytes2: Array
    even_worst_fraction: Array
    even_worst_stage: Ints

    @classmethod
    def unknown(cls, count: int) -> BoundColumns:
        """Of skeletons that were not looked at: nothing fits."""
        made: dict[str, NDArray[Any]] = {
            f.name: np.zeros(count, np.int64) if f.name.endswith("_stage") else np.full(count, np.inf)
            for f in fields(BoundColumns)
        }
        return cls(**made)

    @classmethod
    def of(cls, bounds: Sequence[Bounds]) -> BoundColumns:
        """The same numbers of skeletons that were bounded one by one."""
        out = cls.unknown(len(bounds))
        for k, one in enumerate(bounds):
            out.excess_bytes[k], out.binding_stage[k] = one.excess_bytes, one.binding_stage
            out.utilization[k], out.time_s[k], out.peak_bytes[k] = one.utilization, one.time_s, one.peak_bytes
            out.variance_bytes2[k] = one.variance_bytes2
            if one.events is not None:
                out.closed_times[k], out.closed_less_s[k] = one.events.times, one.events.less_s
            if one.even is not None:
                even = one.even
                out.even_time_s[k], out.even_peak_bytes[k] = even.time_s, even.peak_bytes
                out.even_variance[k], out.even_spread_bytes2[k] = even.variance_bytes2, even.spread_bytes2
                out.even_worst_fraction[k], out.even_worst_stage[k] = even.worst_fraction, even.worst_stage
        return out

    def __len__(self) -> int:
        return len(self.time_s)

    def columns(self) -> dict[str, NDArray[Any]]:
        return {f.name: getattr(self, f.name) for f in fields(BoundColumns)}

    def put(self, at: Sequence[int] | Ints, made: BoundColumns) -> None:
        """Write the rows of ``made`` to the places ``at``."""
        for name, values in made.columns().items():
            getattr(self, name)[at] = values

    def bounds(self, i: int, even: EvenPlan | None) -> Bounds:
        """One skeleton's bounds as an object."""
        return Bounds(
            float(self.excess_bytes[i]),
            int(self.binding_stage[i]),
            float(self.utilization[i]),
            float(self.time_s[i]),
            float(self.peak_bytes[i]),
            float(self.variance_bytes2[i]),
            even,
        )

    def even_of(self, i: int, sketch: Sketch) -> EvenPlan | None:
        """The even split of skeleton ``i``, which ``sketch`` was bounded by."""
        if not np.isfinite(self.even_time_s[i]):
            return None
        layers, recompute = _even_split(sketch)
        return EvenPlan(
            float(self.even_time_s[i]),
            float(self.even_peak_bytes[i]),
            float(self.even_variance[i]),
            layers,
            recompute,
            int(self.even_worst_stage[i]),
            float(self.even_worst_fraction[i]),
            float(self.even_spread_bytes2[i]),
        )


@dataclass(eq=False)
class Fitting(BoundColumns):
    """The skeletons that pass the memory rule, in the order of enumeration, and their bounds.

    Attributes:
        skeletons, sketches: (n,) the sketch that each was bounded by; None where its own table was.
        own_evens, own_events: Even splits, and what holds of the event times, of the latter by number.
    """

    skeletons: list[Skeleton]
    sketches: list[Sketch | None]
    own_evens: dict[int, EvenPlan]
    own_events: dict[int, EventTimes]

    def even(self, i: int) -> EvenPlan | None:
        """The even split of skeleton ``i`` with the lightest recompute that fits; None where it does not fit."""
        sketch = self.sketches[i]
        return self.own_evens.get(i) if sketch is None else self.even_of(i, sketch)

    def corner(self, i: int) -> PlanFigures:
        """The bounds of skeleton ``i`` as measures that no plan of it undercuts."""
        return PlanFigures(float(self.time_s[i]), float(self.peak_bytes[i]), float(self.variance_bytes2[i]))

    @property
    def has_even(self) -> NDArray[np.bool_]:
        """(n,) whether an even split fits."""
        return np.isfinite(self.even_time_s)


def split_of(sketch: Sketch, units: Sequence[int]) -> Split:
    """Layers and recompute of a split that fits, each stage with its lightest strategy that does."""
    strategies = sketch.book.strategies(len(sketch.rows))
    chosen = sketch.book.even_option[sketch.rows, units].tolist()
    return tuple(n * sketch.virtual_stages for n in units), tuple(strategies[r] for r in chosen)


def _even_split(sketch: Sketch) -> Split:
    """Layers and recompute of a skeleton's even split, where it fits."""
    stages = len(sketch.rows)
    units = even_split(sketch.book.units, stages)
    if sketch.even is None:
        return split_of(sketch, units)
    agreed = sketch.book.strategies(stages)[sketch.even.option]
    return tuple(n * sketch.virtual_stages for n in units), (agreed,) * stages
