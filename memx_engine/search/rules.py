"""The rules a plan must keep whatever it costs, as reasons that a person can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import legal_tp, tp_by_heads
from memx_engine.plan import Recompute
from memx_engine.search.space import MICRO_BATCHES, Placer, even_split, excluded_types, schedule_problem


@dataclass(frozen=True)
class PlanRequest:
    """A plan that somebody asks about.

    Attributes:
        layers: Per stage, or per chunk in the model's order (PP x virtual stages entries); None is the framework's
            even split, ``auto`` the planner's best.
        recompute: One for all stages or one per stage; None leaves the choice to the planner.
        type_order: GPU types along the pipeline; None leaves the choice to the planner.
    """

    tp: int
    pp: int
    dp: int
    micro_batch: int
    layers: tuple[int, ...] | Literal["auto"] | None = None
    recompute: tuple[Recompute, ...] | None = None
    virtual_stages: int = 1
    type_order: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reason:
    """One thing to say about a plan.

    Attributes:
        rule: ``tp``, ``placement``, ``batch``, ``layers``, ``schedule``, ``recompute``, ``memory``, ``limit``,
            ``time``, ``space``, ``order``, ``note``.
        stage: 0-based, where one stage is meant. missing_bytes: What that stage's GPUs lack.
        remedy: What to do about it; empty where nothing needs doing.
    """

    rule: str
    message: str
    stage: int | None = None
    missing_bytes: float | None = None
    remedy: str = ""


def broken_rules(cluster: Cluster, model: TransformerSpec, job: Job, request: PlanRequest) -> tuple[Reason, ...]:
    """Every rule that ``request`` breaks; empty when it can be placed."""
    shape = tuple(_shape(cluster, model, job, request))
    return shape or tuple(_details(cluster, model, job, request))


def _shape(cluster: Cluster, model: TransformerSpec, job: Job, request: PlanRequest) -> Iterator[Reason]:
    tp, pp, dp, size = request.tp, request.pp, request.dp, request.micro_batch
    for name, value in (
        ("TP", tp),
        ("PP", pp),
        ("DP", dp),
        ("micro-batch", size),
        ("virtual stages", request.virtual_stages),
    ):
        if value < 1:
            yield Reason("placement", f"{name} {value} must be at least 1")
    if min(tp, pp, dp, size, request.virtual_stages) < 1:
        return
    yield from _tensor_parallel(model, tp)
    usable = [gpu for gpu in cluster.gpus if gpu.gpu_type.name not in excluded_types(cluster, job)]
    gpus = tp * pp * dp
    if gpus > len(cluster.gpus):
        yield Reason(
            "placement",
            f"TP {tp} x PP {pp} x DP {dp} needs {gpus} GPUs, the cluster has {len(cluster.gpus)}",
            remedy=f"keep TP x PP x DP at {len(cluster.gpus)} or below",
        )
    elif gpus > len(usable):
        left_out = "; ".join(excluded_types(cluster, job).values())
        yield Reason(
            "placement",
            f"TP {tp} x PP {pp} x DP {dp} needs {gpus} GPUs, {len(usable)} can take part ({left_out})",
            remedy="use a precision that every type has, or fewer GPUs",
        )
    placer = Placer(cluster)
    largest = max(placer.largest_group(t.name) for t in cluster.gpu_types)
    if tp > largest:
        yield Reason(
            "placement",
            f"TP {tp} would leave a node: no node has more than {largest} GPUs of one type",
            remedy=f"use TP {largest} or less",
        )
    if job.global_batch % (dp * size):
        yield _batch(job, dp, size)
        nodes = node_problem(cluster, tp * dp)
        if nodes:
            yield Reason("note", nodes)
    elif request.virtual_stages > 1 or pp > model.layers:
        groups = job.global_batch // (dp * size)
        problem = schedule_problem(model.layers, pp, groups, request.virtual_stages)
        if problem and not (isinstance(request.layers, tuple) and "equal chunks" in problem):
            yield Reason("schedule", problem, remedy=_schedule_remedy(model, request, groups))
    if request.virtual_stages > 1 and job.framework is Framework.FLAGSCALE:
        yield Reason("schedule", "FlagScale does not interleave uneven pipelines", remedy="use 1F1B")


def _tensor_parallel(model: TransformerSpec, tp: int) -> Iterator[Reason]:
    replicated, plain = legal_tp(model, True), legal_tp(model, False)
    if tp in replicated:
        return
    why = (
        f"does not divide the {model.heads} attention heads"
        if model.heads % tp
        else f"fits the {model.heads} attention heads but not the {model.kv_heads} KV heads"
    )
    lists = (
        f"{_listed(tp_by_heads(model))} by heads, {_listed(replicated)} for Megatron, "
        f"{_listed(plain)} without KV replication"
    )
    yield Reason("tp", f"TP {tp} {why}; legal: {lists}", remedy=f"use TP {_nearest(replicated, tp)}")


def _listed(values: tuple[int, ...]) -> str:
    return "{" + ",".join(str(v) for v in values) + "}"


def _nearest(values: tuple[int, ...], wanted: int) -> int:
    return min(values, key=lambda v: (abs(v - wanted), v))


def _batch(job: Job, dp: int, size: int) -> Reason:
    sizes = [b for b in MICRO_BATCHES if job.global_batch % (dp * b) == 0]
    whole = dp * size
    nearest = max(round(job.global_batch / whole), 1) * whole
    words = [f"a global batch of {nearest}"]
    if sizes:
        words.append(f"micro-batch {_nearest(tuple(sizes), size)}")
    return Reason(
        "batch",
        f"global batch {job.global_batch} is not a multiple of DP {dp} x micro-batch {size} = {whole}",
        remedy="use " + " or ".join(words),
    )


def node_problem(cluster: Cluster, size: int) -> str:
    """Says so where a stage of ``size`` GPUs neither divides a node nor is made of whole ones; else empty."""
    nodes = sorted(set(Counter((gpu.gpu_type.name, gpu.node_index) for gpu in cluster.gpus).values()))
    if any(n % size == 0 or size % n == 0 for n in nodes):
        return ""
    return f"a stage of TP x DP = {size} GPUs suits no node size ({', '.join(map(str, nodes))} of one type)"


def _schedule_remedy(model: TransformerSpec, request: PlanRequest, groups: int) -> str:
    """The nearest schedules and depths that can run."""
    pp, depth = request.pp, request.virtual_stages
    if depth == 1:
        return f"use PP {model.layers} or less"
    words = ["1F1B"] if pp <= model.layers else []
    depths = [v for v in range(2, model.layers // pp + 1) if schedule_problem(model.layers, pp, groups, v) is None]
    words += [f"interleaved:{_nearest(tuple(depths), depth)}"] if depths else []
    others = [p for p in range(2, model.layers + 1) if schedule_problem(model.layers, p, groups, depth) is None]
    words += [f"PP {_nearest(tuple(others), pp)}"] if others else []
    return f"use {' or '.join(words)}"


def _details(cluster: Cluster, model: TransformerSpec, job: Job, request: PlanRequest) -> Iterator[Reason]:
    """Layer list, recompute list, order of types: looked at once the shape is right."""
    layers, depth = request.layers, request.virtual_stages
    split = stage_layers(model, request)
    if isinstance(layers, tuple):
        if len(layers) not in (request.pp, request.pp * depth):
            wanted = f"{request.pp}" if depth == 1 else f"{request.pp} or {request.pp * depth}"
            yield Reason(
                "layers",
                f"the layer list has {len(layers)} entries, PP {request.pp} needs {wanted}",
                remedy=f"list one number for each stage, such as {_joined(even_split(model.layers, request.pp))}, or "
                f"use PP {len(layers)}",
            )
            return
        if min(layers) < 1:
            yield Reason(
                "layers",
                f"the layer list {_joined(layers)} leaves a stage without layers",
                remedy="give every stage at least 1 layer, or use a smaller PP",
            )
        if sum(layers) != model.layers:
            yield Reason(
                "layers",
                f"the layer list {_joined(layers)} sums to {sum(layers)}, the model has {model.layers} layers",
                remedy=f"every layer is placed exactly once; the even split is "
                f"{_joined(even_split(model.layers, request.pp))}",
            )
        if len(layers) == request.pp and any(n % depth for n in layers):
            yield Reason(
                "layers",
                f"the layer list {_joined(layers)} does not divide into {depth} equal chunks per stage",
                remedy=f"list all {request.pp * depth} chunks",
            )
    yield from _recompute(model, job, request, split)
    for name in request.type_order or ():
        if name not in cluster.ranks_by_type:
            known = ", ".join(t.name for t in cluster.gpu_types)
            yield Reason("placement", f"the cluster has no GPU type {name}", remedy=f"it has {known}")


def _recompute(
    model: TransformerSpec, job: Job, request: PlanRequest, split: tuple[tuple[int, ...], ...] | None
) -> Iterator[Reason]:
    options = request.recompute
    if options is None:
        return
    if len(options) not in (1, request.pp):
        yield Reason(
            "recompute",
            f"the recompute list has {len(options)} entries, PP {request.pp} needs 1 or {request.pp}",
            remedy="name one recompute for all stages or one for each",
        )
        return
    if job.framework is Framework.MEGATRON and len(set(options)) > 1 and not _one_setting(options, split):
        yield Reason(
            "recompute", "Megatron has one recompute setting for the whole job", remedy="use the same for every stage"
        )
    if job.framework is Framework.FLAGSCALE and any(option.kind == "selective" for option in options):
        yield Reason(
            "recompute", "FlagScale sets recompute per stage as off or full", remedy="use none, full, uniform or block"
        )
    if split is None:
        # The planner splits: no stage can have more than what one layer for every other chunk leaves.
        most = model.layers // request.virtual_stages - request.pp + 1
        for option in dict.fromkeys(options):
            if option.n > most:
                yield Reason(
                    "recompute",
                    f"{option} names more layers than any {'stage' if request.virtual_stages == 1 else 'chunk'} of "
                    f"PP {request.pp} can have, {most}",
                    remedy=f"use at most {option.kind}:{most}" if most > 1 else "use full",
                )
        return
    for i, (option, chunks) in enumerate(zip(spread(options, request.pp), split, strict=True)):
        if option.kind in ("block", "uniform") and option.n > min(chunks):
            where = "layers" if len(chunks) == 1 else "layers of its smallest chunk"
            yield Reason(
                "recompute",
                f"stage {i}: {option} names more layers than the {min(chunks)} {where}",
                stage=i,
                remedy=f"use at most {option.kind}:{min(chunks)}",
            )


def _one_setting(options: tuple[Recompute, ...], split: tuple[tuple[int, ...], ...] | None) -> bool:
    """Whether one ``uniform:N`` stands behind all words, each counting the layers that its stage has of N."""
    if split is None or any(option.kind not in ("full", "uniform") for option in options):
        return False
    setting = Recompute("uniform", max(option.n for option in options))
    return all(setting.within(min(chunks)) == option for option, chunks in zip(options, split, strict=True))


def spread(options: tuple[Recompute, ...], pp: int) -> tuple[Recompute, ...]:
    """One recompute per stage."""
    return options * pp if len(options) == 1 else options


def stage_layers(model: TransformerSpec, request: PlanRequest) -> tuple[tuple[int, ...], ...] | None:
    """Chunk layers of every stage; None where the planner chooses, or where the list has a wrong length."""
    layers, pp, depth = request.layers, request.pp, request.virtual_stages
    if layers == "auto":
        return None
    if layers is None:
        layers = even_split(model.layers, pp, depth)
    if len(layers) == pp * depth:
        return tuple(tuple(layers[k * pp + i] for k in range(depth)) for i in range(pp))
    if len(layers) != pp or any(n % depth for n in layers):
        return None
    return tuple((n // depth,) * depth for n in layers)


def _joined(values: tuple[int, ...]) -> str:
    return ",".join(str(v) for v in values)
