"""The clusters that ship with the product."""

from __future__ import annotations

from pathlib import Path

import pytest

from memx_engine.errors import MemxError
from memx_engine.inputs.cluster import LinkClass
from memx_engine.inputs.cluster_file import (
    cluster_from_document,
    cluster_text,
    cluster_to_document,
    load_cluster,
    parse_cluster,
    sample_clusters,
    validate_cluster_text,
)
from memx_engine.resources import _first_folder, sample_clusters_dir, themes_dir

SIZES = {
    "a100-ascend": {"a100-sxm-80g": 16, "ascend-910b1": 16},
    "a800-a100-64nodes": {"a800-sxm-80g": 128, "a100-sxm-40g": 384},
    "a800x8": {"a800-sxm-80g": 8},
    "desk-3090-4090": {"rtx-3090": 4, "rtx-4090": 4},
    "h100-mi300x": {"h100-sxm-80g": 16, "mi300x": 16},
    "motivation-xy": {"vendor-x": 8, "vendor-y": 8},
    "paper-20gpu": {"a100-sxm-80g": 4, "vendor-b": 8, "vendor-c": 8},
    "paper-40gpu": {"a100-sxm-80g": 8, "vendor-b": 16, "vendor-c": 16},
    "paper-60gpu": {"a100-sxm-80g": 12, "vendor-b": 24, "vendor-c": 24},
    "paper-small": {"v100-sxm2-32g": 4, "t4": 2},
    "thousand-gpus": {"h100-sxm-80g": 256, "a100-sxm-80g": 256, "mi300x": 256, "ascend-910b1": 256},
    "two-sites": {"a100-sxm-80g": 320},
}


def test_all_samples_are_listed_with_a_title() -> None:
    samples = sample_clusters()
    assert [sample.name for sample in samples] == sorted(SIZES)
    for sample in samples:
        assert sample.title != sample.name
        assert sample.path.read_text(encoding="utf-8").startswith("#"), "sources of the links stand at the top"


@pytest.mark.parametrize("name", SIZES)
def test_sample_has_its_gpus_and_reads_back_equal(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert {kind: len(ranks) for kind, ranks in cluster.ranks_by_type.items()} == SIZES[name]
    assert parse_cluster(cluster_text(cluster)) == cluster
    again = cluster_from_document(cluster_to_document(cluster))
    assert again == cluster
    assert again.fingerprint == cluster.fingerprint
    assert validate_cluster_text((sample_clusters_dir() / f"{name}.yaml").read_text(encoding="utf-8")) == ()


@pytest.mark.parametrize("name", SIZES)
def test_samples_state_their_links(name: str) -> None:
    assert not [sentence for sentence in load_cluster(name).assumed if "not stated" in sentence]


def test_paper_cluster_is_the_papers() -> None:
    """MemX paper, Table 3 and section 4.1."""
    cluster = load_cluster("paper-20gpu")
    power = {t.name: (t.bf16_flops or 0) * t.efficiency for t in cluster.gpu_types}
    assert power["vendor-b"] / power["a100-sxm-80g"] == pytest.approx(99 / 128)
    assert power["vendor-c"] / power["a100-sxm-80g"] == pytest.approx(46 / 128)
    assert [round(t.memory_bytes / 2**30) for t in cluster.gpu_types] == [80, 32, 32]
    assert len({t.vendor for t in cluster.gpu_types}) == 3
    assert cluster.link(0, 3).bandwidth_bytes_s == 240e9
    assert (cluster.link_class(4, 7), cluster.link(4, 7).bandwidth_bytes_s) == (LinkClass.ISLAND, 17e9)
    assert (cluster.link_class(4, 8), cluster.link(4, 8).bandwidth_bytes_s) == (LinkClass.NUMA, 12e9)
    assert (cluster.link_class(0, 4), cluster.link(0, 4).bandwidth_bytes_s) == (LinkClass.INTER_NODE, 28e9)


def test_small_cluster_has_no_bf16() -> None:
    assert not any(t.supports("bf16") for t in load_cluster("paper-small").gpu_types)


def test_two_sites_have_links_of_their_own() -> None:
    cluster = load_cluster("two-sites")
    assert cluster.link_class(0, 319) is LinkClass.INTER_SITE
    assert cluster.link(0, 319) == cluster.inter_site
    assert cluster.link(0, 8).bandwidth_bytes_s > cluster.link(160, 168).bandwidth_bytes_s


def test_desk_boxes_keep_types_apart() -> None:
    cluster = load_cluster("desk-3090-4090")
    assert [gpu.gpu_type.name for gpu in cluster.gpus[:4]] == ["rtx-3090", "rtx-3090", "rtx-4090", "rtx-4090"]
    assert cluster.link_class(1, 2) is LinkClass.NODE


def test_ascend_memory_in_use_is_subtracted() -> None:
    """npu-smi shows about 4 GiB of 64 in use on an idle 910B."""
    gpu = load_cluster("a100-ascend").gpus[-1]
    assert 59.5 < gpu.capacity_bytes / 2**30 < 60.5


def test_uplinks_differ_by_node() -> None:
    cluster = load_cluster("thousand-gpus")
    assert cluster.link(0, 8).bandwidth_bytes_s == 48e9
    assert cluster.link(0, 256).bandwidth_bytes_s == 24e9  # the slower of the two ends


def test_folders_are_found() -> None:
    assert (sample_clusters_dir() / "paper-20gpu.yaml").is_file()
    assert themes_dir().name == "themes"


def test_missing_folder_is_said(tmp_path: Path) -> None:
    inside = tmp_path / "wheel"
    with pytest.raises(MemxError, match="lacks its themes folder"):
        _first_folder("themes", inside, tmp_path / "source")
    inside.mkdir()
    (tmp_path / "source").mkdir()
    assert _first_folder("themes", inside, tmp_path / "source") == inside
