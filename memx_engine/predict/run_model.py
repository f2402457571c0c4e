"""The second level of whole runs: trees and a Gaussian process together, weighted by what they do on held-out runs.

Both learn log(measured / composed) from the features of :mod:`memx_engine.predict.iteration_features`. Trees read all
of them; the process reads sizes, recompute and the composed estimate. Outside the measured range both fade towards the
overall factor, and the interval goes over to that of the factor alone and widens with the distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memx_engine.predict.booster import OUTPUTS, Array, BoosterSettings
from memx_engine.predict.contaminated import beyond_type
from memx_engine.predict.gaussian import LEAST_ROWS, MOST_ROWS, Lengths, Process
from memx_engine.predict.intervals import Widths
from memx_engine.predict.iteration_model import (
    FADING,
    ITERATION_SETTINGS,
    LEAST_FOR_TREES,
    Correction,
    IterationModel,
    Rows,
    grouped_folds,
)

FOLDS = 6

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights of the process that are tried; the trees have the rest."""

_SMOOTH = ("tp", "pp", "dp", "virtual_stages", "micro_batch", "seq_len", "layers", "hidden", "ffn", "heads", "kv_heads")
_OTHERS = ("positions", "type_power", "type_0", "type_1", "type_2", "type_3", "time", "recompute_time")
_FOR_MEMORY = ("memory", "recompute_memory")


@dataclass(frozen=True, eq=False)
class _Smoothed:
    """The process of one output: which features it reads, and how."""

    names: tuple[str, ...]
    process: Process


def _smooth_names(rows: Rows, output: int) -> tuple[str, ...]:
    """Of the features that the process may read those that vary, one of several that say the same."""
    wanted = [*_SMOOTH, *_OTHERS, *(_FOR_MEMORY if output == 1 else ())]
    wanted += [name for name in rows.names if name.startswith("recompute_") and name not in (*_OTHERS, *_FOR_MEMORY)]
    kept: list[str] = []
    columns: list[Array] = []
    for name in wanted:
        if name not in rows.names:
            continue
        column = rows.features[:, rows.names.index(name)]
        if np.ptp(column) <= 1e-9:
            continue
        column = (column - column.mean()) / column.std()
        if any(abs(float(column @ other)) / len(column) > 0.9999 for other in columns):
            continue
        kept.append(name)
        columns.append(column)
    return tuple(kept)


