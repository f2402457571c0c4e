"""Judging one plan: does it fit, which rule does it break, and what is the smallest change that would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from memx_engine.cost.table import Estimator, StageTable
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import FULL, MOST_RISK, NONE, Estimate, Plan, Recompute, Skeleton, Stage, Verdict
from memx_engine.search.assign import build_plan
from memx_engine.search.bounds import PlanFigures, compute_bounds, fixed_split
from memx_engine.search.diagnose import first_principles
from memx_engine.search.gap import Gap, gap_to
from memx_engine.search.limit_checks import checked_limits
from memx_engine.search.limit_reasons import broken_limits
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.objective import PEAK_ALONE, Objective, choose_weights, compute_references
from memx_engine.search.remedies import plan_remedy
from memx_engine.search.result import RankedPlan, SearchResult
from memx_engine.search.rules import PlanRequest, Reason, broken_rules, node_problem, spread, stage_layers
from memx_engine.search.schedule import heterogeneity_index
from memx_engine.search.solver import Limits, solve
from memx_engine.search.space import Layout, enumerate_space, idle_gpus, make_skeleton
from memx_engine.search.standing import standing
from memx_engine.units import GIB

__all__ = ["Explanation", "Gap", "PlanRequest", "Reason", "explain_plan", "explain_request"]


@dataclass(frozen=True)
class Explanation:
    """The verdict on a plan, and why.

    ``plan`` is None only when the plan is invalid; its rank is 0. ``gap``: how far it is from the best plan known, None
    where none is known or the plan is invalid.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    plan: RankedPlan | None
    gap: Gap | None = None


def explain_request(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    request: PlanRequest,
    *,
    objective: Objective | None = None,
    estimator: Estimator | None = None,
    result: SearchResult | None = None,
    limits: OperatorLimits | None = None,
) -> Explanation:
    """Judge a plan given by its numbers; what is left out is chosen by the planner.

    Args:
        objective: Phi of a search, to be comparable with it; by default the plan's own even split is the scale.
        result: A search's result: adds how far the plan is from its best and why the search does not list it.
        limits: What the plan should keep; by default what the search of ``result`` kept. Breaking one is a reason.
    """
    kept = limits or (result.limits if result else None)
    if kept and kept.type_order and request.type_order is None:
        request = replace(request, type_order=checked_limits(kept, cluster, model, job).type_order)
    broken = broken_rules(cluster, model, job, request)
    if broken:
        return Explanation(Verdict.INVALID, broken, None)
    estimator = estimator or (result.estimator if result else first_principles(cluster, model, job))
    objective = objective or (result.objective if result else None)
    layouts = _layouts(cluster, model, job, request)
    if not layouts:
        return Explanation(Verdict.INVALID, (_unplaced(cluster, request),), None)
    judged = [_complete(cluster, model, job, request, layout, objective, estimator) for layout in layouts]
    # The planner's choice among the orders of GPU types: one that fits, then the best Phi, then the first.
    judged.sort(
        key=lambda item: (
            item[1].verdict is Verdict.DOES_NOT_FIT,
            max(item[1].worst_gpu.used_fraction, 1.0),
            item[2].phi_of(item[1]),
        )
    )
    plan, estimate, scale = judged[0]
    explanation = _judge(cluster, model, job, plan, estimate, scale, estimator, result, limits)
    order = tuple(_order_words(judged))
    return replace(explanation, reasons=(*explanation.reasons, *order))


def explain_plan(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    plan: Plan,
    *,
    objective: Objective | None = None,
    estimator: Estimator | None = None,
    result: SearchResult | None = None,
    limits: OperatorLimits | None = None,
) -> Explanation:
    """Judge a finished plan, such as one read from a plan file."""
    shape = plan.skeleton
    chunks = [stage.chunk_layers for stage in plan.stages]
    request = PlanRequest(
        shape.tp,
        shape.pp,
        shape.dp,
        shape.micro_batch,
        layers=tuple(stage[k] for k in range(shape.virtual_stages) for stage in chunks),
        recompute=plan.recompute,
        virtual_stages=shape.virtual_stages,
    )
    job = replace(job, global_batch=shape.global_batch, seq_len=shape.seq_len)
    broken = broken_rules(cluster, model, job, request)
    if broken:
        return Explanation(Verdict.INVALID, broken, None)
    estimator = estimator or (result.estimator if result else first_principles(cluster, model, job))
    scale = objective or (result.objective if result else None)
    if scale is None:
        scale = own_scale(cluster, job, estimator.stage_table(shape))
    return _judge(cluster, model, job, plan, estimator.estimate(plan), scale, estimator, result, limits)


