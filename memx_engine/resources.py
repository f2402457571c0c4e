"""Folders that ship with the product: ``sample_clusters/`` and ``themes/``.

In a source tree (and an editable install) they are top-level folders; a wheel carries them inside the two packages.
"""

from __future__ import annotations

from pathlib import Path

from memx_engine.errors import MemxError

_PACKAGE = Path(__file__).resolve().parent


def sample_clusters_dir() -> Path:
    """The folder of the sample cluster files; MemxError when the installation lacks it."""
    return _first_folder("sample_clusters", _PACKAGE / "sample_clusters", _PACKAGE.parent / "sample_clusters")


def themes_dir() -> Path:
    """The folder of the shipped themes; MemxError when the installation lacks it."""
    return _first_folder("themes", _PACKAGE.parent / "memx_tui" / "themes", _PACKAGE.parent / "themes")


def _first_folder(name: str, *candidates: Path) -> Path:
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise MemxError(
        f"this installation lacks its {name} folder",
        where=str(candidates[0]),
        hint="install memx-tui again, from a complete wheel or source tree",
    )
