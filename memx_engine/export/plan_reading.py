"""Reading a plan file's own parts, each checked against the cluster, the model, the job and the other parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Final

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.nodes import Node
from memx_engine.inputs.parallelism import tp_problem
from memx_engine.plan import (
    Estimate,
    GpuEstimate,
    MemoryBreakdown,
    Plan,
    Provenance,
    Recompute,
    Skeleton,
    Stage,
    StagePlacement,
)
from memx_engine.search.limit_checks import checked_limits
from memx_engine.search.limit_words import parse_limits
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits
from memx_engine.search.objective import Objective, References, Weights
from memx_engine.search.result import Certificate
from memx_engine.units import MIB

SCHEMA: Final = "memx/plan/v1"

VARIANCE_UNIT: Final = float(MIB * MIB)
"""Bytes² in one MiB²; a power of two, so that converting loses nothing."""

KEYS: Final = (
    "schema",
    "plan",
    "predicted",
    "phi",
    "weights",
    "limits",
    "certificate",
    "assumed",
    "job",
    "model",
    "cluster",
    "memx_version",
)
_PLAN_KEYS: Final = (
    "tp",
    "pp",
    "dp",
    "micro_batch",
    "micro_batches",
    "global_batch",
    "seq_len",
    "schedule",
    "virtual_stages",
    "untied",
    "stages",
)
_STAGE_KEYS: Final = ("gpu_type", "layers", "chunk_layers", "recompute", "tp", "dp", "nodes", "ranks")
_PREDICTED_KEYS: Final = (
    "provenance",
    "predictor_fingerprint",
    "iteration_time_s",
    "iteration_time_interval_s",
    "extrapolated",
    "additive_time_s",
    "lower_bound_s",
    "tokens_per_s",
    "time_breakdown_s",
    "stage_forward_s",
    "stage_backward_s",
    "p2p_s",
    "tail_s",
    "peak_memory_bytes",
    "memory_variance_mib2",
    "memory",
)
_MEMORY_KEYS: Final = ("stage", "ranks", "peak_bytes", "capacity_bytes", "oom_probability", "breakdown")
_PARTS: Final = tuple(f.name for f in fields(MemoryBreakdown))

_MOST = 1 << 31
_BIG = 1e300
_TOLERANCE = 1e-3  # of sums; far above rounding, far below any edit that matters


def variance_unit(kind: str) -> float:
    """What a variance is divided by when written: bytes² per MiB², 1 where memory is a share of capacity."""
    return 1.0 if kind == "utilization" else VARIANCE_UNIT


def nodes_of(ranks: Iterable[int], cluster: Cluster) -> tuple[str, ...]:
    """Names of the nodes that hold ``ranks``, each once, in order of appearance."""
    return tuple(dict.fromkeys(cluster.nodes[cluster.gpus[rank].node_index].name for rank in ranks))


def check_kind(root: Node) -> None:
    """Refuse what is no plan file, or one of a newer version, before anything else is said about it."""
    if root.fields is None:
        root.fail("this is not a plan file", "a plan file is written by memx-tui plan -o FILE")
    schema = root.child("schema")
    word = schema.scalar if schema is not None else None
    if schema is None or word is None:
        root.fail("schema is missing: this is not a plan file", f"a plan file begins with schema: {SCHEMA}", "schema")
        return
    if word != SCHEMA:
        newer = re.fullmatch(r"memx/plan/v(\d+)", word)
        if newer and int(newer[1]) > 1:
            schema.fail(
                f"this plan was written by a newer MemX: it is {word}, this version reads {SCHEMA}", "upgrade memx-tui"
            )
        other = re.fullmatch(r"memx/([\w-]+)/v\d+", word)
        kind = f"this is a {other[1]} file, not a plan file" if other else f"{word!r} is not the schema of a plan file"
        schema.fail(kind, f"a plan file begins with schema: {SCHEMA}")
    root.expect_mapping(KEYS)


def part(root: Node, key: str) -> Node:
    """The part of the plan file under ``key``; a truncated file lacks some."""
    node = root.child(key)
    if node is None:
        raise InputError(
            f"the plan file has no {key}",
            where=root.problems.where(0, key),
            hint="is the file complete? Save the plan again",
        )
    return node


def read_version(root: Node) -> str:
    """The MemX version that wrote the file: its last line, so that a truncated file is told before anything else."""
    version = part(root, "memx_version")
    word = version.as_text()
    if not re.fullmatch(r"\d+\.\d+\.\d+\S*", word):
        version.fail(f"{word!r} is not a version", "is the file complete?")
    return word


def read_plan(node: Node, cluster: Cluster, model: TransformerSpec, job: Job) -> Plan:
    """The plan, legal for ``model`` and ``job`` and placed on GPUs that ``cluster`` has."""
    node.expect_mapping(_PLAN_KEYS)
    sizes = {key: node.integer(key, low=1, high=_MOST) for key in ("tp", "pp", "dp", "micro_batch", "virtual_stages")}
    tp, pp, dp, micro_batch, virtual = sizes.values()
    global_batch = node.integer("global_batch", low=1, high=_MOST)
    seq_len = node.integer("seq_len", low=1, high=_MOST)
    for key, value, wanted in (("global_batch", global_batch, job.global_batch), ("seq_len", seq_len, job.seq_len)):
        if value != wanted:
            node.fail(f"{value} is not the job's {wanted}", "the plan and its job must agree", key)
    if global_batch % (dp * micro_batch):
        node.fail(
            f"dp {dp} x micro_batch {micro_batch} does not divide the global batch {global_batch}", key="micro_batch"
        )
    count = node.integer("micro_batches", low=1, high=_MOST)
    if count != global_batch // (dp * micro_batch):
        node.fail(
            f"{count} micro-batches, but the batch makes {global_batch // (dp * micro_batch)}", key="micro_batches"
        )
    if node.choice("schedule", ("1f1b", "interleaved")) != ("interleaved" if virtual > 1 else "1f1b"):
        node.fail(f"the schedule does not go with virtual_stages {virtual}", key="schedule")
    if virtual > 1 and count % pp:
        node.fail(f"interleaving needs micro-batches ({count}) in multiples of pp ({pp})", key="micro_batches")
    problem = tp_problem(model, tp, kv_replication=True)
    if problem:
        node.fail(problem, key="tp")
    stages = _read_stages(node, cluster, virtual)
    if len(stages) != pp:
        node.fail(f"{len(stages)} stages, but pp is {pp}", key="stages")
    for index, stage in enumerate(stages):
        if (stage.tp, stage.dp) != (tp, dp):
            node.fail(f"stage {index} has tp {stage.tp}, dp {stage.dp}; the plan tp {tp}, dp {dp}", key="stages")
    total = sum(stage.layers for stage in stages)
    if total != model.layers:
        node.fail(
            f"the stages hold {' + '.join(str(s.layers) for s in stages)} = {total} layers, the model has "
            f"{model.layers}",
            "every layer must be placed exactly once",
            "stages",
        )
    skeleton = Skeleton(tp, pp, dp, micro_batch, seq_len, global_batch, tuple(s.placement for s in stages), virtual)
    return Plan(skeleton, stages, node.flag("untied", False))


def _read_stages(node: Node, cluster: Cluster, virtual: int) -> tuple[Stage, ...]:
    owner: dict[int, int] = {}
    stages: list[Stage] = []
    for index, item in enumerate(part(node, "stages").items()):
        stage = _read_stage(item, cluster, virtual)
        for rank in stage.ranks:
            if rank in owner:
                where = "twice in this stage" if owner[rank] == index else f"in stage {owner[rank]} too"
                item.fail(f"rank {rank} is {where}", "a GPU belongs to one stage", "ranks")
            owner[rank] = index
        stages.append(stage)
    return tuple(stages)


def _read_stage(item: Node, cluster: Cluster, virtual: int) -> Stage:
    item.expect_mapping(_STAGE_KEYS)
    gpu_type = item.choice("gpu_type", [t.name for t in cluster.gpu_types])
    tp, dp = item.integer("tp", low=1, high=_MOST), item.integer("dp", low=1, high=_MOST)
    ranks = item.integers("ranks", low=0, high=len(cluster.gpus) - 1) or ()
    if len(ranks) != tp * dp:
        item.fail(f"{len(ranks)} ranks, but tp {tp} x dp {dp} needs {tp * dp}", key="ranks")
    for rank in ranks:
        found = cluster.gpus[rank].gpu_type.name
        if found != gpu_type:
            item.fail(f"rank {rank} is a {found}, not a {gpu_type}", "a stage is made of one GPU type", "ranks")
    for first in range(0, len(ranks), tp):
        group = nodes_of(ranks[first : first + tp], cluster)
        if len(group) > 1:
            item.fail(f"the tensor-parallel group of rank {ranks[first]} spans {', '.join(group)}", key="ranks")
    nodes = item.texts("nodes")
    if nodes and nodes != nodes_of(ranks, cluster):
        item.fail(f"the ranks are on {', '.join(nodes_of(ranks, cluster))}", key="nodes")
    layers = item.integer("layers", low=1, high=_MOST)
    chunks = item.integers("chunk_layers", low=1, high=_MOST) or (layers,)
    if len(chunks) != virtual:
        item.fail(f"{len(chunks)} chunks, but virtual_stages is {virtual}", key="chunk_layers")
    if sum(chunks) != layers:
        item.fail(f"the chunks hold {sum(chunks)} layers, the stage {layers}", key="chunk_layers")
    return Stage(StagePlacement(gpu_type, tp, dp, ranks), chunks, _read_recompute(item, chunks))


def _read_recompute(item: Node, chunks: Sequence[int]) -> Recompute:
    word = item.text("recompute")
    try:
        recompute = Recompute.parse(word)
    except InputError as error:
        raise InputError(error.message, where=(item.child("recompute") or item).where, hint=error.hint) from error
    if recompute.n > max(chunks):
        item.fail(f"{recompute} counts more layers than the stage has ({max(chunks)})", key="recompute")
    return recompute


def read_estimate(node: Node, cluster: Cluster, plan: Plan) -> Estimate:
    """What was predicted of ``plan``; its sums must add up and its GPUs be the plan's."""
    node.expect_mapping(_PREDICTED_KEYS)
    pp = plan.skeleton.pp
    gpus = _read_memory(part(node, "memory"), cluster, plan)
    peak = node.number("peak_memory_bytes", low=0.0, high=_BIG)
    if not _close(peak, max(gpu.peak_bytes for gpu in gpus)):
        node.fail("this is not the highest peak of the GPUs below", key="peak_memory_bytes")
    time_s = node.number("iteration_time_s", low=0.0, high=_BIG, above=True)
    breakdown_node = part(node, "time_breakdown_s")
    breakdown_node.expect_mapping()
    breakdown = {name: value.as_number(-_BIG, _BIG) for name, value in (breakdown_node.fields or {}).items()}
    if not _close(sum(breakdown.values()), time_s):
        breakdown_node.fail(f"the parts sum to {sum(breakdown.values()):g} s, iteration_time_s is {time_s:g}")
    interval = _numbers(node, "iteration_time_interval_s", 2) if node.child("iteration_time_interval_s") else None
    return Estimate(
        iteration_time_s=time_s,
        additive_time_s=node.number("additive_time_s", low=0.0, high=_BIG),
        lower_bound_s=node.number("lower_bound_s", low=0.0, high=_BIG),
        tokens_per_s=node.number("tokens_per_s", low=0.0, high=_BIG),
        time_breakdown_s=breakdown,
        stage_forward_s=_numbers(node, "stage_forward_s", pp),
        stage_backward_s=_numbers(node, "stage_backward_s", pp),
        p2p_s=_numbers(node, "p2p_s", None),
        tail_s=_numbers(node, "tail_s", pp),
        gpus=gpus,
        peak_bytes=peak,
        memory_variance_bytes2=node.number("memory_variance_mib2", low=0.0, high=_BIG) * VARIANCE_UNIT,
        interval_s=None if interval is None else (interval[0], interval[1]),
        extrapolated=node.texts("extrapolated") if node.child("extrapolated") is not None else (),
        provenance=Provenance(node.choice("provenance", [str(p) for p in Provenance])),
    )