def own_scale(cluster: Cluster, job: Job, table: StageTable) -> Objective:
    """An objective for a plan judged alone: its skeleton's even split, or bounds, as references."""
    bounds = compute_bounds(table)
    figures = bounds.even or PlanFigures(bounds.time_s, bounds.peak_bytes, bounds.variance_bytes2)
    if not np.isfinite(figures.time_s):
        # Nothing fits: any finite scale will do, as no choice hangs on it.
        figures = PlanFigures(1.0, float(table.capacity_bytes.max()), 0.0)
    weights = choose_weights(1.0 - bounds.utilization, heterogeneity_index(cluster, job))
    references = compute_references([figures.time_s], [figures.peak_bytes], [figures.variance_bytes2])
    return Objective(weights, references)


def _layouts(cluster: Cluster, model: TransformerSpec, job: Job, request: PlanRequest) -> tuple[Layout, ...]:
    asked = replace(
        job,
        tp_sizes=(request.tp,),
        pp_sizes=(request.pp,),
        dp_sizes=(request.dp,),
        micro_batch_sizes=(request.micro_batch,),
        virtual_stages=(),
    )
    layouts = enumerate_space(cluster, model, asked).layouts
    if request.type_order is None:
        return layouts
    return tuple(
        layout
        for layout in layouts
        if (used := tuple(dict.fromkeys(placement.gpu_type for placement in layout.placements)))
        == tuple(name for name in request.type_order if name in used)
    )


def _order_words(judged: list[tuple[Plan, Estimate, Objective]]) -> Iterator[Reason]:
    """Why the plan is on these GPUs in this order: what ``judged``, the best first, says of the others."""
    if len(judged) < 2:
        return
    (plan, estimate, scale), (other, next_best, _) = judged[:2]
    fits = [item[1].verdict is not Verdict.DOES_NOT_FIT for item in judged[:2]]
    if fits == [True, False]:
        why = "no other order fits"
    elif not any(fits):
        why = "it misses its capacity by least"
    else:
        more = scale.phi_of(next_best) / scale.phi_of(estimate) - 1.0
        time = next_best.iteration_time_s / estimate.iteration_time_s - 1.0
        why = f"it has the lowest phi; the next, {_stages_words(other)}, has {more:+.1%}, iteration time {time:+.1%}"
    yield Reason(
        "order",
        f"GPU types in the order {_stages_words(plan)}, chosen among {len(judged)} that can be placed: {why}",
    )


def _stages_words(plan: Plan) -> str:
    """Stages on each GPU type along the pipeline: ``2 h100 > 4 mi300x``."""
    runs = [(name, len(list(group))) for name, group in groupby(stage.gpu_type for stage in plan.stages)]
    return " > ".join(f"{count} {name}" for name, count in runs)


def _unplaced(cluster: Cluster, request: PlanRequest) -> Reason:
    size = request.tp * request.dp
    nodes = node_problem(cluster, size)
    have = ", ".join(f"{len(ranks)} {name}" for name, ranks in cluster.ranks_by_type.items())
    order = f" in the order {' > '.join(request.type_order)}" if request.type_order else ""
    return Reason(
        "placement",
        f"{request.pp} stages of TP {request.tp} x DP {request.dp} = {size} GPUs of one type each cannot be placed"
        f"{order}: the cluster has {have}, and TP groups stay inside a node{nodes and f'; {nodes}'}",
        remedy="use a smaller DP or TP, or fewer stages",
    )


def _complete(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    request: PlanRequest,
    layout: Layout,
    objective: Objective | None,
    estimator: Estimator,
) -> tuple[Plan, Estimate, Objective]:
    """The whole plan on one layout, with what was left open chosen for Phi, or for memory where nothing fits."""
    skeleton = make_skeleton(layout, job, request.micro_batch, request.virtual_stages)
    table = estimator.stage_table(skeleton)
    scale = objective or own_scale(cluster, job, table)
    chunks = stage_layers(model, request)
    if chunks is not None and request.recompute is not None:
        plan = build_plan(cluster, model, skeleton, [sum(c) for c in chunks], spread(request.recompute, skeleton.pp))
    else:
        plan = _choose(cluster, model, job, request, skeleton, table, scale, chunks)
    if chunks is not None:
        # The chunks as they were asked for.
        stages = tuple(
            Stage(stage.placement, c, stage.recompute.within(min(c)))
            for stage, c in zip(plan.stages, chunks, strict=True)
        )
        plan = replace(plan, stages=stages)
    return plan, estimator.estimate(plan), scale


