from __future__ import annotations

import pytest

from memx_engine.cost.network import COLLECTIVE_BASE_S, Network, Rate
from memx_engine.inputs.cluster import Cluster, GpuGroup, Link, Node
from memx_engine.plan import StagePlacement
from memx_engine.units import GB
from tests.cost.shapes import A800, INFINIBAND, NVLINK_A800, gpu_type, nodes_of

PAIR, SOCKET, ACROSS = Link(100 * GB, 1e-6), Link(20 * GB, 2e-6), Link(10 * GB, 3e-6)


def stage(tp: int, dp: int, *ranks: int, kind: str = "a800-sxm-80g") -> StagePlacement:
    return StagePlacement(kind, tp, dp, ranks)


def one_node(**changes: object) -> Cluster:
    """Eight GPUs: pairs on a bridge, four to a socket."""
    links = {"island": PAIR, "node": SOCKET, "numa": ACROSS, **changes}
    node = Node("n", (GpuGroup(A800, 8),), 2, 4, **links)  # type: ignore[arg-type]  # a test may change any link
    return Cluster("one", (node,), INFINIBAND)


def bandwidth(rate: Rate) -> float:
    return 1 / rate.s_per_byte


def test_a_group_runs_at_its_slowest_pair() -> None:
    network = Network(one_node())
    in_pairs = network.place((stage(2, 4, *range(8)),))
    assert bandwidth(in_pairs.tp[0]) == pytest.approx(100 * GB)
    assert bandwidth(in_pairs.dp[0]) == pytest.approx(10 * GB)
    assert in_pairs.dp[0].latency_s == 3e-6
    assert bandwidth(network.place((stage(4, 2, *range(8)),)).tp[0]) == pytest.approx(20 * GB)
    assert bandwidth(network.place((stage(8, 1, *range(8)),)).tp[0]) == pytest.approx(10 * GB)


def test_transfers_between_stages_use_their_real_pairs() -> None:
    placed = Network(one_node()).place(tuple(stage(1, 1, rank) for rank in range(6)))
    assert [bandwidth(rate) / GB for rate in placed.p2p] == pytest.approx([100, 20, 100, 10, 100])
    assert bandwidth(placed.wrap) == pytest.approx(10 * GB)


def test_a_shared_bus_is_divided_among_the_edges_that_use_it() -> None:
    network = Network(one_node(numa=Link(10 * GB, 3e-6, shared=True)))
    # Four rings of two: each has one edge each way over the sockets' link, eight at once.
    assert bandwidth(network.place((stage(4, 2, *range(8)),)).dp[0]) == pytest.approx(10 * GB / 8)


def test_a_ring_leaves_a_node_over_all_cards_of_its_members() -> None:
    ranks = tuple(range(16))
    own = Network(nodes_of(A800, A800))
    inter = INFINIBAND.bandwidth_bytes_s
    # Eight rings over two nodes, a card per ring.
    assert bandwidth(own.place((stage(8, 2, *ranks),)).dp[0]) == pytest.approx(inter)
    # One ring over both nodes may use all eight cards, but not more than NVLink carries.
    assert bandwidth(own.place((stage(1, 16, *ranks),)).dp[0]) == pytest.approx(NVLINK_A800.bandwidth_bytes_s)
    assert bandwidth(own.place((stage(4, 4, *ranks),)).dp[0]) == pytest.approx(2 * inter)
    # Two stages, eight pairs, a card each.
    two = (stage(8, 1, *ranks[:8]), stage(8, 1, *ranks[8:]))
    assert bandwidth(own.place(two).p2p[0]) == pytest.approx(inter)


def test_the_nodes_one_card_serves_every_pair_and_every_ring() -> None:
    card = Link(24 * GB, 10e-6, shared=True)
    cluster = nodes_of(A800, A800)
    shared = Network(Cluster("shared", cluster.nodes, card, host=cluster.host))
    ranks = tuple(range(16))
    assert bandwidth(shared.place((stage(8, 1, *ranks[:8]), stage(8, 1, *ranks[8:]))).p2p[0]) == pytest.approx(3 * GB)
    assert bandwidth(shared.place((stage(8, 2, *ranks),)).dp[0]) == pytest.approx(3 * GB)
    assert bandwidth(shared.place((stage(1, 16, *ranks),)).dp[0]) == pytest.approx(24 * GB)


def test_between_vendors_the_host_carries() -> None:
    other = gpu_type("other", vendor="Other")
    cluster = nodes_of(A800, other)
    placed = Network(cluster).place((stage(1, 1, 0), stage(1, 1, 8, kind="other")))
    assert placed.staged == (True,)
    assert placed.ends_cross_vendors
    assert bandwidth(placed.p2p[0]) == pytest.approx(10 * GB)
    assert placed.p2p[0].latency_s == pytest.approx(INFINIBAND.latency_s + 30e-6)
    without = Network(Cluster("none", cluster.nodes, INFINIBAND))
    assert not without.has_host_links
    assert bandwidth(without.place((stage(1, 1, 0), stage(1, 1, 8, kind="other"))).p2p[0]) == pytest.approx(24 * GB)


def test_sites_are_joined_by_their_own_link() -> None:
    a, b = nodes_of(A800, A800).nodes
    far = Node(b.name, b.groups, 8, 8, b.island, b.node, b.numa, site="there")
    slow = Link(1 * GB, 1e-3)
    placed = Network(Cluster("sites", (a, far), INFINIBAND, inter_site=slow)).place((stage(1, 1, 0), stage(1, 1, 8)))
    assert bandwidth(placed.p2p[0]) == pytest.approx(1 * GB)
    assert placed.p2p[0].latency_s == 1e-3


def test_uneven_stages_pair_their_positions() -> None:
    placed = Network(nodes_of(A800)).place((stage(4, 1, 0, 1, 2, 3), stage(2, 1, 4, 5)))
    assert bandwidth(placed.p2p[0]) == pytest.approx(NVLINK_A800.bandwidth_bytes_s)


def test_capacity_is_the_least_of_a_stage() -> None:
    kind = A800
    node = Node("n", (GpuGroup(kind, 1), GpuGroup(kind, 1, memory_used_bytes=5)), 2, 2, PAIR, PAIR, PAIR)
    placed = Network(Cluster("used", (node,), INFINIBAND)).place((stage(2, 1, 0, 1),))
    assert placed.capacity_bytes.tolist() == [kind.memory_bytes - 5]


def test_collectives_by_hand() -> None:
    rate = Rate(1 / (160 * GB), 5e-6)
    size = 64e6
    assert rate.all_reduce_s(size, 8) == pytest.approx(COLLECTIVE_BASE_S + 14 * 5e-6 + 2 * 7 / 8 * size / (160 * GB))
    assert rate.scatter_s(size, 8) == pytest.approx(COLLECTIVE_BASE_S + 7 * 5e-6 + 7 / 8 * size / (160 * GB))
    assert rate.all_reduce_s(size, 1) == rate.scatter_s(size, 1) == 0
    assert rate.message_s(size) == pytest.approx(5e-6 + size / (160 * GB))


def test_an_all_reduce_of_1_mib_on_8_a100_takes_what_was_measured() -> None:
    # VIA-Research/vTrain trace/a100: 92.8 us; NVLink 235 GB/s and 3.4 us a hop (NCCL).
    assert Rate(1 / (235 * GB), 3.4e-6).all_reduce_s(1 << 20, 8) == pytest.approx(92.8e-6, rel=0.2)