def _numbers(node: Node, key: str, length: int | None) -> tuple[float, ...]:
    values = tuple(item.as_number(0.0, _BIG) for item in part(node, key).items()) if node.child(key) else ()
    if length is not None and len(values) != length:
        node.fail(f"{len(values)} values, expected {length}", key=key)
    return values


def _read_memory(node: Node, cluster: Cluster, plan: Plan) -> tuple[GpuEstimate, ...]:
    stage_of = {rank: index for index, stage in enumerate(plan.stages) for rank in stage.ranks}
    gpus: dict[int, GpuEstimate] = {}
    for item in node.items():
        item.expect_mapping(_MEMORY_KEYS)
        parts = part(item, "breakdown")
        parts.expect_mapping(_PARTS)
        breakdown = MemoryBreakdown(**{name: parts.number(name, low=0.0, high=_BIG) for name in _PARTS})
        peak = item.number("peak_bytes", low=0.0, high=_BIG)
        if not _close(peak, breakdown.total):
            item.fail(f"the parts sum to {breakdown.total:.0f} bytes, not {peak:.0f}", key="peak_bytes")
        capacity = item.integer("capacity_bytes", low=0, high=1 << 53)
        probability = (
            item.number("oom_probability", low=0.0, high=1.0) if item.child("oom_probability") is not None else None
        )
        stage = item.integer("stage", low=0, high=plan.skeleton.pp - 1)
        for rank in item.integers("ranks", low=0, high=len(cluster.gpus) - 1) or ():
            gpu = cluster.gpus[rank]
            if stage_of.get(rank) != stage or rank in gpus:
                item.fail(f"rank {rank} is not a GPU of stage {stage}, or is listed twice", key="ranks")
            if capacity != gpu.capacity_bytes:
                item.fail(f"rank {rank} has {gpu.capacity_bytes} bytes, not {capacity}", key="capacity_bytes")
            name = cluster.nodes[gpu.node_index].name
            gpus[rank] = GpuEstimate(rank, name, gpu.gpu_type.name, stage, peak, capacity, breakdown, probability)
    missing = sorted(set(stage_of) - set(gpus))
    if missing:
        node.fail(f"nothing is predicted for rank {missing[0]}", "is the file complete?")
    return tuple(gpus.values())


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_TOLERANCE)