class RunModel:
    """Fitted by :meth:`fit`.

    Attributes:
        trees: The factors, the trees, and the measured ranges.
        smooth: Per output, None where there are too few rows or too many.
        shares: (2,) weight of the process. inside, outside: Widths of time and memory, of the model and of the factor.
        held_out: How many times the widths of time rest on.
    """

    def __init__(self, trees: IterationModel, smooth: tuple[_Smoothed | None, ...]) -> None:
        self.trees, self.smooth = trees, smooth
        self.shares = np.array([0.5 if s is not None else 0.0 for s in smooth])
        self.inside = self.outside = (Widths(), Widths())
        self.held_out = 0

    @property
    def factors(self) -> Array:
        return self.trees.factors

    @classmethod
    def fit(cls, rows: Rows, settings: BoosterSettings = ITERATION_SETTINGS, *, folds: int = FOLDS) -> RunModel:
        """Learn from ``rows``; weights and widths from as many refits as there are folds.

        Runs far slower than all others of their GPU type teach nothing of time; their memory counts.

        Raises:
            InputError: There are no rows, or a value is not finite.
        """
        rows = undisturbed(rows)
        fitted = cls._fit_once(rows, settings)
        groups = len(np.unique(rows.groups))
        if groups < 2:
            return fitted
        shape = (2, *rows.targets.shape)
        parts, factors = np.full(shape, np.nan), np.full(rows.targets.shape, np.nan)
        lengths = [None if s is None else s.process.lengths for s in fitted.smooth]
        # Fewer trees side by side: what is held out is judged a little too harshly, never too kindly.
        quick = replace(settings, parallel_trees=1)
        for mask in grouped_folds(rows.groups, folds, settings.seed):
            part = cls._fit_once(rows.part(~mask), quick, fitted, lengths)
            parts[:, mask] = part._both(rows.features[mask], rows.names)
            factors[mask] = part.factors
        fitted.shares = np.array([_best_share(rows.targets[:, k], parts[:, :, k]) for k in range(len(OUTPUTS))])
        blend = parts[0] + (parts[1] - parts[0]) * fitted.shares
        left = rows.targets - blend
        fitted.inside = (Widths.of(left[:, 0], rows.types), Widths.of(left[:, 1], rows.types))
        apart = rows.targets - factors
        fitted.outside = (Widths.of(apart[:, 0], rows.types), Widths.of(apart[:, 1], rows.types))
        fitted.held_out = int(np.isfinite(left[:, 0]).sum())
        return fitted

    @classmethod
    def _fit_once(
        cls,
        rows: Rows,
        settings: BoosterSettings,
        like: RunModel | None = None,
        lengths: Sequence[Lengths | None] = (),
    ) -> RunModel:
        trees = IterationModel.fit(rows, settings, intervals=False)
        smooth: list[_Smoothed | None] = []
        for k in range(len(OUTPUTS)):
            known = ~np.isnan(rows.targets[:, k])
            model = like.smooth[k] if like is not None else None
            enough = LEAST_ROWS <= known.sum() <= MOST_ROWS and len(np.unique(rows.groups[known])) >= LEAST_FOR_TREES
            names = model.names if model else _smooth_names(rows.part(known), k) if enough and like is None else ()
            if not enough or not names:
                smooth.append(None)
                continue
            features = rows.part(known).columns(names).features
            process = Process.fit(
                features, rows.targets[known, k], seed=settings.seed, lengths=lengths[k] if model else None
            )
            smooth.append(_Smoothed(names, process))
        return cls(trees, tuple(smooth))

    def _both(self, features: Array, names: Sequence[str]) -> Array:
        """(2, n, 2) what the trees and the process say inside the range; the trees where there is no process."""
        booster = self.trees.booster
        by_trees = booster.predict(features) if booster else np.tile(self.factors, (len(features), 1))
        out = np.stack([by_trees, by_trees])
        for k, smoothed in enumerate(self.smooth):
            if smoothed is not None and len(features):
                places = [list(names).index(name) for name in smoothed.names]
                out[1, :, k] = smoothed.process.predict(features[:, places])
        return out

    def shifts(self, features: Array) -> Array:
        """(n, 2) what is added to the composed logarithms."""
        both = self._both(features, self.trees.names)
        blend = both[0] + (both[1] - both[0]) * self.shares
        kept = np.exp(-FADING * self.trees.distances(features)[0])[:, None]
        return np.asarray(self.factors + (blend - self.factors) * kept)

    def correct(self, features: Array, types: Sequence[str]) -> Correction:
        """Shifts with their intervals, and what is extrapolated."""
        distance, outside = self.trees.distances(features)
        width = np.full((len(features), len(OUTPUTS)), np.nan)
        for i, name in enumerate(types):
            kept = math.exp(-FADING * float(distance[i]))
            for k in range(len(OUTPUTS)):
                near, far = self.inside[k].width(name), self.outside[k].width(name, float(distance[i]) / 2)
                if near is not None and far is not None:
                    width[i, k] = kept * near + (1.0 - kept) * max(near, far)
        return Correction(self.shifts(features), width, outside)


def undisturbed(rows: Rows) -> Rows:
    """``rows`` without the times of runs far slower than the others of their GPU type."""
    named = beyond_type(rows.targets[:, 0], np.array(rows.types, dtype=np.str_))
    targets = rows.targets.copy()
    targets[named, 0] = np.nan
    return replace(rows, targets=targets)


def _best_share(targets: Array, parts: Array) -> float:
    """The process's weight with the least mean error on held-out rows; ``parts`` (2, n): trees, process."""
    known = ~np.isnan(targets)
    if not known.any() or np.array_equal(parts[0], parts[1]):
        return 0.0
    errors = [float(np.abs(targets - parts[0] - (parts[1] - parts[0]) * share)[known].mean()) for share in SHARES]
    return SHARES[int(np.argmin(errors))]
