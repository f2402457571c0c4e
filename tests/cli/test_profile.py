"""``memx-tui profile``: measured once, stored at once, resumed, refused, interrupted."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from memx_engine.workspace import StorageError, Workspace
from memx_tui import cli
from tests.cli.processes import COMMAND, environment

ARGUMENTS = ["profile", "--cluster", "paper-small", "--model", "gpt2-large", "--attention", "unfused"]


def start(folder: Path, home: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *ARGUMENTS, "--workspace", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(home),
    )


def stored(folder: Path) -> Counter[tuple[str, str]]:
    """How often every point of every GPU type was measured."""
    with Workspace(folder, read_only=True) as workspace:
        return Counter((m.point.gpu_type, m.point.key) for m in workspace.measurements())


def wait_for_points(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(StorageError):  # not there yet, or just being made
            if sum(stored(folder).values()) >= count:
                return
        time.sleep(0.1)
    pytest.fail("no points were stored in time")


def run_json(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert cli.run([*ARGUMENTS, "--workspace", str(folder), "--json", *more]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_a_finished_run_is_stored_counted_and_resumes_to_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_json(tmp_path / "w", capsys)
    assert first["provenance"] == "simulated"
    assert isinstance(first["measured"], int) and first["measured"] > 20
    assert first["failed"] == 0 and first["cached"] == 0
    counts = stored(tmp_path / "w")
    assert set(counts.values()) == {1}
    again = run_json(tmp_path / "w", capsys, "--resume")
    assert again["measured"] == 0
    assert again["cached"] == first["measured"]
    assert stored(tmp_path / "w") == counts


def test_without_resume_a_used_workspace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(tmp_path / "w", capsys, "--types", "t4")
    assert cli.run([*ARGUMENTS, "--workspace", str(tmp_path / "w")]) == 2
    assert "--resume" in capsys.readouterr().err


def test_resume_on_an_empty_workspace_is_a_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(tmp_path / "new", capsys, "--resume", "--types", "t4")
    assert document["cached"] == 0 and document["measured"] != 0


def test_kill_9_loses_at_most_the_running_points_and_nothing_is_measured_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(tmp_path / "w", tmp_path / "home", "--pace", "0.02")
    wait_for_points(tmp_path / "w", 6)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = stored(tmp_path / "w")
    document = run_json(tmp_path / "w", capsys, "--resume")
    counts = stored(tmp_path / "w")
    assert set(counts.values()) == {1}
    assert kept.keys() <= counts.keys()
    assert isinstance(document["measured"], int) and isinstance(document["cached"], int)
    assert document["cached"] + document["measured"] + document["skipped"] == len(counts)


def test_ctrl_c_keeps_results_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path / "w", tmp_path / "home", "--pace", "0.02")
    wait_for_points(tmp_path / "w", 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "--resume" in err and "Traceback" not in err
    assert sum(stored(tmp_path / "w").values()) >= 3
    assert not (tmp_path / "w" / "memx.lock").exists()


def test_a_second_session_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    first = start(tmp_path / "w", tmp_path / "home", "--pace", "0.05")
    try:
        wait_for_points(tmp_path / "w", 1)
        second = start(tmp_path / "w", tmp_path / "home", "--resume")
        _, err = second.communicate(timeout=60)
        assert second.returncode == 2
        assert f"process {first.pid} on" in err
    finally:
        first.kill()
        first.communicate()


def test_a_dry_run_tells_the_plan_and_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*ARGUMENTS, "--workspace", str(tmp_path / "w"), "--dry-run"]) == 0
    assert "t4" in capsys.readouterr().out
    assert not (tmp_path / "w" / "memx.sqlite").exists() or not stored(tmp_path / "w")


def test_a_command_that_always_fails_is_exit_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ARGUMENTS, "--workspace", str(tmp_path / "w"), "--runner", "command", "--command", "false {tp}"]
    assert cli.run([*arguments, "--retries", "0"]) == 4
    err = capsys.readouterr().err
    assert "no iteration time" in err or "printed nothing" in err or "could be measured" in err
    assert "Traceback" not in err


def test_every_measurement_can_be_seen_with_its_conditions_also_while_another_session_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ARGUMENTS[1:], "--types", "t4"]
    folder = ["--workspace", str(tmp_path / "w")]
    assert cli.run(["profile", *arguments, *folder]) == 0
    assert "--list" in capsys.readouterr().out
    with Workspace(tmp_path / "w") as writer:
        rows = list(writer.measurements())
        assert cli.run(["profile", "--list", *folder]) == 0
        out = capsys.readouterr().out
        assert cli.run(["profile", "--list", "--json", *folder]) == 0
    documents = json.loads(capsys.readouterr().out)["measurements"]
    assert "simulated by testbed:0" in out and f"{len(rows)} rows" in out
    assert out.count("too big: not run: it needs at least") == sum(m.outcome.value == "skipped" for m in rows) > 0
    assert [d["point"]["micro_batch"] for d in documents] == [m.point.micro_batch for m in rows]
    assert all(d["repetitions_s"] and d["peak_allocated_bytes"] for d in documents if d["outcome"] == "ok")
    assert cli.run(["profile", "--list", "--types", "v100-sxm2-32g", *folder]) == 0
    assert "0 rows" in capsys.readouterr().out
    assert cli.run(["profile", "--list"]) == 2
    assert "--workspace" in capsys.readouterr().err
    assert cli.run(["profile", "--list", "--workspace", str(tmp_path / "none")]) == 2
    assert "there is no workspace here" in capsys.readouterr().err
