"""Gradient-boosted trees with two outputs, time and memory, through xgboost's native API.

One model for both outputs: shared trees (``multi_output_tree``, the MemX paper's form) or one tree per output. Targets
may be missing: a custom objective gives them zero gradient and hessian, which shared trees accept where labels that are
not numbers are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memx_engine.errors import InputError

Array = NDArray[np.float64]

OUTPUTS = ("time", "memory")


@dataclass(frozen=True)
class BoosterSettings:
    """How trees are grown.

    Attributes:
        parallel_trees: Trees per round and output, each on its own sample of rows and averaged: steadier with few rows.
        columns: Share of the features that each split may choose from.
        shared_trees: One tree for both outputs instead of one each.
        bins: Values of a feature that splits choose among.
    """

    rounds: int = 300
    depth: int = 5
    learning_rate: float = 0.05
    subsample: float = 0.8
    columns: float = 0.5
    min_child_weight: float = 2.0
    l2: float = 1.0
    parallel_trees: int = 1
    shared_trees: bool = False
    bins: int = 256
    threads: int = 1
    seed: int = 0

    def parameters(self) -> dict[str, Any]:
        """As xgboost names them."""
        return {
            "max_depth": self.depth,
            "eta": self.learning_rate,
            "subsample": self.subsample,
            "colsample_bynode": self.columns,
            "min_child_weight": self.min_child_weight,
            "reg_lambda": self.l2,
            "num_parallel_tree": self.parallel_trees,
            "multi_strategy": "multi_output_tree" if self.shared_trees else "one_output_per_tree",
            "tree_method": "hist",
            "max_bin": self.bins,
            "nthread": self.threads,
            "seed": self.seed,
            "base_score": 0.0,
            "num_target": len(OUTPUTS),
            "disable_default_eval_metric": True,
        }


def load_xgboost() -> Any:
    """xgboost, imported on first use; its idle threads sleep instead of spinning on a busy login node."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    return xgboost


class Booster:
    """Trees over named features.

    Attributes:
        names: The features in the order of the columns.
        centre: (2,) what the trees' sum is added to: the mean of each output's targets, 0 for one never seen.
        known: (2,) whether an output had any target.
    """

    def __init__(self, model: Any, names: tuple[str, ...], centre: Array, known: NDArray[np.bool_]) -> None:
        self._model, self.names, self.centre, self.known = model, names, centre, known
        self._raw = b""

    @classmethod
    def fit(cls, features: Array, targets: Array, names: Sequence[str], settings: BoosterSettings) -> Booster:
        """Train on (n, F) features and (n, 2) targets, NaN where one is missing.

        Raises:
            InputError: There are no rows, or a feature or target is infinite, or a feature is not a number.
        """
        check_rows(features, targets, names)
        xgboost = load_xgboost()
        present = ~np.isnan(targets)
        known = np.asarray(present.any(axis=0), dtype=bool)
        count = np.maximum(present.sum(axis=0), 1)
        centre = np.where(present, targets, 0.0).sum(axis=0) / count
        rest = np.where(present, targets - centre, 0.0)
        weight = present.astype(np.float64)

        def gradients(predicted: Array, _data: Any) -> tuple[Array, Array]:
            return (predicted.reshape(rest.shape) - rest) * weight, weight

        data = xgboost.DMatrix(features, nthread=settings.threads)
        data.set_label(rest)
        model = xgboost.train(settings.parameters(), data, settings.rounds, obj=gradients, verbose_eval=False)
        return cls(model, tuple(names), centre, known)

    def predict(self, features: Array) -> Array:
        """(n, 2) outputs of (n, F) features; the centre where an output was never seen."""
        if not len(features):
            return np.empty((0, len(OUTPUTS)))
        out = self._model.inplace_predict(np.ascontiguousarray(features, dtype=np.float32), validate_features=False)
        return np.asarray(out, dtype=np.float64).reshape(len(features), len(OUTPUTS)) * self.known + self.centre

    def gains(self) -> dict[str, float]:
        """Feature → its share of the total gain of all splits, largest first."""
        scores: Mapping[str, float] = self._model.get_score(importance_type="total_gain")
        named = {self.names[int(key[1:])]: float(value) for key, value in scores.items()}
        total = sum(named.values()) or 1.0
        return {name: value / total for name, value in sorted(named.items(), key=lambda item: -item[1])}

    def to_bytes(self) -> bytes:
        """xgboost's own UBJSON, which holds numbers and trees and runs nothing when read."""
        # Trees that were read are written as they were: xgboost adds what training left out.
        self._raw = self._raw or bytes(self._model.save_raw(raw_format="ubj"))
        return self._raw

    @classmethod
    def from_bytes(cls, raw: bytes, names: Sequence[str], centre: Sequence[float], known: Sequence[bool]) -> Booster:
        """Read what :meth:`to_bytes` wrote; InputError when it is not that."""
        xgboost = load_xgboost()
        model = xgboost.Booster({"nthread": 1})
        try:
            model.load_model(bytearray(raw))
        except (xgboost.core.XGBoostError, ValueError, TypeError) as error:
            raise InputError(f"the trees cannot be read: {str(error).splitlines()[0][:120]}") from error
        if model.num_features() != len(names):
            raise InputError(f"the trees read {model.num_features()} features, {len(names)} are named")
        made = cls(model, tuple(names), np.array(centre, dtype=np.float64), np.array(known, dtype=bool))
        made._raw = raw
        return made


def check_rows(features: Array, targets: Array, names: Sequence[str]) -> None:
    """Refuse what no trees can be grown from; see :meth:`Booster.fit`."""
    if not len(features):
        raise InputError("there are no measurements to learn from", hint="profile or import some first")
    if features.shape != (len(targets), len(names)) or targets.shape[1:] != (len(OUTPUTS),):
        raise InputError(f"{features.shape} features and {targets.shape} targets do not belong to {len(names)} names")
    bad = ~np.isfinite(features)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"the feature {names[column]} of row {row} is {features[row, column]}")
    if np.isinf(targets).any():
        row, column = np.argwhere(np.isinf(targets))[0]
        raise InputError(f"the {OUTPUTS[column]} of row {row} is infinite")
