from __future__ import annotations

import logging
from pathlib import Path

import pytest

from memx_tui import logs
from memx_tui.paths import find_paths, shipped_themes


def test_home_variable_moves_every_folder(tmp_path: Path) -> None:
    paths = find_paths({"MEMX_HOME": str(tmp_path)})
    for folder in (paths.config, paths.data, paths.cache, paths.state):
        assert folder.parent == tmp_path
    assert paths.themes == tmp_path / "data" / "themes"


def test_finding_paths_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "MEMX_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert find_paths().as_dict()["log"].name == "memx.log"
    assert list(tmp_path.iterdir()) == []


def test_shipped_themes_are_there() -> None:
    assert len(list(shipped_themes().glob("*.yaml"))) >= 4


def test_log_goes_to_the_file_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state" / "memx.log"
    assert logs.start_logging(file, "warning") is None
    logging.getLogger("memx_tui.x").warning("kept [tp=2]")
    logging.getLogger("memx_engine").info("below the level")
    text = file.read_text()
    assert "kept [tp=2]" in text and "below the level" not in text
    assert capfd.readouterr() == ("", "")


def test_log_that_cannot_be_written_is_reported_and_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    blocker = tmp_path / "state"
    blocker.write_text("a file where the folder should be")
    problem = logs.start_logging(blocker / "memx.log")
    assert problem is not None and str(blocker) in problem.where and "MEMX_HOME" in problem.hint
    logging.getLogger("memx_tui").error("nobody hears this")
    assert capfd.readouterr() == ("", "")
