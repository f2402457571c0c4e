"""The built wheel, in an environment of its own, from a folder that has nothing to do with the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ASK = """
import json, memx_engine, memx_tui
from memx_engine import load_cluster, sample_clusters
from memx_tui.paths import shipped_themes
from memx_tui.themes import load_themes
themes, problems = load_themes()
print(json.dumps({
    "engine": memx_engine.__file__,
    "themes": sorted(themes),
    "folder": str(shipped_themes()),
    "problems": [str(p) for p in problems],
    "samples": sorted(s.name for s in sample_clusters()),
    "gpus": len(load_cluster("paper-20gpu").gpus),
    "styles": [str(p) for p in memx_tui.__path__],
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, and this environment's other packages, so that nothing is fetched."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    keep = ("memx_engine", "memx_tui", "themes", "sample_clusters", "pyproject.toml", "README.md", "LICENSE")
    source.mkdir()
    for name in keep:
        item = ROOT / name
        if item.is_dir():
            shutil.copytree(item, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(item, source / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root / "dist")]
    subprocess.run(build, cwd=source, check=True, capture_output=True, env=_clean_environ())
    (wheel,) = (root / "dist").glob("*.whl")
    home = root / "venv"
    venv.create(home, with_pip=False)
    interpreter = home / "bin" / "python"
    purelib = subprocess.run(
        [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Unpacking is what an installer does with a wheel of pure Python, besides writing its scripts.
    shutil.unpack_archive(str(wheel), purelib, "zip")
    (Path(purelib) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def _clean_environ() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MEMX_HOME")}


def test_check_33_wheel_brings_themes_and_samples(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, env=_clean_environ(), check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert str(python.parents[1]) in said["engine"]
    assert {"memx-dark", "memx-light", "memx-ansi-dark", "memx-ansi-light"} <= set(said["themes"])
    assert said["problems"] == [] and str(python.parents[1]) in said["folder"]
    assert len(said["samples"]) >= 12 and said["gpus"] == 20
    styles = {file.name for file in Path(said["styles"][0], "styles").glob("*.tcss")}
    assert styles == {file.name for file in (ROOT / "memx_tui" / "styles").glob("*.tcss")}


def test_check_33_wheel_runs_the_themes_command(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-m", "memx_tui.cli", "themes"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=_clean_environ() | {"MEMX_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "memx-dark" in done.stdout
