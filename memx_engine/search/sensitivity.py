"""What a little more of anything would buy: memory on a GPU type, a faster link, one more node.

Every change is searched anew over the whole space, with the objective of the search it is compared with, so that the
answers are as exact as that search's and their Phi can be compared. The plan in hand remains possible under every
change; where the search finds nothing better, it is the answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from memx_engine.inputs.cluster import Cluster, GpuGroup, Link, LinkClass, Node
from memx_engine.plan import Plan
from memx_engine.search.options import SearchOptions
from memx_engine.search.result import RankedPlan, SearchResult
from memx_engine.search.run import search
from memx_engine.units import GIB

_LINK_WORDS = {
    LinkClass.ISLAND: "links inside the islands",
    LinkClass.NODE: "links between islands of a node",
    LinkClass.NUMA: "links across NUMA domains",
    LinkClass.INTER_NODE: "links between nodes",
    LinkClass.INTER_SITE: "links between sites",
}

Progress = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Change:
    """One change of the cluster. ``kind``: ``memory``, ``link`` or ``node``; ``subject``: a GPU type or link class."""

    kind: str
    subject: str
    words: str
    cluster: Cluster


@dataclass(frozen=True)
class Gain:
    """What one change would buy.

    Attributes:
        plan: The best plan under the change. phi_change, time_change: Against the plan in hand, below 0 is better.
        same_plan: The plan in hand stays the best.
        proven: The certificate of the search under the change says optimal.
    """

    change: Change
    plan: RankedPlan
    phi_change: float
    time_change: float
    same_plan: bool
    proven: bool


@dataclass(frozen=True)
class Sensitivity:
    """Gains in the order of the changes. ``cancelled``: the operator stopped, and the last changes are missing."""

    base: RankedPlan
    gains: tuple[Gain, ...]
    seconds: float
    cancelled: bool = False


def find_sensitivity(
    result: SearchResult,
    *,
    options: SearchOptions | None = None,
    more_bytes: float = GIB,
    link_factor: float = 2.0,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Sensitivity:
    """Search again under every change of :func:`changes_of`.

    Args:
        options: Those of ``result``'s search; its objective and limits are taken from the result.
        on_progress: Told (done, total, words of the change) before each search.
        should_stop: True ends the work with the gains so far.
    """
    began, base = time.monotonic(), result.plans[0]
    chosen = replace(options or SearchOptions(), objective=result.objective, limits=result.limits, front=0)
    changes = tuple(changes_of(result.cluster, more_bytes=more_bytes, link_factor=link_factor))
    gains: list[Gain] = []
    for done, change in enumerate(changes):
        if on_progress is not None:
            on_progress(done, len(changes), change.words)
        if should_stop is not None and should_stop():
            return Sensitivity(base, tuple(gains), time.monotonic() - began, cancelled=True)
        estimator = result.estimator.derive(change.cluster, result.model, result.job)
        found = search(
            change.cluster,
            result.model,
            result.job,
            options=chosen,
            estimator=estimator,
            should_stop=should_stop,
        )
        if found.cancelled:
            return Sensitivity(base, tuple(gains), time.monotonic() - began, cancelled=True)
        kept = estimator.estimate(base.plan)
        best, phi = found.plans[0], result.objective.phi_of(kept)
        if phi <= best.phi:
            best = RankedPlan(1, base.plan, kept, phi, best.pareto)
        gains.append(
            Gain(
                change,
                best,
                best.phi / base.phi - 1.0,
                best.estimate.iteration_time_s / base.estimate.iteration_time_s - 1.0,
                same_layout(best.plan, base.plan),
                found.certificate.optimal,
            )
        )
    return Sensitivity(base, tuple(gains), time.monotonic() - began)


def same_layout(a: Plan, b: Plan) -> bool:
    """Whether two plans decide the same, on GPUs that may be others of the same types."""
    x, y = a.skeleton, b.skeleton
    shape = [(s.tp, s.dp, s.micro_batch, s.virtual_stages, [p.gpu_type for p in s.placements]) for s in (x, y)]
    return shape[0] == shape[1] and (a.layers, a.recompute) == (b.layers, b.recompute)


def changes_of(cluster: Cluster, *, more_bytes: float = GIB, link_factor: float = 2.0) -> Iterator[Change]:
    """More memory on each GPU type, each class of links faster, and one more node of each GPU type."""
    for gpu_type in cluster.gpu_types:
        words = f"{more_bytes / GIB:g} GiB more on each {gpu_type.name}"
        yield Change("memory", gpu_type.name, words, _with_memory(cluster, gpu_type.name, more_bytes))
    for link_class in link_classes(cluster):
        words = f"{_LINK_WORDS[link_class]} {link_factor:g} times as fast"
        yield Change("link", str(link_class), words, _with_links(cluster, link_class, link_factor))
    if cluster.host is not None or any(node.host is not None for node in cluster.nodes):
        words = f"host links between vendors {link_factor:g} times as fast"
        yield Change("link", "host", words, _with_hosts(cluster, link_factor))
    for gpu_type in cluster.gpu_types:
        node = _node_of(cluster, gpu_type.name)
        words = f"one more node like {node.name} ({_contents(node)})"
        yield Change("node", gpu_type.name, words, _with_node(cluster, node))


def link_classes(cluster: Cluster) -> tuple[LinkClass, ...]:
    """Classes that some pair of the cluster's GPUs has."""
    has: set[LinkClass] = set()
    first, shapes = 0, set()
    for node in cluster.nodes:
        shape = (node.gpu_count, node.island_size, node.numa_size)
        if shape not in shapes:
            shapes.add(shape)
            has |= {cluster.link_class(a, b) for a, b in combinations(range(first, first + node.gpu_count), 2)}
        first += node.gpu_count
    sites = Counter(node.site for node in cluster.nodes if node.gpu_count)
    has |= {LinkClass.INTER_NODE} if any(n > 1 for n in sites.values()) else set()
    has |= {LinkClass.INTER_SITE} if len(sites) > 1 else set()
    return tuple(link_class for link_class in LinkClass if link_class in has)


