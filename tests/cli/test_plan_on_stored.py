from __future__ import annotations

import errno
import json
import os
import subprocess
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
    # Nothing changed: the measurements were not given.
    assert "predictor has changed" not in err
    assert "was planned on measurements (simulated) that are not given here" in err and "--workspace DIR" in err


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


def refuse_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``folder`` look read-only also to root, whom permissions do not stop."""
    real_access, real_open = os.access, open

    def access(path: Any, mode: int, **more: Any) -> bool:
        return not (mode & os.W_OK and Path(path).is_relative_to(folder)) and real_access(path, mode, **more)

    def no_open(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if isinstance(file, str | Path) and Path(file).is_relative_to(folder) and set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real_open(file, mode, *arguments, **more)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr("builtins.open", no_open)


@pytest.mark.parametrize("told", [True, False], ids=["by its permissions", "only by trying"])
def test_a_read_only_workspace_can_be_planned_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    work = tmp_path / "work"
    fill(work)
    there = sorted(work.iterdir())
    with monkeypatch.context() as patch:
        refuse_writing(work, patch)
        if not told:
            patch.setattr(os, "access", lambda *_arguments, **_more: True)
        found, err = explain(capsys, "--workspace", str(work))
        assert found["provenance"] == "simulated"
        assert f"{work} is read-only: it is read, and the log goes to {find_paths().log_file}" in err
        planned, err = document(capsys, "plan", *JOB, "--workspace", str(work), "--json")
        assert planned["provenance"] == "simulated" and "is read-only" in err
    assert sorted(work.iterdir()) == there
    assert find_paths().log_file.exists()


def test_the_whole_chain_shows_how_sure_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``profile`` then ``plan``: interval, risk and label on screen and in JSON; trained once."""
    inputs = ["--cluster", "a800x8", "--model", "llama3-8b", "--workspace", str(tmp_path)]
    few = ["--tp", "2", "--pp", "2,4", "--mbs", "1,32"]
    assert run(["profile", *inputs, "--runner", "testbed", "--json"]) == 0
    capsys.readouterr()
    assert run(["plan", *inputs, *few]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "simulated ±" in text and "(95%: " in text and "(OOM risk " in text
    assert "predictor learned from" in text and "uncalibrated" not in text
    (trained,) = (tmp_path / "predictors").glob("*.json")
    written = trained.stat().st_mtime_ns
    planned, _ = document(capsys, "plan", *inputs, *few, "--json")
    assert trained.stat().st_mtime_ns == written
    best = planned["plans"][0]
    low, high = best["iteration_time_interval_s"]
    assert low < best["iteration_time_s"] < high
    assert all(0.0 <= gpu["oom_probability"] <= 1.0 for gpu in best["gpus"])
    far = [plan for plan in planned["plans"] if plan["micro_batch"] == 32]
    assert all(plan["extrapolated"] == ["micro_batch"] for plan in far)
    assert planned["search"]["cache"]["hits"] > 0 == planned["search"]["cache"]["misses"]
    # A damaged predictor is told and trained anew.
    trained.write_text(trained.read_text()[:500])
    assert run(["explain", *inputs, "--tp", "2", "--pp", "2", "--dp", "2", "--mbs", "1", "--recompute", "full"]) == 0
    told = capsys.readouterr()
    assert "cut short" in told.err and "simulated ±" in told.out


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting read-only needs root")
def test_a_workspace_on_a_read_only_file_system_can_be_planned_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    fill(work)
    if subprocess.run(["mount", "--bind", str(work), str(work)], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system does not let root bind-mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(work)], check=True)
        found, err = explain(capsys, "--workspace", str(work))
        assert found["provenance"] == "simulated" and "is read-only" in err
        # What must write there says so before it starts.
        assert run(["profile", *SAMPLE, "--workspace", str(work), "--resume"]) == 2
        assert "the workspace is read-only" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(work)], check=False)
