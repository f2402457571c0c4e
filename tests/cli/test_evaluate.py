"""``memx-tui evaluate`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memx_tui import cli
from memx_tui.commands.evaluate import expand_lists
from tests.evaluate.test_accuracy import made_runs, write


def test_lists_take_several_files() -> None:
    assert expand_lists(["--train", "a", "b", "--test", "c", "--json"]) == [
        "--train", "a", "--train", "b", "--test", "c", "--json",
    ]  # fmt: skip
    assert expand_lists(["--truth", "a", "-o", "x", "-"]) == ["--truth", "a", "-o", "x", "-"]
    assert expand_lists(["--json", "--train"]) == ["--json", "--train"]


def test_the_table_as_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = made_runs(8)
    path = write(tmp_path / "runs.csv", [*runs, {**runs[0], "hidden": ""}])
    saved = tmp_path / "accuracy.json"
    assert cli.run(["evaluate", "--truth", str(path), "--calibrate", "2", "-o", str(saved)]) == 0
    text = capsys.readouterr().out
    assert "time MAPE" in text and "first-principles" in text and "1 rows cannot be judged" in text
    assert cli.run(["evaluate", "--truth", str(path), "--calibrate", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text())


def test_bad_requests_exit_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--truth", str(tmp_path / "none.csv")], ["--train", "a"], ["--truth"]):
        assert cli.run(["evaluate", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and "Traceback" not in captured.err
