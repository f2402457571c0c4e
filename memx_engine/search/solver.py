"""Exact choice of every stage's layers and recompute inside one skeleton."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable
from memx_engine.search.branch_and_bound import BranchAndBound
from memx_engine.search.choices import NO_LIMITS, Choices, Limits, build_choices
from memx_engine.search.nodes import Criterion
from memx_engine.search.objective import Objective

__all__ = ["Limits", "Solution", "solve"]


@dataclass(frozen=True)
class Solution:
    """The best plan found inside a skeleton and how good any plan there can be.

    Attributes:
        layers: Per stage. options: Per stage, the index of the recompute option in the table.
        time_s: Additive time (1F1B) or interleaved estimate.
        peak_bytes, variance, phi: Of this plan; the variance is of bytes or of utilization, as the objective says.
        lower_bound_phi: No plan of the skeleton has less. 0 for interleaved skeletons, which are never certified.
        optimal: Proven to be the best within 1e-9 of log phi.
        closed: Nothing here beats the ``incumbent_phi`` given; the plan is the best seen until that was known.
        nodes: Nodes visited.
    """

    layers: tuple[int, ...]
    options: tuple[int, ...]
    time_s: float
    peak_bytes: float
    variance: float
    phi: float
    lower_bound_phi: float
    optimal: bool
    closed: bool
    nodes: int


def solve(
    table: StageTable,
    objective: Objective,
    *,
    incumbent_phi: float = math.inf,
    limits: Limits | None = None,
    should_stop: Callable[[], bool] | None = None,
    most_nodes: int | None = None,
    most_peak: float = math.inf,
) -> Solution | None:
    """Minimise Phi over layer splits and recompute under capacity; None when nothing fits.

    Ties go to less time, then peak, variance, then the lexicographically first split and options; the answer depends
    on the arguments alone (and on when ``should_stop`` says so).

    Args:
        incumbent_phi: Best value known elsewhere; the skeleton is closed as soon as its bound reaches it.
        should_stop: Asked before each node but the first; on True the best so far comes back with its honest bound.
        most_nodes: Stop likewise after so many nodes. most_peak: Only plans whose peak does not exceed this.
    """
    limits = limits or NO_LIMITS
    limits.check(table)
    weights = objective.weights
    choices = build_choices(table, objective.variance_kind, limits, by_variance=weights.variance > 0)
    if choices is None:
        return None
    criterion = criterion_of(objective, choices)
    offset = _offset(objective, choices)
    cutoff = math.inf
    if math.isfinite(incumbent_phi):
        cutoff = (math.log(incumbent_phi) if incumbent_phi > 0 else -math.inf) - offset
    search = BranchAndBound(
        choices,
        criterion,
        masks=masks_of(choices, limits),
        cutoff=cutoff,
        should_stop=should_stop,
        most_peak=most_peak,
        most_nodes=most_nodes,
    )
    outcome = search.run()
    if outcome.best is None:
        return None
    best = outcome.best
    variance = best.variance * choices.scale**2
    phi = objective.phi(best.time_s, best.peak, variance)
    certified = table.virtual_stages == 1
    beaten = best.log_phi > cutoff - 1e-10
    return Solution(
        layers=best.layers,
        options=best.options,
        time_s=best.time_s,
        peak_bytes=best.peak,
        variance=variance,
        phi=phi,
        lower_bound_phi=min(phi, math.exp(outcome.lower_bound + offset)) if certified else 0.0,
        optimal=certified and outcome.exhausted and not beaten and outcome.lower_bound >= best.log_phi - 1e-9,
        closed=outcome.exhausted and beaten,
        nodes=outcome.nodes,
    )


def criterion_of(objective: Objective, choices: Choices) -> Criterion:
    """The objective in the choices' scaled variance."""
    weights = objective.weights
    epsilon = objective.references.epsilon_bytes2 / choices.scale**2
    return Criterion(weights.time, weights.peak, weights.variance, epsilon)


def _offset(objective: Objective, choices: Choices) -> float:
    """log Phi minus the criterion's value."""
    weights, ref = objective.weights, objective.references
    variance = weights.variance * math.log(choices.scale**2 / (ref.variance_bytes2 + ref.epsilon_bytes2))
    return (
        (variance if weights.variance else 0.0)
        - (weights.time * math.log(ref.time_s) if weights.time else 0.0)
        - (weights.peak * math.log(ref.peak_bytes) if weights.peak else 0.0)
    )


def masks_of(choices: Choices, limits: Limits) -> list[NDArray[np.bool_]] | None:
    """One region per layer window and common option, as the limits want them; None where one region holds all."""
    regions: list[NDArray[np.bool_]] = [np.ones(choices.time_s.shape, dtype=np.bool_)]
    stages, most = choices.tail_s.shape
    difference = limits.max_layer_difference
    if difference is not None:
        n = np.arange(1, most + 1)
        lows = range(max(1, -(-choices.layers // stages) - difference), choices.layers // stages + 1)
        regions = [
            np.broadcast_to(((n >= low) & (n <= low + difference))[None, :, None], choices.time_s.shape) for low in lows
        ]
    if limits.same_recompute:
        kept = np.unique(choices.option[choices.valid]).tolist()
        regions = [region & (choices.option == option) for option in kept for region in regions]
    return regions if difference is not None or limits.same_recompute else None
