"""What is wrong with a cluster file gets one clear message: where, what, and what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.errors import InputError
from memx_engine.inputs.cluster_file import cluster_from_document, load_cluster, parse_cluster, validate_cluster_text
from memx_engine.resources import sample_clusters_dir

GOOD = """\
schema: memx/cluster/v1
name: good
gpu_types:
  mine: {vendor: Me, memory_gib: 48, bf16_tflops: 100}
nodes:
  - name: a
    gpus: [{type: a100-sxm-80g, count: 8, memory_used_gib: 1}]
    island_size: 8
  - name: b
    gpus:
      - type: mine
        count: 4
links:
  inter_node: {bandwidth_gb_s: 25, latency_us: 14, shared: true}
"""

LINK = "{bandwidth_gb_s: 25, latency_us: 14, shared: true}"
GPUS = "[{type: a100-sxm-80g, count: 8, memory_used_gib: 1}]"
CASES = [
    # (replace, by, where, in the message, in the hint)
    ("name: good", "nmae: good", ":2: nmae", "unknown key 'nmae'", "did you mean name?"),
    ("memory_gib: 48", "memory_gb: 48", ":4: gpu_types.mine.memory_gb", "unknown key", "did you mean memory_gib?"),
    ("memory_used_gib: 1", "memory_gb: 80", ":7: nodes[0].gpus[0].memory_gb", "unknown", "memory_gib, under overrides"),
    ("island_size: 8", "islandsize: 8", ":8: nodes[0].islandsize", "unknown key", "did you mean island_size?"),
    ("latency_us: 14", "latency_ms: 14", ":14: links.inter_node.latency_ms", "unknown key", "did you mean latency_us?"),
    ("memx/cluster/v1", "memx/plan/v1", ":1: schema", "not a cluster of this version", "memx/cluster/v1"),
    ("schema: memx/cluster/v1", "title: x", ":1: schema", "schema is missing", "schema: memx/cluster/v1"),
    ("count: 8", "count: 0", ":7: nodes[0].gpus[0].count", "out of bounds", "between 1 and 1,024"),
    ("count: 8", "count: 2000000", ":7: nodes[0].gpus[0].count", "out of bounds", "between 1 and 1,024"),
    ("count: 8", "count: 1.5", ":7: nodes[0].gpus[0].count", "whole number", "1 to 1024"),
    ("count: 8", "count: eight", ":7: nodes[0].gpus[0].count", "expected a number, found 'eight'", "bare number"),
    (", count: 8", "", ":7: nodes[0].gpus[0].count", "count is missing", "add the key count"),
    ("type: a100-sxm-80g, ", "", ":7: nodes[0].gpus[0].type", "type is missing", "add the key type"),
    ("a100-sxm-80g", "a100-smx-80g", ":7: nodes[0].gpus[0].type", "not in the catalogue", "a100-sxm-80g"),
    ("a100-sxm-80g", "a100", ":7: nodes[0].gpus[0].type", "several devices", "a100-sxm-40g"),
    ("a100-sxm-80g", "a30", ":7: nodes[0].gpus[0].type", "peak of a30 is not publicly known", "bf16_tflops"),
    ("a100-sxm-80g", "ascend-910b1", ":7: nodes[0].gpus[0].type", "peak of ascend-910b1", "256, 320, 354"),
    ("a100-sxm-80g", "titan-rtx", ":7: nodes[0].gpus[0].type", "peak of titan-rtx", "fp16_tflops"),
    ("a100-sxm-80g", "cpu", ":7: nodes[0].gpus[0].type", "memory of cpu", "memory_gib"),
    ("memory_used_gib: 1", "memory_used_gib: 80", ":7: nodes[0].gpus[0].memory_used_gib", "leaves nothing", "below 80"),
    ("memory_used_gib: 1", "memory_used_gib: -1", ":7: nodes[0].gpus[0].memory_used_gib", "out of bounds", "GiB"),
    ("memory_used_gib: 1", "memory_used_gib: 4GB", ":7: nodes[0].gpus[0].memory_used_gib", "a number", "GiB"),
    ("memory_gib: 48", "memory_gib: 49152", ":4: gpu_types.mine.memory_gib", "out of bounds", "at most 4,096 GiB"),
    ("memory_gib: 48, ", "", ":4: gpu_types.mine.memory_gib", "memory_gib is missing", "needs its memory"),
    ("vendor: Me, ", "", ":4: gpu_types.mine.vendor", "vendor is missing", "add the key vendor"),
    ("bf16_tflops: 100", "bf16_tflops: 1e15", ":4: gpu_types.mine.bf16_tflops", "out of bounds", "TFLOP/s"),
    ("bf16_tflops: 100", "base: nothing", ":4: gpu_types.mine.base", "not in the catalogue", "gpu_types"),
    ("bf16_tflops: 100", "lacks: [fp8]", ":4: gpu_types.mine.lacks[0]", "expected one of bf16, fp16, fp32", ""),
    ("- name: b", "- name: a", ":9: nodes[1].name", "'a' is used twice (first on line 6)", "rename one"),
    ("- name: b", "- name: b c", ":9: nodes[1].name", "cannot name a node", "gpu[01-16]"),
    ("- name: b", "- name: b[5-2]", ":9: nodes[1].name", "range 5-2 is empty", "lower number first"),
    ("- name: b", "- name: b[0-999999]", ":9: nodes[1].name", "too long", "131,072"),
    ("- name: b", "- replicas: 2", ":9: nodes[1].name", "name is missing", "add the key name"),
    ("- name: b", "- replicas: 50000\n    name: b", ":9: nodes[1]", "more than 131,072 GPUs", "replicas"),
    ("island_size: 8", "island_size: 9", ":8: nodes[0].island_size", "out of bounds", "between 1 and 8"),
    ("island_size: 8", "island_size: 6\n    numa_size: 4", ":9: nodes[0].numa_size", "do not nest", "multiple"),
    ("island_size: 8", "site: other", ":1: links.inter_site", "at 2 sites (other, site-0)", "inter_site"),
    ("links:", "links:\n  sites: {mars: infiniband-ndr}", ":14: links.sites.mars", "no node is at site", "site-0"),
    ("bandwidth_gb_s: 25", "bandwidth_gb_s: 0", ":14: links.inter_node.bandwidth_gb_s", "out of bounds", "above 0"),
    ("bandwidth_gb_s: 25", "bandwidth_gb_s: 25GB/s", ":14: links.inter_node.bandwidth_gb_s", "a number", "GB/s"),
    ("bandwidth_gb_s: 25", "bandwidth_gb_s: '25'", ":14: links.inter_node.bandwidth_gb_s", "a number", "quotes"),
    ("shared: true", "shared: maybe", ":14: links.inter_node.shared", "expected true or false", ""),
    (LINK, "infiniband", ":14: links.inter_node", "not a known link", "infiniband-"),
    (LINK, "[1]", ":14: links.inter_node", "found a list", "a mapping"),
    (f"    gpus: {GPUS}\n", "", ":6: nodes[0].gpus", "gpus is missing", "count"),
    (GPUS, "[]", ":7: nodes[0].gpus", "no GPUs", "at least one"),
    (GPUS, "8 x a100", ":7: nodes[0].gpus", "expected a list", "[a, b]"),
    ("vendor: Me", "vendor: ''", ":4: gpu_types.mine.vendor", "expected text", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "message", "hint"), CASES)
def test_one_clear_message(old: str, new: str, where: str, message: str, hint: str) -> None:
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    with pytest.raises(InputError) as caught:
        parse_cluster(text, "c.yaml")
    assert caught.value.exit_code == 2
    assert caught.value.where == "c.yaml" + where
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.message in [problem.message for problem in validate_cluster_text(text)]


def test_check_26_malformed_cluster_yaml_names_line_key_and_nearest_key() -> None:
    """Acceptance check 26."""
    with pytest.raises(InputError) as caught:
        parse_cluster(GOOD.replace("memory_gib: 48", "memory_gb: 48"), "site.yaml")
    assert str(caught.value) == (
        "site.yaml:4: gpu_types.mine.memory_gb: unknown key 'memory_gb'\n  did you mean memory_gib?"
    )
    with pytest.raises(InputError, match="YAML tags") as caught:
        parse_cluster(GOOD.replace("name: good", "name: !!python/object/apply:os.getcwd []"), "site.yaml")
    assert caught.value.where == "site.yaml:2: name"


def test_a_good_file_has_no_problems() -> None:
    assert validate_cluster_text(GOOD) == ()


@pytest.mark.parametrize(
    "text", ["schema: memx/cluster/v1", "schema: memx/cluster/v1\nnodes: []", "just text", "- a", "7"]
)
def test_a_file_without_nodes_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_cluster(text)
    assert validate_cluster_text(text)


def test_all_problems_are_found_at_once_in_order() -> None:
    text = GOOD.replace("memory_gib: 48", "memory_gb: 48").replace("count: 8", "count: 0").replace("mine\n", "mein\n")
    problems = validate_cluster_text(text)
    assert [(problem.line, problem.key) for problem in problems] == [
        (4, "gpu_types.mine.memory_gb"),
        (4, "gpu_types.mine.memory_gib"),
        (7, "nodes[0].gpus[0].count"),
        (11, "nodes[1].gpus[0].type"),
    ]


def test_unreadable_text_is_one_problem() -> None:
    assert [p.line for p in validate_cluster_text("schema: [")] == [1]
    assert len(validate_cluster_text("")) == 1


def test_unknown_sample_offers_the_nearest() -> None:
    with pytest.raises(InputError, match="no cluster file and no sample") as caught:
        load_cluster("paper-20gpus")
    assert "did you mean paper-20gpu?" in caught.value.hint
    with pytest.raises(InputError, match="no such file"):
        load_cluster("missing/cluster.yaml")


def test_document_errors_begin_with_their_place() -> None:
    with pytest.raises(InputError) as caught:
        cluster_from_document({"schema": "memx/cluster/v1", "nodes": [{"name": "a", "gpus": []}]}, "plan.yaml: cluster")
    assert caught.value.where == "plan.yaml: cluster: nodes[0].gpus"


SAMPLE_LINES = (sample_clusters_dir() / "two-sites.yaml").read_text(encoding="utf-8").splitlines() + GOOD.splitlines()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_never_surprise(data: st.DataObject) -> None:
    """Whatever an editor holds: parsing and validating agree, and nothing but InputError is raised."""
    lines = list(data.draw(st.sampled_from([GOOD.splitlines(), SAMPLE_LINES])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        column = data.draw(st.integers(0, len(lines[at])))
        kind = data.draw(st.sampled_from(["cut", "insert", "drop", "swap"]))
        if kind == "cut":
            lines[at] = lines[at][:column]
        elif kind == "insert":
            lines[at] = (
                lines[at][:column] + data.draw(st.text(":{}[],-'\"&*!#x0 \t\n中", max_size=3)) + lines[at][column:]
            )
        elif kind == "drop" and len(lines) > 1:
            del lines[at]
        else:
            lines[at] = data.draw(st.sampled_from(SAMPLE_LINES))
    text = "\n".join(lines)
    problems = validate_cluster_text(text)
    try:
        parse_cluster(text)
    except InputError as error:
        assert problems, error
    else:
        assert problems == ()
