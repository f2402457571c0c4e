"""From an imported row to what the cost model can be asked: a cluster, a job and the plan that was run, or a point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from memx_engine.inputs.catalogue import find_gpu_type, interconnect, load_links
from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Node
from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Plan, Recompute, Skeleton, Stage, StagePlacement
from memx_engine.profile.importers.columns import Columns
from memx_engine.profile.importers.facts import RowFacts, known_type, row_facts
from memx_engine.profile.importers.models import NotJudgeableError, row_model

_INTER_NODE = "infiniband-hdr"


@dataclass(frozen=True)
class Layout:
    """What one row ran, as values that estimators take; ``facts`` is what the row says of it."""

    cluster: Cluster
    model: TransformerSpec
    job: Job
    plan: Plan
    facts: RowFacts


def is_simulated(source: str) -> bool:
    """Whether an imported row's own ``source`` column says that a testbed made it."""
    return source.startswith("testbed")


def row_layout(columns: Columns, cluster: Cluster | None = None) -> Layout:
    """The run of an iteration row.

    Args:
        cluster: Where it ran, if known: used when it has enough GPUs of the row's types. Otherwise nodes of the row's
            size with the catalogue's links, HDR InfiniBand between them.

    Raises:
        NotJudgeableError: Something that is needed is missing, or is outside the cost model.
    """
    own = {} if cluster is None else {t.name: t for t in cluster.gpu_types}
    facts = row_facts(columns, own)
    size = facts.tp * facts.dp
    needed = {name: size * sum(s.gpu_type == name for s in facts.stages) for name in facts.gpu_types}
    if cluster is None or any(len(cluster.ranks_by_type.get(name, ())) < count for name, count in needed.items()):
        types = tuple((own.get(name) or find_gpu_type(name), count) for name, count in needed.items())
        cluster = _table_cluster(types, facts.node_size)
    free = {name: list(ranks) for name, ranks in cluster.ranks_by_type.items()}
    placements = []
    for stage in facts.stages:
        ranks = free[stage.gpu_type]
        placements.append(StagePlacement(stage.gpu_type, facts.tp, facts.dp, tuple(ranks[:size])))
        del ranks[:size]
    skeleton = Skeleton(
        tp=facts.tp,
        pp=len(facts.stages),
        dp=facts.dp,
        micro_batch=facts.micro_batch,
        seq_len=facts.seq_len,
        global_batch=facts.global_batch,
        placements=tuple(placements),
        virtual_stages=facts.virtual_stages,
    )
    v = facts.virtual_stages
    stages = tuple(
        Stage(placement, (stage.layers // v,) * v, stage.recompute)
        for placement, stage in zip(placements, facts.stages, strict=True)
    )
    job = Job(
        global_batch=facts.global_batch,
        seq_len=facts.seq_len,
        precision=facts.precision,
        optimizer=Optimizer.SHARDED if facts.sharded else Optimizer.REPLICATED,
        assumed=facts.assumed,
    )
    untied = _ends_on_two_vendors(cluster, placements)
    return Layout(cluster, facts.model, job, Plan(skeleton, stages, untied and facts.model.tied_embeddings), facts)


def _ends_on_two_vendors(cluster: Cluster, placements: list[StagePlacement]) -> bool:
    first, last = (cluster.gpu_type(placements[i].gpu_type).vendor for i in (0, -1))
    return first != last


@lru_cache(maxsize=256)
def _table_cluster(types: tuple[tuple[GpuType, int], ...], node_size: int) -> Cluster:
    """Nodes of ``node_size`` GPUs of one type each."""
    nodes: list[Node] = []
    for gpu_type, count in types:
        links = interconnect(gpu_type.name)
        for _ in range(math.ceil(count / node_size)):
            here = min(node_size, count)
            # Two NUMA domains in a whole host whose islands end there, as the catalogue assumes for hosts of eight.
            numa = max(here // 2, 1) if links.span in ("numa", "four") and here >= 8 else here
            nodes.append(
                Node(
                    f"{gpu_type.name}-{len(nodes)}",
                    (GpuGroup(gpu_type, here),),
                    links.island_size(here),
                    numa,
                    links.island.link,
                    links.node.link,
                    links.numa.link,
                )
            )
            count -= here
    network = load_links()[_INTER_NODE].link
    return Cluster("table", tuple(nodes), network, host=network if len(types) > 1 else None)


def layer_point(columns: Columns, cluster: Cluster | None = None) -> Point:
    """The stage that a layer row measures: one layer, the embedding alone or the head alone.

    Raises:
        NotJudgeableError: Something that is needed is missing, or is outside the cost model.
    """
    own = {} if cluster is None else {t.name: t for t in cluster.gpu_types}
    kind = str(columns.get("layer_kind", "")).casefold()
    if kind.startswith("shard"):
        raise NotJudgeableError("one rank of a TP group, measured without the group's communication")
    embedding, head = "embedding" in kind, "head" in kind
    layers = 0 if embedding or head else 1
    if kind.startswith("stage"):
        layers = columns.get("layer_count", 0)
    elif layers and "layer" not in kind:
        raise NotJudgeableError(f"the layer kind {kind or 'nothing'!r} is not known")
    missing = [name for name in ("tp", "mbs", "seq_len", "gpu_type", "precision") if name not in columns]
    if missing:
        raise NotJudgeableError(f"{', '.join(missing)} not stated")
    if (embedding or head) and "vocab" not in columns:
        raise NotJudgeableError("vocab not stated, on which embedding and head depend")
    model, _ = row_model(columns, default_layers=1)
    word = str(columns["precision"]).casefold()
    precision = next((p for p in Precision if word.startswith(p.value)), None)
    if precision is None:
        raise NotJudgeableError(f"the precision {columns['precision']} is outside the cost model")
    tp = columns["tp"]
    return Point(
        gpu_type=known_type(str(columns["gpu_type"]), own),
        model=model,
        tp=tp,
        micro_batch=columns["mbs"],
        seq_len=columns["seq_len"],
        layers=layers,
        embedding=embedding,
        head=head,
        recompute=Recompute.parse(str(columns.get("recompute", "none"))),
        in_flight=columns.get("in_flight", 1),
        precision=precision,
        sequence_parallel=tp > 1,
    )


def layer_measurement(columns: Columns, source: str, cluster: Cluster | None = None) -> Measurement:
    """A layer row's times as a measurement; tables count memory in ways of their own, so it is left out.

    Args:
        source: Name of the table, where the row's own ``source`` names no testbed. cluster: Whose device types count
            before the catalogue's.

    Raises:
        NotJudgeableError: As :func:`layer_point`, or the row has no time of forward and backward.
    """
    point = layer_point(columns, cluster)
    forward, backward, both = (columns.get(name) for name in ("fwd_ms", "bwd_ms", "fwd_bwd_ms"))
    if not both and not (forward and backward is not None):
        raise NotJudgeableError("no time of forward and backward")
    stated = str(columns.get("source", ""))
    simulated = is_simulated(stated)
    return Measurement(
        point,
        Outcome.OK,
        Truth.TESTBED if simulated else Truth.TABLE,
        stated if simulated else f"table {source}",
        forward_s=None if forward is None else forward / 1e3,
        backward_s=None if backward is None else backward / 1e3,
        whole_s=None if both is None else both / 1e3,
    )
