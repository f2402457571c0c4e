"""Where the branch and bound gets the choices of a skeleton from, and what turns its answer into a plan."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.plan import Recompute, Skeleton
from memx_engine.search.bounding import Tables
from memx_engine.search.choices import Limits, build_choices
from memx_engine.search.fitting import Fitting
from memx_engine.search.objective import Objective
from memx_engine.search.problem import PLACE, TIME, Problem, offset_of, problem_of

Array = NDArray[np.float64]

_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Source:
    """A skeleton's choices: ``problem`` is that of some objective; ``whole_bytes`` (P,) capacity, ``gpus`` (P,)."""

    problem: Problem
    options: tuple[Recompute, ...]
    whole_bytes: Array
    gpus: Array

    @property
    def bytes_held(self) -> int:
        return sum(root.nbytes for root in self.problem.roots)

    def under(self, objective: Objective) -> Problem:
        """The problem of another objective of the same kind of variance."""
        problem, weights = self.problem, objective.weights
        roots = problem.roots
        if weights.peak == 0.0 == weights.variance:
            roots = tuple(_fastest_of_each(root) for root in roots)
        return replace(
            problem,
            roots=roots,
            epsilon=objective.references.epsilon_bytes2 / problem.scale**2,
            offset=offset_of(objective, problem.scale),
        )


class Sources:
    """Sources of the skeletons that a search looks into; the latest are kept, because several objectives ask."""

    def __init__(self, fitting: Fitting, tables: Tables, limits: Limits) -> None:
        self._fitting, self._tables, self._limits = fitting, tables, limits
        self._kept: OrderedDict[int, Source | None] = OrderedDict()
        self._bytes = 0

    def get(self, i: int, objective: Objective) -> Source | None:
        """Source of skeleton ``i``; None where a stage has no choice that fits."""
        if i in self._kept:
            self._kept.move_to_end(i)
            return self._kept[i]
        source = self._kept[i] = self._make(self._fitting.skeletons[i], objective)
        self._bytes += source.bytes_held if source else 0
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.bytes_held if old else 0
        return source

    def _make(self, skeleton: Skeleton, objective: Objective) -> Source | None:
        table = self._tables.get(skeleton)
        choices = build_choices(table, objective.variance_kind, self._limits, by_variance=True)
        if choices is None:
            return None
        problem = problem_of(choices, objective, self._limits)
        return Source(problem, table.options, np.asarray(table.whole_bytes), np.asarray(table.gpus))


def _fastest_of_each(root: Array) -> Array:
    """The first of the fastest choices of every stage and layer count."""
    if not root.shape[1]:
        return root
    place, time_s = root[PLACE], root[TIME]
    starts = np.concatenate(([0], np.flatnonzero(place[1:] != place[:-1]) + 1))
    least = np.repeat(np.minimum.reduceat(time_s, starts), np.diff(np.append(starts, len(place))))
    hits = np.flatnonzero(time_s == least)
    return root[:, hits[np.searchsorted(hits, starts)]]
