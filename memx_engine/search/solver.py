"""Exact choice of every stage's layers and recompute inside one skeleton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable
from memx_engine.search.branch_and_bound import TOLERANCE, BranchAndBound
from memx_engine.search.choices import NO_LIMITS, Limits, build_choices
from memx_engine.search.objective import Objective
from memx_engine.search.problem import Problem, criterion_of, problem_of

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


class _Alone:
    """One problem, whatever is asked."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def foresee(self, numbers: Sequence[int], targets: NDArray[np.float64]) -> None:
        pass

    def problem(self, number: int, target: float) -> Problem:
        return self._problem


def solve(
    table: StageTable,
    objective: Objective,
    *,
    incumbent_phi: float = math.inf,
    limits: Limits | None = None,
    should_stop: Callable[[], bool] | None = None,
    most_nodes: int | None = None,
) -> Solution | None:
    """Minimise Phi over layer splits and recompute under capacity; None when nothing fits.

    Ties go to less time, then peak, variance, then the lexicographically first split and options; the answer depends
    on the arguments alone (and on when ``should_stop`` says so).

    Args:
        incumbent_phi: Best value known elsewhere; the skeleton is closed as soon as its bound reaches it.
        should_stop: Asked before each node but the first; on True the best so far comes back with its honest bound.
        most_nodes: Stop likewise after so many nodes.
    """
    limits = limits or NO_LIMITS
    limits.check(table)
    choices = build_choices(table, objective.variance_kind, limits)
    if choices is None:
        return None
    problem = problem_of(choices, objective, limits)
    cutoff = math.inf
    if math.isfinite(incumbent_phi):
        cutoff = math.log(incumbent_phi) if incumbent_phi > 0 else -math.inf
    search = BranchAndBound(
        criterion_of(objective),
        np.array([-math.inf]),
        _Alone(problem),
        cutoffs=lambda best: np.full_like(best, cutoff),
        should_stop=should_stop,
        most_nodes=math.inf if most_nodes is None else most_nodes,
    )
    exhausted = search.run()
    if not search.found:
        search.glance([0])
    if not search.found:
        return None
    best = search.found[0]
    lower = min(float(search.lower_bounds()[0]), best.log_phi)
    phi = objective.phi(best.time_s, best.peak, best.variance)
    certified = table.virtual_stages == 1
    beaten = best.log_phi > cutoff - TOLERANCE
    return Solution(
        layers=best.layers,
        options=best.options,
        time_s=best.time_s,
        peak_bytes=best.peak,
        variance=best.variance,
        phi=phi,
        lower_bound_phi=min(phi, math.exp(lower)) if certified else 0.0,
        optimal=certified and exhausted and not beaten and lower >= best.log_phi - 1e-9,
        closed=exhausted and beaten,
        nodes=int(search.nodes.sum()),
    )
