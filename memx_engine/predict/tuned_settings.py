"""The settings that tuning found for a workspace's measurements, kept beside its predictors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from memx_engine.errors import InputError, OutputError
from memx_engine.inputs.documents import write_text_atomically
from memx_engine.predict.booster import BoosterSettings
from memx_engine.predict.stage_model import STAGE_SETTINGS
from memx_engine.predict.tuning import SPACE, Tuned

SCHEMA = "memx/tree-settings/v1"
FILE = "tuned.settings"
_MAX_BYTES = 1 << 16
_NAMES = tuple(dimension.name for dimension in SPACE)


def save_settings(tuned: Tuned, folder: Path) -> None:
    """Keep what tuning found for the next training.

    Raises:
        OutputError: It cannot be written.
    """
    document = {
        "schema": SCHEMA,
        "settings": {name: getattr(tuned.settings, name) for name in _NAMES},
        "trials": len(tuned.trials),
        "error_before": tuned.start_error,
        "error_after": tuned.best_error,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be created: {error.strerror or error}", where=str(folder)) from error
    write_text_atomically(folder / FILE, json.dumps(document, indent=2) + "\n", force=True)


def load_settings(path: Path) -> BoosterSettings:
    """Settings of a file.

    Raises:
        InputError: It cannot be read, or a setting is missing or out of its range.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError("larger than any settings are", where=str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the tuned settings cannot be read: {error}", where=str(path)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"these are no settings of this release ({SCHEMA})", where=str(path))
    found = document.get("settings")
    chosen: dict[str, Any] = {}
    for dimension in SPACE:
        value = found.get(dimension.name) if isinstance(found, dict) else None
        number = isinstance(value, int if dimension.whole else (int, float)) and not isinstance(value, bool)
        if value is None or not number or not dimension.low <= value <= dimension.high:
            raise InputError(
                f"{dimension.name} is {value!r}, not within {dimension.low:g} to {dimension.high:g}", where=str(path)
            )
        chosen[dimension.name] = value
    return replace(STAGE_SETTINGS, **chosen)


def kept_settings(folder: Path) -> tuple[BoosterSettings, str]:
    """The settings of ``folder``, else the default ones; with a sentence where a file had to be passed over."""
    path = folder / FILE
    if not path.exists():
        return STAGE_SETTINGS, ""
    try:
        return load_settings(path), ""
    except InputError as error:
        return STAGE_SETTINGS, f"{path.name}: {error.message}; the default settings are used"
