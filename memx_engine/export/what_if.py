"""What a search says beside its plans, as JSON documents: what changes would buy, what must move, what is free."""

from __future__ import annotations

from memx_engine.export.documents import Document, plain, plan_document
from memx_engine.inputs.cluster import Cluster
from memx_engine.search.migration import Migration
from memx_engine.search.replan import Replan
from memx_engine.search.sensitivity import Gain, Sensitivity
from memx_engine.search.variants import FreeSearch, Searched

_METHOD = "each change is searched anew over the whole space, with the weights and references of this search"


def sensitivity_document(sensitivity: Sensitivity) -> Document:
    """The key ``sensitivity`` of ``plan --json``; changes of Phi and time are shares, below 0 is better."""
    base = sensitivity.base
    return plain(
        {
            "method": _METHOD,
            "phi": base.phi,
            "iteration_time_s": base.estimate.iteration_time_s,
            "seconds": sensitivity.seconds,
            "cancelled": sensitivity.cancelled,
            "changes": [_gain(gain) for gain in sensitivity.gains],
        }
    )


def _gain(gain: Gain) -> Document:
    change = gain.change
    return {
        "kind": change.kind,
        "subject": change.subject,
        "change": change.words,
        "phi": gain.plan.phi,
        "phi_change": gain.phi_change,
        "iteration_time_s": gain.plan.estimate.iteration_time_s,
        "iteration_time_change": gain.time_change,
        "same_plan": gain.same_plan,
        "optimal": gain.proven,
        "plan": plan_document(gain.plan, change.cluster, gpus=False),
    }


def replan_document(replan: Replan, cluster: Cluster) -> Document:
    """The key ``replan`` of ``plan --json``; ``cluster`` is the one that was planned for."""
    return plain(
        {
            "tolerance": replan.tolerance,
            "considered": replan.considered,
            "gone": replan.gone,
            "added": replan.added,
            "unchanged": replan.unchanged,
            "best": {"rank": replan.best.rank, "phi": replan.best.phi, **_moved(replan.best_migration)},
            "chosen": {
                **plan_document(replan.chosen, cluster),
                **_moved(replan.migration),
                "nodes": [
                    {"node": node, **dict(zip(_NODE_KEYS, figures, strict=True))}
                    for node, figures in moves_by_node(replan.migration, cluster).items()
                ],
                "ranks": [
                    {
                        "rank": move.rank,
                        "stage": move.stage,
                        "layers": move.layers,
                        "weights_bytes": move.weights_bytes,
                        "optimizer_bytes": move.optimizer_bytes,
                        "kept_bytes": move.kept_bytes,
                    }
                    for move in replan.migration.ranks
                ],
            },
        }
    )


_NODE_KEYS = ("gpus", "layers", "weights_bytes", "optimizer_bytes", "kept_bytes")


def moves_by_node(migration: Migration, cluster: Cluster) -> dict[str, tuple[int, int, float, float, float]]:
    """By node: GPUs, most layers that one of them receives, weights and optimizer bytes to receive, bytes kept."""
    out: dict[str, tuple[int, int, float, float, float]] = {}
    for move in migration.ranks:
        name = cluster.nodes[cluster.gpus[move.rank].node_index].name
        gpus, layers, weights, optimizer, kept = out.get(name, (0, 0, 0.0, 0.0, 0.0))
        out[name] = (
            gpus + 1,
            max(layers, move.layers),
            weights + move.weights_bytes,
            optimizer + move.optimizer_bytes,
            kept + move.kept_bytes,
        )
    return out


def _moved(migration: Migration) -> Document:
    return {
        "received_bytes": migration.received_bytes,
        "kept_bytes": migration.kept_bytes,
        "moved_layers": migration.moved_layers,
        "lost_weights_bytes": migration.lost_weights_bytes,
        "lost_optimizer_bytes": migration.lost_optimizer_bytes,
    }


def free_document(free: FreeSearch) -> Document:
    """The key ``free`` of ``plan --json``: every combination of free hyper-parameters with its best plan."""
    return plain(
        {
            "compared_by": "time per token: Phi with the first combination's references, its time by its tokens",
            "best": free.best,
            "optimal": free.optimal,
            "lower_bound": free.lower_bound,
            "variants": [_variant(one) for one in free.searched],
        }
    )


def _variant(one: Searched) -> Document:
    model, job, result = one.variant.model, one.variant.job, one.result
    document: Document = {
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "parameters": model.parameters,
        "problem": one.problem,
        "phi": None,
        "s_per_token": None,
        "plan": None,
    }
    if result is None:
        return document
    best = result.plans[0]
    return document | {
        "phi": best.phi,
        "s_per_token": one.s_per_token,
        "iteration_time_s": best.estimate.iteration_time_s,
        "tokens_per_s": best.estimate.tokens_per_s,
        "optimal": result.certificate.optimal,
        "plan": plan_document(best, result.cluster, gpus=False),
    }
