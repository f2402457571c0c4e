"""Planning again when a cluster changed: what can stay where it is, and what must move.

Among the plans whose Phi and iteration time are within a tolerance of the best plan's, the one that moves least is
taken. Candidates are the best plans of the search, each also with its stages of one GPU type exchanged so that they
meet the layers they had, and the plan in hand itself where the cluster still holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.nodes import nearest
from memx_engine.plan import Plan, Skeleton, Stage, Verdict
from memx_engine.search.limit_reasons import broken_limits
from memx_engine.search.migration import Migration, ModelState, is_sharded, migration
from memx_engine.search.result import RankedPlan, SearchResult
from memx_engine.search.rules import PlanRequest, broken_rules

DEFAULT_TOLERANCE = 0.02
"""How far above the best plan, in Phi and in time, a plan may be that moves less."""


@dataclass(frozen=True)
class Before:
    """The plan in hand, with what it was made for."""

    cluster: Cluster
    model: TransformerSpec
    job: Job
    plan: Plan


@dataclass(frozen=True)
class Replan:
    """The answer.

    Attributes:
        best, best_migration: The plan of least Phi and what moving to it takes.
        chosen, migration: The plan that moves least within ``tolerance`` of the best, and what it takes. Its rank is
            the one that its Phi has among the search's plans.
        unchanged: The chosen plan is the plan in hand, on the same GPUs.
        considered: Plans within the tolerance, exchanged ones counted.
        gone, added: Names of nodes.
    """

    best: RankedPlan
    best_migration: Migration
    chosen: RankedPlan
    migration: Migration
    unchanged: bool
    tolerance: float
    considered: int
    gone: tuple[str, ...]
    added: tuple[str, ...]


def without_nodes(cluster: Cluster, names: Iterable[str]) -> Cluster:
    """``cluster`` without the nodes called ``names``.

    Raises:
        InputError: There is no such node, or none is left.
    """
    leaving = tuple(dict.fromkeys(names))
    known = [node.name for node in cluster.nodes]
    for name in leaving:
        if name not in known:
            near = nearest(name, known)
            raise InputError(
                f"the cluster has no node {name!r}",
                where="--without",
                hint=f"did you mean {near[0]}?" if near else f"its nodes are {', '.join(known[:8])}",
            )
    if not leaving:
        return cluster
    kept = tuple(node for node in cluster.nodes if node.name not in leaving)
    if not kept:
        raise InputError("no node is left", where="--without", hint="leave at least one node to plan with")
    said = f"planned without {', '.join(leaving)}, as asked"
    return replace(cluster, nodes=kept, assumed=(*cluster.assumed, said))


def ranks_before(old: Cluster, new: Cluster) -> dict[int, int]:
    """New rank to old rank of every GPU that stays: same node name, same place in it, same type."""
    places = {(old.nodes[g.node_index].name, g.local_index, g.gpu_type.name): g.rank for g in old.gpus}
    out: dict[int, int] = {}
    for gpu in new.gpus:
        before = places.get((new.nodes[gpu.node_index].name, gpu.local_index, gpu.gpu_type.name))
        if before is not None:
            out[gpu.rank] = before
    return out


def replan(
    result: SearchResult, before: Before, *, tolerance: float = DEFAULT_TOLERANCE, only: RankedPlan | None = None
) -> Replan:
    """Choose among the plans of ``result`` by what moving there from ``before`` takes.

    Args:
        tolerance: Share of the best plan's Phi, and of its iteration time, that a plan may be above it.
        only: The plan that the operator picked: nothing is chosen, only what moves is told.

    Raises:
        InputError: The plan in hand is of another model or precision, so that nothing of it can stay.
    """
    if tolerance < 0:
        raise InputError("the tolerance cannot be negative", where="--tolerance")
    if before.model.fingerprint != result.model.fingerprint:
        raise InputError(
            f"the plan is of {before.model.name}, and {result.model.name} is planned: nothing of it can stay",
            where="--from",
            hint="leave --model out to plan the same model",
        )
    if before.job.precision is not result.job.precision:
        raise InputError(
            f"the plan trains in {before.job.precision}, and {result.job.precision} is planned",
            where="--from",
            hint=f"plan with --precision {before.job.precision}",
        )
    state = ModelState(result.model, result.job)
    old = state.held(before.plan, is_sharded(before.job))
    stay = ranks_before(before.cluster, result.cluster)

    def moves(plan: Plan) -> Migration:
        return migration(state, old, plan, sharded=is_sharded(result.job), rank_before=stay)

    best = result.plans[0]
    best_migration = moves(best.plan)
    phi_limit, time_limit_s = (v * (1.0 + tolerance) for v in (best.phi, best.estimate.iteration_time_s))

    def close(ranked: RankedPlan) -> bool:
        return ranked.phi <= phi_limit and ranked.estimate.iteration_time_s <= time_limit_s

    if only is not None:
        candidates = [(only, moves(only.plan))]
    else:
        candidates = [(ranked, moves(ranked.plan)) for ranked in result.plans if close(ranked)]
        for ranked in _more_candidates(result, before, stay, [ranked for ranked, _ in candidates]):
            if close(ranked):
                candidates.append((ranked, moves(ranked.plan)))
    chosen, taken = min(candidates, key=lambda pair: (pair[1].received_bytes, pair[0].phi))
    return Replan(
        best,
        best_migration,
        chosen,
        taken,
        chosen.plan == _mapped(before, result.job, stay),
        tolerance,
        len(candidates),
        tuple(n.name for n in before.cluster.nodes if n.name not in {m.name for m in result.cluster.nodes}),
        tuple(n.name for n in result.cluster.nodes if n.name not in {m.name for m in before.cluster.nodes}),
    )


def _more_candidates(
    result: SearchResult, before: Before, stay: Mapping[int, int], found: list[RankedPlan]
) -> Iterator[RankedPlan]:
    """The found plans with stages exchanged, and the plan in hand, as far as they fit and keep the limits."""
    plans = [_exchanged(ranked.plan, before.plan, stay) for ranked in found]
    mapped = _mapped(before, result.job, stay)
    if mapped is not None and not broken_rules(result.cluster, result.model, result.job, _request(mapped)):
        plans.append(mapped)
    known = {ranked.plan for ranked in found}
    for plan in plans:
        if plan is None or plan in known:
            continue
        known.add(plan)
        estimate = result.estimator.estimate(plan)
        if estimate.verdict is Verdict.DOES_NOT_FIT or any(broken_limits(result.limits, plan, estimate)):
            continue
        phi = result.objective.phi_of(estimate)
        yield RankedPlan(1 + result.table.ahead_of(phi), plan, estimate, phi, False)


def _mapped(before: Before, job: Job, stay: Mapping[int, int]) -> Plan | None:
    """The plan in hand with the ranks of the new cluster; None where some GPU of it is gone."""
    after = {old: new for new, old in stay.items()}
    shape = before.plan.skeleton
    if any(rank not in after for p in shape.placements for rank in p.ranks):
        return None
    if job.global_batch % (shape.dp * shape.micro_batch):
        return None
    placements = tuple(replace(p, ranks=tuple(after[rank] for rank in p.ranks)) for p in shape.placements)
    skeleton = replace(shape, placements=placements, global_batch=job.global_batch, seq_len=job.seq_len)
    return _placed(before.plan, skeleton)


def _placed(plan: Plan, skeleton: Skeleton) -> Plan:
    stages = (
        Stage(placement, stage.chunk_layers, stage.recompute)
        for placement, stage in zip(skeleton.placements, plan.stages, strict=True)
    )
    return replace(plan, skeleton=skeleton, stages=tuple(stages))


def _request(plan: Plan) -> PlanRequest:
    shape = plan.skeleton
    layers = tuple(stage.chunk_layers[k] for k in range(shape.virtual_stages) for stage in plan.stages)
    return PlanRequest(shape.tp, shape.pp, shape.dp, shape.micro_batch, layers, plan.recompute, shape.virtual_stages)


def _exchanged(plan: Plan, old: Plan, stay: Mapping[int, int]) -> Plan:
    """``plan`` with the GPUs of its stages exchanged inside each type, so that most layers are where they were."""
    from scipy.optimize import linear_sum_assignment

    had = {rank: layers for layers, stage in zip(_layers_of(old), old.stages, strict=True) for rank in stage.ranks}
    wanted = _layers_of(plan)
    placements = list(plan.skeleton.placements)
    for name in dict.fromkeys(p.gpu_type for p in placements):
        alike = [i for i, p in enumerate(placements) if p.gpu_type == name]
        sets = [placements[i].ranks for i in alike]
        common = np.zeros((len(alike), len(sets)))
        for j, ranks in enumerate(sets):
            for rank in ranks:
                held = had.get(stay.get(rank, -1))
                if held is not None:
                    common[:, j] += [len(held & wanted[i]) for i in alike]
        # Ties stay as they are: a hair for every stage that keeps its place.
        common += 1e-6 * np.eye(len(alike))
        _, chosen = linear_sum_assignment(common, maximize=True)
        for i, j in zip(alike, chosen.tolist(), strict=True):
            placements[i] = replace(placements[i], ranks=sets[j])
    return _placed(plan, replace(plan.skeleton, placements=tuple(placements)))


def _layers_of(plan: Plan) -> list[frozenset[int]]:
    """Layers of every stage."""
    out: list[set[int]] = [set() for _ in plan.stages]
    layer = 0
    for k in range(plan.skeleton.virtual_stages):
        for i, stage in enumerate(plan.stages):
            out[i] |= set(range(layer, layer + stage.chunk_layers[k]))
            layer += stage.chunk_layers[k]
    return [frozenset(layers) for layers in out]
