"""Where the branch and bound gets the choices of a skeleton from, and what turns its answer into a plan."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost import row_choices
from memx_engine.cost.sketch import Sketch
from memx_engine.plan import Recompute
from memx_engine.search.bounding import Tables
from memx_engine.search.choices import Limits, build_choices
from memx_engine.search.fitting import Fitting
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import Objective
from memx_engine.search.problem import (
    BALANCE,
    MEMORY,
    OPTION,
    PERIOD,
    PLACE,
    STAGE_BITS,
    TAIL,
    TIME,
    Problem,
    offset_of,
    problem_of,
    regions_of,
)
from memx_engine.search.windows import Window, windows

Array = NDArray[np.float64]

_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Meaning:
    """What a skeleton's numbers stand for: options, layers per unit, (P,) whole capacity and GPUs."""

    options: tuple[Recompute, ...]
    unit: int
    whole_bytes: Array
    gpus: Array


class Sources:
    """Problems of the skeletons that a search looks into.

    From the rows of their sketches where there are some, narrowed to what can be below a target; else from their own
    tables, of which the latest are kept, because several objectives ask.
    """

    def __init__(self, fitting: Fitting, tables: Tables, limits: OperatorLimits, *, one_recompute: bool) -> None:
        self._fitting, self._tables = fitting, tables
        self._limits = Limits(max_layer_difference=limits.max_layer_difference, same_recompute=one_recompute)
        # These two tie the stages of a plan to each other.
        self.tied = one_recompute or limits.max_layer_difference is not None
        self._kept: OrderedDict[int, Problem | None] = OrderedDict()
        self._meanings: dict[int, Meaning] = {}
        self._foreseen: tuple[Objective | None, dict[int, tuple[float, Window]]] = (None, {})
        self._bytes = 0

    def problem(self, i: int, objective: Objective, room: float = math.inf) -> Problem | None:
        """The problem of skeleton ``i``; None where a stage has no choice that fits.

        Args:
            room: How far a log Phi that matters may be above that of the skeleton's bounds.
        """
        sketch = self._fitting.sketches[i]
        if sketch is not None:
            return self._from_rows(i, sketch, objective, room)
        kept = self._from_table(i, objective)
        if kept is None:
            return None
        roots, weights = kept.roots, objective.weights
        if weights.peak == 0.0 == weights.variance:
            roots = tuple(_fastest_of_each(root) for root in roots)
        epsilon, offset = objective.references.epsilon_bytes2 / kept.scale**2, offset_of(objective, kept.scale)
        return replace(kept, roots=roots, epsilon=epsilon, offset=offset)

    def meaning(self, i: int) -> Meaning:
        """What the answer to the problem of skeleton ``i`` stands for."""
        known = self._meanings.get(i)
        if known is None:
            sketch, skeleton = self._fitting.sketches[i], self._fitting.skeletons[i]
            if sketch is None:
                table = self._tables.get(skeleton)
                known = Meaning(table.options, 1, np.asarray(table.whole_bytes), np.asarray(table.gpus))
            else:
                book, gpus = sketch.book, np.full(skeleton.pp, sketch.gpus)
                known = Meaning(book.strategies(skeleton.pp), sketch.virtual_stages, book.whole[sketch.rows], gpus)
            self._meanings[i] = known
        return known

    # --- from the rows of a sketch ---------------------------------------------------------------------------------

    def foresee(self, numbers: Sequence[int], objective: Objective, room: Array) -> None:
        """These skeletons will be asked for next, with no more room than (k,) ``room`` each."""
        fitting = self._fitting
        able = [k for k, i in enumerate(numbers) if fitting.sketches[i] is not None]
        places = [numbers[k] for k in able]
        sketches = [sketch for i in places if (sketch := fitting.sketches[i]) is not None]
        made = windows(sketches, objective, fitting.time_s[places], fitting.peak_bytes[places], room[able])
        rooms = room[able].tolist()
        self._foreseen = (objective, dict(zip(places, zip(rooms, made, strict=True), strict=True)))

    def _from_rows(self, i: int, sketch: Sketch, objective: Objective, room: float) -> Problem | None:
        of, foreseen = self._foreseen
        if of is not objective or i not in foreseen or foreseen[i][0] < room:
            self.foresee([i], objective, np.array([room]))
        room, window = self._foreseen[1][i]
        fewest, most, around = window.fewest, window.most, window.around_s
        book, rows, v, stages = sketch.book, sketch.rows, sketch.virtual_stages, len(sketch.rows)
        kind: row_choices.Kind = "distinct"
        if self._limits.same_recompute:
            kind = "all"
        elif objective.weights.peak == 0.0 == objective.weights.variance:
            kind = "fastest"
        parts: list[Array] = []
        if min(most) >= 1 and sum(most) >= book.units:
            for row, least, largest in zip(rows.tolist(), fewest, most, strict=True):
                choices = book.choices(row, kind)
                start, stop = choices.starts[least], choices.starts[largest + 1]
                if start == stop:
                    break
                parts.append(choices.values[:, start:stop])
        roots: tuple[Array, ...] = ()
        scale = longest_s = 1.0
        if len(parts) == stages:
            counts = [part.shape[1] for part in parts]
            values, stage = np.concatenate(parts, axis=1), np.arange(stages).repeat(counts)
            root = np.empty((7, len(stage)))
            root[TIME], root[MEMORY], root[TAIL] = values[:3]
            if sketch.factor != 1.0:
                root[TIME] *= sketch.factor
                root[TAIL] *= sketch.factor
            np.add(root[TIME], around[stage], out=root[PERIOD])
            measure = root[MEMORY]
            if objective.variance_kind == "utilization":
                measure = measure / book.whole[rows][stage]
            low, high = float(measure.min()), float(measure.max())
            scale = (high - low) or max(abs(high), 1.0)
            np.multiply(measure - low, 1.0 / scale, out=root[BALANCE])
            np.add(stage << STAGE_BITS, values[row_choices.UNITS], out=root[PLACE])
            root[OPTION] = values[row_choices.OPTION]
            roots, longest_s = (
                regions_of(root, self._limits, stages, v * book.units, v),
                stages * float(root[TIME].max()),
            )
        return Problem(
            roots=roots,
            share=np.full(stages, 1.0 / stages),
            layers=book.units,
            period_factor=window.period_factor,
            sum_factor=1.0,
            constant_s=window.constant_s,
            epsilon=objective.references.epsilon_bytes2 / scale**2,
            offset=offset_of(objective, scale),
            scale=scale,
            far=(1.01 * longest_s, 1.01),
            complete=not math.isfinite(room),
        )

    # --- from a table of its own -----------------------------------------------------------------------------------

    def _from_table(self, i: int, objective: Objective) -> Problem | None:
        if i in self._kept:
            self._kept.move_to_end(i)
            return self._kept[i]
        table = self._tables.get(self._fitting.skeletons[i])
        choices = build_choices(table, objective.variance_kind, self._limits)
        made = self._kept[i] = None if choices is None else problem_of(choices, objective, self._limits)
        self._bytes += _bytes(made)
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self._bytes -= _bytes(old)
        return made


def _bytes(problem: Problem | None) -> int:
    return 0 if problem is None else sum(root.nbytes for root in problem.roots)


def _fastest_of_each(root: Array) -> Array:
    """The first of the fastest choices of every stage and layer count."""
    if not root.shape[1]:
        return root
    place, time_s = root[PLACE], root[TIME]
    starts = np.concatenate(([0], np.flatnonzero(place[1:] != place[:-1]) + 1))
    least = np.repeat(np.minimum.reduceat(time_s, starts), np.diff(np.append(starts, len(place))))
    hits = np.flatnonzero(time_s == least)
    return root[:, hits[np.searchsorted(hits, starts)]]
