"""The main job from end to end through the command line: plan, save, explain, show, compare, on a small cluster."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from memx_engine import load_plan
from memx_tui import cli
from tests.cli.processes import run

# One node of eight GPUs and one micro-batch size: every skeleton in about a second.
INPUTS = ["--cluster", "a800x8", "--model", "llama3-8b", "--mbs", "1"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Two plan files of one search, and the JSON document of that search."""
    folder = tmp_path_factory.mktemp("flow")
    first = run(["plan", *INPUTS, "--json", "-o", "first.yaml"], folder)
    assert first.code == 0, first.err
    second = run(["plan", *INPUTS, "--pick", "3", "-o", "second.yaml"], folder)
    assert second.code == 0, second.err
    assert "saved to second.yaml" in second.err and "Plan 3" in second.out
    return folder / "first.yaml", folder / "second.yaml", json.loads(first.out)


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = cli.run(arguments)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_plan_json_is_complete(saved: tuple[Path, Path, dict[str, Any]]) -> None:
    document = saved[2]
    assert document["schema"] == "memx/search-result/v1"
    assert document["provenance"] == "uncalibrated"
    assert document["assumed"]
    assert len(document["plans"]) == 10
    assert [p["rank"] for p in document["plans"]] == list(range(1, 11))
    phis = [p["phi"] for p in document["plans"]]
    assert phis == sorted(phis)
    for plan in document["plans"]:
        assert sum(stage["layers"] for stage in plan["stages"]) == 32
        assert len(plan["stages"]) == plan["pp"]
        assert {gpu["rank"] for gpu in plan["gpus"]} == set(range(plan["tp"] * plan["pp"] * plan["dp"]))
        for gpu in plan["gpus"]:
            assert math.isclose(sum(gpu["breakdown"].values()), gpu["peak_bytes"], rel_tol=1e-9)
            assert gpu["oom_probability"] is None


