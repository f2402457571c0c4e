from __future__ import annotations

import json
from pathlib import Path

import pytest

from memx_tui import cli

ARGUMENTS = ["--cluster", "paper-small", "--model", "llama2-7b", "--seq-len", "512"]


def test_profile_then_train_shows_errors_trends_and_what_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "w")
    assert cli.run(["profile", *ARGUMENTS, "--workspace", folder, "--types", "v100-sxm2-32g", "--json"]) == 0
    capsys.readouterr()
    assert cli.run(["train", *ARGUMENTS, "--workspace", folder, "--tune", "2"]) == 0
    text = capsys.readouterr().out
    for words in ("time error", "What the trees look at", "Trends, measured on", "settings tried", "simulated"):
        assert words in text
    assert cli.run(["train", *ARGUMENTS, "--workspace", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "memx/training/v1" and document["reused"] is True
    assert [t["gpu_type"] for t in document["types"]] == ["v100-sxm2-32g"]


def test_without_measurements_the_way_to_get_them_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", *ARGUMENTS, "--workspace", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "there are no measurements" in error and "memx-tui profile" in error
    assert not (tmp_path / "none").exists()
    assert cli.run(["train", *ARGUMENTS, "--time-limit", "5"]) == 2
    assert "give --tune N too" in capsys.readouterr().err
