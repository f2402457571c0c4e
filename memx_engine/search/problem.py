"""One skeleton as the solver sees it: choices of every stage as columns of numbers, and the form of its objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.choices import Choices, Limits
from memx_engine.search.objective import Objective

Array = NDArray[np.float64]

TIME, PERIOD, MEMORY, BALANCE, TAIL, PLACE, OPTION = range(7)
"""Rows of a matrix of choices: seconds of one micro-batch, with the transfers around the stage, peak bytes, scaled
measure of the variance, tail, stage and layers in one number, index of the recompute option."""

STAGE_BITS = 20
"""``PLACE`` is ``(stage << STAGE_BITS) + layers``, exact in a float."""


@dataclass(frozen=True)
class Criterion:
    """Weights of log T, log M and log(V + ε)."""

    time: float
    peak: float
    variance: float


@dataclass(frozen=True, eq=False)
class Problem:
    """Choices of one skeleton, sorted by stage, then layers, then option, and what its Phi is made of.

    ``log Phi = wT·log T + wM·log M + wV·log(V + epsilon) + offset`` with
    ``T = period_factor · max period + sum_factor · Σ time + constant_s + max tail``; V is in units of ``scale``
    squared.

    Attributes:
        roots: Regions of choices to search one after another, each (7, F) in the rows above.
        share: (P,) of all GPUs.
        far: No plan has a larger Σ time, or a larger bound of V.
        complete: Every plan that fits is here; else those that cannot be below the target asked for may be left out.
    """

    roots: tuple[Array, ...]
    share: Array
    layers: int
    period_factor: float
    sum_factor: float
    constant_s: float
    epsilon: float
    offset: float
    scale: float
    far: tuple[float, float]
    complete: bool = True


NUMBERS = 9
STAGES, LAYERS, PERIOD_FACTOR, SUM_FACTOR, CONSTANT_S, EPSILON, OFFSET, FAR_X, FAR_Y = range(NUMBERS)
"""Columns of :func:`numbers_of`."""


def numbers_of(problem: Problem) -> tuple[float, ...]:
    """What holds for all plans of a problem, so that many problems can be read at once."""
    return (
        len(problem.share),
        problem.layers,
        problem.period_factor,
        problem.sum_factor,
        problem.constant_s,
        problem.epsilon,
        problem.offset,
        *problem.far,
    )


def criterion_of(objective: Objective) -> Criterion:
    weights = objective.weights
    return Criterion(weights.time, weights.peak, weights.variance)


def problem_of(choices: Choices, objective: Objective, limits: Limits) -> Problem:
    """The problem that a skeleton's choices and the operator's limits make."""
    form = choices.form
    return Problem(
        roots=regions_of(_columns(choices), limits, len(choices.share), choices.layers),
        share=choices.share,
        layers=choices.layers,
        period_factor=form.period_factor,
        sum_factor=form.sum_factor,
        constant_s=form.constant_s,
        epsilon=objective.references.epsilon_bytes2 / choices.scale**2,
        offset=offset_of(objective, choices.scale),
        scale=choices.scale,
        far=(1.01 * float(choices.time_s.max(axis=(1, 2)).sum()), 1.01),
    )


def offset_of(objective: Objective, scale: float) -> float:
    """What the references add to log Phi where variances are counted in units of ``scale`` squared."""
    weights, ref = objective.weights, objective.references
    offset = 0.0
    if weights.variance:
        offset += weights.variance * math.log(scale**2 / (ref.variance_bytes2 + ref.epsilon_bytes2))
    if weights.time:
        offset -= weights.time * math.log(ref.time_s)
    if weights.peak:
        offset -= weights.peak * math.log(ref.peak_bytes)
    return offset


def _columns(choices: Choices) -> Array:
    """(7, F) the choices that exist and fit."""
    stage, column, option = np.nonzero(choices.valid)
    at = (stage, column, option)
    return np.array(
        [
            choices.time_s[at],
            choices.period_s[at],
            choices.memory[at],
            choices.balance[at],
            choices.tail_s[stage, column],
            (stage << STAGE_BITS) + column + 1,
            choices.option[at],
        ]
    )


def regions_of(root: Array, limits: Limits, stages: int, layers: int, unit: int = 1) -> tuple[Array, ...]:
    """``root`` cut into what the limits that tie stages to each other allow together.

    One region per window of layers and common option; ``layers`` of the model, of which the columns count ``unit`` at
    a time.
    """
    regions, difference = [root], limits.max_layer_difference
    if difference is not None:
        n = unit * (root[PLACE] % (1 << STAGE_BITS))
        lows = range(max(1, -(-layers // stages) - difference), layers // stages + 1)
        regions = [root[:, (n >= low) & (n <= low + difference)] for low in lows]
    if limits.same_recompute:
        options = np.unique(root[OPTION]).tolist()
        regions = [some[:, some[OPTION] == option] for option in options for some in regions]
    return tuple(regions)
