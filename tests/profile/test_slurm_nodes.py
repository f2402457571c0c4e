"""Reading what Slurm says of its nodes, in the forms of releases from 18.08 to 24.11.

The texts follow the releases' own output: ``scontrol show node -o`` of 18.08, 20.11 and 22.05, ``--json`` of the data
parsers 0.0.38 (22.05, there in ``sinfo``), 0.0.40 and 0.0.42 (https://slurm.schedmd.com/rest_api.html).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memx_engine.inputs.cluster import Cluster, GpuType
from memx_engine.profile.runner import ProfileError
from memx_engine.profile.runners.slurm_nodes import (
    GpuRequest,
    SilentControllerError,
    SlurmNode,
    find_nodes,
    gpu_request,
    parse_gres,
    parse_json,
    parse_scontrol,
    parse_sinfo,
)
from tests.profile.conftest import A100, GIB, LINK, MI300X, node

A100_40G = GpuType("a100-sxm-40g", "NVIDIA", "A100", 40 * GIB, 312e12, 312e12, aliases=("a100",))
ONE = Cluster("one", (node("n", A100),), LINK)
MIXED = Cluster("mixed", (node("a100-0", A100), node("mi300x-0", MI300X)), LINK)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:a100:4", {"a100": 4}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:2(S:0,3),gpu:v100:1(S:1)", {"a100": 2, "v100": 1}),
        ("gpu:a100:4(S:0-1),gpu:mi300x:8", {"a100": 4, "mi300x": 8}),
        ("gpu:4", {"": 4}),
        ("gpu:4(S:0)", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu:kepler", {"kepler": 1}),
        ("gpu:tesla:no_consume:2", {"tesla": 2}),
        ("gpu:1080ti:8", {"1080ti": 8}),
        ("gpu:a100_1g.5gb:7", {"a100_1g.5gb": 7}),
        ("gpu:nvidia_a100-sxm4-80gb:8(IDX:0-7)", {"nvidia_a100-sxm4-80gb": 8}),
        ("craynetwork:4,gpu:h100:8(S:0-1),mps:h100:800", {"h100": 8}),
        ("lustre:1,mygpu:3", {}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_gres_in_all_its_forms(text: str, expected: dict[str, int]) -> None:
    assert parse_gres(text) == expected


SCONTROL_18 = (
    "NodeName=g01 Arch=x86_64 CoresPerSocket=10 CPUAlloc=0 CPUErr=0 CPUTot=20 CPULoad=0.01"
    " AvailableFeatures=v100,ib ActiveFeatures=v100,ib Gres=gpu:4 NodeAddr=g01 NodeHostName=g01 Version=18.08"
    " OS=Linux 3.10.0-957.el7.x86_64 #1 SMP Thu Nov 8 23:39:32 UTC 2018  RealMemory=191000 AllocMem=0 FreeMem=180000"
    " Sockets=2 Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,long "
    " BootTime=2019-01-01T00:00:00 CfgTRES=cpu=20,mem=191000M,billing=20,gres/gpu=4 AllocTRES= CapWatts=n/a\n"
    "NodeName=c01 CoresPerSocket=10 CPUAlloc=0 CPUTot=20 CPULoad=N/A AvailableFeatures=(null) ActiveFeatures=(null)"
    " Gres=(null) NodeAddr=c01 NodeHostName=c01 Version=(null) RealMemory=191000 State=DOWN*+DRAIN ThreadsPerCore=1"
    " Partitions=cpu  Reason=bad State=IDLE Gres=gpu:9 Partitions=x [root@2019-01-02T00:00:00]\n"
)
SCONTROL_22_LONG = """\
NodeName=a100-0 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=1.84
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:a100:4(S:0-1)
   NodeAddr=127.0.0.1 NodeHostName=vm Port=60161 Version=22.05.8
   State=MIXED+CLOUD+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=main

NodeName=mi300x-0 Arch=x86_64
   Gres=gpu:mi300x:4
   State=ALLOCATED+DRAIN
   Partitions=main
