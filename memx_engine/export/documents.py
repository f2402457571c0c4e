"""Results as JSON documents with fixed keys: what ``--json`` prints.

Every value is plain (dict, list, str, int, float, bool, None) and finite; a number that is not becomes null. Memory is
in bytes, its variance in MiB².
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memx_engine.export.plan_file import references_document
from memx_engine.export.plan_reading import VARIANCE_UNIT, nodes_of
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.job_file import job_to_document
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, GpuEstimate, Plan
from memx_engine.search.objective import Objective
from memx_engine.search.result import Certificate, RankedPlan, SearchResult

if TYPE_CHECKING:
    from memx_engine.search.explain import Explanation

SEARCH_SCHEMA: Final = "memx/search-result/v1"
EXPLAIN_SCHEMA: Final = "memx/explain/v1"

Document = dict[str, Any]


def search_document(result: SearchResult, top: int = 10) -> Document:
    """What ``plan --json`` prints: the search, and the best plans of the ``top`` best skeletons in full.

    Plans under ``pareto`` come without their per-GPU table, which would repeat thousands of GPUs on large clusters.
    """
    cluster = result.cluster
    rows = min(top, len(result.table))
    return plain(
        {
            "schema": SEARCH_SCHEMA,
            **_inputs(cluster, result.model, result.job),
            "assumed": result.assumed,
            "provenance": result.provenance,
            "predictor_fingerprint": result.predictor_fingerprint,
            "weights": _weights(result.objective),
            "search": {
                "space": result.space,
                "skeletons": result.skeletons,
                "pruned": {
                    "placement": result.pruned.placement,
                    "memory": result.pruned.memory,
                    "time": result.pruned.time,
                },
                "feasible": result.feasible,
                "plans_covered": result.plans_covered,
                "seconds": result.seconds,
                "cancelled": result.cancelled,
                "cache": {"hits": result.cache_hits, "misses": result.cache_misses},
                "certificate": _certificate(result.certificate),
                "front": asdict(result.front),
            },
            "plans": [plan_document(result.detail(row), cluster) for row in range(rows)],
            "time_optimal": plan_document(result.time_optimal, cluster),
            "pareto": [plan_document(ranked, cluster, gpus=False) for ranked in result.pareto],
            "baselines": [],
        }
    )


def explain_document(explanation: Explanation, cluster: Cluster, model: TransformerSpec, job: Job) -> Document:
    """What ``explain --json`` prints; ``plan`` is null only where the request was invalid."""
    ranked = explanation.plan
    return plain(
        {
            "schema": EXPLAIN_SCHEMA,
            **_inputs(cluster, model, job),
            "assumed": list(dict.fromkeys((*job.assumed, *model.assumed, *cluster.assumed))),
            "provenance": None if ranked is None else ranked.estimate.provenance,
            "verdict": explanation.verdict,
            "reasons": [
                {
                    "rule": reason.rule,
                    "message": reason.message,
                    "stage": reason.stage,
                    "missing_bytes": reason.missing_bytes,
                    "remedy": reason.remedy,
                }
                for reason in explanation.reasons
            ],
            "plan": None if ranked is None else plan_document(ranked, cluster),
            "gap": None if explanation.gap is None else asdict(explanation.gap),
        }
    )


def plan_document(ranked: RankedPlan, cluster: Cluster, *, gpus: bool = True) -> Document:
    """One plan with everything predicted of it; ``gpus`` adds the table of every GPU."""
    document: Document = {"rank": ranked.rank, "phi": ranked.phi, "pareto": ranked.pareto}
    return plain(document | layout_document(ranked.plan, cluster) | prediction_document(ranked.estimate, gpus=gpus))


def layout_document(plan: Plan, cluster: Cluster) -> Document:
    """What is decided."""
    skeleton = plan.skeleton
    stages = []
    for stage in plan.stages:
        document: Document = {"gpu_type": stage.gpu_type, "layers": stage.layers, "recompute": str(stage.recompute)}
        if len(stage.chunk_layers) > 1:
            document["chunk_layers"] = stage.chunk_layers
        stages.append(document | {"ranks": stage.ranks, "nodes": nodes_of(stage.ranks, cluster)})
    return {
        "tp": skeleton.tp,
        "pp": skeleton.pp,
        "dp": skeleton.dp,
        "micro_batch": skeleton.micro_batch,
        "seq_len": skeleton.seq_len,
        "global_batch": skeleton.global_batch,
        "micro_batches": skeleton.micro_batches,
        "schedule": skeleton.schedule,
        "virtual_stages": skeleton.virtual_stages,
        "untied": plan.untied,
        "stages": stages,
    }


def prediction_document(estimate: Estimate, *, gpus: bool = True) -> Document:
    """What is predicted."""
    document: Document = {
        "iteration_time_s": estimate.iteration_time_s,
        "iteration_time_interval_s": estimate.interval_s,
        "extrapolated": list(estimate.extrapolated),
        "tokens_per_s": estimate.tokens_per_s,
        "time_breakdown_s": estimate.time_breakdown_s,
        "peak_memory_bytes": estimate.peak_bytes,
        "memory_variance_mib2": estimate.memory_variance_bytes2 / VARIANCE_UNIT,
        "verdict": estimate.verdict,
    }
    if gpus:
        document["gpus"] = [_gpu(gpu) for gpu in estimate.gpus]
    return document


def _gpu(gpu: GpuEstimate) -> Document:
    return {
        "rank": gpu.rank,
        "node": gpu.node,
        "gpu_type": gpu.gpu_type,
        "stage": gpu.stage,
        "peak_bytes": gpu.peak_bytes,
        "capacity_bytes": gpu.capacity_bytes,
        "oom_probability": gpu.oom_probability,
        "breakdown": gpu.breakdown.as_dict(),
    }


def _inputs(cluster: Cluster, model: TransformerSpec, job: Job) -> Document:
    job_document = dict(job_to_document(job))
    for key in ("schema", "assumed"):
        job_document.pop(key, None)
    return {
        "cluster": {
            "name": cluster.name,
            "fingerprint": cluster.fingerprint,
            "gpus": len(cluster.gpus),
            "gpu_types": {name: len(ranks) for name, ranks in cluster.ranks_by_type.items()},
        },
        "model": {"name": model.name, "fingerprint": model.fingerprint, "parameters": model.parameters},
        "job": job_document,
    }


def _weights(objective: Objective) -> Document:
    weights = objective.weights
    return {
        "profile": weights.profile,
        "time": weights.time,
        "peak": weights.peak,
        "variance": weights.variance,
        "reason": weights.reason,
        "variance_kind": objective.variance_kind,
        "references": references_document(objective),
    }


def _certificate(certificate: Certificate) -> Document:
    return {
        "objective": certificate.objective,
        "lower_bound": certificate.lower_bound,
        "best": certificate.best,
        "gap": certificate.gap,
        "optimal": certificate.optimal,
        "event_gap": certificate.event_gap,
        "rescored": certificate.rescored,
        "event_lower_bound": certificate.event_lower_bound,
    }


def plain(document: Mapping[str, Any]) -> Document:
    """``document`` with every value as JSON knows it; numbers that are not finite become null."""
    return {str(key): _plain(value) for key, value in document.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, Sequence | np.ndarray | Iterable):
        return [_plain(item) for item in value]
    return str(value)
