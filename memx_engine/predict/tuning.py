"""Settings of the trees by Bayesian optimisation: a Gaussian process over depth, learning rate, subsample, child weight
and rounds, judged by cross-validation grouped by configuration (the MemX paper, section 3.2.2).

The surrogate is scikit-learn's; what is here is the space, the acquisition (expected improvement over random
candidates, J. Mockus, "On Bayesian methods for seeking the extremum", 1975) and the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memx_engine.predict.booster import Array, BoosterSettings
from memx_engine.predict.iteration_model import Extra, IterationModel, Rows, grouped_folds

TRIALS = 24
FOLDS = 4

WORTH = 0.98
"""Found settings replace the given ones when they leave at most this share of their error: below it is luck."""

_FIRST = 6
_CANDIDATES = 512


@dataclass(frozen=True)
class Dimension:
    """One setting's range; ``steps``: on a logarithmic scale. Whole numbers are rounded."""

    name: str
    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False

    def value(self, place: float) -> float | int:
        """The setting at ``place`` in [0, 1]."""
        if self.logarithmic:
            found = float(self.low * (self.high / self.low) ** place)
        else:
            found = self.low + (self.high - self.low) * place
        return round(found) if self.whole else found

    def place(self, value: float) -> float:
        """Where ``value`` lies in [0, 1]."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


SPACE = (
    Dimension("depth", 2, 8, whole=True),
    Dimension("learning_rate", 0.01, 0.3, logarithmic=True),
    Dimension("subsample", 0.5, 1.0),
    Dimension("min_child_weight", 1.0, 16.0, logarithmic=True),
    Dimension("rounds", 50, 800, logarithmic=True, whole=True),
)


@dataclass(frozen=True)
class Trial:
    """One setting tried. ``error``: mean absolute logarithm over held-out configurations, both outputs added."""

    settings: BoosterSettings
    error: float


@dataclass(frozen=True)
class Tuned:
    """What came of it.

    Attributes:
        settings: The best found, or those given where nothing found is clearly better.
        trials: In the order tried; the first are the settings given.
        ended: ``trials``, ``time`` or ``cancelled``: what ended it.
    """

    settings: BoosterSettings
    trials: tuple[Trial, ...]
    ended: str

    @property
    def start_error(self) -> float:
        return self.trials[0].error

    @property
    def best_error(self) -> float:
        return min(trial.error for trial in self.trials)


def held_out_error(rows: Rows, settings: BoosterSettings, *, folds: int = FOLDS, extra: Extra | None = None) -> float:
    """Mean absolute logarithm of what models of the other folds leave of each; folds keep configurations whole.

    Time and memory are added, so that neither is bought with the other. Infinite where nothing can be held out.
    """
    known = [column[~np.isnan(column)] for column in held_out(rows, settings, folds=folds, extra=extra).T]
    if not any(len(column) for column in known):
        return math.inf
    return sum(float(np.abs(column).mean()) for column in known if len(column))


def held_out(rows: Rows, settings: BoosterSettings, *, folds: int = FOLDS, extra: Extra | None = None) -> Array:
    """(n, 2) logarithms that models of the other folds leave of each row; NaN where nothing can be held out.

    Synthetic rows are held out with any of their parents.
    """
    left = np.full(rows.targets.shape, np.nan)
    if len(np.unique(rows.groups)) < 2:
        return left
    for mask in grouped_folds(rows.groups, folds, settings.seed):
        more = extra.without(rows.groups[mask]) if extra else None
        kept = rows.part(~mask)
        model = IterationModel.fit(kept, settings, intervals=False, extra=Extra.of(more) if more is not None else None)
        left[mask] = rows.targets[mask] - model.shifts(rows.features[mask])
    return left


def tune(
    error_of: Callable[[BoosterSettings], float],
    start: BoosterSettings,
    *,
    trials: int = TRIALS,
    time_limit_s: float | None = None,
    on_progress: Callable[[int, int, float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tuned:
    """Look for settings with less ``error_of`` than ``start``; the same seed in ``start`` tries the same settings.

    Args:
        trials: How many settings to try, ``start`` among them.
        on_progress: Called after each with how many are done, of how many, and the least error so far.
        should_stop: Asked before each; what was found so far counts.
    """
    began = time.monotonic()
    generator = np.random.default_rng(start.seed)
    places: list[Array] = []
    done: list[Trial] = []
    first = _spread(min(_FIRST, max(trials - 1, 0)), start.seed)
    ended = "trials"
    while len(done) < max(trials, 1):
        if done and should_stop is not None and should_stop():
            ended = "cancelled"
            break
        if done and time_limit_s is not None and time.monotonic() - began > time_limit_s:
            ended = "time"
            break
        if not done:
            place, settings = _placed(start), start
        else:
            place = first[len(done) - 1] if len(done) <= len(first) else _next(places, done, generator)
            settings = _settings(start, place)
        done.append(Trial(settings, error_of(settings)))
        places.append(_placed(settings))
        if on_progress is not None:
            on_progress(len(done), max(trials, 1), min(t.error for t in done))
    best = min(done, key=lambda trial: trial.error)
    worth = best.error < WORTH * done[0].error
    return Tuned(best.settings if worth else start, tuple(done), ended)


def tune_on(rows: Rows, start: BoosterSettings, *, extra: Extra | None = None, **budget: Any) -> Tuned:
    """:func:`tune` on held-out rows."""
    return tune(lambda settings: held_out_error(rows, settings, extra=extra), start, **budget)


def _placed(settings: BoosterSettings) -> Array:
    return np.array([d.place(float(getattr(settings, d.name))) for d in SPACE])


def _settings(start: BoosterSettings, place: Array) -> BoosterSettings:
    found: dict[str, Any] = {d.name: d.value(float(p)) for d, p in zip(SPACE, place, strict=True)}
    return replace(start, **found)


def _spread(count: int, seed: int) -> Array:
    """``count`` places evenly over the space."""
    from scipy.stats import qmc

    return np.asarray(qmc.LatinHypercube(len(SPACE), seed=seed).random(max(count, 1)))[:count]


def _next(places: list[Array], done: list[Trial], generator: np.random.Generator) -> Array:
    """The candidate with the most expected improvement over the least error so far."""
    import warnings

    from scipy.stats import norm
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    errors = np.log([trial.error for trial in done])
    finite = np.isfinite(errors)
    candidates = generator.random((_CANDIDATES, len(SPACE)))
    if finite.sum() < 2:
        return np.asarray(candidates[0])
    kernel = Matern(length_scale=np.ones(len(SPACE)), length_scale_bounds=(0.1, 10.0), nu=2.5) + WhiteKernel(1e-3)
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=0)
    with warnings.catch_warnings():
        # A length scale at its bound only says that a setting does not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(np.array(places)[finite], errors[finite])
    mean, deviation = process.predict(candidates, return_std=True)
    better = float(errors[finite].min()) - mean
    z = better / np.maximum(deviation, 1e-12)
    gain = better * norm.cdf(z) + deviation * norm.pdf(z)
    return np.asarray(candidates[int(np.argmax(gain))])
