"""Transfers of a placed pipeline: every pair of ranks uses the link class it really has.

All of a skeleton's edges are looked up at once in arrays over ranks, because a search asks for thousands of placements.
Bandwidth that a node's GPUs share is divided among the edges that use it at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memx_engine.inputs.cluster import Cluster, Link
from memx_engine.plan import StagePlacement

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]

COLLECTIVE_BASE_S = 50e-6
"""Launch and synchronisation of one collective. With 14 hops of 3.4 us (NCCL tuning.cc, ring over NVLink) an 8-GPU
all-reduce of 1 MiB takes 98 us; 92.8 us were measured on A100 (VIA-Research/vTrain trace/a100)."""

_REMEMBERED = 2048
"""Placements kept: a search asks for the same one with several micro-batch sizes in a row, then moves on."""

_NUMA, _INTER_NODE, _INTER_SITE = 2, 3, 4


@dataclass(frozen=True)
class Rate:
    """Transfer cost over the slowest edge: seconds per byte and latency per hop."""

    s_per_byte: float = 0.0
    latency_s: float = 0.0

    def message_s(self, size_bytes: float) -> float:
        """One point-to-point message."""
        return self.latency_s + size_bytes * self.s_per_byte if size_bytes else 0.0

    def all_reduce_s(self, size_bytes: float, ranks: int) -> float:
        """Ring all-reduce of a buffer: ``2 (n-1) / n`` of it passes every edge, in 2 (n-1) hops."""
        return 2 * self.scatter_s(size_bytes, ranks) - (COLLECTIVE_BASE_S if ranks > 1 else 0.0)

    def scatter_s(self, size_bytes: float, ranks: int) -> float:
        """Ring reduce-scatter or all-gather of a buffer that is whole on every rank before or after."""
        if ranks < 2:
            return 0.0
        hops = ranks - 1
        return COLLECTIVE_BASE_S + hops * self.latency_s + hops / ranks * size_bytes * self.s_per_byte


@dataclass(frozen=True)
class PlacementNetwork:
    """The rates of one placement of P stages.

    Attributes:
        p2p: P-1 boundaries. wrap: last stage back to the first (interleaving).
        tp: P tensor-parallel groups. dp: P data-parallel groups.
        ends: First to last stage (tied embeddings). ends_cross_vendors: Those are of different vendors.
        staged: Boundaries whose transfers go through host memory.
        capacity_bytes: (P,) the least capacity among a stage's GPUs.
    """

    p2p: tuple[Rate, ...]
    wrap: Rate
    tp: tuple[Rate, ...]
    dp: tuple[Rate, ...]
    ends: Rate
    ends_cross_vendors: bool
    staged: tuple[bool, ...]
    capacity_bytes: Array


@dataclass(frozen=True, eq=False)
class _Members:
    """A stage's GPUs, the nodes they are on, and the least capacity among them; stages are told apart by ``number``."""

    number: int
    placement: StagePlacement
    ranks: Ranks
    nodes: tuple[int, ...]
    capacity_bytes: float


@dataclass(frozen=True)
class _Crossing:
    """From one stage to another; ``staged`` where the ends are of different vendors, so that it goes over the host."""

    rate: Rate
    staged: bool


