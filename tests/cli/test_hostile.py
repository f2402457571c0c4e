"""What a clumsy or hostile user may hand over: one clear message each, the right exit code, and nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

import memx_engine
from memx_engine import CancelledError
from memx_tui import cli
from tests.cli.processes import COMMAND, environment
from tests.cli.test_profile import ARGUMENTS

HEADER = (
    "model,layers,hidden,heads,vocab,seq_len,gpu_type,num_gpus,tp,pp,dp,mbs,gbs,precision,iter_time_s,peak_mem_gib\n"
)
ROW = "GPT,24,1024,16,50304,1024,a100-sxm-80g,2,1,2,1,8,16,bf16,{time},20\n"
GOOD = ROW.format(time=0.37)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with measurements, which no test may change."""
    folder = tmp_path_factory.mktemp("profiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMX_HOME", str(folder / "home"))
        assert cli.run([*ARGUMENTS, "--workspace", str(folder / "w"), "--types", "t4"]) == 0
    return folder / "w"


@pytest.fixture
def workspace(profiled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(profiled, tmp_path / "w"))


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """What a refused command says; where and what to do are on standard error."""
    assert cli.run(arguments) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err and "internal error" not in err
    return err


def test_a_damaged_row_is_named_with_how_to_go_on_without_it(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workspace / "memx.sqlite"
    readers = [
        ["profile", "--list", "--workspace", str(workspace)],
        [*ARGUMENTS, "--types", "t4", "--workspace", str(workspace), "--resume"],
        ["plan", *ARGUMENTS[1:], "--workspace", str(workspace)],
        ["train", *ARGUMENTS[1:], "--workspace", str(workspace)],
        ["import", "--export", "-", "--kind", "measured", "--workspace", str(workspace)],
    ]
    with sqlite3.connect(path) as db:
        (sound,) = db.execute("SELECT document FROM measurement WHERE id = 3").fetchone()
    for broken in ("{", "[1]", b"\xff\x00", sound.replace('"forward_s": ', '"forward_s": -'), '{"point": 3}'):
        with sqlite3.connect(path) as db:
            db.execute("UPDATE measurement SET document = ? WHERE id = 3", (broken,))
        for arguments in readers if broken == "{" else readers[:1]:
            err = refused(arguments, capsys)
            assert f"{path}: row 3 of the table measurement is damaged" in err
            assert "DELETE FROM measurement WHERE id = 3" in err
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM measurement WHERE id = 3")
    assert cli.run([*readers[1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 1


@pytest.mark.parametrize("damage", ["DROP TABLE measurement", "PRAGMA user_version = -3"])
def test_a_file_of_another_shape_is_refused_with_what_to_do(
    damage: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(workspace / "memx.sqlite") as db:
        db.execute(damage)
    for more in (["--list"], [*ARGUMENTS[1:], "--resume"]):
        err = refused(["profile", *more, "--workspace", str(workspace)], capsys)
        assert f"move {workspace / 'memx.sqlite'} aside" in err


def test_a_workspace_that_only_can_be_read_is_learned_from(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Root may write everywhere, so the command is told that it may not.
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)

    def learn(*inputs: object, **options: object) -> None:
        raise CancelledError("the store was read")

    monkeypatch.setattr(memx_engine, "learn", learn, raising=False)
    arguments = ["train", *ARGUMENTS[1:], "--workspace", str(workspace)]
    err = refused(arguments, capsys, code=130)
    assert f"{workspace} is read-only: it is read" in err and "the store was read" in err
    assert "the workspace is read-only" in refused([*arguments, "--tune", "1"], capsys)


def test_a_closed_standard_output_is_said(tmp_path: Path) -> None:
    words = shlex.join([*COMMAND, "paths"])
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], capture_output=True, text=True, env=environment(tmp_path), timeout=60
    )
    assert done.returncode == 2
    assert "standard output: cannot be written" in done.stderr


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "memx.sqlite").mkdir()
    for more in (["--list"], ARGUMENTS[1:]):
        assert "aside" in refused(["profile", *more, "--workspace", str(tmp_path)], capsys)


def import_lines(path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[int, str]]]:
    """(rows imported, (line, reason) of the others)."""
    path.write_bytes(content)
    assert cli.run(["import", str(path), "--workspace", str(path.parent / f"w-{path.stem}"), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    return file["added"], [(row["line"], row["reason"]) for row in file["rejected"]["first"]]


def test_lines_that_no_table_has_cost_themselves_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (HEADER + GOOD).encode(), ROW.format(time=0.5).encode()
    for name, line, reason in (
        ("zeros", b"\0" * 5000, "no layout: tp, pp missing"),
        ("nul", GOOD.strip().replace("GPT", "G\0PT").encode(), "holds NUL bytes"),
        ("long", b"x" * 3_000_000, "this line is longer than 1 MiB"),
        ("commas", b"," * 3_000_000, "this line is longer than 1 MiB"),
        ("huge", ROW.format(time=1).replace("24", "9" * 400).strip().encode(), "layers is"),
    ):
        added, rejected = import_lines(tmp_path / f"{name}.csv", before + line + b"\n" + after, capsys)
        assert added == 2, name
        assert [number for number, _ in rejected] == [3] and reason in rejected[0][1]


def test_a_log_with_broken_memory_lines_is_read_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "".join(
        f"  {name} ................. {value}\n"
        for name, value in (
            ("tensor_model_parallel_size", 1), ("pipeline_model_parallel_size", 1), ("num_layers", "9" * 4000)
        )
    )  # fmt: skip
    memory = "[Rank 0] (after 1 iterations) memory (MB) | max allocated: {} | reserved: 1 | max reserved: 9\n"
    broken = "".join(memory.format(words) for words in ("1.2.3", "...", "9" * 400))
    log = f"------ arguments ----\n{arguments} iteration 1/ 9 | elapsed time per iteration (ms): 5.0 |\n\0\0\n{broken}"
    added, rejected = import_lines(tmp_path / "train.log", log.encode(), capsys)
    assert added == 1 and len(rejected) == 3
    assert all("cannot be read" in reason for _, reason in rejected)


def test_an_import_of_nothing_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "head.csv").write_text(HEADER)
    for name in (str(tmp_path / "head.csv"), "x" * 300):
        assert cli.run(["import", name, "--workspace", str(tmp_path / "w")]) == 2
        out, err = capsys.readouterr()
        assert "nothing could be read" in err and "internal" not in err
        assert "no row below it" in out or "File name too long" in out


@pytest.mark.parametrize(
    ("verb", "flag"), [("profile", "--pace"), ("profile", "--point-timeout"), ("plan", "--time-limit")]
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_that_are_none_are_refused(
    verb: str, flag: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused([verb, *ARGUMENTS[1:], flag, number], capsys)
    assert flag in err and "not a finite number" in err


@pytest.mark.parametrize(
    "words",
    [
        "iteration 1/ 2 | elapsed time per iteration (ms): 1e300 |",
        "iteration 1/ 2 | elapsed time per iteration (ms): -5 |",
        "[Rank 0] memory (MB) | max allocated: 1..2 | max reserved: 1",
        r"\033]0;title\007\033[2J garbage",
    ],
)
def test_a_launch_script_that_prints_nonsense_fails_its_points_and_nothing_else(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\nprintf '{words}\\n'\n")
    script.chmod(0o755)
    marker = tmp_path / "ran"
    command = f"{script} {{tp}} '$(touch {marker})' `touch {marker}` ; touch {marker}"
    arguments = [*ARGUMENTS, "--types", "t4", "--retries", "0", "--workspace", str(tmp_path / "w")]
    err = refused([*arguments, "--runner", "command", "--command", command], capsys, code=4)
    assert "no iteration time in the output" in err
    assert "\x1b" not in err and not marker.exists()


@pytest.mark.parametrize("key", ["bf16_tflops", "memory_bandwidth_gb_s", "efficiency", "bandwidth_gb_s"])
def test_figures_no_device_has_are_refused_where_they_stand(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"memory_gib": 80, "bf16_tflops": 100, "memory_bandwidth_gb_s": 1000, "efficiency": 0.5}
    island = 100.0
    if key in figures:
        figures[key] = 1e-300
    else:
        island = 1e-300
    own = ", ".join(f"{name}: {value!r}".replace("1e-300", "1.0e-300") for name, value in figures.items())
    link = repr(island).replace("1e-300", "1.0e-300")
    path = tmp_path / "slow.yaml"
    path.write_text(
        f"schema: memx/cluster/v1\nname: slow\ngpu_types:\n  z: {{vendor: v, {own}}}\nnodes:\n"
        f"  - {{name: n, gpus: [{{type: z, count: 2}}], links: {{island: {{bandwidth_gb_s: {link}}}}}}}\n"
    )
    err = refused(["profile", "--cluster", str(path), "--model", "gpt2-large", "--dry-run"], capsys)
    assert f"{path}:" in err and key in err and "out of bounds" in err