"""
SINFO = """\
g01|gpu:v100:4(S:0-1)|v100,ib|mixed*|gpu*
g01|gpu:v100:4(S:0-1)|v100,ib|mixed*|long
c01|(null)|(null)|drained|cpu
slurm_load_partitions: a warning
"""


def json_22() -> str:
    node = {"name": "a100-0", "features": "big,ib", "gres": "gpu:a100:4", "state": "idle", "state_flags": ["DRAIN"],
            "partitions": ["main"], "gres_used": "gpu:a100:0(IDX:N/A)", "reason": ""}  # fmt: skip
    return json.dumps({"meta": {"plugin": {"name": "Slurm OpenAPI v0.0.38"}}, "errors": [], "nodes": [node]})


def json_23(version: str) -> str:
    node = {"name": "a100-0", "features": ["big", "ib"], "gres": "gpu:a100:4(S:0-1)", "state": ["MIXED", "DRAIN"],
            "partitions": ["main", "long"], "gres_used": "gpu:a100:2(IDX:0-1)", "free_mem": {"set": True, "number": 1},
            "comment": "", "topology": None}  # fmt: skip
    return json.dumps({"nodes": [node], "last_update": {"number": 1}, "meta": {"plugin": {"data_parser": version}},
                       "errors": [], "warnings": []})  # fmt: skip


def test_the_text_of_18_with_values_that_hold_spaces_and_a_reason_that_looks_like_fields() -> None:
    gpu, cpu = parse_scontrol(SCONTROL_18)
    assert gpu == SlurmNode("g01", {"": 4}, ("v100", "ib"), ("IDLE",), ("gpu", "long"))
    assert cpu == SlurmNode("c01", {}, (), ("DOWN", "DRAIN"), ("cpu",))
    assert gpu.usable and not cpu.usable


def test_the_text_of_22_in_lines() -> None:
    first, second = parse_scontrol(SCONTROL_22_LONG)
    assert first == SlurmNode("a100-0", {"a100": 4}, (), ("MIXED", "CLOUD", "NOT_RESPONDING"), ("main",))
    assert first.usable and not second.usable and second.gpus == {"mi300x": 4}


def test_sinfo_lists_a_node_once_for_each_partition() -> None:
    assert parse_sinfo(SINFO) == (
        SlurmNode("g01", {"v100": 4}, ("v100", "ib"), ("MIXED",), ("gpu", "long")),
        SlurmNode("c01", {}, (), ("DRAINED",), ("cpu",)),
    )


@pytest.mark.parametrize("text", [json_22(), json_23("data_parser/v0.0.40"), "motd: hello\n" + json_23("v0.0.42")])
def test_json_of_22_to_24(text: str) -> None:
    nodes = parse_json(text)
    assert nodes is not None and len(nodes) == 1
    assert nodes[0].gpus == {"a100": 4} and nodes[0].features == ("big", "ib")
    assert "main" in nodes[0].partitions and "DRAIN" in nodes[0].states and not nodes[0].usable


@pytest.mark.parametrize("text", ["", "no json", "{", "[]", '{"sinfo": []}', '{"nodes": 3}'])
def test_what_is_no_list_of_nodes_is_none(text: str) -> None:
    assert parse_json(text) is None


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Shell scripts in place of Slurm's clients."""
    for name, code in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


OLD_SCONTROL = (
    'case "$*" in *--json*) echo "scontrol: unrecognized option \'--json\'" >&2; exit 1;; esac; /bin/cat {folder}/text'
)


def test_json_is_asked_first_then_text_then_sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").write_text(json_23("v0.0.42"))
    (tmp_path / "text").write_text(SCONTROL_18)
    pretend(tmp_path, monkeypatch, scontrol=f"/bin/cat {tmp_path}/json", sinfo="exit 1")
    assert [n.name for n in find_nodes()] == ["a100-0"]
    pretend(tmp_path, monkeypatch, scontrol=OLD_SCONTROL.format(folder=tmp_path), sinfo="exit 1")
    assert [n.name for n in find_nodes()] == ["g01", "c01"]
    (tmp_path / "text").write_text(SINFO)
    pretend(tmp_path, monkeypatch, scontrol="exit 1", sinfo=f"/bin/cat {tmp_path}/text")
    assert [n.name for n in find_nodes()] == ["g01", "c01"]
    (tmp_path / "scontrol").unlink()
    assert [n.name for n in find_nodes()] == ["g01", "c01"]