def _with_memory(cluster: Cluster, name: str, more_bytes: float) -> Cluster:
    def grown(group: GpuGroup) -> GpuGroup:
        if group.gpu_type.name != name:
            return group
        more = round(group.gpu_type.memory_bytes + more_bytes)
        return replace(group, gpu_type=replace(group.gpu_type, memory_bytes=more))

    nodes = (replace(node, groups=tuple(map(grown, node.groups))) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def _faster(link: Link, factor: float) -> Link:
    return replace(link, bandwidth_bytes_s=link.bandwidth_bytes_s * factor)


def _with_links(cluster: Cluster, link_class: LinkClass, factor: float) -> Cluster:
    if link_class is LinkClass.INTER_SITE and cluster.inter_site is not None:
        return replace(cluster, inter_site=_faster(cluster.inter_site, factor))
    if link_class in (LinkClass.INTER_NODE, LinkClass.INTER_SITE):
        uplinks = (replace(node, uplink=node.uplink and _faster(node.uplink, factor)) for node in cluster.nodes)
        return replace(
            cluster,
            nodes=tuple(uplinks),
            inter_node=_faster(cluster.inter_node, factor),
            site_links={site: _faster(link, factor) for site, link in cluster.site_links.items()},
        )

    def sped_up(node: Node) -> Node:
        if link_class is LinkClass.ISLAND:
            return replace(node, island=_faster(node.island, factor))
        if link_class is LinkClass.NODE:
            return replace(node, node=_faster(node.node, factor))
        return replace(node, numa=_faster(node.numa, factor))

    return replace(cluster, nodes=tuple(map(sped_up, cluster.nodes)))


def _with_hosts(cluster: Cluster, factor: float) -> Cluster:
    nodes = (replace(node, host=node.host and _faster(node.host, factor)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes), host=cluster.host and _faster(cluster.host, factor))


def _node_of(cluster: Cluster, name: str) -> Node:
    """The node with most GPUs of a type, the first of equals."""
    return max(cluster.nodes, key=lambda node: sum(g.count for g in node.groups if g.gpu_type.name == name))


def _with_node(cluster: Cluster, node: Node) -> Cluster:
    """The node once more, behind the others, so that ranks stay what they are."""
    names, number = {other.name for other in cluster.nodes}, 2
    while f"{node.name}-{number}" in names:
        number += 1
    return replace(cluster, nodes=(*cluster.nodes, replace(node, name=f"{node.name}-{number}")))


def _contents(node: Node) -> str:
    return ", ".join(f"{group.count} x {group.gpu_type.name}" for group in node.groups)
