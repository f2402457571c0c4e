"""Exact choice of every stage's layers and recompute inside one skeleton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable
from memx_engine.search.branch_and_bound import BranchAndBound, Criterion, least_bottleneck
from memx_engine.search.choices import NO_LIMITS, Choices, Limits, TimeForm, build_choices
from memx_engine.search.objective import Objective

__all__ = ["Limits", "Solution", "count_plans", "evaluate_split", "root_bound", "root_corner", "solve"]


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
) -> Solution | None:
    """Minimise Phi over layer splits and recompute under capacity; None when nothing fits.

    Ties go to less time, then peak, variance, then the lexicographically first split and options; the answer depends
    on the arguments alone (and on when ``should_stop`` says so).

    Args:
        incumbent_phi: Best value known elsewhere; the skeleton is closed as soon as its bound reaches it.
        should_stop: Asked before each node but the first; on True the best so far comes back with its honest bound.
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
    search = BranchAndBound(choices, criterion, masks=masks_of(choices, limits), cutoff=cutoff, should_stop=should_stop)
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


def evaluate_split(
    table: StageTable, layers: Sequence[int], options: Sequence[int], variance_kind: str = "bytes"
) -> tuple[float, float, float]:
    """(time_s by the solver's form, peak_bytes, variance) of one complete plan, whether it fits or not."""
    stage, n, r = np.arange(table.stages), np.array(layers), np.array(options)
    time = table.forward_s[stage, n, r] + table.backward_s[stage, n, r]
    form = TimeForm.of(table)
    period = (time + form.transfers_s).max()
    time_s = form.period_factor * period + form.sum_factor * time.sum() + form.constant_s
    memory = table.memory_bytes[stage, n, r]
    measure = memory / table.capacity_bytes if variance_kind == "utilization" else memory
    share = table.gpus / table.gpus.sum()
    mean = share @ measure
    return float(time_s + table.tail_s[stage, n].max()), float(memory.max()), float(share @ (measure - mean) ** 2)


def root_corner(
    table: StageTable, variance_kind: str = "bytes", *, reserve_bytes: float = 0.0
) -> tuple[float, float, float] | None:
    """Lower bounds of (time_s, peak_bytes, variance) over all fitting plans, each alone; None when nothing fits.

    No dynamic programme: bottlenecks by counting layers, Σt by Lagrange multipliers, the variance by the intervals
    that each stage's memory can lie in. None means proven infeasible; a corner does not prove that a plan fits.
    """
    p, layers = table.stages, table.layers
    most = layers - p + 1
    if most < 1:
        return None
    memory = table.memory_bytes[:, 1 : most + 1]
    fits = memory <= (np.asarray(table.capacity_bytes, dtype=np.float64) - reserve_bytes)[:, None, None]
    if not fits.any(axis=(1, 2)).all():
        return None
    time = np.where(fits, table.forward_s[:, 1 : most + 1] + table.backward_s[:, 1 : most + 1], np.inf).min(axis=2)
    lightest = np.where(fits, memory, np.inf).min(axis=2)
    form = TimeForm.of(table)
    period = least_bottleneck(time + form.transfers_s[:, None], layers)
    peak = least_bottleneck(lightest, layers)
    tail = least_bottleneck(np.where(np.isfinite(time), table.tail_s[:, 1 : most + 1], np.inf), layers)
    if not (math.isfinite(period) and math.isfinite(peak)):
        return None
    # Any price per layer gives a bound of the cheapest sum; the stages' own rates are the prices worth trying.
    n = np.arange(1, most + 1)
    prices = np.unique((time / n).min(axis=1))
    priced = (time[None] - prices[:, None, None] * n).min(axis=2).sum(axis=1) + prices * layers
    time_s = form.period_factor * period + form.sum_factor * float(priced.max()) + form.constant_s + tail
    return time_s, peak, _least_variance(table, memory, fits, variance_kind)


def _least_variance(table: StageTable, memory: NDArray[np.float64], fits: NDArray[np.bool_], kind: str) -> float:
    """Variance when every stage's memory moves freely between its least and its most."""
    low = np.where(fits, memory, np.inf).min(axis=(1, 2))
    high = np.where(fits, memory, -np.inf).max(axis=(1, 2))
    if kind == "utilization":
        low, high = low / table.capacity_bytes, high / table.capacity_bytes
    share = table.gpus / table.gpus.sum()
    # The sum of squared distances from c to the intervals is convex in c: its slope changes sign once.
    left, right = float(low.min()), float(high.max())
    for _ in range(60):
        c = 0.5 * (left + right)
        if share @ (c - np.clip(c, low, high)) > 0:
            right = c
        else:
            left = c
        if low.max() <= c <= high.min():
            return 0.0
    c = 0.5 * (left + right)
    return float(share @ (c - np.clip(c, low, high)) ** 2) * (1 - 1e-9)


def root_bound(table: StageTable, objective: Objective, *, reserve_bytes: float = 0.0) -> float | None:
    """A cheap lower bound of Phi over all fitting plans; None when nothing fits."""
    corner = root_corner(table, objective.variance_kind, reserve_bytes=reserve_bytes)
    return None if corner is None else objective.phi(*corner)


def count_plans(table: StageTable) -> int:
    """Complete plans of the skeleton, fitting or not: splits times recompute (rounded above 2**53)."""
    exists = np.isfinite(table.memory_bytes).sum(axis=2).astype(np.float64)
    ways = np.zeros(table.layers + 1)
    ways[0] = 1.0
    for row in exists:
        ways = np.convolve(ways, row)[: table.layers + 1]
    return round(float(ways[-1]))
