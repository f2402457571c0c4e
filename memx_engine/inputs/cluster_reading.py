"""A cluster document to a :class:`Cluster`: checks everything, fills what is left out, and says what was filled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from memx_engine.inputs.catalogue import (
    LinkDefault,
    interconnect,
    load_links,
    numa_domain_size,
    scaled,
)
from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.documents import Node as DocumentNode
from memx_engine.inputs.gpu_types import FIELD_KEYS, TypeBook
from memx_engine.inputs.nodes import unknown_name_hint
from memx_engine.units import GB, GIB, MICRO

SCHEMA = "memx/cluster/v1"
TOP_KEYS = ("schema", "name", "title", "gpu_types", "nodes", "links", "assumed")
NODE_KEYS = ("name", "replicas", "gpus", "site", "island_size", "numa_size", "links")
GPU_KEYS = ("type", "count", "memory_used_gib", "overrides")
LINK_KEYS = ("bandwidth_gb_s", "latency_us", "shared")
CLUSTER_LINKS = ("island", "node", "numa", "inter_node", "inter_site", "host", "sites")
NODE_LINKS = ("island", "node", "numa", "uplink", "host")
DEFAULT_SITE = "site-0"
MAX_GPUS = 131_072
MAX_GPUS_PER_NODE = 1_024

_NODE_NAME = re.compile(r"[\w.\-]+")
_NAME_RANGE = re.compile(r"([\w.\-]*)\[(\d{1,6})-(\d{1,6})\]([\w.\-]*)")
# Where a file gives a bandwidth only: NCCL's ring hop constants (NVIDIA/nccl src/graph/tuning.cc), and a metropolitan
# distance between sites.
_DEFAULT_LATENCY_S = {"island": 3.4e-6, "node": 5.7e-6, "numa": 5.7e-6, "inter_site": 1e-3}
_NETWORK_LATENCY_S = 14e-6
_DEFAULT_INTER_NODE = "ethernet-100g"
# Host to device and back, measured 26 GB/s over PCIe 4 (Azure/AI-benchmarking-guide, FlagOpen/FlagPerf); a staged
# transfer pays both copies and the network one after the other. 10 us per copy is assumed.
_STAGING_GB_S = 26.0
_STAGING_LATENCY_US = 20.0


def read_cluster(root: DocumentNode, name: str = "cluster") -> Cluster | None:
    """The cluster that ``root`` describes; None when its document collects problems and some were found.

    Args:
        root: A parsed document, or a part of one.
        name: The cluster's name where the document gives none.

    Raises:
        InputError: The first problem, unless the document collects them.
    """
    return _Reader(root, name).cluster()


@dataclass(frozen=True)
class _Links:
    """The links that a document states, by role, at one level (cluster or node)."""

    stated: Mapping[str, Link]

    def get(self, role: str) -> Link | None:
        return self.stated.get(role)


class _Reader:
    def __init__(self, root: DocumentNode, name: str) -> None:
        self.root = root
        self.name = name
        self.assumed: dict[str, None] = {}  # ordered, without repeats
        self.types = TypeBook(root.child("gpu_types"))

    def cluster(self) -> Cluster | None:
        root = self.root
        if not root.expect_mapping(TOP_KEYS, within={"links": CLUSTER_LINKS}) or not self.check_schema():
            return None
        self.assumed.update(dict.fromkeys(root.texts("assumed")))
        links, sites = self.cluster_links(root.child("links"))
        nodes = self.nodes(links)
        if root.problems.found or not nodes:
            return None
        for site, (_, place) in sites.items():
            if all(n.site != site for n in nodes):
                place.fail(f"no node is at site {site!r}", unknown_name_hint(site, sorted({n.site for n in nodes})))
        cluster = Cluster(
            name=root.text("name", self.name),
            nodes=tuple(nodes),
            inter_node=links.get("inter_node") or self.default_inter_node(len(nodes), {n.site for n in nodes}, sites),
            inter_site=self.inter_site(links, nodes),
            site_links={site: link for site, (link, _) in sites.items()},
            host=links.get("host"),
        )
        cluster = replace(cluster, host=cluster.host or self.default_host(cluster))
        for gpu_type in cluster.gpu_types:
            self.note_type(gpu_type)
        return None if root.problems.found else replace(cluster, assumed=tuple(self.assumed))

    def check_schema(self) -> bool:
        stated = self.root.child("schema")
        if stated is None:
            self.root.fail("schema is missing", f"begin the file with the line: schema: {SCHEMA}", "schema")
        elif stated.scalar != SCHEMA:
            stated.fail(f"schema {stated.scalar!r} is not a cluster of this version", f"expected {SCHEMA}")
            return self.root.problems.collect and str(stated.scalar).startswith("memx/cluster/")
        return True

    # -- nodes

    def nodes(self, links: _Links) -> list[Node]:
        entries = self.root.child("nodes")
        if entries is None:
            self.root.fail("nodes is missing", "list at least one node under nodes:", "nodes")
            return []
        nodes: list[Node] = []
        lines: dict[str, int] = {}
        total = 0
        for entry in entries.items():
            if not entry.expect_mapping(NODE_KEYS, within={"links": NODE_LINKS, "gpus": GPU_KEYS}):
                continue
            node = self.node(entry, links)
            names = self.node_names(entry)
            if node is None:
                continue
            total += node.gpu_count * len(names)
            if total > MAX_GPUS:
                entry.fail(f"the cluster has more than {MAX_GPUS:,} GPUs", "check replicas and count")
                return nodes
            for name in names:
                if name in lines:
                    place = entry.child("name") or entry
                    place.fail(f"the node name {name!r} is used twice (first on line {lines[name]})", "rename one")
                    break
                lines.setdefault(name, entry.line)
                nodes.append(replace(node, name=name))
        if not entries.elements and entries.elements is not None:
            entries.fail("the cluster has no nodes", "list at least one node under nodes:")
        return nodes

    def node_names(self, entry: DocumentNode) -> list[str]:
        """``gpu[01-16]`` and ``replicas: 16`` both stand for sixteen nodes."""
        written = entry.text("name")
        place = entry.child("name") or entry
        replicas = entry.integer("replicas", low=1, high=MAX_GPUS, default=1)
        spread = _NAME_RANGE.fullmatch(written)
        if spread:
            before, low, high, after = spread.groups()
            if replicas > 1:
                place.fail("a name with a range and replicas are both given", "keep one of them")
            if int(high) < int(low):
                place.fail(f"the range {low}-{high} is empty", "write the lower number first")
            if int(high) - int(low) >= MAX_GPUS:
                place.fail(f"the range {low}-{high} is too long", f"at most {MAX_GPUS:,} GPUs are accepted")
                return []
            return [f"{before}{n:0{len(low)}d}{after}" for n in range(int(low), int(high) + 1)]
        if written and not _NODE_NAME.fullmatch(written):
            place.fail(f"{written!r} cannot name a node", "use letters, digits, '.', '_', '-'; a range as gpu[01-16]")
        if replicas == 1:
            return [written]
        width = len(str(replicas - 1))
        return [f"{written}-{n:0{width}d}" for n in range(replicas)]

    def node(self, entry: DocumentNode, cluster_links: _Links) -> Node | None:
        groups = self.groups(entry)
        if not groups:
            return None
        count = sum(group.count for group in groups)
        if count > MAX_GPUS_PER_NODE:
            entry.fail(f"a node with {count} GPUs", f"at most {MAX_GPUS_PER_NODE} GPUs per node are accepted")
            return None
        own = self.links(entry.child("links"), NODE_LINKS, entry.text("name", "node"))
        kinds = [interconnect(self.types.origin(group.gpu_type)) for group in groups]
        default_island = math.gcd(*(kind.island_size(g.count) for kind, g in zip(kinds, groups, strict=True)))
        island_size = entry.integer("island_size", low=1, high=count, default=default_island)
        numa_size = entry.integer("numa_size", low=1, high=count, default=self.default_numa(count, island_size))
        if island_size % numa_size and numa_size % island_size:
            entry.fail(
                f"island_size {island_size} and numa_size {numa_size} do not nest",
                "one must be a multiple of the other",
                "numa_size",
            )
        used = {"island": island_size > 1, "node": island_size < numa_size, "numa": max(island_size, numa_size) < count}
        inside: dict[str, Link] = {}
        for role in ("island", "node", "numa"):
            link = own.get(role) or cluster_links.get(role)
            if link is None:
                default = min((getattr(k, role) for k in kinds), key=lambda d: d.link.bandwidth_bytes_s)
                link = default.link
                if used[role]:
                    self.note_link(role, groups, default)
            inside[role] = link
        site = entry.text("site", DEFAULT_SITE)
        return Node(
            name="",
            groups=groups,
            island_size=island_size,
            numa_size=numa_size,
            island=inside["island"],
            node=inside["node"],
            numa=inside["numa"],
            site=site,
            uplink=own.get("uplink"),
            host=own.get("host"),
        )

    @staticmethod
    def default_numa(count: int, island_size: int) -> int:
        size = numa_domain_size(count)
        return size if size % island_size == 0 or island_size % size == 0 else count

    def groups(self, entry: DocumentNode) -> tuple[GpuGroup, ...]:
        listed = entry.child("gpus")
        if listed is None:
            entry.fail("gpus is missing", "for example gpus: [{type: a100-sxm-80g, count: 8}]", "gpus")
            return ()
        items = [listed] if listed.fields is not None else listed.items()
        if not items and listed.elements is not None:
            listed.fail("the node has no GPUs", "list at least one, as {type: a100-sxm-80g, count: 8}")
        groups = [self.group(item) for item in items if item.expect_mapping(GPU_KEYS, within={"overrides": FIELD_KEYS})]
        return tuple(group for group in groups if group is not None) if None not in groups else ()

    def group(self, item: DocumentNode) -> GpuGroup | None:
        """One entry; None after a problem, so that nothing is judged by a stand-in."""
        before = len(item.problems.found)
        count = item.integer("count", low=1, high=MAX_GPUS_PER_NODE)
        used_gib = item.number("memory_used_gib", low=0, high=4096, unit="GiB", default=0.0)
        gpu_type = self.gpu_type(item)
        if gpu_type is None:
            return None
        used_bytes = round(used_gib * GIB)
        if used_bytes >= gpu_type.memory_bytes > 0:
            (item.child("memory_used_gib") or item).fail(
                f"{used_gib:g} GiB in use leaves nothing of the {gpu_type.memory_bytes / GIB:g} GiB of {gpu_type.name}",
                f"allowed: from 0 to below {gpu_type.memory_bytes / GIB:g} GiB",
            )
        return GpuGroup(gpu_type, count, used_bytes) if len(item.problems.found) == before else None

    def gpu_type(self, item: DocumentNode) -> GpuType | None:
        found = self.types.resolve(item)
        written = item.text("type", "")
        if found is not None and item.child("overrides") is None and found.name != written:
            self.note(f"GPU type {written!r} is taken as {found.name}")
        return found

    # -- links

    def links(self, node: DocumentNode | None, roles: tuple[str, ...], owner: str) -> _Links:
        if node is None or not node.expect_mapping(roles):
            return _Links({})
        stated = {}
        for role in roles:
            child = node.child(role)
            if child is not None and role != "sites":
                link = self.link(child, role, owner)
                if link is not None:
                    stated[role] = link
        return _Links(stated)

    def link(self, node: DocumentNode, role: str, owner: str) -> Link | None:
        if node.scalar is not None:
            known = load_links()
            if node.scalar in known:
                return known[node.scalar].link
            node.fail(f"{node.scalar!r} is not a known link", unknown_name_hint(node.scalar, tuple(known)))
            return None
        if not node.expect_mapping(LINK_KEYS):
            return None
        bandwidth = node.number("bandwidth_gb_s", low=1e-4, high=10_000, unit="GB/s", above=True)
        latency = node.child("latency_us")
        if latency is None:
            latency_s = _DEFAULT_LATENCY_S.get(role, _NETWORK_LATENCY_S)
            self.note(f"{role} link of {owner}: latency {scaled(latency_s, 6):g} us (not stated)")
        else:
            latency_s = scaled(latency.as_number(0, 10_000_000, "us"), -6)
        shared_default = role not in ("island", "node", "numa")
        if shared_default and not node.has("shared"):
            self.note(f"{role} link of {owner}: one connection shared by the node's GPUs (not stated)")
        return Link(scaled(bandwidth, 9), latency_s, node.flag("shared", shared_default))

    def cluster_links(self, node: DocumentNode | None) -> tuple[_Links, dict[str, tuple[Link, DocumentNode]]]:
        links = self.links(node, CLUSTER_LINKS, "the cluster")
        sites: dict[str, tuple[Link, DocumentNode]] = {}
        listed = node.child("sites") if node is not None else None
        if listed is not None and listed.expect_mapping():
            for site, child in (listed.fields or {}).items():
                link = self.link(child, "inter_node", f"site {site}")
                if link is not None:
                    sites[site] = (link, child)
        return links, sites

    def default_inter_node(self, nodes: int, used: set[str], sites: Mapping[str, object]) -> Link:
        default = load_links()[_DEFAULT_INTER_NODE]
        if nodes > 1 and not used <= set(sites):
            self.note(f"link between nodes: {_link_words(default.link)} ({default.name}; not stated)")
        return default.link

    def inter_site(self, links: _Links, nodes: list[Node]) -> Link | None:
        stated = links.get("inter_site")
        sites = sorted({node.site for node in nodes})
        if stated is None and len(sites) > 1:
            self.root.fail(
                f"nodes are at {len(sites)} sites ({', '.join(sites[:4])}) but the link between sites is not given",
                "add links: {inter_site: {bandwidth_gb_s: ..., latency_us: ...}}",
                "links.inter_site",
            )
        return stated

    def default_host(self, cluster: Cluster) -> Link | None:
        """Between vendors transfers are staged: out of the device, over the network, into the device."""
        vendors = {gpu_type.vendor for gpu_type in cluster.gpu_types}
        if len(vendors) < 2:
            return None
        network = cluster.inter_node
        gb_s = 1 / (2 / _STAGING_GB_S + GB / network.bandwidth_bytes_s)
        latency_us = round(scaled(network.latency_s, 6) + _STAGING_LATENCY_US, 3)
        link = Link(scaled(float(f"{gb_s:.3g}"), 9), scaled(latency_us, -6), shared=True)
        self.note(f"host link between vendors: {_link_words(link)}, copies through host memory (not stated)")
        return link

    # -- what was filled

    def note(self, sentence: str) -> None:
        self.assumed[sentence] = None

    def note_link(self, role: str, groups: tuple[GpuGroup, ...], default: LinkDefault) -> None:
        devices = " + ".join(f"{group.count} {group.gpu_type.name}" for group in groups)
        self.note(f"{role} link in a node of {devices}: {_link_words(default.link)} ({default.name}; not stated)")

    def note_type(self, gpu_type: GpuType) -> None:
        words = {
            "context_bytes": f"context {gpu_type.context_bytes / GIB:g} GiB",
            "efficiency": f"efficiency {gpu_type.efficiency:g}",
            "memory_bytes": f"memory {gpu_type.memory_bytes / GIB:g} GiB",
        }
        filled = [words.get(name, name) for name in gpu_type.assumed]
        if filled:
            self.note(f"{gpu_type.name}: {', '.join(filled)} (defaults until calibrated)")


def _link_words(link: Link) -> str:
    shared = ", shared by the node" if link.shared else ""
    return f"{link.bandwidth_bytes_s / GB:g} GB/s, {float(Decimal(repr(link.latency_s / MICRO))):.4g} us{shared}"
