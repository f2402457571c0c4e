"""Many imported runs: trees over skeletons instead of one factor per GPU type, where held-out runs speak for them.

The trees read what a skeleton is (sizes, degrees, devices), never its split or its recompute, so that inside a skeleton
the correction is a constant and the exact solver stays exact.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Skeleton
from memx_engine.predict.compositions import Runs
from memx_engine.predict.iteration_features import device_features, raw_features
from memx_engine.predict.iteration_model import ITERATION_SETTINGS, IterationModel, Rows, grouped_folds
from memx_engine.predict.run_model import undisturbed

LEAST_LAYOUTS = 40
"""Distinct layouts from which on trees are tried: twice what a 95 % quantile of held-out runs needs."""

BETTER = 0.95
"""Share of the factors' held-out error that trees may leave; above it the factors stay."""

_FOLDS = 5


@dataclass(frozen=True, eq=False)
class RunLevel:
    """What runs teach of skeletons.

    Attributes:
        layouts: Distinct ones learned from. error, factor_error: Mean absolute logarithm that trees, and one factor for
            all, leave of held-out runs.
    """

    model: IterationModel
    layouts: int
    error: float
    factor_error: float

    @property
    def digest(self) -> str:
        """Changes with any prediction."""
        trees = self.model.booster.to_bytes() if self.model.booster else b""
        text = json.dumps([self.model.factors.tolist(), self.layouts, list(self.model.names)])
        return hashlib.sha256(text.encode() + trees).hexdigest()[:16]

    def correct(self, estimator: FirstPrinciples, skeleton: Skeleton) -> tuple[float, float, tuple[str, ...]]:
        """Factor on the composed time, half width of its logarithm's 95 % interval, sizes outside what was run."""
        subject = _subject(estimator, skeleton)
        features = run_features(estimator, skeleton, subject)
        made = self.model.correct(np.array([[features[name] for name in self.model.names]]), (subject,))
        return math.exp(float(made.shift[0, 0])), float(made.width[0, 0]), made.outside[0]

    def __str__(self) -> str:
        return (
            f"iteration times corrected by trees over {self.layouts} imported layouts: {self.error:.1%} off on "
            f"held-out runs, one factor for all {self.factor_error:.1%}"
        )


def run_features(estimator: FirstPrinciples, skeleton: Skeleton, subject: str) -> dict[str, float]:
    """Logarithms of a skeleton's sizes and its devices; nothing is composed for it, so that a search can afford it."""
    raw = raw_features(skeleton, estimator.model, estimator.job)
    out = {name: math.log(max(float(value), 1e-9)) for name, value in raw.items()}
    out["gpus"] = math.log(skeleton.tp * skeleton.pp * skeleton.dp)
    out["tokens"] = math.log(skeleton.micro_batch * skeleton.seq_len)
    out["hidden_per_rank"] = math.log(estimator.model.hidden / skeleton.tp)
    return out | device_features(estimator, skeleton, subject)


def _subject(estimator: FirstPrinciples, skeleton: Skeleton) -> str:
    """The type of the least power, which most likely sets the pace; of equal ones the first by name."""
    precision = estimator.job.precision.value

    def power(name: str) -> float:
        gpu_type = estimator.cluster.gpu_type(name)
        return (gpu_type.peak_flops(precision) or 1.0) * gpu_type.efficiency

    return min(sorted(set(skeleton.type_order)), key=power)


def fit_run_level(runs: Runs, estimator_of: Callable[[Cluster, TransformerSpec, Job], Estimator]) -> RunLevel | None:
    """Learn log(measured / composed); None with too few layouts, or where trees are not clearly better."""
    features: list[dict[str, float]] = []
    targets: list[float] = []
    groups: list[str] = []
    types: list[str] = []
    for run in runs.used:
        layout = run.layout
        plain = FirstPrinciples(layout.cluster, layout.model, layout.job)
        try:
            predicted = estimator_of(layout.cluster, layout.model, layout.job).estimate(layout.plan).iteration_time_s
            subject = _subject(plain, layout.plan.skeleton)
            described = run_features(plain, layout.plan.skeleton, subject)
        except InputError:
            # A device that lacks the row's precision or whose peak nobody published.
            continue
        features.append(described)
        targets.append(math.log(run.time_s / predicted))
        groups.append(_group(features[-1], layout.model.fingerprint))
        types.append(subject)
    layouts = len(set(groups))
    if layouts < LEAST_LAYOUTS:
        return None
    names = tuple(features[0])
    rows = Rows(
        np.array([[row[name] for name in names] for row in features]),
        np.array([[target, math.nan] for target in targets]),
        names,
        np.array(groups, dtype=np.str_),
        tuple(types),
    )
    rows = undisturbed(rows)
    error, factor_error = _held_out_errors(rows)
    if not error < BETTER * factor_error:
        return None
    return RunLevel(IterationModel.fit(rows, folds=_FOLDS), layouts, error, factor_error)


def _group(features: dict[str, float], model: str) -> str:
    text = json.dumps([model, sorted(features.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _held_out_errors(rows: Rows) -> tuple[float, float]:
    trees, factors = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for mask in grouped_folds(rows.groups, _FOLDS, ITERATION_SETTINGS.seed):
        part = IterationModel.fit(rows.part(~mask), intervals=False)
        trees[mask] = rows.targets[mask, 0] - part.shifts(rows.features[mask])[:, 0]
        factors[mask] = rows.targets[mask, 0] - part.factors[0]
    return _mean_size(trees), _mean_size(factors)


def _mean_size(values: Sequence[float] | np.ndarray) -> float:
    return float(np.nanmean(np.abs(values)))
