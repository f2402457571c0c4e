"""Where the tool keeps its files: configuration, data, cache, state. Nothing here creates a folder.

Each follows the platform's convention; ``MEMX_HOME`` moves all of them under one folder, for small home quotas.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

APP_NAME = "memx-tui"
HOME_VARIABLE = "MEMX_HOME"


@dataclass(frozen=True)
class Paths:
    """The tool's four folders, and the files inside them."""

    config: Path
    data: Path
    cache: Path
    state: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.yaml"

    @property
    def themes(self) -> Path:
        """The operator's own themes, one YAML file each."""
        return self.data / "themes"

    @property
    def session_file(self) -> Path:
        return self.state / "session.json"

    @property
    def log_file(self) -> Path:
        return self.state / "memx.log"

    @property
    def workspaces(self) -> Path:
        """Measurements where no ``--workspace`` is given, one folder per cluster."""
        return self.data / "workspaces"

    def workspace(self, cluster_name: str) -> Path:
        """The folder for the measurements of the cluster called so.

        Equal names share it: in it, results are told apart by the devices they were made on.
        """
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster_name).strip("-")[:48]
        if plain != cluster_name:
            # Names that only differ in what a folder cannot hold must not meet.
            plain = f"{plain or 'cluster'}-{hashlib.sha256(cluster_name.encode()).hexdigest()[:8]}"
        return self.workspaces / plain

    @property
    def imported(self) -> Path:
        """Where imported tables go while no ``--workspace`` is given."""
        return self.workspaces / "imported"

    def as_dict(self) -> dict[str, Path]:
        """Every place by name, in the order in which people look for them."""
        return {
            "config": self.config_file,
            "themes": self.themes,
            "data": self.data,
            "cache": self.cache,
            "session": self.session_file,
            "log": self.log_file,
            "workspaces": self.workspaces,
            "shipped themes": shipped_themes(),
        }


def find_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """The folders for this user and environment.

    Args:
        environ: Environment variables; those of the process when None.
    """
    env = os.environ if environ is None else environ
    home = env.get(HOME_VARIABLE, "").strip()
    if home:
        root = Path(home).expanduser()
        return Paths(root / "config", root / "data", root / "cache", root / "state")
    from platformdirs import PlatformDirs

    dirs = PlatformDirs(APP_NAME, appauthor=False, ensure_exists=False)
    return Paths(dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path, dirs.user_state_path)


def shipped_themes() -> Path:
    """The themes that come with the tool: inside the package when installed, beside it in a checkout."""
    inside = Path(__file__).parent / "themes"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "themes"