def test_check_18_show_gives_the_plan_that_was_exported(
    saved: tuple[Path, Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    first, _, document = saved
    best = document["plans"][0]
    text = output(["show", str(first)], capsys)
    assert f"tp {best['tp']}  pp {best['pp']}  dp {best['dp']}  mbs {best['micro_batch']}" in text
    assert f"{best['iteration_time_s']:.2f} s per iteration" in text
    assert "uncalibrated" in text
    for stage in best["stages"]:
        assert stage["recompute"] in text
    file = load_plan(first)
    assert file.estimate.iteration_time_s == best["iteration_time_s"]
    assert [str(r) for r in file.plan.recompute] == [s["recompute"] for s in best["stages"]]
    assert list(file.plan.layers) == [s["layers"] for s in best["stages"]]


def test_explain_of_a_plan_file_gives_the_same_numbers(
    saved: tuple[Path, Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, document = saved
    best = document["plans"][0]
    judged = json.loads(output(["explain", str(first), "--json"], capsys))
    assert judged["verdict"] == "fits"
    assert judged["predictor_changed"] is False
    for key in (
        "iteration_time_s",
        "tokens_per_s",
        "peak_memory_bytes",
        "memory_variance_mib2",
        "phi",
        "stages",
        "gpus",
    ):
        assert judged["plan"][key] == best[key], key


def test_explain_reads_standard_input(saved: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    done = run(["explain", "-", "--json"], tmp_path, stdin=saved[0].read_text())
    assert done.code == 0, done.err
    assert json.loads(done.out)["verdict"] == "fits"


def test_explain_says_when_the_predictor_has_changed(
    saved: tuple[Path, Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = load_plan(saved[0])
    other = tmp_path / "other.yaml"
    other.write_text(saved[0].read_text().replace(file.predictor_fingerprint, "0123456789abcdef"))
    assert cli.run(["explain", str(other), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["predictor_changed"] is True
    assert "the predictor has changed" in captured.err


@pytest.mark.parametrize(
    ("flags", "verdict", "words"),
    [
        (["--tp", "2", "--pp", "2", "--dp", "2", "--recompute", "full"], "fits", ""),
        (["--tp", "2", "--pp", "2", "--dp", "2", "--layers", "20,12"], "fits", ""),
        (["--tp", "1", "--pp", "1", "--dp", "8", "--seq-len", "8192", "--recompute", "none"], "does_not_fit", "GiB"),
        (["--tp", "8", "--pp", "2", "--dp", "1"], "invalid", "16 GPUs"),
        (["--tp", "3", "--pp", "1", "--dp", "1"], "invalid", "TP"),
        (["--tp", "2", "--pp", "2", "--dp", "2", "--layers", "20,13"], "invalid", "32"),
    ],
)
def test_explain_exits_0_whenever_it_could_judge(
    flags: list[str], verdict: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(output(["explain", *INPUTS, *flags, "--json"], capsys))
    assert document["verdict"] == verdict
    assert (document["plan"] is None) == (verdict == "invalid")
    assert any(words in reason["message"] for reason in document["reasons"])
    text = output(["explain", *INPUTS, *flags], capsys)
    assert verdict.replace("_", " ").upper() in text


def test_an_uneven_split_is_kept_and_left_out_it_is_even(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--tp", "2", "--pp", "2", "--dp", "2"]
    split = json.loads(output(["explain", *INPUTS, *shape, "--layers", "20,12", "--json"], capsys))
    assert [s["layers"] for s in split["plan"]["stages"]] == [20, 12]
    even = json.loads(output(["explain", *INPUTS, *shape, "--json"], capsys))
    assert [s["layers"] for s in even["plan"]["stages"]] == [16, 16]


def test_compare_as_text_and_json(saved: tuple[Path, Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, _ = saved
    text = output(["compare", str(first), str(second)], capsys)
    assert "A (base)" in text and ("better" in text or "worse" in text)
    document = json.loads(output(["compare", str(first), str(second), "--json"], capsys))
    assert len(document["plans"]) == 2
    same = output(["compare", str(first), str(first)], capsys)
    assert "better" not in same and "worse" not in same


def test_show_writes_a_picture(
    saved: tuple[Path, Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.svg"
    assert output(["show", str(saved[0]), "--svg", str(picture)], capsys) == ""
    assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert cli.run(["show", str(saved[0]), "--svg", str(picture)]) == 2
    before = picture.read_bytes()
    assert output(["show", str(saved[0]), "--svg", str(picture), "--force"], capsys) == ""
    assert picture.read_bytes() == before


def test_an_existing_plan_file_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.yaml"
    target.write_text("mine")
    narrow = ["--tp", "2", "--pp", "2", "-o", str(target)]
    assert cli.run(["plan", *INPUTS, *narrow]) == 2
    assert target.read_text() == "mine"
    capsys.readouterr()
    output(["plan", *INPUTS, *narrow, "--force"], capsys)
    assert load_plan(target).plan.skeleton.tp == 2
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_check_30_headless_and_dashboard_agree_and_standard_output_is_data_only(tmp_path: Path) -> None:
    from memx_engine import SearchOptions, load_cluster, load_model, resolve_job, search_plans
    from memx_tui.columns import PlanColumns

    done = run(["plan", *INPUTS, "--json", "--seed", "3"], tmp_path)
    assert done.code == 0
    document = json.loads(done.out)
    cluster, model = load_cluster("a800x8"), load_model("llama3-8b")
    job = resolve_job(cluster, model, micro_batch_sizes=(1,))
    # The dashboard's own call and its own columns, in its first order.
    result = search_plans(cluster, model, job, options=SearchOptions(seed=3, threads=2))
    columns = PlanColumns.of(result.table)
    assert len(columns.time_s) >= 10
    for row, plan in enumerate(document["plans"]):
        assert result.table.plans[row].skeleton.tp == plan["tp"]
        assert list(result.table.plans[row].layers) == [stage["layers"] for stage in plan["stages"]]
        assert float(columns.time_s[row]) == plan["iteration_time_s"]
        assert float(columns.phi[row]) == plan["phi"]


def test_the_same_inputs_give_the_same_document_to_the_byte(tmp_path: Path) -> None:
    arguments = ["plan", *INPUTS, "--tp", "2,4", "--json"]
    documents = [json.loads(run(arguments, tmp_path).out) for _ in range(2)]
    for document in documents:
        document["search"].pop("seconds")
    assert documents[0] == documents[1]


def test_a_time_limit_still_answers(tmp_path: Path) -> None:
    done = run(["plan", "--cluster", "paper-20gpu", "--model", "llama2-7b", "--time-limit", "1"], tmp_path)
    assert done.code in (0, 3), done.err
    assert "Traceback" not in done.err
    if done.code == 0:
        assert "worst GPU" in done.out


def test_progress_goes_to_standard_error_only(tmp_path: Path) -> None:
    done = run(["plan", *INPUTS, "--tp", "2", "--pp", "2"], tmp_path)
    assert done.code == 0
    assert "memx-tui:" not in done.out
    assert "\x1b" not in done.out and "\x1b" not in done.err


def test_a_workspace_is_created_and_holds_the_log(tmp_path: Path) -> None:
    done = run(
        ["plan", *INPUTS, "--tp", "2", "--pp", "2", "--workspace", "deep/folder", "--log-level", "debug"], tmp_path
    )
    assert done.code == 0, done.err
    assert (tmp_path / "deep/folder/memx.log").exists()
    assert not (tmp_path / "memx").exists()
