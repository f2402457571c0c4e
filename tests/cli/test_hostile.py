"""What a clumsy or hostile user may hand over: one clear message each, the right exit code, and nothing lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from memx_tui import cli
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
