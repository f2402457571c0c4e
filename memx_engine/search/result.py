"""What a search returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, Plan, Provenance
from memx_engine.search.objective import Objective


@dataclass(frozen=True)
class RankedPlan:
    """A plan with its place in the ranking. ``phi`` uses the event time; ``pareto``: no other plan dominates it."""

    rank: int
    plan: Plan
    estimate: Estimate
    phi: float
    pareto: bool


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
        gap: (best - lower_bound) / best; None where no bound was computed.
        event_gap: Gap of the shown answer against event time's own lower bound.
        rescored: How many skeleton optima were ordered by event time.
    """

    objective: str
    best: float
    lower_bound: float | None
    gap: float | None
    optimal: bool
    event_gap: float | None
    rescored: int


@dataclass(frozen=True)
class SearchProgress:
    """One progress report: counts never decrease except ``best_phi`` and ``gap``."""

    phase: str
    done: int
    total: int
    feasible: int
    pruned: PruneCounts
    best_phi: float | None
    gap: float | None
    elapsed_s: float


@dataclass(frozen=True)
class SearchResult:
    """Everything a search found.

    Attributes:
        assumed: Every assumption that the numbers rest on, in words (job, model, cluster, devices).
        space: Every searched dimension with its values.
        skeletons: How many were enumerated. feasible: Those with a fitting plan.
        plans_covered: Complete plans, splits and recompute counted.
        plans: The best plan of every feasible skeleton, best phi first (all of them; the edge cuts to the top N).
        pareto: The non-dominated plans over (time, peak, variance), by time.
        time_optimal: The fastest plan found, with its price in phi.
        cancelled: The search was stopped; the plans are the best so far.
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
    plans: tuple[RankedPlan, ...]
    pareto: tuple[RankedPlan, ...]
    time_optimal: RankedPlan
    cancelled: bool = False
