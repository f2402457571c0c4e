"""What a search says about its answer: how far it can be from optimal, and what its numbers rest on."""

from __future__ import annotations

from memx_engine.cost.table import Estimator
from memx_engine.search.found import Found
from memx_engine.search.objective import Objective
from memx_engine.search.result import Certificate, RankedPlan
from memx_engine.search.schedule import ScheduleAdvice, heterogeneity_index
from memx_engine.search.space import Space, idle_gpus


def certificate(
    found: Found,
    objective: Objective,
    head: tuple[RankedPlan, ...],
    *,
    unsolved_phi: float,
    complete: bool,
    event_lower_bound: float | None,
) -> Certificate:
    """The certificate of the plans ``found``, of which ``head`` is shown.

    Interleaved skeletons are ranked by estimates and events, so it leaves them out, and it calls nothing optimal where
    the plan shown first is interleaved.

    Args:
        unsolved_phi: The least bound of the skeletons that were looked at but not solved.
        complete: Every skeleton of the space was looked at; nothing is known otherwise.
        event_lower_bound: What is proven of Phi by events over the whole space.
    """
    solved = found.plain if found.plain.any() else ~found.plain
    best = float(found.phi[solved].min())
    proven = float(found.lower_bound_phi[solved].min())
    lower = min(proven, unsolved_phi, best)
    known = complete and proven > 0.0 and lower > 0.0
    shown = head[0]
    least = objective.phi(
        shown.estimate.lower_bound_s, shown.estimate.peak_bytes, objective.variance_of(shown.estimate)
    )
    return Certificate(
        objective="additive",
        best=best,
        lower_bound=lower if known else None,
        gap=(best - lower) / best if known else None,
        optimal=known and lower >= best * (1.0 - 1e-9) and shown.plan.skeleton.virtual_stages == 1,
        event_gap=max(0.0, 1.0 - least / shown.phi),
        rescored=len(head),
        event_lower_bound=event_lower_bound,
    )


def assumptions(space: Space, estimator: Estimator, answer: RankedPlan) -> tuple[str, ...]:
    """What the inputs and the estimator assume, what is left out or idle, and which schedule the indices favour."""
    cluster, job, shape = space.cluster, space.job, answer.plan.skeleton
    left_out = [f"left out of every plan: {reason}" for reason in space.excluded_types.values()]
    idle = [f"plan 1 leaves {n} {name} idle" for name, n in idle_gpus(cluster, shape).items()]
    worst = answer.estimate.worst_gpu
    advice = ScheduleAdvice(
        worst.capacity_bytes / worst.peak_bytes, heterogeneity_index(cluster, job, shape.type_order)
    )
    return (
        *job.assumed,
        *space.model.assumed,
        *cluster.assumed,
        *getattr(estimator, "assumed", ()),
        *left_out,
        *idle,
        *([f"plan 1: {advice}"] if shape.pp > 1 else []),
    )
