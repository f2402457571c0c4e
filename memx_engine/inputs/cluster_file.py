"""Cluster files: reading, checking, writing, and the samples that ship with the product."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import load_catalogue, scaled
from memx_engine.inputs.cluster import PRECISIONS, Cluster, GpuType, Link, Node
from memx_engine.inputs.cluster_reading import DEFAULT_SITE, SCHEMA, read_cluster
from memx_engine.inputs.documents import Node as DocumentNode
from memx_engine.inputs.documents import (
    Problem,
    dump_yaml,
    nearest,
    node_from_value,
    parse_document,
    read_document,
    read_text,
)
from memx_engine.resources import sample_clusters_dir
from memx_engine.units import GIB

_SAMPLE_NAME = re.compile(r"[\w\-]+")
_NUMBERED = re.compile(r"([^\[\]]*?)(\d{1,6})")


@dataclass(frozen=True)
class SampleCluster:
    """A cluster file that ships with the product."""

    name: str
    title: str
    path: Path


def load_cluster(source: str) -> Cluster:
    """The cluster of a file, of a sample by its name, or of standard input (``-``).

    Raises:
        InputError: It cannot be read, or something in it is wrong (``file:line: key``).
    """
    path = Path(source)
    if source != "-" and _SAMPLE_NAME.fullmatch(source) and not path.exists():
        sample = sample_clusters_dir() / f"{source}.yaml"
        if not sample.is_file():
            names = [item.stem for item in _sample_files()]
            close = nearest(source, names)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(
                f"no cluster file and no sample cluster is called {source!r}",
                where=source,
                hint=f"{hint}Samples: {', '.join(names)}",
            )
        source, path = str(sample), sample
    root = read_document(source)
    cluster = read_cluster(root, "cluster" if source == "-" else path.stem)
    assert cluster is not None  # a document that does not collect raises instead
    return cluster


def parse_cluster(text: str, name: str = "<text>") -> Cluster:
    """The cluster of YAML text; ``name`` is what errors call it. Raises InputError."""
    root, _ = parse_document(text, name)
    assert root is not None
    cluster = read_cluster(root)
    assert cluster is not None
    return cluster


def validate_cluster_text(text: str) -> tuple[Problem, ...]:
    """Every problem of a cluster file's text, by line; empty when :func:`parse_cluster` would accept it."""
    root, problems = parse_document(text, collect=True)
    if root is not None:
        read_cluster(root)
    return tuple(sorted(dict.fromkeys(problems.found), key=lambda problem: problem.line))


def cluster_from_document(document: Mapping[str, object] | DocumentNode, where: str = "<document>") -> Cluster:
    """The cluster of a plain document (or of a part of a parsed one); errors begin with ``where``."""
    root = document if isinstance(document, DocumentNode) else node_from_value(document, where)
    cluster = read_cluster(root)
    if cluster is None:
        raise InputError("the cluster document has problems", where=where)
    return cluster


def cluster_text(cluster: Cluster) -> str:
    """YAML text that :func:`parse_cluster` reads back equal; devices as the catalogue has them are named only."""
    return dump_yaml(_document(cluster, complete=False))


def cluster_to_document(cluster: Cluster) -> dict[str, object]:
    """The cluster as plain values, complete: every device is defined in it, so that it outlives the catalogue."""
    return _document(cluster, complete=True)


def sample_clusters() -> tuple[SampleCluster, ...]:
    """The shipped clusters with their titles, by name."""
    samples = []
    for path in _sample_files():
        root, _ = parse_document(read_text(str(path)), str(path))
        title = root.text("title", path.stem) if root is not None else path.stem
        samples.append(SampleCluster(path.stem, title, path))
    return tuple(samples)


def _sample_files() -> list[Path]:
    return sorted(sample_clusters_dir().glob("*.yaml"))


