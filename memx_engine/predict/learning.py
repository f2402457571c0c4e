"""Training as a piece of work of its own: tune if asked, fit, keep, and say how good the predictor is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Provenance
from memx_engine.predict.booster import BoosterSettings
from memx_engine.predict.calibrated import LEAST_TO_LEARN, Calibrated, learnable
from memx_engine.predict.stage_model import prepare
from memx_engine.predict.tuned_settings import kept_settings, save_settings
from memx_engine.predict.tuning import Tuned, held_out, tune_on
from memx_engine.profile.store import Store
from memx_engine.profile.trends import Trend, measured_trends

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TypeLearned:
    """One GPU type: points learned from, mean error of held-out points in percent, half width of the 95 % interval.

    Figures are None where a type has no such measurements.
    """

    gpu_type: str
    points: int
    provenance: Provenance
    time_error_pct: float | None
    memory_error_pct: float | None
    time_width_pct: float | None
    memory_width_pct: float | None


@dataclass(frozen=True, eq=False)
class Learned:
    """What training came to.

    Attributes:
        settings: Of the trees. tuned: The search for them; None where none was asked for.
        types: Errors are of points held out with everything made from them; memory is what the allocator holds beside
            weights and gradients.
        importances: Feature → share of the trees' gain, largest first.
        trends: Along the longest measured line of each type, parameter and metric.
        grew: Rows that the trees saw over measured rows: what interpolation added.
    """

    estimator: Calibrated
    settings: BoosterSettings
    tuned: Tuned | None
    types: tuple[TypeLearned, ...]
    importances: Mapping[str, float]
    trends: tuple[Trend, ...]
    grew: float
    reused: bool


def learn(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    store: Store,
    *,
    keep: Path,
    trials: int = 0,
    time_limit_s: float | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Learned:
    """Learn from all that ``store`` has of the cluster's types; the predictor and its settings are kept in ``keep``.

    Args:
        trials: Settings of the trees to try; 0 leaves them as they are kept. Stopped early, the best so far counts.

    Raises:
        InputError: No GPU type has enough points. OutputError: Tuned settings cannot be kept.
    """
    first = Calibrated.of_store(cluster, model, job, store, learn=False)
    points = learnable(first.calibration)
    prepared = prepare(cluster, model, job, points)
    if prepared is None:
        most = max((t.factors["time"].points for t in first.calibration.types.values()), default=0)
        raise InputError(
            f"there is too little to learn from: {most} points of one GPU type, {LEAST_TO_LEARN} are needed",
            hint="measure with memx-tui profile, or import tables of layers",
        )
    settings, _ = kept_settings(keep)
    tuned = None
    if trials > 0:
        tuned = tune_on(
            prepared.rows,
            replace(settings, seed=seed),
            extra=prepared.extra,
            trials=trials,
            time_limit_s=time_limit_s,
            on_progress=on_progress,
            should_stop=should_stop,
        )
        save_settings(tuned, keep)
        settings, _ = kept_settings(keep)
    estimator = Calibrated.of_store(cluster, model, job, store, keep=keep)
    left = held_out(prepared.rows, settings, extra=prepared.extra)
    errors = 100.0 * np.abs(np.expm1(-left))
    stages = estimator.trained.stages
    names = np.array(prepared.rows.types)
    types = []
    for name in sorted(set(prepared.rows.types)):
        own = errors[names == name]
        widths = [w.width(name) for w in stages.model.widths] if stages is not None else [None, None]
        types.append(
            TypeLearned(
                name,
                stages.points[name] if stages is not None else 0,
                first.calibration.types[name].provenance,
                *(_mean(own[:, k]) for k in range(2)),
                *(None if w is None else 100.0 * float(np.expm1(w)) for w in widths),
            )
        )
    count = len(prepared.rows)
    return Learned(
        estimator,
        settings,
        tuned,
        tuple(types),
        estimator.importances,
        measured_trends(points),
        (count + len(prepared.extra.rows if prepared.extra else ())) / count,
        estimator.trained.reused,
    )


def _mean(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def learned_document(learned: Learned) -> dict[str, Any]:
    """``train --json``."""
    tuned = learned.tuned
    return {
        "schema": "memx/training/v1",
        "predictor_fingerprint": learned.estimator.fingerprint,
        "provenance": learned.estimator.provenance.value,
        "reused": learned.reused,
        "rows_over_measured": round(learned.grew, 3),
        "types": [
            {
                "gpu_type": t.gpu_type,
                "points": t.points,
                "provenance": t.provenance.value,
                "time_error_pct": t.time_error_pct,
                "memory_error_pct": t.memory_error_pct,
                "time_width_pct": t.time_width_pct,
                "memory_width_pct": t.memory_width_pct,
            }
            for t in learned.types
        ],
        "settings": {name: getattr(learned.settings, name) for name in ("depth", "learning_rate", "subsample")}
        | {name: getattr(learned.settings, name) for name in ("min_child_weight", "rounds")},
        "tuning": None
        if tuned is None
        else {
            "trials": len(tuned.trials),
            "ended": tuned.ended,
            "error_before": tuned.start_error,
            "error_after": tuned.best_error,
            "changed": tuned.settings != tuned.trials[0].settings,
        },
        "importances": dict(learned.importances),
        "trends": [
            {
                "gpu_type": t.gpu_type,
                "parameter": t.parameter,
                "metric": t.metric,
                "points": t.points,
                "r_squared": t.r_squared,
                "exponent": t.exponent,
                "amplitude": t.amplitude,
                "verdict": t.verdict.value,
                "done": t.done,
            }
            for t in learned.trends
        ],
        "assumed": list(learned.estimator.assumed),
    }
