"""Planning again without some nodes: what is asked, and the plans in hand to start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memx_engine import (
        Before,
        Cluster,
        Job,
        Objective,
        PlanFile,
        RankedPlan,
        Replan,
        SearchOptions,
        SearchResult,
        TransformerSpec,
    )
    from memx_tui.session import Session

TOLERANCE = 0.02
"""How far above the best, in Phi and in time, a plan may be that moves less."""


@dataclass(frozen=True)
class Hand:
    """A plan in hand.

    Attributes:
        name: ``plan #1`` or a file's name.
        objective: Of its search; None where the session's weights count.
    """

    name: str
    before: Before
    iteration_time_s: float
    phi: float
    objective: Objective | None


@dataclass(frozen=True)
class Leaving:
    """What is asked: plans without these nodes, and how to come there from the plan in hand (None: from nothing)."""

    without: tuple[str, ...]
    hand: Hand | None = None
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Replanned:
    """The answer. ``replan`` is None where nothing was in hand; ``chosen`` is then the best plan."""

    asked: Leaving
    result: SearchResult
    chosen: RankedPlan
    replan: Replan | None


def hand_of_result(result: SearchResult, ranked: RankedPlan) -> Hand:
    """A plan of the table."""
    from memx_engine import Before

    before = Before(result.cluster, result.model, result.job, ranked.plan)
    name = f"plan #{ranked.rank}"
    return Hand(name, before, ranked.estimate.iteration_time_s, ranked.phi, result.objective)


def hand_of_file(file: PlanFile, name: str) -> Hand:
    """A plan file."""
    from memx_engine import Before

    before = Before(file.cluster, file.model, file.job, file.plan)
    return Hand(name, before, file.estimate.iteration_time_s, file.phi, file.objective)


def inputs_of(session: Session, asked: Leaving) -> tuple[Cluster, TransformerSpec, Job, SearchOptions]:
    """What to search: the session's cluster without the nodes, its model, and the job of the plan in hand.

    What the operator set on the job form wins over the plan's job. Weights and references are the plan's, so that Phi
    compares with it, unless the session sets others.

    Raises:
        InputError: A node is not there, none is left, or the job does not fit.
    """
    from memx_engine import InputError, SearchOptions, per_token, resolve_job, without_nodes

    if session.cluster is None or session.model is None:
        raise InputError("planning needs a cluster and a model", hint="the cluster is on screen 1, m chooses the model")
    cluster, model, hand = without_nodes(session.cluster, asked.without), session.model, asked.hand
    options = session.options or SearchOptions()
    overrides: dict[str, Any] = dict(session.job_overrides)
    if hand is None:
        job = resolve_job(cluster, model, file=session.job_file, **overrides)
    else:
        earlier = hand.before.job
        if session.free:  # one of the combinations is in hand
            model = hand.before.model
            overrides = {key: value for key, value in overrides.items() if key not in session.free}
        base = replace(earlier, micro_batch_sizes=None, tp_sizes=None, pp_sizes=None, dp_sizes=None)
        job = resolve_job(cluster, model, base=base, file=session.job_file, **overrides)
        objective = hand.objective
        if objective is not None and _same_weights(options, objective):
            tokens = earlier.global_batch * earlier.seq_len
            options = replace(options, objective=per_token(objective, tokens, job.global_batch * job.seq_len))
    return cluster, model, job, options_on(session.cluster, cluster, model, job, options)


def options_on(
    whole: Cluster, cluster: Cluster, model: TransformerSpec, job: Job, options: SearchOptions
) -> SearchOptions:
    """``options`` with the limits that speak of what is left of the ``whole`` cluster.

    Raises:
        InputError: The limits cannot hold on the whole cluster.
    """
    from memx_engine import checked_limits

    if cluster is whole or not options.limits:
        return options
    limits = checked_limits(options.limits, whole, model, job)
    return replace(options, limits=limits.among([t.name for t in cluster.gpu_types]))


def _same_weights(options: SearchOptions, objective: Objective) -> bool:
    """The session asks for no other weights than those of ``objective``."""
    own, weights = options.weights, objective.weights
    if own is not None and (own.time, own.peak, own.variance) != (weights.time, weights.peak, weights.variance):
        return False
    return options.variance_kind == objective.variance_kind
