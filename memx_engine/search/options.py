"""How to search."""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.errors import InputError
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.objective import Objective, Weights
from memx_engine.search.prune import TIME_RULES

VARIANCE_KINDS = ("bytes", "utilization")


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    Attributes:
        weights: None lets the search choose a profile and say why.
        top: How many skeletons' plans must be right (N): a skeleton is closed only above the N-th best, N at least 10,
            so that the first plans are the same however few are shown.
        time_limit_s: Stop then and return the best so far, at least one plan; None searches everything.
        seed, threads: Part of every search's record; this search uses no randomness and one thread.
        rescored: How many skeleton optima are ordered by event time (K).
        front: Resolution of the front of the whole space, see :mod:`.whole_front`; 0 takes the table's front.
        front_nodes: Solver nodes that the front may take, so that it never costs more than the ranking; None: as
            many as its trades need.
        limits: What the operator holds fixed or forbids in every plan.
        variance_kind: ``bytes``, or ``utilization``: the variance is of each GPU's memory / capacity.
        objective: Weights and references that are given, such as another search's, so that Phi compares with its; the
            other fields' weights, epsilon rule and variance kind then do not count.
        time_rule: ``corner`` or ``paper``. epsilon_rule: ``memx`` or ``paper``.
    """

    weights: Weights | None = None
    top: int = 10
    time_limit_s: float | None = None
    seed: int = 0
    threads: int = 1
    rescored: int = 64
    front: int = 2
    front_nodes: int | None = 6000
    time_rule: str = "corner"
    epsilon_rule: str = "memx"
    limits: OperatorLimits = NO_OPERATOR_LIMITS
    variance_kind: str = "bytes"
    objective: Objective | None = None

    def __post_init__(self) -> None:
        if self.top < 1:
            raise InputError(f"top {self.top} must be at least 1", where="--top")
        if self.front < 0:
            raise InputError(f"front {self.front} cannot be negative", where="--front")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InputError(f"time limit {self.time_limit_s:g} s must be positive", where="--time-limit")
        if self.time_rule not in TIME_RULES:
            raise InputError(f"time rule {self.time_rule!r} is not known", hint=f"use one of {', '.join(TIME_RULES)}")
        if self.variance_kind not in VARIANCE_KINDS:
            raise InputError(
                f"variance {self.variance_kind!r} is not known", hint=f"use one of {', '.join(VARIANCE_KINDS)}"
            )
