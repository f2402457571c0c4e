from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memx_engine import InputError
from memx_tui.cluster_edit import NEW_TEXT, ClusterText, free_name

TEXT = """\
# our cluster, é ☃ 🙂
schema: memx/cluster/v1
name: west   # the old hall
nodes:
  - name: n0
    gpus: [{type: a100-sxm-80g, count: 4}]   # half a box
  # the AMD part
  - name: n1
    gpus:
      - type: mi300x
        count: 8
        memory_used_gib: 1.5
      - type: mi250x
        count: 2
    site: b
  - {name: "gpu[00-07]", gpus: {type: h100-sxm-80g, count: 8}}
links:
  inter_node: infiniband-hdr
"""


def test_outline() -> None:
    doc = ClusterText(TEXT)
    assert doc.name == "west"
    assert [(e.name, e.replicas, e.site, e.gpus, e.line) for e in doc.entries] == [
        ("n0", 1, "", 4, 5),
        ("n1", 1, "b", 10, 8),
        ("gpu[00-07]", 8, "", 8, 16),
    ]
    assert [(g.gpu_type, g.count, g.memory_used_gib) for g in doc.entries[1].groups] == [
        ("mi300x", 8, "1.5"),
        ("mi250x", 2, ""),
    ]
    assert doc.value(("links", "inter_node")) == "infiniband-hdr"
    assert doc.value(("links", "host")) is None


def test_changing_a_value_keeps_every_other_character() -> None:
    doc = ClusterText(TEXT).set(("nodes", 0, "gpus", 0, "count"), "8")
    assert doc.text == TEXT.replace("count: 4}", "count: 8}")
    doc = ClusterText(TEXT).set(("nodes", 1, "gpus", 0, "type"), "mi325x")
    assert doc.text == TEXT.replace("type: mi300x", "type: mi325x")


def test_a_missing_key_is_added_in_the_style_around_it() -> None:
    doc = ClusterText(TEXT).set(("nodes", 0, "gpus", 0, "memory_used_gib"), "2")
    assert "[{type: a100-sxm-80g, count: 4, memory_used_gib: 2}]   # half a box" in doc.text
    doc = ClusterText(TEXT).set(("nodes", 1, "gpus", 1, "memory_used_gib"), "0.5")
    assert "        count: 2\n        memory_used_gib: 0.5\n    site: b" in doc.text
    doc = ClusterText(TEXT).set(("nodes", 0, "site"), "a")
    assert "# half a box\n    site: a\n  # the AMD part" in doc.text
    doc = ClusterText(TEXT).set(("nodes", 0, "links", "uplink"), "ethernet-25g")
    assert "    links: {uplink: ethernet-25g}\n" in doc.text
    doc = ClusterText(TEXT).set(("links", "host"), "host-memory")
    assert doc.text.endswith("  inter_node: infiniband-hdr\n  host: host-memory\n")


def test_a_key_is_removed_with_its_line() -> None:
    doc = ClusterText(TEXT).remove_key(("nodes", 1, "gpus", 0, "memory_used_gib"))
    assert doc.text == TEXT.replace("        memory_used_gib: 1.5\n", "")
    assert doc.remove_key(("nodes", 0, "site")).text == doc.text
    flow = ClusterText("a: {x: 1, y: 2, z: 3}\n")
    assert flow.remove_key(("a", "y")).text == "a: {x: 1, z: 3}\n"
    assert flow.remove_key(("a", "x")).text == "a: {y: 2, z: 3}\n"


def test_nodes_are_added_duplicated_and_removed() -> None:
    doc = ClusterText(TEXT).add_node("v100-sxm-32g", 4, after=0)
    assert [e.name for e in doc.entries] == ["n0", "n2", "n1", "gpu[00-07]"]
    assert "  - name: n2\n    gpus: [{type: v100-sxm-32g, count: 4}]\n" in doc.text
    doc = ClusterText(TEXT).duplicate_node(1)
    assert [e.name for e in doc.entries] == ["n0", "n1", "n2", "gpu[00-07]"]
    assert doc.entries[2].groups[0].memory_used_gib == "1.5" and doc.entries[2].site == "b"
    doc = ClusterText(TEXT).duplicate_node(2)
    assert [e.name for e in doc.entries] == ["n0", "n1", "gpu[00-07]", "gpu[08-15]"]
    doc = ClusterText(TEXT).remove_node(0)
    assert [e.name for e in doc.entries] == ["n1", "gpu[00-07]"] and doc.text.startswith("# our cluster")
    with pytest.raises(InputError, match="at least one"):
        doc.remove_node(0).remove_node(0)


def test_flow_lists_of_nodes_are_edited_too() -> None:
    doc = ClusterText("nodes: [{name: a, gpus: {type: x, count: 1}}, {name: b, gpus: {type: y, count: 2}}]\n")
    assert [e.name for e in doc.duplicate_node(0).entries] == ["a", "a-2", "b"]
    assert [e.name for e in doc.remove_node(0).entries] == ["b"]
    assert [e.name for e in doc.remove_node(1).entries] == ["a"]
    assert [e.name for e in doc.add_node("z", 3).entries] == ["a", "b", "b-2"]
    assert [e.name for e in ClusterText("name: x\n").add_node("z", 3).entries] == ["n1"]
    assert [e.name for e in ClusterText("nodes: []\n").add_node("z", 3).entries] == ["n1"]


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "", "x" * (1 << 20) + "y", "[" * 5000])
def test_text_without_places_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        ClusterText(text)


def test_odd_shapes_do_not_raise() -> None:
    for text in ("nodes: 3\n", "nodes: [1, [2], {gpus: 3}]\n", "nodes:\n  - gpus: [1, {type: [x], count: y}]\n"):
        assert all(e.name == "" for e in ClusterText(text).entries)


def test_free_names() -> None:
    entries = ClusterText(TEXT).entries
    assert free_name("n0", entries) == "n2"
    assert free_name("gpu[00-07]", entries) == "gpu[08-15]"
    assert free_name("box", entries) == "box-2"


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc"]), max_size=30))
def test_any_text_written_as_a_value_reads_back(value: str) -> None:
    doc = ClusterText(NEW_TEXT).set(("name",), value)
    assert str(yaml.safe_load(doc.text)["name"]) == value or value.isdigit()
    assert doc.entries == ClusterText(NEW_TEXT).entries
