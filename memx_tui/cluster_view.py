"""What the Cluster screen says: tree labels, the form of the selected entry, the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memx_engine import gib
from memx_tui.cluster_edit import GroupEntry, NodeEntry, Path
from memx_tui.widgets.fields import Field

if TYPE_CHECKING:
    from memx_engine import Cluster, GpuType, Link, MemxError, Node
    from memx_tui.cluster_draft import ClusterDraft

PRECISIONS = ("bf16", "fp16", "fp32")
LINK_LABELS = {
    "island": "in island",
    "node": "in node",
    "numa": "across NUMA",
    "uplink": "uplink",
    "host": "via hosts",
}


@dataclass(frozen=True)
class Target:
    """What the tree's cursor is on: the cluster (no index), an entry, or one of its GPU groups."""

    index: int | None = None
    group: int | None = None


@dataclass(frozen=True)
class Row:
    """One line of the summary. ``line``: where Enter goes in the text, 0 for nowhere. ``tone``: a theme's word."""

    label: str
    text: str
    tone: str = ""
    line: int = 0


def link_words(link: Link) -> str:
    """``235 GB/s, 3.4 us``."""
    return f"{link.bandwidth_bytes_s / 1e9:.4g} GB/s, {link.latency_s * 1e6:.4g} us"


def type_words(gpu_type: GpuType) -> str:
    """``80.0 GiB, bf16 312 TFLOP/s``: memory and the peak of the best precision."""
    memory = f"{gib(gpu_type.memory_bytes):.3g} GiB" if gpu_type.memory_bytes else "memory unknown"
    for precision in PRECISIONS:
        peak = gpu_type.peak_flops(precision)
        if peak is not None and gpu_type.supports(precision):
            return f"{memory}, {precision} {peak / 1e12:.4g} TFLOP/s"
    return f"{memory}, peak unknown"


def group_words(group: GroupEntry) -> str:
    """``8 x a100-sxm-80g``."""
    return f"{'?' if group.count is None else group.count} x {group.gpu_type or '?'}"


def entry_words(entry: NodeEntry) -> str:
    """The GPUs of one entry, in the words of the tree; a name with a range says by itself how many nodes it is."""
    inside = " + ".join(group_words(group) for group in entry.groups) or "no GPUs"
    if entry.replicas > 1 and "[" not in entry.name:
        return f"{entry.replicas} x {inside}" if len(entry.groups) == 1 else f"{entry.replicas} x ({inside})"
    return inside


def first_node(cluster: Cluster | None, entries: Sequence[NodeEntry], index: int) -> Node | None:
    """The first real node that entry ``index`` stands for."""
    at = sum(entry.replicas for entry in entries[:index])
    return cluster.nodes[at] if cluster is not None and at < len(cluster.nodes) else None


def form_fields(draft: ClusterDraft, target: Target) -> list[Field]:
    """The form for what the tree's cursor is on; keys are the names that :func:`path_of` understands."""
    doc = draft.doc
    if doc is None:
        return [Field("", "", "the text is not YAML yet; v shows it", editable=False)]
    entries = doc.entries
    cluster = draft.cluster if draft.valid else None
    if target.index is None or target.index >= len(entries):
        return _cluster_fields(draft, cluster)
    entry = entries[target.index]
    node = first_node(cluster, entries, target.index)
    groups = entry.groups if target.group is None else entry.groups[target.group : target.group + 1]
    fields: list[Field] = []
    if target.group is None:
        fields.append(Field("name", "name", entry.name, _span(entry)))
        if "[" not in entry.name:
            fields.append(Field("replicas", "nodes", str(entry.replicas), "alike"))
    if len(groups) == 1:
        fields += _group_fields(groups[0], node, entry.groups.index(groups[0]))
    elif groups:
        fields.append(Field("groups", "GPUs", " + ".join(map(group_words, groups)), "one line each in the tree"))
    if target.group is None:
        fields.append(Field("site", "site", entry.site or "site-0", "" if entry.site else "default"))
        fields += _link_fields(draft, entry, node)
    return fields


def path_of(draft: ClusterDraft, target: Target, key: str) -> Path | None:
    """Where a form field lives in the text."""
    doc = draft.doc
    if doc is None:
        return None
    if target.index is None:
        return tuple(key.split("."))
    entry = doc.entries[target.index]
    if key in ("type", "count", "memory_used_gib"):
        groups = entry.groups
        at = target.group or 0
        return (*groups[at].path, key) if at < len(groups) else None
    return (*entry.path, *key.split("."))