def _choose(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    request: PlanRequest,
    skeleton: Skeleton,
    table: StageTable,
    scale: Objective,
    chunks: tuple[tuple[int, ...], ...] | None,
) -> Plan:
    """Layers and recompute within what the request fixes; where nothing fits, the plan of least peak."""
    named = None if request.recompute is None else spread(request.recompute, skeleton.pp)
    if chunks is not None:
        # Unequal chunks are looked up as equal ones of the same sum, rounded up.
        unit = table.virtual_stages
        table = fixed_split(table, [-(-sum(stage) // unit) * unit for stage in chunks])
    limits = Limits(
        recompute=None if named is None else tuple(_stand_in(option, table.options) for option in named),
        same_recompute=job.framework is Framework.MEGATRON,
    )
    boundless = replace(table, capacity_bytes=np.full(skeleton.pp, np.inf))
    found = solve(table, scale, limits=limits) or solve(boundless, PEAK_ALONE, limits=limits)
    if found is None:
        raise InputError(
            "no recompute strategy of the planner exists in every stage of this plan",
            where=f"TP {skeleton.tp}, PP {skeleton.pp}, DP {skeleton.dp}",
            hint="name layers and recompute of each stage",
        )
    layers = found.layers if chunks is None else [sum(stage) for stage in chunks]
    return build_plan(cluster, model, skeleton, layers, named or [table.options[r] for r in found.options])


def _stand_in(option: Recompute, options: tuple[Recompute, ...]) -> int:
    """Index of ``option``, or of what stands in for it in choosing the split where the table leaves it out."""
    if option in options:
        return options.index(option)
    return options.index(FULL if option.kind == "uniform" and FULL in options else NONE)


def _judge(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    plan: Plan,
    estimate: Estimate,
    scale: Objective,
    estimator: Estimator,
    result: SearchResult | None,
    limits: OperatorLimits | None,
) -> Explanation:
    limits = checked_limits(limits, cluster, model, job) if limits else result.limits if result else NO_OPERATOR_LIMITS
    verdict = estimate.verdict
    reasons: list[Reason] = []
    if verdict is Verdict.DOES_NOT_FIT:
        remedy = plan_remedy(cluster, model, job, plan, estimate, estimator)
        for k, (stage, missing) in enumerate(_overfull(estimate)):
            reasons.append(
                Reason("memory", _memory_words(estimate, stage, plan), stage, missing, remedy if k == 0 else "")
            )
    else:
        reasons.append(_fitting(estimate, verdict))
    reasons += broken_limits(limits, plan, estimate)
    reasons += [
        Reason("note", f"leaves {count} {name} idle") for name, count in idle_gpus(cluster, plan.skeleton).items()
    ]
    if plan.untied:
        reasons.append(Reason("note", "unties the embeddings: first and last stage are of different vendors"))
    phi = scale.phi_of(estimate)
    gap = None
    if result is not None:
        gap = gap_to(result, scale, estimate)
        reasons += standing(result, gap, plan, estimate)
    return Explanation(verdict, tuple(reasons), RankedPlan(0, plan, estimate, phi, False), gap)


def _fitting(estimate: Estimate, verdict: Verdict) -> Reason:
    """How close to its limit a plan is that fits."""
    worst, risk = estimate.worst_gpu, estimate.oom_risk
    state = "fits, tightly" if verdict is Verdict.TIGHT else "fits"
    message = (
        f"{state}: the fullest GPU (rank {worst.rank}, {worst.gpu_type}, stage {worst.stage}) uses "
        f"{worst.peak_bytes / GIB:.1f} of {worst.capacity_bytes / GIB:.1f} GiB ({worst.used_fraction:.0%})"
    )
    remedy = ""
    if risk is not None:
        message += f"; some GPU runs out of memory with a probability of {risk:.1%}"
        if risk > MOST_RISK:
            remedy = f"more recompute or a smaller micro-batch makes {1 - MOST_RISK:.0%} sure that it fits"
    if verdict is Verdict.TIGHT and not remedy:
        remedy = "keep 10 % free until memory is measured"
    return Reason("memory", message, worst.stage, remedy=remedy)


def _overfull(estimate: Estimate) -> list[tuple[int, float]]:
    """(stage, missing bytes) of every stage above its capacity, the worst first."""
    missing: dict[int, float] = {}
    for gpu in estimate.gpus:
        lack = gpu.peak_bytes - gpu.capacity_bytes
        if lack > 0:
            missing[gpu.stage] = max(missing.get(gpu.stage, 0.0), lack)
    return sorted(missing.items(), key=lambda item: (-item[1], item[0]))


def _memory_words(estimate: Estimate, stage: int, plan: Plan) -> str:
    gpu = max((g for g in estimate.gpus if g.stage == stage), key=lambda g: g.peak_bytes - g.capacity_bytes)
    parts = sorted(gpu.breakdown.as_dict().items(), key=lambda item: -item[1])
    largest = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts[:4] if size > 0)
    return (
        f"stage {stage} ({gpu.gpu_type}, {plan.stages[stage].layers} layers, recompute {plan.stages[stage].recompute}) "
        f"needs {gpu.peak_bytes / GIB:.1f} GiB and has {gpu.capacity_bytes / GIB:.1f}: "
        f"{(gpu.peak_bytes - gpu.capacity_bytes) / GIB:.1f} GiB missing ({largest} GiB)"
    )
