"""A Gaussian process over runs' features: smooth where trees are stepped, and better with few rows.

Matérn 3/2 with one length per feature (Rasmussen and Williams 2006, section 4.2 and 5.1), lengths and noise by maximum
likelihood; rows that scatter far more than the others count less (Student-t weights), so that disturbed runs do no
harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.predict.booster import Array

MOST_TO_FIT = 200
"""Rows, drawn by the seed, from which lengths and noise are found; all rows are conditioned on."""

MOST_ROWS = 1500
LEAST_ROWS = 12

_STEPS = 60
_FREEDOM = 4.0
_LOG_BOUNDS = (np.log(0.3), np.log(300.0))
_NOISE_BOUNDS = (np.log(1e-3), np.log(1.0))


@dataclass(frozen=True, eq=False)
class Lengths:
    """One length per feature, in standard deviations of it, and the noise's variance over the signal's."""

    lengths: Array
    noise: float


@dataclass(frozen=True, eq=False)
class Process:
    """A process conditioned on rows: ``mean + k(x, X) weights``."""

    centre: Array
    scale: Array
    lengths: Lengths
    mean: float
    places: Array
    weights: Array

    @classmethod
    def fit(cls, features: Array, targets: Array, *, seed: int = 0, lengths: Lengths | None = None) -> Process:
        """Condition on (n, F) features and (n,) targets, all numbers; known ``lengths`` are taken as they are."""
        centre, scale = features.mean(axis=0), features.std(axis=0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        places = (features - centre) / scale
        mean = float(np.median(targets))
        rest = targets - mean
        if lengths is None:
            chosen = np.random.default_rng(seed).permutation(len(rest))[:MOST_TO_FIT]
            lengths = _find(places[chosen], rest[chosen])
        scaled = places / lengths.lengths
        return cls(centre, scale, lengths, mean, scaled, _weights(_matern(scaled, scaled), rest, lengths.noise))

    def predict(self, features: Array) -> Array:
        """(n,) expected targets."""
        scaled = (features - self.centre) / self.scale / self.lengths.lengths
        return np.asarray(self.mean + _matern(scaled, self.places) @ self.weights)


def _matern(a: Array, b: Array) -> Array:
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(3.0 * np.maximum(squared, 0.0))
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _weights(kernel: Array, rest: Array, noise: float) -> Array:
    """Weights of the rows, those far off counted less: a few rounds of reweighting."""
    counts = np.ones(len(rest))
    for _ in range(4):
        solved = np.linalg.solve(kernel + np.diag(noise / counts), rest)
        left = solved * noise / counts
        spread = 1.4826 * float(np.median(np.abs(left))) or 1.0
        counts = np.maximum((_FREEDOM + 1.0) / (_FREEDOM + (left / spread) ** 2), 1e-3)
    return np.asarray(np.linalg.solve(kernel + np.diag(noise / counts), rest))


def _find(places: Array, rest: Array) -> Lengths:
    """Maximum likelihood, the signal's variance in closed form; a weak pull towards long lengths and moderate noise."""
    from scipy.optimize import minimize

    squares = (places[:, None, :] - places[None, :, :]) ** 2
    count = len(rest)

    def loss(x: Array) -> tuple[float, Array]:
        inverse, noise = np.exp(-2.0 * x[:-1]), float(np.exp(x[-1]))
        distance = np.sqrt(3.0 * np.maximum(squares @ inverse, 1e-12))
        decay = np.exp(-distance)
        whole = (1.0 + distance) * decay + noise * np.eye(count)
        factor = np.linalg.cholesky(whole)
        undone = np.linalg.inv(factor)
        inverted = undone.T @ undone
        solved = inverted @ rest
        variance = max(float(rest @ solved) / count, 1e-12)
        value = 0.5 * count * np.log(variance) + float(np.log(np.diag(factor)).sum())
        outer = inverted - np.outer(solved, solved) / variance
        # d k / d log(length) = 3 exp(-distance) * square / length^2
        inner = 1.5 * outer * decay
        gradient = np.append(
            np.einsum("ij,ijk->k", inner, squares) * inverse,
            0.5 * noise * float(np.trace(outer)),
        )
        pull = np.append(x[:-1] - np.log(3.0), x[-1] - np.log(0.05))
        return value + 0.05 * float(pull @ pull), gradient + 0.1 * pull

    start = np.append(np.full(places.shape[1], np.log(3.0)), np.log(0.05))
    bounds = [_LOG_BOUNDS] * places.shape[1] + [_NOISE_BOUNDS]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
    best: NDArray[np.float64] = found.x
    return Lengths(np.exp(best[:-1]), float(np.exp(best[-1])))
