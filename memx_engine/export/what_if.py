"""What a search says beside its plans, as JSON documents: what changes would buy, what must move."""

from __future__ import annotations

from memx_engine.export.documents import Document, plain, plan_document
from memx_engine.inputs.cluster import Cluster
from memx_engine.search.migration import Migration
from memx_engine.search.replan import Replan
from memx_engine.search.sensitivity import Gain, Sensitivity

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
