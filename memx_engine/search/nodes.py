"""What the branch and bound passes around: plans found, the objective's criterion, nodes and the outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.polygon import Vertex

Array = NDArray[np.float64]

_TIE = 1e-12  # of log Phi: closer than rounding can tell apart


class Candidate(NamedTuple):
    """A complete plan with what the objective reads; ``balance``-scaled variance and mean."""

    log_phi: float
    time_s: float
    peak: float
    variance: float
    layers: tuple[int, ...]
    options: tuple[int, ...]
    period_s: float
    tail_s: float
    mean: float


@dataclass(frozen=True)
class Criterion:
    """Weights of the logarithms and the scaled ε; constants left out."""

    time: float
    peak: float
    variance: float
    epsilon: float

    def log_phi(self, time_s: float, peak: float, variance: float) -> float:
        value = 0.0
        if self.time:
            value += self.time * log_of(time_s)
        if self.peak:
            value += self.peak * log_of(peak)
        if self.variance:
            value += self.variance * log_of(variance + self.epsilon)
        return value


@dataclass(frozen=True)
class Node:
    """Intervals that a plan's period, peak, tail and mean may lie in, and the region known to hold its (x, y).

    ``root``: which of the masks. ``columns``: no stage has more layers than this.
    """

    period: tuple[float, float]
    peak: tuple[float, float]
    tail: tuple[float, float]
    mean: tuple[float, float]
    chain: tuple[Vertex, ...]
    root: int
    columns: int


@dataclass
class Outcome:
    """``best`` is None when nothing is feasible; ``lower_bound`` is of log Phi over all plans."""

    best: Candidate | None
    lower_bound: float
    exhausted: bool
    nodes: int


def log_of(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def with_interval(node: Node, which: int, ends: tuple[float, float]) -> Node:
    if which == 0:
        return replace(node, period=ends)
    return replace(node, peak=ends) if which == 1 else replace(node, tail=ends)


def better(one: Candidate, other: Candidate) -> bool:
    """Less Phi; within rounding, less time, then peak, variance, and the earlier split and options."""
    if abs(one.log_phi - other.log_phi) > _TIE * max(1.0, abs(one.log_phi)):
        return one.log_phi < other.log_phi
    return one[1:6] < other[1:6]


def least_bottleneck(values: Array, layers: int) -> float:
    """A lower bound of the largest ``values[i, n_i - 1]`` over all splits; exact where it grows with n. (P, N)."""
    rising = np.minimum.accumulate(values[:, ::-1], axis=1)
    if rising.size < layers:
        return math.inf
    counted = float(np.partition(rising, layers - 1, axis=None)[layers - 1])
    return max(counted, float(rising[:, -1].max()))
