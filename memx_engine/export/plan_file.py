"""Plan files: one plan with everything it was found with and everything predicted of it, in one YAML file.

A plan file stands alone (it embeds the cluster, model and job documents) and round-trips exactly: ``load_plan`` of what
``save_plan`` wrote gives an equal :class:`PlanFile`, floats to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import memx_engine
from memx_engine.errors import OutputError
from memx_engine.export import plan_reading
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import cluster_from_document, cluster_to_document
from memx_engine.inputs.documents import dump_yaml, parse_document, read_document, write_text_atomically
from memx_engine.inputs.job import Job
from memx_engine.inputs.job_file import job_from_document, job_to_document
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import model_from_document, model_to_document
from memx_engine.inputs.nodes import Node
from memx_engine.plan import Estimate, GpuEstimate, Plan, Provenance, Stage
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.objective import Objective
from memx_engine.search.result import Certificate, RankedPlan, SearchResult
from memx_engine.units import gib

_BASIS: Final = {
    Provenance.MEASURED: "calibrated on measurements of this cluster",
    Provenance.SIMULATED: "calibrated on the SIMULATED test bed, not on real hardware",
    Provenance.UNCALIBRATED: "uncalibrated: first principles, nothing was measured",
}


@dataclass(frozen=True)
class PlanFile:
    """One plan that stands alone.

    Attributes:
        phi: The plan's value of ``objective``, whose weights and references are those of its search.
        certificate: How far from optimal that search could be; None for a plan that no search proposed.
        assumed: Every assumption that the numbers rest on, in words.
        predictor_fingerprint: Which predictor the numbers are from; another one may say other numbers.
        version: The MemX version that made the plan.
        limits: What the operator held fixed or forbade in the search.
    """

    cluster: Cluster
    model: TransformerSpec
    job: Job
    plan: Plan
    estimate: Estimate
    phi: float
    objective: Objective
    certificate: Certificate | None
    provenance: Provenance
    predictor_fingerprint: str
    assumed: tuple[str, ...] = ()
    version: str = field(default=memx_engine.__version__)
    limits: OperatorLimits = NO_OPERATOR_LIMITS


def plan_file(result: SearchResult, ranked: RankedPlan) -> PlanFile:
    """``ranked``, one of the plans of ``result``, as a plan that stands alone."""
    return PlanFile(
        cluster=result.cluster,
        model=result.model,
        job=result.job,
        plan=ranked.plan,
        estimate=ranked.estimate,
        phi=ranked.phi,
        objective=result.objective,
        certificate=result.certificate,
        provenance=result.provenance,
        predictor_fingerprint=result.predictor_fingerprint,
        assumed=result.assumed,
        limits=result.limits,
    )


def plan_text(file: PlanFile) -> str:
    """The YAML text of ``file``, with a summary for people in its first lines.

    Raises:
        OutputError: A predicted number is not finite, so that the file could not be read back.
    """
    document = {
        "schema": plan_reading.SCHEMA,
        "plan": _plan_document(file.plan, file.cluster),
        "predicted": _estimate_document(file.estimate, file.provenance, file.predictor_fingerprint),
        "phi": _finite(file.phi, "phi"),
        "weights": _weights_document(file.objective),
        **({"limits": _limits_document(file.limits)} if file.limits else {}),
        "certificate": _certificate_document(file.certificate),
        "assumed": list(file.assumed),
        "job": job_to_document(file.job),
        "model": model_to_document(file.model),
        "cluster": cluster_to_document(file.cluster),
        "memx_version": file.version,  # required and last, so that a file cut short lacks it
    }
    return f"{_header(file)}\n{dump_yaml(document)}"


def save_plan(file: PlanFile, path: str | Path, force: bool = False) -> None:
    """Write ``file`` to ``path`` in one step, so that no reader ever sees half a plan.

    Raises:
        OutputError: The path exists and ``force`` is false, or it cannot be written.
    """
    write_text_atomically(path, plan_text(file), force)


def load_plan(source: str | Path) -> PlanFile:
    """The plan in the file ``source`` (``-``: standard input), checked in every part.

    Raises:
        InputError: Unreadable, not a plan, of a newer version, or contradicting itself; names ``file:line: key``.
    """
    return _read(read_document(str(source)))


def parse_plan(text: str, name: str = "<text>") -> PlanFile:
    """The plan in YAML ``text``; errors as in :func:`load_plan` begin with ``name``."""
    root, _ = parse_document(text, name)
    assert root is not None  # without collecting, a missing root has raised
    return _read(root)


def _read(root: Node) -> PlanFile:
    plan_reading.check_kind(root)
    version = plan_reading.read_version(root)
    cluster = cluster_from_document(plan_reading.part(root, "cluster"), f"{root.problems.name}: cluster")
    model = model_from_document(plan_reading.part(root, "model"))
    job = job_from_document(plan_reading.part(root, "job"), f"{root.problems.name}: job")
    plan = plan_reading.read_plan(plan_reading.part(root, "plan"), cluster, model, job)
    predicted = plan_reading.part(root, "predicted")
    estimate = plan_reading.read_estimate(predicted, cluster, plan)
    return PlanFile(
        cluster=cluster,
        model=model,
        job=job,
        plan=plan,
        estimate=estimate,
        phi=root.number("phi", low=0.0, high=1e300, above=True),
        objective=plan_reading.read_objective(plan_reading.part(root, "weights")),
        certificate=plan_reading.read_certificate(root.child("certificate")),
        provenance=estimate.provenance,
        predictor_fingerprint=predicted.text("predictor_fingerprint"),
        assumed=root.texts("assumed"),
        version=version,
        limits=plan_reading.read_limits(root.child("limits"), cluster, model, job),
    )


def _header(file: PlanFile) -> str:
    plan, estimate, skeleton = file.plan, file.estimate, file.plan.skeleton
    worst = estimate.worst_gpu
    micro_batches = f"micro-batch {skeleton.micro_batch}, {skeleton.micro_batches} micro-batches, {skeleton.schedule}"
    lines = [
        f"Training plan for {file.model.name} on {file.cluster.name}, by MemX {file.version}",
        "",
        f"TP {skeleton.tp} x PP {skeleton.pp} x DP {skeleton.dp}, {micro_batches}",
        *(_stage_line(index, stage, file.cluster) for index, stage in enumerate(plan.stages)),
        "",
        f"Predicted: {estimate.iteration_time_s:.4g} s per iteration, {estimate.tokens_per_s:,.0f} tokens/s",
        f"Tightest GPU: {gib(worst.peak_bytes):.1f} of {gib(worst.capacity_bytes):.1f} GiB on rank {worst.rank} "
        f"({worst.gpu_type}, {worst.node})",
        f"Numbers are {_BASIS[file.provenance]}",
        f"Cluster {file.cluster.fingerprint}, model {file.model.fingerprint} "
        f"({file.model.parameters:,} parameters), predictor {file.predictor_fingerprint}",
    ]
    return "\n".join(f"# {' '.join(line.split())}".rstrip() for line in lines)


def _stage_line(index: int, stage: Stage, cluster: Cluster) -> str:
    recompute = "no recompute" if stage.recompute.kind == "none" else f"recompute {stage.recompute}"
    nodes = plan_reading.nodes_of(stage.ranks, cluster)
    shown = ", ".join(nodes) if len(nodes) <= 3 else f"{nodes[0]} and {len(nodes) - 1} other nodes"
    return f"Stage {index}: {stage.layers} layers on {len(stage.ranks)} x {stage.gpu_type} ({shown}), {recompute}"


def _plan_document(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    skeleton = plan.skeleton
    return {
        "tp": skeleton.tp,
        "pp": skeleton.pp,
        "dp": skeleton.dp,
        "micro_batch": skeleton.micro_batch,
        "micro_batches": skeleton.micro_batches,
        "global_batch": skeleton.global_batch,
        "seq_len": skeleton.seq_len,
        "schedule": skeleton.schedule,
        "virtual_stages": skeleton.virtual_stages,
        "untied": plan.untied,
        "stages": [_stage_document(stage, cluster) for stage in plan.stages],
    }


def _stage_document(stage: Stage, cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = {"gpu_type": stage.gpu_type, "layers": stage.layers}
    if len(stage.chunk_layers) > 1:
        document["chunk_layers"] = list(stage.chunk_layers)
    return document | {
        "recompute": str(stage.recompute),
        "tp": stage.tp,
        "dp": stage.dp,
        "nodes": list(plan_reading.nodes_of(stage.ranks, cluster)),
        "ranks": list(stage.ranks),
    }


def _estimate_document(estimate: Estimate, provenance: Provenance, fingerprint: str) -> dict[str, Any]:
    interval = estimate.interval_s
    return {
        "provenance": str(provenance),
        "predictor_fingerprint": fingerprint,
        "iteration_time_s": _finite(estimate.iteration_time_s, "iteration_time_s"),
        "iteration_time_interval_s": None if interval is None else _all_finite(interval, "interval_s"),
        "extrapolated": list(estimate.extrapolated),
        "additive_time_s": _finite(estimate.additive_time_s, "additive_time_s"),
        "lower_bound_s": _finite(estimate.lower_bound_s, "lower_bound_s"),
        "tokens_per_s": _finite(estimate.tokens_per_s, "tokens_per_s"),
        "time_breakdown_s": {name: _finite(v, name) for name, v in estimate.time_breakdown_s.items()},
        "stage_forward_s": _all_finite(estimate.stage_forward_s, "stage_forward_s"),
        "stage_backward_s": _all_finite(estimate.stage_backward_s, "stage_backward_s"),
        "p2p_s": _all_finite(estimate.p2p_s, "p2p_s"),
        "tail_s": _all_finite(estimate.tail_s, "tail_s"),
        "peak_memory_bytes": _finite(estimate.peak_bytes, "peak_bytes"),
        "memory_variance_mib2": _finite(estimate.memory_variance_bytes2, "memory_variance_bytes2")
        / plan_reading.VARIANCE_UNIT,
        "memory": [_gpus_document(list(group)) for _, group in groupby(estimate.gpus, key=_alike)],
    }


def _alike(gpu: GpuEstimate) -> tuple[object, ...]:
    """GPUs with equal predictions are written once, with their ranks."""
    return gpu.stage, gpu.gpu_type, gpu.peak_bytes, gpu.capacity_bytes, gpu.breakdown, gpu.oom_probability


def _gpus_document(gpus: list[GpuEstimate]) -> dict[str, Any]:
    first = gpus[0]
    return {
        "stage": first.stage,
        "ranks": [gpu.rank for gpu in gpus],
        "peak_bytes": _finite(first.peak_bytes, "peak_bytes"),
        "capacity_bytes": first.capacity_bytes,
        "oom_probability": _finite_or_none(first.oom_probability, "oom_probability"),
        "breakdown": {name: _finite(v, name) for name, v in first.breakdown.as_dict().items()},
    }


def _weights_document(objective: Objective) -> dict[str, Any]:
    weights = objective.weights
    return {
        "profile": weights.profile,
        "time": _finite(weights.time, "time"),
        "peak": _finite(weights.peak, "peak"),
        "variance": _finite(weights.variance, "variance"),
        "reason": weights.reason,
        "variance_kind": objective.variance_kind,
        "references": {name: _finite(value, name) for name, value in references_document(objective).items()},
    }


def _limits_document(limits: OperatorLimits) -> dict[str, Any]:
    """The limits in the words of their flags."""
    document: dict[str, Any] = {name: list(values) for name, values in limits.described().items()}
    for name in ("max_layer_difference", "all_orders"):
        if name in document:
            document[name] = document[name][0]
    if limits.type_order is not None:
        document["type_order"] = document.pop("fixed_type_order")[0]
    return document


def references_document(objective: Objective) -> Mapping[str, float]:
    """The references by their names in documents, variances in MiB² (a share² where the kind is ``utilization``)."""
    unit = plan_reading.variance_unit(objective.variance_kind)
    references = objective.references
    return {
        "time_s": references.time_s,
        "peak_bytes": references.peak_bytes,
        "variance_mib2": references.variance_bytes2 / unit,
        "epsilon_mib2": references.epsilon_bytes2 / unit,
    }


def _certificate_document(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    return {
        "objective": certificate.objective,
        "best": _finite(certificate.best, "best"),
        "lower_bound": _finite_or_none(certificate.lower_bound, "lower_bound"),
        "gap": _finite_or_none(certificate.gap, "gap"),
        "optimal": certificate.optimal,
        "event_gap": _finite_or_none(certificate.event_gap, "event_gap"),
        "rescored": certificate.rescored,
        "event_lower_bound": _finite_or_none(certificate.event_lower_bound, "event_lower_bound"),
    }


def _finite(value: float, name: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise OutputError(f"{name} is {number}: a plan without finite predictions cannot be saved", where="plan file")
    return number


def _finite_or_none(value: float | None, name: str) -> float | None:
    return None if value is None else _finite(value, name)


def _all_finite(values: Iterable[float], name: str) -> list[float]:
    return [_finite(value, name) for value in values]