def summary(draft: ClusterDraft, job_problem: MemxError | None) -> list[Row]:
    """Problems first, then what the cluster amounts to, then what is assumed."""
    if draft.empty:
        return [
            Row("", "Nothing is open yet."),
            Row("o", "open a sample or a cluster file", "muted"),
            Row("n", "start from an example", "muted"),
            Row("m", "choose the model", "muted"),
            Row("r", "search for plans", "muted"),
        ]
    rows = [Row(f"line {p.line}" if p.line else "file", _problem_words(p), "error", p.line) for p in draft.problems]
    if draft.problems:
        return rows
    cluster = draft.cluster
    assert cluster is not None  # valid drafts have one
    if job_problem is not None:
        hint = f": {job_problem.hint}" if job_problem.hint else ""
        rows.append(Row("job", f"{job_problem.message}{hint}", "warning"))
    sites = {node.site for node in cluster.nodes}
    memory = sum(gpu.gpu_type.memory_bytes for gpu in cluster.gpus)
    used = sum(gpu.memory_used_bytes for gpu in cluster.gpus)
    where = f" at {len(sites)} sites" if len(sites) > 1 else ""
    rows.append(Row("GPUs", f"{len(cluster.gpus):,} in {_count(len(cluster.nodes), 'node')}{where}"))
    in_use = f", {gib(used):,.1f} GiB of it in use" if used else ""
    rows.append(Row("memory", f"{gib(memory):,.0f} GiB in all{in_use}"))
    for gpu_type in cluster.gpu_types:
        count = len(cluster.ranks_by_type[gpu_type.name])
        rows.append(Row(f"{count:,} x", f"{gpu_type.name}: {type_words(gpu_type)}"))
    vendors = list(dict.fromkeys(gpu_type.vendor for gpu_type in cluster.gpu_types))
    rows.append(Row("vendors", ", ".join(vendors)))
    for gpu_type in cluster.gpu_types:
        if gpu_type.lacks:
            rows.append(Row("lacks", f"{gpu_type.name} has no {', '.join(gpu_type.lacks)}", "warning"))
    rows += [Row("assumed", sentence, "muted") for sentence in cluster.assumed]
    return rows


def _cluster_fields(draft: ClusterDraft, cluster: Cluster | None) -> list[Field]:
    doc = draft.doc
    assert doc is not None  # checked by the caller
    fields = [Field("name", "name", doc.name, "")]
    links = {"links.inter_node": ("between nodes", cluster.inter_node if cluster else None)}
    if (cluster and cluster.inter_site) or doc.value(("links", "inter_site")):
        links["links.inter_site"] = ("between sites", cluster.inter_site if cluster else None)
    if (cluster and cluster.host) or doc.value(("links", "host")):
        links["links.host"] = ("via hosts", cluster.host if cluster else None)
    for key, (label, link) in links.items():
        written = doc.value(tuple(key.split(".")))
        fields.append(_link_field(key, label, written, link))
    return fields


def _group_fields(group: GroupEntry, node: Node | None, at: int) -> list[Field]:
    real = node.groups[at] if node is not None and at < len(node.groups) else None
    note = type_words(real.gpu_type) if real else ""
    room = f"GiB of {gib(real.gpu_type.memory_bytes):.3g}" if real else "GiB"
    return [
        Field("type", "GPU type", group.gpu_type, note),
        Field("count", "count", "?" if group.count is None else str(group.count), "GPUs in the node"),
        Field("memory_used_gib", "in use", group.memory_used_gib or "0", f"{room}, taken by others"),
    ]


def _link_fields(draft: ClusterDraft, entry: NodeEntry, node: Node | None) -> list[Field]:
    doc = draft.doc
    assert doc is not None  # checked by the caller
    fields: list[Field] = []
    used = {"island", "uplink"}
    if node is not None:
        if node.island_size < node.numa_size:
            used.add("node")
        if max(node.island_size, node.numa_size) < node.gpu_count:
            used.add("numa")
        if node.island_size < 2:
            used.discard("island")
        if doc.value((*entry.path, "island_size")) or node.island_size < node.gpu_count:
            note = "GPUs" if doc.value((*entry.path, "island_size")) is not None else "GPUs, default"
            fields.append(Field("island_size", "island", str(node.island_size), note))
    for role in ("island", "node", "numa", "uplink"):
        written = doc.value((*entry.path, "links", role))
        if role in used or written is not None:
            link = getattr(node, role) if node is not None else None
            fields.append(_link_field(f"links.{role}", LINK_LABELS[role], written, link, cluster=role == "uplink"))
    return fields


def _link_field(key: str, label: str, written: str | None, link: Link | None, *, cluster: bool = False) -> Field:
    words = link_words(link) if link is not None else ""
    if written is None:
        return Field(key, label, words or "as the cluster's", "default" if words and not cluster else "")
    if written.startswith("{"):
        return Field(key, label, words or written, "")
    return Field(key, label, written, words)


def _span(entry: NodeEntry) -> str:
    return f"{entry.replicas} nodes" if "[" in entry.name and entry.replicas > 1 else ""


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _problem_words(problem: object) -> str:
    key, message, hint = (getattr(problem, name) for name in ("key", "message", "hint"))
    return f"{f'{key}: ' if key else ''}{message}{f' ({hint})' if hint else ''}"
