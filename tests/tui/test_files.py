from __future__ import annotations

import os
from pathlib import Path

import pytest

from memx_engine import OutputError
from memx_tui.files import write_text


def test_writes_and_names_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_text(Path("deep/a[x].yaml"), "hello\n") == tmp_path / "deep" / "a[x].yaml"
    assert (tmp_path / "deep" / "a[x].yaml").read_text() == "hello\n"


def test_existing_file_is_kept_unless_confirmed(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("mine")
    with pytest.raises(OutputError, match="already"):
        write_text(file, "new")
    assert file.read_text() == "mine"
    write_text(file, "new", overwrite=True)
    assert file.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]


def test_check_18_interrupted_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match="No space left"):
        write_text(file, "new", overwrite=True)
    assert file.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]


def test_folder_as_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="folder"):
        write_text(tmp_path, "x")