def _document(cluster: Cluster, *, complete: bool) -> dict[str, object]:
    document: dict[str, object] = {"schema": SCHEMA, "name": cluster.name}
    types: dict[str, object] = {}
    for gpu_type in cluster.gpu_types:
        known = None if complete else load_catalogue().get(gpu_type.name)
        if gpu_type != known:
            types[gpu_type.name] = _type_document(gpu_type, known)
    if types:
        document["gpu_types"] = types
    document["nodes"] = _node_documents(cluster.nodes)
    links: dict[str, object] = {"inter_node": _link_document(cluster.inter_node)}
    if cluster.inter_site is not None:
        links["inter_site"] = _link_document(cluster.inter_site)
    if cluster.host is not None:
        links["host"] = _link_document(cluster.host)
    if cluster.site_links:
        links["sites"] = {site: _link_document(link) for site, link in cluster.site_links.items()}
    document["links"] = links
    if cluster.assumed:
        document["assumed"] = list(cluster.assumed)
    return document


def _type_document(gpu_type: GpuType, known: GpuType | None) -> dict[str, object]:
    """Every field of ``gpu_type``, or those that differ from ``known``."""
    bandwidth = gpu_type.memory_bandwidth_bytes_s
    document: dict[str, object] = {
        "vendor": gpu_type.vendor,
        "marketing_name": gpu_type.marketing_name,
        "memory_gib": _short(gpu_type.memory_bytes / GIB),
    }
    for precision in PRECISIONS:
        peak = gpu_type.peak_flops(precision)
        document[f"{precision}_tflops"] = None if peak is None else _short(scaled(peak, -12))
    document |= {
        "memory_bandwidth_gb_s": None if bandwidth is None else _short(scaled(bandwidth, -9)),
        "lacks": list(gpu_type.lacks),
        "context_gib": _short(gpu_type.context_bytes / GIB),
        "efficiency": gpu_type.efficiency,
        "aliases": list(gpu_type.aliases),
        "sources": list(gpu_type.sources),
        "notes": list(gpu_type.notes),
        "assumed": list(gpu_type.assumed),
    }
    if known is None:
        return document
    same = _type_document(known, None)
    return {key: value for key, value in document.items() if value != same[key] or key == "assumed"}


def _node_documents(nodes: tuple[Node, ...]) -> list[dict[str, object]]:
    """One entry per run of like nodes whose names count up (``gpu[00-15]``)."""
    documents: list[dict[str, object]] = []
    for body, run in groupby(nodes, key=lambda node: replace(node, name="")):
        for name in _folded_names([node.name for node in run]):
            documents.append({"name": name, **_node_document(body)})
    return documents


def _folded_names(names: list[str]) -> list[str]:
    folded: list[str] = []
    start = 0
    for i in range(1, len(names) + 1):
        if i < len(names) and _follows(names[start], names[i], i - start):
            continue
        match = _NUMBERED.fullmatch(names[start])
        last = _NUMBERED.fullmatch(names[i - 1])
        if i - start > 1 and match and last:
            folded.append(f"{match[1]}[{match[2]}-{last[2]}]")
        else:
            folded.append(names[start])
        start = i
    return folded


def _follows(first: str, name: str, steps: int) -> bool:
    match = _NUMBERED.fullmatch(first)
    return match is not None and name == f"{match[1]}{int(match[2]) + steps:0{len(match[2])}d}"


def _node_document(node: Node) -> dict[str, object]:
    gpus = []
    for group in node.groups:
        item: dict[str, object] = {"type": group.gpu_type.name, "count": group.count}
        if group.memory_used_bytes:
            item["memory_used_gib"] = _short(group.memory_used_bytes / GIB)
        gpus.append(item)
    links = {role: _link_document(getattr(node, role)) for role in ("island", "node", "numa")}
    links |= {role: _link_document(link) for role in ("uplink", "host") if (link := getattr(node, role)) is not None}
    site = {} if node.site == DEFAULT_SITE else {"site": node.site}
    return {
        "gpus": gpus,
        **site,
        "island_size": node.island_size,
        "numa_size": node.numa_size,
        "links": links,
    }


def _link_document(link: Link) -> dict[str, object]:
    return {
        "bandwidth_gb_s": _short(scaled(link.bandwidth_bytes_s, -9)),
        "latency_us": _short(scaled(link.latency_s, 6)),
        "shared": link.shared,
    }


def _short(value: float) -> float | int:
    """Whole numbers without a decimal point."""
    return int(value) if value == int(value) else value
