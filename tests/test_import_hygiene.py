"""What starting the tool may import. Each case runs in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

HEAVY = ("textual", "rich", "xgboost", "pandas", "plotext", "numpy", "pydantic", "scipy", "sklearn", "yaml")


def imported_by(code: str) -> set[str]:
    """Top-level modules that are loaded after ``code`` has run in a fresh interpreter."""
    script = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def run_cli(arguments: Sequence[str]) -> str:
    return f"from memx_tui.cli import run\nassert run({list(arguments)!r}) == 0"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "--help"], ["completion", "bash"]])
def test_check_01_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    assert not imported_by(run_cli(arguments)) & set(HEAVY)


def test_check_01_paths_import_no_interface() -> None:
    assert not imported_by(run_cli(["paths"])) & {"textual", "xgboost", "pandas", "plotext", "numpy"}


def test_check_31_the_engine_is_reachable_without_the_interface() -> None:
    modules = imported_by("import memx_engine\nfor name in memx_engine.__all__: getattr(memx_engine, name)")
    assert not {m for m in modules if m.split(".")[0] in ("memx_tui", "textual", "rich", "plotext")}


def test_check_31_the_engine_starts_without_its_heavy_parts() -> None:
    assert not imported_by("import memx_engine") & set(HEAVY)


def test_check_02_the_dashboard_imports_no_predictor_before_it_paints() -> None:
    modules = imported_by("import memx_tui.app, memx_tui.session, memx_tui.screens.cluster, memx_tui.screens.plans")
    assert not modules & {"xgboost", "pandas", "sklearn", "scipy"}
