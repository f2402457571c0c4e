"""The cluster an operator describes: device types, nodes, and the link between any two GPUs.

Values only: reading and writing files is :mod:`memx_engine.inputs.cluster_file`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property

PRECISIONS = ("bf16", "fp16", "fp32")


class LinkClass(StrEnum):
    """Where two GPUs stand to each other; every transfer uses the class of its actual pair."""

    ISLAND = "island"
    NODE = "node"
    NUMA = "numa"
    INTER_NODE = "inter_node"
    INTER_SITE = "inter_site"


@dataclass(frozen=True)
class Link:
    """One direction of a connection.

    Attributes:
        bandwidth_bytes_s: Sustained bytes per second in one direction.
        latency_s: One-way latency of a message in seconds.
        shared: True when the node's GPUs share the bandwidth; False when each GPU has its own.
    """

    bandwidth_bytes_s: float
    latency_s: float
    shared: bool = False


@dataclass(frozen=True)
class GpuType:
    """A device type of the catalogue, after the cluster file's overrides.

    Attributes:
        name: Catalogue id, such as ``a100-sxm-80g``.
        bf16_flops, fp16_flops, fp32_flops: Dense peak FLOP/s with fp32 accumulation; None where the device lacks the
            precision or no public figure is known (``lacks`` tells which).
        lacks: Precisions that the device does not have in hardware.
        memory_bytes: Memory as the device reports it.
        memory_bandwidth_bytes_s: None where not publicly known.
        context_bytes: What the framework's context and libraries take on the device before any tensor.
        efficiency: Fraction of the peak that large matrix products reach in training; uncalibrated default.
        assumed: Names of the fields whose values are defaults, not sourced figures.
    """

    name: str
    vendor: str
    marketing_name: str
    memory_bytes: int
    bf16_flops: float | None = None
    fp16_flops: float | None = None
    fp32_flops: float | None = None
    memory_bandwidth_bytes_s: float | None = None
    lacks: tuple[str, ...] = ()
    context_bytes: int = 4 << 30
    efficiency: float = 0.6
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def peak_flops(self, precision: str) -> float | None:
        """Dense peak FLOP/s for ``bf16``, ``fp16`` or ``fp32``; None where lacking or unknown."""
        return {"bf16": self.bf16_flops, "fp16": self.fp16_flops, "fp32": self.fp32_flops}[precision]

    def supports(self, precision: str) -> bool:
        return precision not in self.lacks


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one type inside one node; a node may hold several groups (two 3090 and two 4090 in one box)."""

    gpu_type: GpuType
    count: int
    memory_used_bytes: int = 0


@dataclass(frozen=True)
class Node:
    """One host.

    Attributes:
        island_size: GPUs per fast island (NVLink group, 4-GPU board); groups of consecutive GPUs inside the node.
        numa_size: GPUs per NUMA domain; pairs across domains use the ``numa`` link.
        island, node, numa: Links inside the host. ``node`` joins islands in one NUMA domain.
        uplink: The node's own connection to other nodes; None takes the site's, then the cluster's.
        host: Link for transfers staged through host memory (between vendors); None takes the cluster's.
    """

    name: str
    groups: tuple[GpuGroup, ...]
    island_size: int
    numa_size: int
    island: Link
    node: Link
    numa: Link
    site: str = "site-0"
    uplink: Link | None = None
    host: Link | None = None

    @property
    def gpu_count(self) -> int:
        return sum(group.count for group in self.groups)


@dataclass(frozen=True)
class Gpu:
    """One device: its global rank, and where it sits."""

    rank: int
    node_index: int
    local_index: int
    gpu_type: GpuType
    memory_used_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """Memory a plan may use on this device."""
        return self.gpu_type.memory_bytes - self.memory_used_bytes


