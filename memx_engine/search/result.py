"""What a search returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import Estimator
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, Plan, Provenance
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.objective import Objective

_ROUNDING = 1e-9
"""The solver's tables and an estimate's breakdown sum one plan's memory in different orders."""


@dataclass(frozen=True)
class RankedPlan:
    """A plan with its place in the ranking. ``phi`` uses the event time; ``pareto``: no other plan dominates it."""

    rank: int
    plan: Plan
    estimate: Estimate
    phi: float
    pareto: bool

    @classmethod
    def later(cls, rank: int, plan: Plan, make: Callable[[], Estimate], phi: float, pareto: bool) -> RankedPlan:
        """With an estimate that ``make`` makes when it is first asked for: a search ranks more plans than it shows."""
        made = cls.__new__(cls)
        made.__dict__.update(rank=rank, plan=plan, phi=phi, pareto=pareto, _make=make)
        return made

    if not TYPE_CHECKING:  # With it every misspelt attribute would pass for one that may be there.

        def __getattr__(self, name: str) -> object:
            make = self.__dict__.get("_make")
            if name != "estimate" or make is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            made = self.__dict__["estimate"] = make()
            self.__dict__.pop("_make", None)
            return made

    def __getstate__(self) -> dict[str, object]:
        # What makes an estimate does not travel.
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class PlanTable:
    """The best plan of every feasible skeleton as columns of length n, in rank order.

    Rows with ``by_events`` carry event times: the rescored head, and members of the front wherever they rank. The
    others carry the additive time, an upper bound (for interleaved plans an estimate). A large search keeps the even
    split of skeletons that are proven not to be among the best. ``variance_bytes2`` is of bytes, also where the
    objective's kind is utilization.
    ``worst_fraction`` is the highest peak / capacity over the plan's GPUs, ``worst_type`` the type of that GPU.
    """

    plans: Sequence[Plan]
    time_s: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    variance_bytes2: NDArray[np.float64]
    phi: NDArray[np.float64]
    worst_fraction: NDArray[np.float64]
    worst_type: tuple[str, ...]
    by_events: NDArray[np.bool_]
    pareto: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.plans)

    def ahead_of(self, phi: float) -> int:
        """How many rows are better than ``phi``, by more than the rounding of two ways to compute it."""
        return int((self.phi < phi * (1.0 - _ROUNDING)).sum())


@dataclass(frozen=True)
class PruneCounts:
    """Skeletons removed by each rule of the method."""

    placement: int = 0
    memory: int = 0
    time: int = 0


@dataclass(frozen=True)
class Certificate:
    """How far from optimal the answer can be.

    Attributes:
        objective: The objective that ``lower_bound`` and ``best`` speak of (``additive``).
        gap: (best - lower_bound) / best over 1F1B skeletons; None where no bound was computed.
        optimal: No 1F1B plan of the searched space has a better additive Phi, and the plan shown first is 1F1B;
            interleaved plans are ranked by events and never certified.
        event_gap: Gap of the shown answer against event time's own lower bound.
        event_lower_bound: No plan of the searched space, 1F1B or interleaved, has less Phi by events; None where some
            were not looked at.
        rescored: How many skeleton optima were ordered by event time.
    """

    objective: str
    best: float
    lower_bound: float | None
    gap: float | None
    optimal: bool
    event_gap: float | None
    rescored: int
    event_lower_bound: float | None = None


@dataclass(frozen=True)
class FrontReport:
    """How much of the Pareto front of the whole space was sought.

    Attributes:
        resolution: Steps of the peak's bound and of the trade between time and variance; 0: not sought, the front is
            that of the table.
        trades: How many trades that makes. proven: Those whose best plan over all 1F1B skeletons was found.
        plans: How many of the front's plans are proven: no 1F1B plan of the space dominates them by additive time.
    """

    resolution: int = 0
    trades: int = 0
    proven: int = 0
    plans: int = 0

    @property
    def complete(self) -> bool:
        return self.resolution > 0 and self.proven == self.trades

    def __str__(self) -> str:
        if not self.resolution:
            return "those of the plans found for each skeleton"
        share = "all" if self.complete else f"{self.proven} of"
        trades = f"{share} {self.trades} trades between the three proven over the whole space"
        return f"{self.plans} of them proven; {trades}"


@dataclass(frozen=True)
class SearchProgress:
    """One progress report; ``done`` and ``feasible`` never decrease within a phase.

    Attributes:
        feasible: Skeletons known to hold a plan that fits.
        best_phi: The best plan so far.
        lower_bound_phi: No 1F1B plan has less additive Phi; never falls, and never exceeds the optimum. None before the
            objective is fixed, and where skeletons were left out under a time limit.
        gap: (best 1F1B plan so far - lower_bound_phi) / best 1F1B plan so far; never rises.
    """

    phase: str
    done: int
    total: int
    feasible: int
    pruned: PruneCounts
    best_phi: float | None
    gap: float | None
    elapsed_s: float
    lower_bound_phi: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """Everything a search found.

    Attributes:
        assumed: Every assumption that the numbers rest on, in words (job, model, cluster, devices).
        space: Every searched dimension with its values.
        skeletons: How many were enumerated. feasible: Those with a fitting plan.
        plans_covered: Complete plans, splits and recompute counted.
        table: The best plan of every feasible skeleton, best phi first.
        plans: The rescored head of the table with everything predicted of each.
        pareto: The non-dominated plans over (time, peak, variance), by time; the fastest plan is among them.
        time_optimal: The fastest plan found, with its price in phi; where it is not a row of the table, its rank is the
            one its phi would have.
        cancelled: The search was stopped; the plans are the best so far.
        limits: What the operator held fixed or forbade; every plan keeps it.
        front: How complete ``pareto`` is.
    """

    cluster: Cluster
    model: TransformerSpec
    job: Job
    provenance: Provenance
    predictor_fingerprint: str
    assumed: tuple[str, ...]
    objective: Objective
    space: Mapping[str, tuple[object, ...]]
    skeletons: int
    pruned: PruneCounts
    feasible: int
    plans_covered: int
    seconds: float
    cache_hits: int
    cache_misses: int
    certificate: Certificate
    table: PlanTable
    plans: tuple[RankedPlan, ...]
    pareto: tuple[RankedPlan, ...]
    time_optimal: RankedPlan
    estimator: Estimator
    cancelled: bool = False
    limits: OperatorLimits = NO_OPERATOR_LIMITS
    front: FrontReport = FrontReport()

    def detail(self, row: int) -> RankedPlan:
        """Row ``row`` of the table with everything predicted of it; estimated on demand beyond the rescored head."""
        if row < len(self.plans):
            return self.plans[row]
        plan = self.table.plans[row]
        estimate = self.estimator.estimate(plan)
        return RankedPlan(row + 1, plan, estimate, float(self.table.phi[row]), bool(self.table.pareto[row]))
