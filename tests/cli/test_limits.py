"""Limits and awkward inputs of a search, through the command line: one clear message and the fitting exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memx_tui import cli

SMALL = ["--global-batch", "8", "--seq-len", "512"]
# A small Llama with a prime number of layers and of heads.
PRIME: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 832,
    "intermediate_size": 2048,
    "num_hidden_layers": 13,
    "num_attention_heads": 13,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def cluster(folder: Path, *groups: str) -> str:
    """A cluster file with one node for each ``TYPE: COUNT`` given."""
    file = folder / "cluster.yaml"
    nodes = "".join(f"  - name: n{i}\n    gpus: [{{type: {group}}}]\n" for i, group in enumerate(groups))
    file.write_text(f"schema: memx/cluster/v1\nname: small\nnodes:\n{nodes}")
    return str(file)


def prime(folder: Path) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(PRIME))
    return str(file)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.run(["plan", "--json", *SMALL, *arguments]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    got = cli.run(["plan", *SMALL, *arguments])
    captured = capsys.readouterr()
    assert got == code, captured.err
    assert captured.out == "" and "Traceback" not in captured.err
    assert sum(line.startswith("memx-tui") for line in captured.err.splitlines()) == 1
    return captured.err


def test_limits_hold_and_stand_in_the_result_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 2", "v100-sxm2-32g, count: 2", "t4, count: 2")
    out = tmp_path / "plan.yaml"
    flags = [
        "--pin-layers",
        "0:9",
        "--pin-recompute",
        "v100-sxm2-32g:full",
        "--forbid",
        "t4",
        "--keep-free",
        "2,t4:1.5",
    ]
    flags += ["--max-layer-difference", "8", "--type-order", "a100-sxm-80g,v100-sxm2-32g", "-o", str(out)]
    result = planned(capsys, "--cluster", file, "--model", "llama3.2-1b", *flags)
    space = result["search"]["space"]
    assert space["pin_layers"] == ["0:9"] and space["forbid"] == ["t4"] and space["keep_free"] == ["2", "t4:1.5"]
    for plan in result["plans"]:
        assert plan["stages"][0]["layers"] == 9
        types = [stage["gpu_type"] for stage in plan["stages"]]
        assert types == sorted(types) and "t4" not in types
        assert all(s["recompute"] == "full" for s in plan["stages"] if s["gpu_type"].startswith("v100"))
    text = out.read_text()
    assert "pin_recompute:" in text and "max_layer_difference: 8" in text
    assert cli.run(["explain", str(out)]) == 0
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace("0:9", "0:99"))
    capsys.readouterr()
    assert cli.run(["explain", str(changed)]) == 2
    assert "changed.yaml" in capsys.readouterr().err


def test_limits_are_shown_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 2")
    assert cli.run(["plan", "--cluster", file, "--model", "llama3.2-1b", *SMALL, "--pin-recompute", "full"]) == 0
    assert "limits: pin recompute full" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pin-layers", "0:5,0:6"], "stage 0 is given 5 and 6"),
        (["--pin-layers", "0:0"], "at least 1"),
        (["--pin-layers", "0:10,1:7"], "17 layers"),
        (["--pin-layers", "3"], "--pin-layers"),
        (["--pin-recompute", "full,0:none"], "both cannot hold"),
        (["--pin-recompute", "often"], "--pin-recompute"),
        (["--forbid", "a100-sxm-80g", "--forbid", "t4"], "every GPU type"),
        (["--forbid", "h100"], "h100"),
        (["--keep-free", "-3"], "--keep-free"),
        (["--max-layer-difference", "-1"], "max-layer-difference"),
        (["--type-order", "t4"], "a100-sxm-80g"),
        (["--type-order", "t4,a100-sxm-80g", "--all-orders"], "--all-orders"),
    ],
)
def test_contradictions_are_2(flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 2", "t4, count: 2")
    fp16 = ["--precision", "fp16"]  # the T4 has no bf16
    assert words in refused(capsys, 2, "--cluster", file, "--model", "llama3.2-1b", *fp16, *flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--keep-free", "79"], "without --keep-free 79"),
        (["--pin-layers", "5:1"], "--pin-layers 5:1"),
        (["--pin-layers", "0:3", "--pp", "1"], "--pin-layers 0:3"),
    ],
)
def test_nothing_within_the_limits_is_3(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 2")
    assert words in refused(capsys, 3, "--cluster", file, "--model", "llama3.2-1b", *flags)


def test_fewer_micro_batches_than_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 4")
    best = planned(capsys, "--cluster", file, "--model", "llama3.2-1b", "--global-batch", "2", "--pp", "4")["plans"][0]
    assert best["pp"] == 4 and best["micro_batches"] == 2


def test_prime_layers_and_prime_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 7")
    result = planned(capsys, "--cluster", file, "--model", prime(tmp_path))
    for plan in result["plans"]:
        assert plan["tp"] == 1 and sum(stage["layers"] for stage in plan["stages"]) == 13
    deep = planned(capsys, "--cluster", file, "--model", prime(tmp_path), "--pp", "7")["plans"][0]
    assert deep["pp"] == 7 and deep["dp"] == 1


def test_heads_that_allow_no_tp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 8")
    message = refused(capsys, 3, "--cluster", file, "--model", prime(tmp_path), "--tp", "2,4")
    assert "TP 2" in message and "13 attention heads" in message and "1, 13" in message


def test_one_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 1")
    best = planned(capsys, "--cluster", file, "--model", "llama3.2-1b")["plans"][0]
    assert (best["tp"], best["pp"], best["dp"]) == (1, 1, 1)
    assert "can be placed" in refused(capsys, 3, "--cluster", file, "--model", "llama3.2-1b", "--pp", "2")
    assert "smaller model" in refused(capsys, 3, "--cluster", file, "--model", "llama2-70b")


def test_a_type_with_one_gpu_left_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 4", "h100-sxm-80g, count: 1")
    result = planned(capsys, "--cluster", file, "--model", "llama3.2-1b", "--tp", "4")
    assert {stage["gpu_type"] for stage in result["plans"][0]["stages"]} == {"a100-sxm-80g"}
    assert "plan 1 leaves 1 h100-sxm-80g idle" in result["assumed"]


def test_memory_that_is_used_up_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 2, memory_used_gib: 79.5")
    message = refused(capsys, 3, "--cluster", file, "--model", "llama3.2-1b")
    assert "GiB short" in message and "freeing the memory already in use (79.5 GiB on a100-sxm-80g)" in message


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.run(["explain", "--json", *arguments]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def test_explain_says_how_far_a_plan_is_from_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 4"), "--model", "llama3.2-1b"]
    shape = ["--tp", "4", "--pp", "1", "--dp", "1", "--mbs", "1"]
    judged = explained(capsys, *inputs, *SMALL, *shape, "--gap")
    best = planned(capsys, *inputs)["plans"][0]
    assert judged["gap"]["best_phi"] == pytest.approx(best["phi"])
    assert judged["gap"]["excess"] > 0 and judged["gap"]["bound_gap"] > 0
    assert explained(capsys, *inputs, *SMALL, *shape)["gap"] is None
    file = tmp_path / "plan.yaml"
    planned(capsys, *inputs, "-o", str(file), "--pin-recompute", "full")
    assert explained(capsys, str(file))["gap"]["excess"] == pytest.approx(0.0)
    again = explained(capsys, str(file), "--gap")["gap"]
    assert again["excess"] == pytest.approx(0.0) and again["ahead"] == 0
    assert cli.run(["explain", str(file)]) == 0
    assert "no 1F1B plan of the space has a lower Φ [gap]" in capsys.readouterr().out.replace("\n   ", " ")
    assert cli.run(["explain", str(file), "--time-limit", "5"]) == 2
    capsys.readouterr()
    broken = explained(capsys, str(file), "--pin-recompute", "none", "--gap")
    assert any(r["rule"] == "limit" and "pinned is none" in r["message"] for r in broken["reasons"])
    assert cli.run(["explain", str(file), "--forbid", "t4"]) == 2
    assert "--forbid" in capsys.readouterr().err
    assert cli.run(["show", str(file)]) == 0
    assert "limits: pin recompute full" in capsys.readouterr().out
