"""The second-level predictor: how far whole runs are from what the cost model composes, learned from the runs known.

The logarithm of measured over composed, time and memory, is the overall factor plus what the booster adds to it. Few
rows shrink both; outside the range of the rows the booster's part fades and the factor remains. Inside a skeleton the
correction is a constant, so the exact solver stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.predict.booster import OUTPUTS, Array, Booster, BoosterSettings, check_rows
from memx_engine.predict.intervals import Widths

ITERATION_SETTINGS = BoosterSettings(
    rounds=300, depth=5, learning_rate=0.05, subsample=0.7, columns=0.4, min_child_weight=1.0, l2=0.5, parallel_trees=3
)
"""One configuration for every table."""

PRIOR_ROWS = 0.5
"""The factor of n configurations is ``n / (n + k)`` of their median logarithm."""

LEAST_FOR_TREES = 10
"""Configurations below which there is only the factor."""

HELD_OUT_FOLDS = 8

FADING = 2.0
"""The booster's part outside the measured range is ``exp(-FADING * distance)`` of what it says there."""

SIZES = (
    "tp", "pp", "dp", "virtual_stages", "micro_batch", "micro_batches", "seq_len", "layers", "hidden", "ffn", "heads",
    "kv_heads", "gpus", "type_power",
)  # fmt: skip
"""Features (logarithms) whose measured range bounds what is known; a run outside it is extrapolated."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples as arrays: n rows, F features.

    Attributes:
        targets: (n, 2) log(measured / composed), NaN where one is missing.
        groups: (n,) configuration; repeats share it and are never on both sides of a split.
        types: GPU type of each row.
    """

    features: Array
    targets: Array
    names: tuple[str, ...]
    groups: NDArray[np.str_]
    types: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.features)

    def part(self, mask: NDArray[np.bool_]) -> Rows:
        types = tuple(name for name, kept in zip(self.types, mask, strict=True) if kept)
        return Rows(self.features[mask], self.targets[mask], self.names, self.groups[mask], types)

    def joined(self, other: Rows) -> Rows:
        """Both, of the same names."""
        return Rows(
            np.concatenate([self.features, other.features]),
            np.concatenate([self.targets, other.targets]),
            self.names,
            np.concatenate([self.groups, other.groups]),
            (*self.types, *other.types),
        )

    def columns(self, names: Sequence[str]) -> Rows:
        places = [self.names.index(name) for name in names]
        return replace(self, features=self.features[:, places], names=tuple(names))


@dataclass(frozen=True, eq=False)
class Extra:
    """Synthetic rows for the trees alone.

    ``parents``: the groups that each was made from, with any of which it is held out.
    """

    rows: Rows
    parents: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, rows: Rows) -> Extra:
        """Rows without parents."""
        return cls(rows, (frozenset(),) * len(rows))

    def without(self, groups: NDArray[np.str_]) -> Rows:
        """The rows that owe nothing to ``groups``."""
        gone = set(groups.tolist())
        return self.rows.part(np.array([not gone & made for made in self.parents], dtype=np.bool_))


@dataclass(frozen=True, eq=False)
class Correction:
    """What is added to the logarithm of the composed estimate; n rows.

    Attributes:
        shift: (n, 2). width: (n, 2) half widths of the 95 % interval, NaN where unknown.
        outside: Per row, the sizes outside the measured range.
    """

    shift: Array
    width: Array
    outside: tuple[tuple[str, ...], ...]


