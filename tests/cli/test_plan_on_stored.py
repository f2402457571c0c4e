from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Precision
from memx_engine.inputs.model_file import load_model
from memx_engine.measurement import Point
from memx_engine.testbed.testbed import Testbed
from memx_engine.workspace import Workspace
from memx_tui.cli import run
from memx_tui.paths import find_paths

SAMPLE = ["--cluster", "paper-small", "--model", "llama3.2-1b"]
JOB = [*SAMPLE, "--global-batch", "16", "--seq-len", "512", "--precision", "fp16", "--mbs", "1", "--pp", "3"]


def fill(folder: Path, types: int = 2) -> None:
    """Measure two small points of the first ``types`` GPU types on the testbed."""
    cluster, model = load_cluster("paper-small"), load_model("llama3.2-1b")
    bed = Testbed(cluster)
    with Workspace(folder) as store:
        for gpu_type in cluster.gpu_types[:types]:
            for tp in (1, 2):
                point = Point(gpu_type.name, model, tp, 1, 512, 2, precision=Precision.FP16)
                store.add(bed.measure(point))


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def explain(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, Any], str]:
    flags = [f for f in JOB if f not in ("--pp", "3")]
    shape = ["--tp", "2", "--pp", "3", "--dp", "1"]
    return document(capsys, "explain", *flags, *shape, "--json", *more)


def test_stored_measurements_move_the_numbers_and_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, _ = explain(capsys, "--workspace", str(tmp_path / "empty"))
    assert empty["provenance"] == "uncalibrated"
    assert any("nothing is measured" in line for line in empty["assumed"])
    fill(tmp_path / "full")
    full, _ = explain(capsys, "--workspace", str(tmp_path / "full"))
    assert full["provenance"] == "simulated"
    assert full["plan"]["iteration_time_s"] != empty["plan"]["iteration_time_s"]
    assert full["plan"]["peak_memory_bytes"] != empty["plan"]["peak_memory_bytes"]
    assert sum("points of testbed:0 (simulated)" in line for line in full["assumed"]) == 2


def test_a_type_without_measurements_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, types=1)
    half, _ = explain(capsys, "--workspace", str(tmp_path))
    assert half["provenance"] == "uncalibrated"
    unmeasured = load_cluster("paper-small").gpu_types[1].name
    assert any(line.startswith(f"{unmeasured}: nothing is measured") for line in half["assumed"])


def test_a_plan_is_judged_alike_with_its_workspace_and_said_to_differ_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, file = tmp_path / "work", tmp_path / "plan.yaml"
    fill(work)
    found, _ = document(capsys, "plan", *JOB, "--workspace", str(work), "--json", "-o", str(file))
    assert found["provenance"] == "simulated"

    again, err = document(capsys, "explain", str(file), "--workspace", str(work), "--json")
    assert "predictor has changed" not in err and again["predictor_changed"] is False
    best = found["plans"][0]
    assert again["plan"]["iteration_time_s"] == pytest.approx(best["iteration_time_s"], rel=1e-12)
    assert again["plan"]["peak_memory_bytes"] == pytest.approx(best["peak_memory_bytes"], rel=1e-12)

    bare, err = document(capsys, "explain", str(file), "--json")
    assert bare["predictor_changed"] is True and bare["provenance"] == "uncalibrated"
    assert "predictor has changed" in err and "simulated then, uncalibrated now" in err and "--workspace" in err


def test_a_changed_constant_of_the_cost_model_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.yaml"
    document(capsys, "plan", *JOB, "--json", "-o", str(file))
    same, err = document(capsys, "explain", str(file), "--json")
    assert same["predictor_changed"] is False and "predictor has changed" not in err
    monkeypatch.setattr("memx_engine.cost.compute.LAUNCH_S", 50e-6)
    later, err = document(capsys, "explain", str(file), "--json")
    assert later["predictor_changed"] is True and "predictor has changed" in err


def test_the_clusters_own_folder_is_used_by_default_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    folder = find_paths().workspace("paper-small")
    fill(folder)
    found, err = explain(capsys)
    assert found["provenance"] == "simulated"
    assert f"using the measurements in {folder}" in err


def test_a_damaged_workspace_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "memx.sqlite").write_bytes(b"not a database at all, " * 100)
    assert run(["plan", *JOB, "--workspace", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "cannot be read" in err and "Traceback" not in err


def test_planning_reads_beside_a_session_that_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    with Workspace(tmp_path):
        found, _ = explain(capsys, "--workspace", str(tmp_path))
    assert found["provenance"] == "simulated"
