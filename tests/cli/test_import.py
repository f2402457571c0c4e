from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from memx_engine.workspace import Workspace
from memx_tui.cli import run
from memx_tui.paths import find_paths
from tests.cli.processes import run as run_process
from tests.profile.tables import LAYER, ROW, megatron_log, table


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_table_a_log_and_a_bad_file_in_one_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = table(tmp_path / "runs.csv", ROW, {**ROW, "tp": ""}, {**ROW, "gbs": ""}, ROW)
    log = tmp_path / "train.log"
    log.write_text(megatron_log())
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(runs.read_bytes()))
    work = str(tmp_path / "work")
    files = [str(runs), str(log), str(packed)]
    assert run(["import", *files, "--gpu-type", "a100-sxm-80g", "--workspace", work]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "runs.csv iteration 2 1 1 1" in out
    assert "train.log log 1 0 0 0" in out
    assert "packed.csv.gz not read" in out and "gunzip packed.csv.gz" in out
    assert "line 3: no layout: tp missing" in out
    assert "1 row, line 4: gbs not stated" in out
    with Workspace(Path(work), read_only=True) as store:
        assert sum(1 for _ in store.imported("iteration")) == 3


def test_json_is_complete_and_a_second_import_finds_only_duplicates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, work = table(tmp_path / "runs.csv", ROW, {**ROW, "tp": ""}), str(tmp_path / "work")
    first = document(capsys, "import", str(runs), "--workspace", work)
    assert first["schema"] == "memx/import/v1" and first["workspace"] == work
    assert (first["added"], first["duplicates"], first["rejected"]) == (1, 0, 1)
    assert first["files"][0]["rejected"]["first"] == [{"line": 3, "reason": "no layout: tp missing"}]
    again = document(capsys, "import", str(runs), "--workspace", work)
    assert (again["added"], again["duplicates"]) == (0, 1)


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"\x1f\x8b123", b"tp,pp,iter_time_s\n", b"tp,pp,iter_time_s\n,,1\n"]
)
def test_only_when_nothing_could_be_read_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    assert run(["import", str(file), "--workspace", str(tmp_path / "work")]) == 2
    assert "nothing could be read" in capsys.readouterr().err
    good = table(tmp_path / "runs.csv", ROW)
    assert run(["import", str(file), str(good), "--workspace", str(tmp_path / "work")]) == 0


def test_without_a_workspace_the_place_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", str(table(tmp_path / "runs.csv", ROW))]) == 0
    out = capsys.readouterr().out
    folder = find_paths().imported
    assert Workspace.exists(folder)
    assert f"plan --workspace {folder}" in " ".join(out.split())


def test_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = table(tmp_path / "runs.csv", ROW).read_bytes()

    class Piped:
        buffer = io.BytesIO(text)

    monkeypatch.setattr("sys.stdin", Piped())
    found = document(capsys, "import", "-", "--workspace", str(tmp_path / "work"))
    assert found["added"] == 1 and found["files"][0]["file"] == "standard input"
    assert run(["import", "-", "-"]) == 2


def test_export_and_import_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(table(tmp_path / "runs.csv", ROW, {**ROW, "ref": "b"})), str(table(tmp_path / "layers.csv", LAYER))]
    work, out = str(tmp_path / "work"), tmp_path / "out.csv"
    assert run(["import", *files, "--workspace", work, "--export", str(out)]) == 0
    assert run(["import", "--workspace", work, "--export", str(out)]) == 2
    assert "this file exists" in capsys.readouterr().err
    other = document(capsys, "import", str(out), "--workspace", str(tmp_path / "other"))
    assert (other["added"], other["rejected"]) == (2, 0)
    assert run(["import", "--workspace", work, "--export", "-", "--kind", "layer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "transformer layer" in lines[1]
    assert document(capsys, "import", str(out), "--workspace", work)["duplicates"] == 2


def test_a_workspace_that_another_session_writes_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(table(tmp_path / "runs.csv", ROW))
    with Workspace(tmp_path / "work"):
        assert run(["import", runs, "--workspace", str(tmp_path / "work")]) != 0
    err = capsys.readouterr().err
    assert "Traceback" not in err and str(tmp_path / "work") in err


def test_imported_runs_change_what_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**ROW, "iter_time_s": 40.0, "ref": str(n), "mbs": 2**n} for n in range(3)]
    work = str(tmp_path / "work")
    assert run(["import", str(table(tmp_path / "runs.csv", *rows)), "--workspace", work]) == 0
    capsys.readouterr()
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "schema: memx/cluster/v1\nname: eight\nnodes:\n  - {name: a, gpus: [{type: a100-sxm-80g, count: 8}]}\n"
    )
    flags = ["--cluster", str(cluster), "--model", "llama2-7b", "--global-batch", "64", "--tp", "2", "--pp", "2"]
    flags += ["--dp", "2", "--mbs", "1", "--recompute", "full"]
    bare = document(capsys, "explain", *flags)
    moved = document(capsys, "explain", *flags, "--workspace", work)
    assert (bare["provenance"], moved["provenance"]) == ("uncalibrated", "measured")
    before, after = bare["plan"]["iteration_time_s"], moved["plan"]["iteration_time_s"]
    assert abs(after - 40.0) < abs(before - 40.0)
    assert any("3 imported layouts of runs.csv" in line for line in moved["assumed"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "FILE: is needed"),
        (["no-such.csv"], "nothing could be read"),
        (["--export", "/no/such/folder/x.csv"], "does not exist"),
        (["--export", "out.csv", "--kind", "plans"], "not one of"),
        (["a.csv", "--export", "-"], "would mix with the summary"),
    ],
)
def test_what_was_asked_wrongly_is_one_message(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", *arguments, "--workspace", str(tmp_path / "work")]) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err


def test_names_that_a_shell_would_run_are_only_names(tmp_path: Path) -> None:
    folder = tmp_path / "a b; $(touch pwned)"
    folder.mkdir()
    name = "it's `touch pwned`; $(touch pwned).csv"
    table(folder / name, ROW)
    done = run_process(["import", name, "--workspace", "w; $(touch pwned)"], tmp_path, cwd=folder)
    assert done.code == 0 and name in done.out
    assert sorted(p.name for p in folder.iterdir()) == sorted([name, "w; $(touch pwned)"])