def read_objective(node: Node) -> Objective:
    """The weights and the references that phi was computed with."""
    node.expect_mapping(("profile", "time", "peak", "variance", "reason", "variance_kind", "references"))
    time_w, peak_w, variance_w = (node.number(key, low=0.0, high=1.0) for key in ("time", "peak", "variance"))
    reason = node.child("reason")
    kind = node.choice("variance_kind", ("bytes", "utilization"))
    unit = variance_unit(kind)
    references = part(node, "references")
    names = ("time_s", "peak_bytes", "variance_mib2", "epsilon_mib2")
    references.expect_mapping(names)
    time_s, peak, variance, epsilon = (references.number(name, low=0.0, high=_BIG) for name in names)
    try:
        why = (reason.scalar or "") if reason is not None else ""
        weights = Weights(node.text("profile"), time_w, peak_w, variance_w, why)
    except InputError as error:
        raise InputError(error.message, where=node.where, hint=error.hint) from error
    return Objective(weights, References(time_s, peak, variance * unit, epsilon * unit), kind)


def read_limits(node: Node | None, cluster: Cluster, model: TransformerSpec, job: Job) -> OperatorLimits:
    """What the operator held fixed or forbade in that search; nothing where the file does not say."""
    if node is None:
        return NO_OPERATOR_LIMITS
    node.expect_mapping(("pin_layers", "pin_recompute", "forbid", "keep_free", "max_layer_difference", *_ORDERS))
    difference = node.child("max_layer_difference")
    try:
        limits = parse_limits(
            pin_layers=node.texts("pin_layers"),
            pin_recompute=node.texts("pin_recompute"),
            forbid=node.texts("forbid"),
            keep_free=node.texts("keep_free"),
            max_layer_difference=None if difference is None else difference.as_integer(0, _MOST),
            type_order=node.text("type_order") if node.child("type_order") is not None else None,
            all_orders=node.flag("all_orders", False),
        )
        return checked_limits(limits, cluster, model, job)
    except InputError as error:
        where = node.where if error.where.startswith("--") else error.where
        raise InputError(error.message, where=where, hint=error.hint) from None


_ORDERS: Final = ("type_order", "all_orders")


def read_certificate(node: Node | None) -> Certificate | None:
    """How far from optimal the search could be; None where no search proposed the plan."""
    if node is None:
        return None
    node.expect_mapping([f.name for f in fields(Certificate)])

    def optional(key: str) -> float | None:
        return node.number(key, low=-_BIG, high=_BIG) if node.child(key) is not None else None

    return Certificate(
        objective=node.text("objective"),
        best=node.number("best", low=-_BIG, high=_BIG),
        lower_bound=optional("lower_bound"),
        gap=optional("gap"),
        optimal=node.flag("optimal", False),
        event_gap=optional("event_gap"),
        rescored=node.integer("rescored", low=0, high=_MOST),
        event_lower_bound=optional("event_lower_bound"),
    )