@dataclass(frozen=True)
class Cluster:
    """All nodes, and the links between them. Ranks count GPUs in the order of the nodes, then of the groups.

    Attributes:
        inter_node: Default link between nodes of one site.
        inter_site: Link between sites; None when there is one site.
        site_links: Per-site replacement of ``inter_node`` (InfiniBand here, RoCE there).
        host: Default link for transfers that are staged through host memory (between vendors).
        assumed: What the file left out and how it was filled, one sentence each.
    """

    name: str
    nodes: tuple[Node, ...]
    inter_node: Link
    inter_site: Link | None = None
    site_links: Mapping[str, Link] = field(default_factory=dict)
    host: Link | None = None
    assumed: tuple[str, ...] = ()

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        out: list[Gpu] = []
        for node_index, node in enumerate(self.nodes):
            local = 0
            for group in node.groups:
                for _ in range(group.count):
                    out.append(Gpu(len(out), node_index, local, group.gpu_type, group.memory_used_bytes))
                    local += 1
        return tuple(out)

    @cached_property
    def gpu_types(self) -> tuple[GpuType, ...]:
        """Distinct device types in order of first appearance; types with overrides have names of their own."""
        seen: dict[str, GpuType] = {}
        for gpu in self.gpus:
            seen.setdefault(gpu.gpu_type.name, gpu.gpu_type)
        return tuple(seen.values())

    @cached_property
    def ranks_by_type(self) -> Mapping[str, tuple[int, ...]]:
        out: dict[str, list[int]] = {t.name: [] for t in self.gpu_types}
        for gpu in self.gpus:
            out[gpu.gpu_type.name].append(gpu.rank)
        return {name: tuple(ranks) for name, ranks in out.items()}

    def gpu_type(self, name: str) -> GpuType:
        """The type called ``name``; KeyError when the cluster has none."""
        for gpu_type in self.gpu_types:
            if gpu_type.name == name:
                return gpu_type
        raise KeyError(name)

    def link_class(self, a: int, b: int) -> LinkClass:
        """The class of the pair of ranks ``a`` and ``b``."""
        x, y = self.gpus[a], self.gpus[b]
        if x.node_index != y.node_index:
            same_site = self.nodes[x.node_index].site == self.nodes[y.node_index].site
            return LinkClass.INTER_NODE if same_site else LinkClass.INTER_SITE
        node = self.nodes[x.node_index]
        if x.local_index // node.island_size == y.local_index // node.island_size:
            return LinkClass.ISLAND
        if x.local_index // node.numa_size == y.local_index // node.numa_size:
            return LinkClass.NODE
        return LinkClass.NUMA

    def uplink(self, node_index: int) -> Link:
        """The connection of a node to the others of its site."""
        node = self.nodes[node_index]
        return node.uplink or self.site_links.get(node.site) or self.inter_node

    def link(self, a: int, b: int) -> Link:
        """The link that a transfer between ranks ``a`` and ``b`` uses; the slower uplink of two nodes counts."""
        link_class = self.link_class(a, b)
        x, y = self.gpus[a], self.gpus[b]
        node = self.nodes[x.node_index]
        if link_class is LinkClass.ISLAND:
            return node.island
        if link_class is LinkClass.NODE:
            return node.node
        if link_class is LinkClass.NUMA:
            return node.numa
        if link_class is LinkClass.INTER_SITE and self.inter_site is not None:
            return self.inter_site
        return min(self.uplink(x.node_index), self.uplink(y.node_index), key=lambda link: link.bandwidth_bytes_s)

    def host_link(self, a: int, b: int) -> Link | None:
        """The link of a transfer staged through the hosts (between vendors); None where not described."""
        links = [self.nodes[self.gpus[r].node_index].host or self.host for r in (a, b)]
        known = [link for link in links if link is not None]
        return min(known, key=lambda link: link.bandwidth_bytes_s) if known else None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that can change a number: devices, memory, links; not the names of nodes."""
        nodes = []
        for node in self.nodes:
            document = asdict(node)
            document.pop("name")
            for group in document["groups"]:
                for key in ("aliases", "sources", "notes", "assumed", "marketing_name"):
                    group["gpu_type"].pop(key)
            nodes.append(document)
        links = [asdict(self.inter_node), self.inter_site and asdict(self.inter_site), self.host and asdict(self.host)]
        sites = {name: asdict(link) for name, link in sorted(self.site_links.items())}
        text = json.dumps([nodes, links, sites], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