class Network:
    """The links of one cluster as arrays over ranks, and the rates of placements, remembered."""

    def __init__(self, cluster: Cluster) -> None:
        gpus, nodes = cluster.gpus, cluster.nodes
        vendors = {name: i for i, name in enumerate(sorted({gpu.gpu_type.vendor for gpu in gpus}))}
        sites = {name: i for i, name in enumerate(sorted({node.site for node in nodes}))}
        self._node = np.array([gpu.node_index for gpu in gpus])
        self._island = np.array([gpu.local_index // nodes[gpu.node_index].island_size for gpu in gpus])
        self._numa = np.array([gpu.local_index // nodes[gpu.node_index].numa_size for gpu in gpus])
        self._site = np.array([sites[node.site] for node in nodes])
        self._vendor = np.array([vendors[gpu.gpu_type.vendor] for gpu in gpus])
        self._capacity = np.array([gpu.capacity_bytes for gpu in gpus], dtype=np.float64)
        links: list[list[Link]] = []
        for index, node in enumerate(nodes):
            uplink = cluster.uplink(index)
            links.append([node.island, node.node, node.numa, uplink, cluster.inter_site or uplink])
        self._bandwidth = np.array([[link.bandwidth_bytes_s for link in row] for row in links]).T
        self._latency = np.array([[link.latency_s for link in row] for row in links]).T
        self._shared = np.array([[link.shared for link in row] for row in links]).T
        hosts = [node.host or cluster.host for node in nodes]
        self._host_bandwidth = np.array([host.bandwidth_bytes_s if host else np.inf for host in hosts])
        self._host_latency = np.array([host.latency_s if host else 0.0 for host in hosts])
        self._host_shared = np.array([bool(host and host.shared) for host in hosts])
        self.has_host_links = all(host is not None for host in hosts)
        self._any_shared = bool(self._shared.any())
        self._placed: dict[tuple[StagePlacement, ...], PlacementNetwork] = {}
        # Keyed by the numbers of stages, whose look-up costs less than that of the stages.
        self._crossings: dict[tuple[int, int], _Crossing] = {}
        self._ringed: dict[tuple[int, ...], tuple[Rate, Rate]] = {}
        self._members: dict[StagePlacement, _Members] = {}

    @property
    def spans_vendors(self) -> bool:
        """True where the cluster holds devices of more than one vendor."""
        return len(np.unique(self._vendor)) > 1

    def place(self, placements: tuple[StagePlacement, ...]) -> PlacementNetwork:
        """The rates of stages placed so; the same placements are looked up once."""
        known = self._placed.get(placements)
        if known is None:
            if len(self._placed) >= _REMEMBERED:
                del self._placed[next(iter(self._placed))]
            known = self._placed[placements] = self._measure(placements)
        return known

    def _measure(self, placements: tuple[StagePlacement, ...]) -> PlacementNetwork:
        members = [self._members_of(p) for p in placements]
        boundaries = list(pairwise(members))
        around = [*boundaries, (members[-1], members[0])] if boundaries else []
        crossings = self._cross(around)
        ends = crossings[-1] if crossings else _Crossing(Rate(), False)
        rings = self._both_rings(members)
        return PlacementNetwork(
            p2p=tuple(crossing.rate for crossing in crossings[:-1]),
            wrap=ends.rate,
            tp=tuple(tensor for tensor, _ in rings),
            dp=tuple(data for _, data in rings),
            ends=ends.rate,
            ends_cross_vendors=ends.staged,
            staged=tuple(crossing.staged for crossing in crossings[:-1]),
            capacity_bytes=np.array([m.capacity_bytes for m in members]),
        )

    def _members_of(self, placement: StagePlacement) -> _Members:
        known = self._members.get(placement)
        if known is None:
            ranks = np.array(placement.ranks, dtype=np.int64)
            nodes = tuple(np.unique(self._node[ranks]).tolist())
            capacity = float(self._capacity[ranks].min())
            known = self._members[placement] = _Members(len(self._members), placement, ranks, nodes, capacity)
        return known

    def _cross(self, pairs: list[tuple[_Members, _Members]]) -> list[_Crossing]:
        """Transfers from one stage to another; each boundary has the links to itself, so a pair is looked up once."""
        keys = [(a.number, b.number) for a, b in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._crossings}
        if new:
            edges = [_pairs(a.placement, a.ranks, b.placement, b.ranks) for a, b in new.values()]
            a, b = (np.concatenate([edge[k] for edge in edges]) for k in (0, 1))
            group = np.repeat(np.arange(len(new)), [len(sending) for sending, _ in edges])
            rates = self._worst(a, b, group, len(new), concurrent=group)
            staged = np.bincount(group, self._vendor[a] != self._vendor[b], len(new)) > 0
            for key, rate, over_host in zip(new, rates, staged.tolist(), strict=True):
                self._crossings[key] = _Crossing(rate, over_host)
        return [self._crossings[key] for key in keys]

    def _both_rings(self, members: list[_Members]) -> list[tuple[Rate, Rate]]:
        """Tensor- and data-parallel rates of every stage.

        A stage's rings depend on the stages that share a node with it, in whatever order; where no link is shared, on
        nothing else.
        """
        keys: list[tuple[int, ...]] = [(m.number,) for m in members]
        if self._any_shared:
            on_node: dict[int, set[int]] = {}
            for member in members:
                for node in member.nodes:
                    on_node.setdefault(node, set()).add(member.number)
            keys = [(m.number, *sorted(set().union(*(on_node[node] for node in m.nodes)))) for m in members]
        new = [i for i, key in enumerate(keys) if key not in self._ringed]
        if new:
            at_once = range(len(members)) if self._any_shared else new
            some = tuple(members[i].placement for i in at_once)
            ranks = [members[i].ranks for i in at_once]
            tensor, data = (self._rings(some, ranks, tensor=t) for t in (True, False))
            self._ringed |= {keys[i]: pair for i, pair in zip(at_once, zip(tensor, data, strict=True), strict=True)}
        return [self._ringed[key] for key in keys]

    def _rings(self, placements: tuple[StagePlacement, ...], ranks: list[Ranks], *, tensor: bool) -> tuple[Rate, ...]:
        """Rate of every stage's tensor- or data-parallel rings, all rings of all stages running at once."""
        a, b, stage, ring = [], [], [], []
        rings = 0
        for i, (placement, flat) in enumerate(zip(placements, ranks, strict=True)):
            grid = flat.reshape(placement.dp, placement.tp)
            if not tensor:
                grid = grid.T
            if grid.shape[1] < 2:
                continue
            a.append(grid.ravel())
            b.append(np.roll(grid, -1, axis=1).ravel())
            stage.append(np.full(grid.size, i))
            ring.append(np.repeat(np.arange(rings, rings + len(grid)), grid.shape[1]))
            rings += len(grid)
        if not a:
            return (Rate(),) * len(placements)
        source, stages, members = np.concatenate(a), np.concatenate(stage), np.concatenate(ring)
        return self._worst(source, np.concatenate(b), stages, len(placements), ring=members)

    def _worst(
        self,
        a: Ranks,
        b: Ranks,
        group: Ranks,
        groups: int,
        *,
        ring: Ranks | None = None,
        concurrent: Ranks | None = None,
    ) -> tuple[Rate, ...]:
        """The slowest edge of every group.

        Args:
            a, b: Sending and receiving rank of every edge. group: Which result an edge counts for.
            ring: Which ring an edge belongs to; the rails of a ring are the links of all its members on a node.
            concurrent: Edges that do not run at the same time have different numbers; all at once when None.
        """
        x, y = self._node[a], self._node[b]
        inside = np.where(self._island[a] == self._island[b], 0, np.where(self._numa[a] == self._numa[b], 1, _NUMA))
        kind = np.where(x == y, inside, np.where(self._site[x] == self._site[y], _INTER_NODE, _INTER_SITE))
        when = np.zeros(len(a), dtype=np.int64) if concurrent is None else concurrent
        bandwidth = np.minimum(
            self._share(kind, x, when, self._bandwidth, self._shared),
            self._share(kind, y, when, self._bandwidth, self._shared),
        )
        latency = np.maximum(self._latency[kind, x], self._latency[kind, y])
        if ring is not None:
            bandwidth = self._rails(bandwidth, kind, x, y, ring)
        cross = self._vendor[a] != self._vendor[b]
        if cross.any():
            zero = np.zeros_like(kind)
            for node in (x, y):
                host = self._share(zero, node, when, self._host_bandwidth[None], self._host_shared[None])
                bandwidth = np.where(cross, np.minimum(bandwidth, host), bandwidth)
            latency = latency + np.where(cross, np.maximum(self._host_latency[x], self._host_latency[y]), 0.0)
        slowest, longest = np.zeros(groups), np.zeros(groups)
        np.maximum.at(slowest, group, 1.0 / bandwidth)
        np.maximum.at(longest, group, latency)
        return tuple(Rate(float(s), float(t)) for s, t in zip(slowest, longest, strict=True))

    @staticmethod
    def _share(kind: Ranks, node: Ranks, when: Ranks, bandwidth: Array, shared: NDArray[np.bool_]) -> Array:
        """Bandwidth of every edge at one of its nodes, divided by the edges that use the same shared link at once."""
        own = bandwidth[kind, node]
        is_shared = shared[kind, node]
        if not is_shared.any():
            return np.asarray(own)
        key = (when * bandwidth.shape[0] + kind) * bandwidth.shape[1] + node
        _, place, users = np.unique(key, return_inverse=True, return_counts=True)
        return np.asarray(own / np.where(is_shared, users[place], 1))

    def _rails(self, bandwidth: Array, kind: Ranks, x: Ranks, y: Ranks, ring: Ranks) -> Array:
        """A ring with several GPUs on a node leaves it over all of their own network cards (NCCL's rails).

        The node's inner link is then the limit. A shared uplink stays what it is.
        """
        rails = (kind >= _INTER_NODE) & ~self._shared[kind, x] & ~self._shared[kind, y]
        if not rails.any():
            return bandwidth
        nodes = self._bandwidth.shape[1]
        _, place, members = np.unique(ring * nodes + x, return_inverse=True, return_counts=True)
        # Every member of a ring sends once, so the members on a node are the edges that start there; the receiving
        # node's members bound the rails too, and rings are symmetric enough to take the sender's.
        inner = np.minimum(self._bandwidth[0, x], self._bandwidth[0, y])
        return np.where(rails, np.minimum(bandwidth * members[place], np.maximum(inner, bandwidth)), bandwidth)


def _pairs(a: StagePlacement, a_ranks: Ranks, b: StagePlacement, b_ranks: Ranks) -> tuple[Ranks, Ranks]:
    """Who sends to whom between two stages: equal positions, or the positions that the larger side repeats."""
    if a.tp == b.tp and a.dp == b.dp:
        return a_ranks, b_ranks
    tp, dp = max(a.tp, b.tp), max(a.dp, b.dp)
    d, t = np.repeat(np.arange(dp), tp), np.tile(np.arange(tp), dp)
    return a_ranks[(d % a.dp) * a.tp + t % a.tp], b_ranks[(d % b.dp) * b.tp + t % b.tp]
