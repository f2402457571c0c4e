"""Fixtures of the command line's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tool's folders in a temporary place, and no log handler left from another test."""
    home = tmp_path_factory.mktemp("memx-home")
    monkeypatch.setenv("MEMX_HOME", str(home))
    yield home
    for name in ("memx_engine", "memx_tui"):
        logger = logging.getLogger(name)
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
            handler.close()