def grouped_folds(groups: NDArray[np.str_], folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Test masks of up to ``folds`` folds that keep equal groups together, mixed by ``seed``."""
    unique = np.unique(groups)
    order = np.random.default_rng(seed).permutation(unique)
    folds = min(folds, len(unique))
    return [np.isin(groups, order[k::folds]) for k in range(folds)]


def _factor(targets: Array, groups: NDArray[np.str_]) -> tuple[float, int]:
    """The shrunk logarithm of one output, and how many configurations it rests on."""
    known = ~np.isnan(targets)
    medians = [float(np.median(targets[known & (groups == g)])) for g in np.unique(groups[known])]
    if not medians:
        return 0.0, 0
    return float(np.median(medians)) * len(medians) / (len(medians) + PRIOR_ROWS), len(medians)


class IterationModel:
    """Fitted by :meth:`fit`.

    Attributes:
        factors: (2,) shrunk logarithms of the overall factors. configurations: (2,) what they rest on.
        booster: None with fewer than :data:`LEAST_FOR_TREES` configurations.
        ranges: Size → (least, most) measured.
        widths: Of time and of memory, from held-out rows.
    """

    def __init__(
        self,
        factors: Array,
        configurations: tuple[int, int],
        booster: Booster | None,
        names: tuple[str, ...],
        ranges: Mapping[str, tuple[float, float]],
        widths: tuple[Widths, Widths],
    ) -> None:
        self.factors, self.configurations, self.booster = factors, configurations, booster
        self.names, self.ranges, self.widths = names, dict(ranges), widths

    @classmethod
    def fit(
        cls,
        rows: Rows,
        settings: BoosterSettings = ITERATION_SETTINGS,
        *,
        folds: int = HELD_OUT_FOLDS,
        intervals: bool = True,
        extra: Extra | None = None,
    ) -> IterationModel:
        """Learn from ``rows``; their widths from as many refits as there are folds, judged on ``rows`` alone.

        Raises:
            InputError: There are no rows, or a value is not finite.
        """
        check_rows(rows.features, rows.targets, rows.names)
        fitted = cls._fit_once(rows, settings, extra.rows if extra else None)
        if not intervals:
            return fitted
        residuals = np.full(rows.targets.shape, np.nan)
        if len(np.unique(rows.groups)) > 1:
            for mask in grouped_folds(rows.groups, folds, settings.seed):
                more = extra.without(rows.groups[mask]) if extra else None
                part = cls._fit_once(rows.part(~mask), settings, more)
                residuals[mask] = rows.targets[mask] - part.shifts(rows.features[mask])
        fitted.widths = (Widths.of(residuals[:, 0], rows.types), Widths.of(residuals[:, 1], rows.types))
        return fitted

    @classmethod
    def _fit_once(cls, rows: Rows, settings: BoosterSettings, more: Rows | None = None) -> IterationModel:
        found = [_factor(rows.targets[:, k], rows.groups) for k in range(len(OUTPUTS))]
        count = len(np.unique(rows.groups))
        booster = None
        if count >= LEAST_FOR_TREES:
            learned = rows.joined(more) if more is not None and len(more) else rows
            booster = Booster.fit(learned.features, learned.targets, rows.names, settings)
        ranges = {
            name: (float(rows.features[:, k].min()), float(rows.features[:, k].max()))
            for k, name in enumerate(rows.names)
            if name in SIZES
        }
        factors = np.array([value for value, _ in found])
        return cls(factors, (found[0][1], found[1][1]), booster, rows.names, ranges, (Widths(), Widths()))

    def distances(self, features: Array) -> tuple[Array, tuple[tuple[str, ...], ...]]:
        """(n,) how far outside the measured range, in ranges (of at least a doubling), and which sizes are."""
        excess = np.zeros((len(features), len(self.ranges)))
        for k, (name, (low, high)) in enumerate(self.ranges.items()):
            value = features[:, self.names.index(name)]
            excess[:, k] = np.maximum(np.maximum(low - value, value - high), 0.0) / max(high - low, math.log(2.0))
        named = list(self.ranges)
        outside = tuple(tuple(named[k] for k in np.flatnonzero(row > 1e-6)) for row in excess)
        return excess.max(axis=1, initial=0.0), outside

    def shifts(self, features: Array) -> Array:
        """(n, 2) what is added to the composed logarithms."""
        out = np.tile(self.factors, (len(features), 1))
        if self.booster is None or not len(features):
            return out
        distance, _ = self.distances(features)
        return out + (self.booster.predict(features) - out) * np.exp(-FADING * distance)[:, None]

    def correct(self, features: Array, types: Sequence[str]) -> Correction:
        """Shifts with their intervals, and what is extrapolated."""
        distance, outside = self.distances(features)
        width = np.full((len(features), len(OUTPUTS)), np.nan)
        for i, name in enumerate(types):
            for k, widths in enumerate(self.widths):
                value = widths.width(name, float(distance[i]))
                width[i, k] = np.nan if value is None else value
        return Correction(self.shifts(features), width, outside)
