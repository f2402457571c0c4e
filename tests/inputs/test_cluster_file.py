"""Cluster files: what a hand-written one means, and that what is written reads back equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.inputs.catalogue import load_catalogue, scaled
from memx_engine.inputs.cluster import PRECISIONS, Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.cluster_file import (
    cluster_from_document,
    cluster_text,
    cluster_to_document,
    load_cluster,
    parse_cluster,
)
from memx_engine.inputs.documents import dump_yaml, parse_document
from memx_engine.units import GIB, MIB

MINIMAL = """\
schema: memx/cluster/v1
nodes:
  - name: gpu
    replicas: 2
    gpus:
      - {type: h100-sxm-80g, count: 8}
"""


def with_gpus(gpus: str, rest: str = "") -> Cluster:
    return parse_cluster(f"schema: memx/cluster/v1\nnodes:\n  - name: n\n    gpus: {gpus}\n{rest}")


def test_six_lines_make_a_cluster_and_say_what_was_assumed() -> None:
    cluster = parse_cluster(MINIMAL)
    assert [node.name for node in cluster.nodes] == ["gpu-0", "gpu-1"]
    assert len(cluster.gpus) == 16
    assert cluster.nodes[0].island_size == 8
    assert any(s.startswith("island link in a node of 8 h100-sxm-80g: 362 GB/s") for s in cluster.assumed)
    assert any(s.startswith("link between nodes: 12 GB/s") for s in cluster.assumed)
    assert any("h100-sxm-80g: context 4 GiB" in s for s in cluster.assumed)


def test_one_node_needs_no_link_between_nodes() -> None:
    cluster = with_gpus("[{type: a100-sxm-80g, count: 1}]")
    assert not [s for s in cluster.assumed if "link" in s]


def test_ranges_and_replicas_name_nodes() -> None:
    text = MINIMAL.replace("name: gpu", "name: gpu[08-11]").replace("    replicas: 2\n", "")
    assert [node.name for node in parse_cluster(text).nodes] == ["gpu08", "gpu09", "gpu10", "gpu11"]
    eleven = parse_cluster(MINIMAL.replace("replicas: 2", "replicas: 11"))
    assert [eleven.nodes[0].name, eleven.nodes[10].name] == ["gpu-00", "gpu-10"]


def test_name_comes_from_the_file(tmp_path: Path) -> None:
    path = f"{tmp_path}/my-site.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(MINIMAL)
    assert load_cluster(path).name == "my-site"


def test_pcie_devices_split_at_the_numa_boundary() -> None:
    node = with_gpus("[{type: a100-pcie-80g, count: 8}]").nodes[0]
    assert (node.island_size, node.numa_size) == (4, 4)
    assert node.island.bandwidth_bytes_s > node.numa.bandwidth_bytes_s


def test_islands_of_a_mixed_node_hold_one_type_each() -> None:
    node = with_gpus("[{type: rtx-3090, count: 2}, {type: rtx-4090, count: 4}]").nodes[0]
    assert node.island_size == 2


def test_cluster_links_apply_to_every_node_and_a_nodes_own_wins() -> None:
    cluster = parse_cluster(
        MINIMAL
        + "    links: {island: {bandwidth_gb_s: 100, latency_us: 1}}\n"
        + "  - {name: other, gpus: {type: a100-sxm-80g, count: 8}}\n"
        + "links:\n  island: {bandwidth_gb_s: 50, latency_us: 1}\n  inter_node: infiniband-ndr\n"
    )
    assert [node.island.bandwidth_bytes_s for node in cluster.nodes] == [100e9, 100e9, 50e9]
    assert cluster.inter_node == Link(48e9, 14e-6, shared=False)


def test_link_with_a_bandwidth_only_says_its_latency_and_sharing() -> None:
    cluster = parse_cluster(MINIMAL + "links: {inter_node: {bandwidth_gb_s: 25}}")
    assert cluster.inter_node == Link(25e9, 14e-6, shared=True)
    assert "inter_node link of the cluster: latency 14 us (not stated)" in cluster.assumed
    assert "inter_node link of the cluster: one connection shared by the node's GPUs (not stated)" in cluster.assumed


def test_vendors_meet_through_the_hosts() -> None:
    """26 GB/s out of the device and in again (Azure/AI-benchmarking-guide), 48 between: 1/(2/26 + 1/48) = 10.2."""
    text = MINIMAL + "  - {name: amd, gpus: {type: mi300x, count: 8}}\nlinks: {inter_node: infiniband-ndr}\n"
    cluster = parse_cluster(text)
    assert cluster.host == Link(10.2e9, 34e-6, shared=True)
    assert any(s.startswith("host link between vendors: 10.2 GB/s") for s in cluster.assumed)
    assert parse_cluster(MINIMAL).host is None


def test_overrides_change_one_entry_and_name_it() -> None:
    cluster = with_gpus(
        "[{type: a100-sxm-80g, count: 2, overrides: {memory_gib: 78, efficiency: 0.5}},"
        " {type: a100-sxm-80g, count: 1, overrides: {efficiency: 0.5, memory_gib: 78}},"
        " {type: a100-sxm-80g, count: 1, overrides: {efficiency: 0.4}},"
        " {type: a100-sxm-80g, count: 4, overrides: {memory_gib: 80}}]"
    )
    names = [t.name for t in cluster.gpu_types]
    assert names == ["a100-sxm-80g-custom", "a100-sxm-80g-custom-2", "a100-sxm-80g"]
    assert len(cluster.ranks_by_type["a100-sxm-80g-custom"]) == 3
    changed = cluster.gpu_types[0]
    assert (changed.memory_bytes, changed.efficiency, changed.bf16_flops) == (78 * GIB, 0.5, 312e12)
    assert cluster.nodes[0].island.bandwidth_bytes_s == 235e9, "links are the base device's"


def test_a_stated_figure_is_no_longer_assumed() -> None:
    cluster = with_gpus("[{type: rtx-4090, count: 1, overrides: {efficiency: 0.6, context_gib: 1}}]")
    assert cluster.gpu_types[0].assumed == ()
    assert cluster.assumed == ()


def test_own_types_from_nothing_from_a_base_and_in_place() -> None:
    cluster = parse_cluster(
        "schema: memx/cluster/v1\n"
        "gpu_types:\n"
        "  mine: {vendor: Me, memory_gib: 48, bf16_tflops: 100, lacks: [fp32]}\n"
        "  a100-96: {base: a100-sxm-80g, memory_gib: 96}\n"
        "  mi300x: {efficiency: 0.6}\n"
        "nodes:\n"
        "  - name: n\n"
        "    gpus: [{type: mine, count: 1}, {type: a100-96, count: 1}, {type: mi300x, count: 1}]\n"
    )
    mine, larger, tuned = cluster.gpu_types
    assert (mine.vendor, mine.memory_bytes, mine.bf16_flops, mine.lacks) == ("Me", 48 * GIB, 1e14, ("fp32",))
    assert (larger.name, larger.memory_bytes, larger.bf16_flops) == ("a100-96", 96 * GIB, 312e12)
    assert (tuned.name, tuned.efficiency) == ("mi300x", 0.6)


def test_unknown_peak_can_be_given() -> None:
    cluster = with_gpus("[{type: a30, count: 1, overrides: {bf16_tflops: 165, fp16_tflops: 165}}]")
    assert cluster.gpu_types[0].bf16_flops == 165e12


def test_tool_names_are_taken_and_said() -> None:
    cluster = with_gpus("[{type: NVIDIA A100-SXM4-80GB, count: 1}]")
    assert "GPU type 'NVIDIA A100-SXM4-80GB' is taken as a100-sxm-80g" in cluster.assumed


def test_text_names_catalogue_devices_and_document_embeds_them() -> None:
    cluster = parse_cluster(MINIMAL)
    assert "gpu_types" not in cluster_text(cluster)
    assert "gpu[0-1]" not in cluster_text(cluster) and "gpu-[0-1]" in cluster_text(cluster)
    embedded = cluster_to_document(cluster)["gpu_types"]
    assert isinstance(embedded, dict)
    assert embedded["h100-sxm-80g"]["memory_gib"] == 81559 / 1024


def test_part_of_a_parsed_document_reads_with_its_lines() -> None:
    cluster = parse_cluster(MINIMAL)
    root, _ = parse_document(dump_yaml({"cluster": cluster_to_document(cluster)}), "plan.yaml")
    assert root is not None
    part = root.child("cluster")
    assert part is not None
    assert cluster_from_document(part) == cluster


# A cluster as a person could have written it: figures with up to six decimals.
def figures(low: float, high: float) -> st.SearchStrategy[float]:
    return st.decimals(str(low), str(high), places=6).map(float)


links = st.builds(
    Link,
    figures(0.001, 2000).map(lambda x: scaled(x, 9)),
    figures(0, 5000).map(lambda x: scaled(x, -6)),
    st.booleans(),
)
words = st.text("abcXYZ 0123456789-_:#'\"é中", min_size=1, max_size=12).filter(lambda s: bool(s.strip()))
peaks = st.none() | figures(0.5, 5000).map(lambda x: scaled(x, 12))


@st.composite
def gpu_types(draw: st.DrawFn, name: str) -> GpuType:
    return GpuType(
        name=name,
        vendor=draw(words),
        marketing_name=draw(words),
        memory_bytes=draw(st.integers(8192, 300_000)) * MIB + draw(st.integers(0, 1)),
        bf16_flops=scaled(draw(figures(1, 5000)), 12),
        fp16_flops=draw(peaks),
        fp32_flops=draw(peaks),
        memory_bandwidth_bytes_s=draw(st.none() | figures(1, 9000).map(lambda x: scaled(x, 9))),
        lacks=tuple(draw(st.sets(st.sampled_from(PRECISIONS[1:])))),
        context_bytes=draw(st.integers(0, 8 * GIB)),
        efficiency=draw(figures(0.01, 1)),
        aliases=tuple(draw(st.lists(words, max_size=2))),
        sources=tuple(draw(st.lists(words, max_size=2))),
        notes=tuple(draw(st.lists(words, max_size=2))),
        assumed=tuple(draw(st.sets(st.sampled_from(("efficiency", "context_bytes"))))),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    custom = [draw(gpu_types(name=f"type-{i}")) for i in range(draw(st.integers(0, 2)))]
    types = [*custom, load_catalogue()["a100-sxm-80g"], load_catalogue()["mi300x"]]
    groups = st.builds(GpuGroup, st.sampled_from(types), st.integers(1, 16), st.integers(0, 4 * GIB))
    names = draw(
        st.lists(
            st.from_regex(r"[a-z]{0,3}[0-9]{0,2}-?[0-9]{1,3}", fullmatch=True), min_size=1, max_size=6, unique=True
        )
    )
    sites = draw(st.sampled_from([("site-0",), ("north", "south")]))
    bodies = []
    for _ in range(draw(st.integers(1, 2))):
        held = tuple(draw(st.lists(groups, min_size=1, max_size=2)))
        count = sum(group.count for group in held)
        island = draw(st.integers(1, count))
        numa = draw(st.sampled_from([n for n in range(1, count + 1) if n % island == 0 or island % n == 0]))
        inside = [draw(links) for _ in range(3)]
        uplink, host = draw(st.none() | links), draw(st.none() | links)
        bodies.append(Node("", held, island, numa, *inside, draw(st.sampled_from(sites)), uplink, host))
    nodes = tuple(replace(draw(st.sampled_from(bodies)), name=name) for name in names)
    used = sorted({node.site for node in nodes})
    return Cluster(
        name=draw(words),
        nodes=nodes,
        inter_node=draw(links),
        inter_site=draw(links) if len(used) > 1 else draw(st.none() | links),
        site_links=draw(st.dictionaries(st.sampled_from(used), links)),
        host=draw(links),
        assumed=tuple(draw(st.lists(words, max_size=2, unique=True))),
    )


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_every_cluster_reads_back_equal(cluster: Cluster) -> None:
    first = parse_cluster(cluster_text(cluster))
    # Reading adds the sentences about devices' own defaults once; everything else is equal at once.
    assert replace(first, assumed=cluster.assumed) == cluster
    assert first.assumed[: len(cluster.assumed)] == cluster.assumed
    assert parse_cluster(cluster_text(first)) == first
    assert cluster_from_document(cluster_to_document(first)) == first
    assert first.fingerprint == cluster.fingerprint
