"""What ``plan`` answers beside its plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memx_tui import cli
from tests.cli.test_limits import SMALL, cluster


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.run(["plan", "--json", *SMALL, *arguments]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def test_sensitivity_as_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2", "a100-sxm-80g, count: 2")]
    inputs += ["--model", "llama3.2-1b"]
    result = planned(capsys, *inputs, "--sensitivity")
    changes = result["sensitivity"]["changes"]
    assert [c["kind"] for c in changes] == ["memory", "link", "link", "node"]
    best = result["plans"][0]
    assert result["sensitivity"]["phi"] == best["phi"]
    for change in changes:
        assert change["phi_change"] <= 1e-12 and change["phi"] == change["plan"]["phi"]
        assert change["phi"] == pytest.approx(best["phi"] * (1 + change["phi_change"]))
    assert sum(len(s["ranks"]) for s in changes[-1]["plan"]["stages"]) <= 6
    assert "sensitivity" not in planned(capsys, *inputs)
    assert cli.run(["plan", *SMALL, *inputs, "--sensitivity"]) == 0
    text = capsys.readouterr().out
    assert "What a little more would buy" in text and "one more node like n0" in text


def test_planning_again_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = ["a100-sxm-80g, count: 2"] * 3
    inputs = ["--cluster", cluster(tmp_path, *groups), "--model", "llama3.2-1b"]
    file, after = tmp_path / "plan.yaml", tmp_path / "next.yaml"
    first = planned(capsys, *inputs, "--pp", "3", "--tp", "2", "-o", str(file))
    assert cli.run(["plan", "--json", "--from", str(file), "--without", "n1", "--pp", "2", "-o", str(after)]) == 0
    captured = capsys.readouterr()
    second = json.loads(captured.out)
    moved = second["replan"]
    assert moved["gone"] == ["n1"] and not moved["unchanged"]
    assert second["job"]["global_batch"] == 8 and second["job"]["seq_len"] == 512
    assert second["weights"] == first["weights"]
    assert second["cluster"]["gpus"] == 4
    chosen = moved["chosen"]
    for key in ("weights_bytes", "optimizer_bytes", "kept_bytes"):
        assert sum(n[key] for n in chosen["nodes"]) == pytest.approx(sum(r[key] for r in chosen["ranks"]))
    assert chosen["received_bytes"] <= moved["best"]["received_bytes"]
    assert chosen["received_bytes"] == pytest.approx(
        sum(n["weights_bytes"] + n["optimizer_bytes"] for n in chosen["nodes"])
    )
    assert 0 < chosen["moved_layers"] <= 16 and chosen["lost_optimizer_bytes"] > 0
    # The saved file is the chosen plan, on the cluster without the node.
    text = after.read_text()
    assert "planned without n1" in text and "name: n1\n" not in text
    assert cli.run(["plan", "--from", str(after), "--pp", "2"]) == 0
    out = capsys.readouterr().out
    assert "The plan in hand stays as it is" in out and "Nothing moves" in out
    assert cli.run(["plan", "--from", str(file), "--without", "n1", "--pick", "2"]) == 0
    assert "Moving from the plan in hand" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--without", "n7"], 2, "no node 'n7'"),
        (["--without", "n0", "--without", "n1"], 2, "no node is left"),
        (["--model", "llama3-8b"], 2, "nothing of it can stay"),
        (["--precision", "fp16"], 2, "trains in bf16"),
        (["--from", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
)
def test_what_cannot_be_planned_again(
    flags: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2", "a100-sxm-80g, count: 2")]
    file = tmp_path / "plan.yaml"
    planned(capsys, *inputs, "--model", "llama3.2-1b", "-o", str(file))
    assert cli.run(["plan", "--from", str(file), *flags]) == code
    captured = capsys.readouterr()
    assert words in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_limits_of_the_file_hold_until_a_flag_says_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2", "h100-sxm-80g, count: 2")]
    file = tmp_path / "plan.yaml"
    limits = ["--pin-recompute", "h100-sxm-80g:full,a100-sxm-80g:none"]
    planned(capsys, *inputs, "--model", "llama3.2-1b", *limits, "-o", str(file))
    again = planned(capsys, "--from", str(file), "--without", "n1")
    assert again["search"]["space"]["pin_recompute"] == ["a100-sxm-80g:none"]
    other = planned(capsys, "--from", str(file), "--max-layer-difference", "1")
    assert "pin_recompute" not in other["search"]["space"]


def test_free_hyper_parameters_are_compared_per_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2"), "--model", "llama3.2-1b"]
    lists = ["--global-batch", "8,16", "--seq-len", "512,1024"]
    out = planned(capsys, *inputs, *lists)
    variants = out["free"]["variants"]
    assert [(v["global_batch"], v["seq_len"]) for v in variants] == [(8, 512), (8, 1024), (16, 512), (16, 1024)]
    best = variants[out["free"]["best"]]
    assert best["phi"] == min(v["phi"] for v in variants) == out["plans"][0]["phi"]
    assert (out["job"]["global_batch"], out["job"]["seq_len"]) == (best["global_batch"], best["seq_len"])
    for v in variants:
        assert v["s_per_token"] == pytest.approx(v["iteration_time_s"] / v["global_batch"] / v["seq_len"])
    assert "free" not in planned(capsys, *inputs)
    assert cli.run(["plan", *inputs, *lists]) == 0
    assert "Compared by time per token" in capsys.readouterr().out
    one = planned(capsys, *inputs, "--kv-heads", "4")
    assert any("4 KV heads instead of 32 and 8" in line for line in one["assumed"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--global-batch", "8,0"], "global"),
        (["--global-batch", "8,many"], "--global-batch"),
        (["--heads", "33"], "33 heads do not divide"),
        (["--kv-heads", "7"], "7"),
        (["--seq-len", "512,100000000"], "100000000"),
    ],
)
def test_free_values_that_cannot_be(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2"), "--model", "llama3.2-1b"]
    assert cli.run(["plan", *inputs, *flags]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and "Traceback" not in captured.err


def test_a_long_list_of_nodes_is_cut_where_it_receives_least() -> None:
    from memx_engine.inputs.cluster import Cluster, Link
    from memx_engine.search.migration import Migration, RankMove
    from memx_engine.search.replan import Replan
    from memx_tui.text.replan_view import replan_text
    from memx_tui.text.style import Style
    from tests.builders import make_node, make_result

    nodes = tuple(make_node(f"n{i:02}", count=1) for i in range(20))
    moves = Migration(tuple(RankMove(i, 0, 1, float(i) * 2**30, 0.0, 0.0) for i in range(20)), 1, 0.0, 0.0)
    best = make_result(1).plans[0]
    again = Replan(best, moves, best, moves, False, 0.02, 1, ("gone",), ())
    text = "\n".join(replan_text(again, Cluster("c", nodes, Link(1e10, 1e-6)), Style()))
    assert "n19" in text and "n04" in text and "n03" not in text
    assert "4 more nodes receive no more than these" in text