def test_a_slurm_that_cannot_be_asked_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, scontrol="exit 1", sinfo="echo 'sinfo: fatal: no configuration source' >&2; exit 1")
    with pytest.raises(ProfileError, match="no configuration source") as caught:
        find_nodes()
    assert not isinstance(caught.value, SilentControllerError)
    silent = "echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    pretend(tmp_path, monkeypatch, scontrol=silent, sinfo=silent)
    with pytest.raises(SilentControllerError):
        find_nodes()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ProfileError, match="not on this machine"):
        find_nodes()


def nodes(*described: tuple[str, str]) -> tuple[SlurmNode, ...]:
    return tuple(
        SlurmNode(f"n{i}", parse_gres(gres), tuple(features.split(",")) if features else (), ("IDLE",), ("main",))
        for i, (gres, features) in enumerate(described)
    )


def test_a_type_is_found_by_name_alias_driver_name_or_what_the_operator_says() -> None:
    assert gpu_request(MIXED, "mi300x", nodes(("gpu:MI300X:8", "")), {}) == GpuRequest("MI300X", 8)
    assert gpu_request(ONE, A100.name, nodes(("gpu:A100:4", "")), {}).gres == "A100"
    assert gpu_request(ONE, A100.name, nodes(("gpu:a100_sxm_80g:4", "")), {}).gres == "a100_sxm_80g"
    by_driver = gpu_request(ONE, A100.name, nodes(("gpu:nvidia_a100-sxm4-80gb:8", ""), ("gpu:nvidia_t4:4", "")), {})
    assert by_driver == GpuRequest("nvidia_a100-sxm4-80gb", 8)
    assert gpu_request(ONE, A100.name, nodes(("gpu:big:4", ""), ("gpu:small:4", "")), {A100.name: "big"}).gres == "big"


def test_untyped_gpus_are_found_by_feature_or_when_there_is_only_one_type() -> None:
    by_feature = nodes(("gpu:4", "ib,a100"), ("gpu:8", "mi300x"))
    assert gpu_request(MIXED, A100.name, by_feature, {}) == GpuRequest("", 4, "a100")
    assert gpu_request(MIXED, "mi300x", by_feature, {}) == GpuRequest("", 8, "mi300x")
    assert gpu_request(MIXED, "mi300x", by_feature, {"mi300x": "ib"}) == GpuRequest("", 4, "ib")
    assert gpu_request(ONE, A100.name, nodes(("gpu:4", "")), {}) == GpuRequest("", 4)
    assert GpuRequest("", 4).words(2) == "gpu:2" and GpuRequest("a100", 4).words(2) == "gpu:a100:2"
    with pytest.raises(ProfileError, match="no GPU type that matches") as caught:
        gpu_request(MIXED, "mi300x", nodes(("gpu:4", "blue")), {})
    assert "features blue" in caught.value.hint and "--gres-name mi300x=NAME" in caught.value.hint


def test_one_slurm_name_for_two_types_of_the_cluster_is_refused_until_told_apart() -> None:
    both = Cluster("both", (node("n0", A100), node("n1", A100_40G)), LINK)
    here = nodes(("gpu:a100:4", ""), ("gpu:a100_40g:4", ""))
    with pytest.raises(ProfileError, match="both called a100"):
        gpu_request(both, A100.name, here, {})
    assert gpu_request(both, A100_40G.name, here, {A100_40G.name: "a100_40g"}).gres == "a100_40g"
    assert gpu_request(both, A100.name, here, {A100_40G.name: "a100_40g"}).gres == "a100"


def test_the_count_is_that_of_a_usable_node_of_the_partition() -> None:
    here = (
        SlurmNode("n0", {"a100": 8}, (), ("IDLE", "DRAIN"), ("main",)),
        SlurmNode("n1", {"a100": 4}, (), ("MIXED",), ("main",)),
        SlurmNode("n2", {"a100": 16}, (), ("IDLE",), ("other",)),
    )
    assert gpu_request(ONE, A100.name, here, {}, "main").count == 4
    assert gpu_request(ONE, A100.name, here, {}).count == 16
    with pytest.raises(ProfileError, match="in the partition nowhere"):
        gpu_request(ONE, A100.name, here, {}, "nowhere")
    eight = Cluster("eight", (node("n", A100, 8),), LINK)
    with pytest.raises(ProfileError, match="has 8 a100-sxm-80g in n, Slurm's nodes have at most 4"):
        gpu_request(eight, A100.name, here, {}, "main")
