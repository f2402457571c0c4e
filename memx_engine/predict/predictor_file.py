"""Trained predictors as files: numbers and trees in JSON, checked before they are used, running nothing when read.

The trees are xgboost's UBJSON in base64. A file carries its version, a checksum, and the fingerprint of what it was
trained from, so that it is used again exactly while that stays the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from memx_engine.errors import InputError, OutputError
from memx_engine.inputs.documents import write_text_atomically
from memx_engine.plan import Provenance
from memx_engine.predict.booster import Booster
from memx_engine.predict.intervals import Widths
from memx_engine.predict.iteration_model import IterationModel
from memx_engine.predict.memory_shares import MemoryShares
from memx_engine.predict.stage_model import Outside, StageModel
from memx_engine.predict.time_shares import TimeShares

SCHEMA = "memx/predictor/v1"
VERSION = 1
MAX_BYTES = 256 << 20

_AGAIN = "delete it; it is trained again from the stored measurements"


def predictor_text(stages: StageModel, trained_from: str) -> str:
    """The file's text; ``trained_from`` is the fingerprint of the measurements and settings."""
    predictor = _to_document(stages)
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "trained_from": trained_from,
        "checksum": _checksum(trained_from, predictor),
        "predictor": predictor,
    }
    return json.dumps(document, allow_nan=False) + "\n"


def save_predictor(stages: StageModel, trained_from: str, path: Path) -> None:
    """Write a predictor file, replacing an older one.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be created: {error.strerror or error}", where=str(path.parent)) from error
    write_text_atomically(path, predictor_text(stages, trained_from), force=True)


def load_predictor(path: Path) -> tuple[StageModel, str]:
    """The predictor of a file and the fingerprint it was trained from.

    Raises:
        InputError: The file cannot be read, is cut short or damaged, is of a newer version, or its checksum is wrong.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"larger than {MAX_BYTES >> 20} MiB, which no predictor is", where=str(path))
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the predictor cannot be read: {error}", where=str(path)) from error
    return parse_predictor(text, str(path))


def parse_predictor(text: str, where: str = "<text>") -> tuple[StageModel, str]:
    """See :func:`load_predictor`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the predictor file is cut short or damaged", where=where, hint=_AGAIN) from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("memx/predictor/"):
        raise InputError("this is no predictor file", where=where, hint=_AGAIN)
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION or document["schema"] != SCHEMA:
        raise InputError(
            f"the predictor file was written by a newer release (version {version}, this one reads {VERSION})",
            where=where,
            hint=f"update memx-tui, or {_AGAIN}",
        )
    trained_from, predictor = str(document.get("trained_from", "")), document.get("predictor")
    if document.get("checksum") != _checksum(trained_from, predictor):
        raise InputError("the predictor file's checksum does not match its contents", where=where, hint=_AGAIN)
    try:
        return _from_document(predictor), trained_from
    except (LookupError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise InputError(f"the predictor file cannot be understood: {error!r}", where=where, hint=_AGAIN) from error


def _checksum(trained_from: str, predictor: object) -> str:
    text = json.dumps([SCHEMA, VERSION, trained_from, predictor], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _to_document(stages: StageModel) -> dict[str, Any]:
    model = stages.model
    booster = None
    if model.booster is not None:
        booster = {
            "trees": base64.b64encode(model.booster.to_bytes()).decode("ascii"),
            "centre": model.booster.centre.tolist(),
            "known": model.booster.known.tolist(),
        }
    return {
        "names": list(model.names),
        "factors": model.factors.tolist(),
        "configurations": list(model.configurations),
        "ranges": {name: list(ends) for name, ends in model.ranges.items()},
        "widths": [
            {"overall": w.overall, "by_type": dict(w.by_type), "residuals": list(w.residuals)} for w in model.widths
        ],
        "booster": booster,
        "times": {name: asdict(shares) for name, shares in stages.times.items()},
        "memories": {name: asdict(shares) for name, shares in stages.memories.items()},
        "sized": sorted(stages.sized),
        "levels": {name: list(sizes) for name, sizes in stages.levels.items()},
        "between": stages.between,
        "outside": {name: asdict(outside) for name, outside in stages.outside.items()},
        "points": dict(stages.points),
        "provenance": {name: word.value for name, word in stages.provenance.items()},
        "grounds": {name: list(found) for name, found in stages.grounds.items()},
        "left_out": list(stages.left_out),
    }


def _from_document(document: Any) -> StageModel:
    names = tuple(str(name) for name in document["names"])
    trees = document["booster"]
    booster = None
    if trees is not None:
        raw = base64.b64decode(trees["trees"], validate=True)
        booster = Booster.from_bytes(raw, names, trees["centre"], trees["known"])
    widths = [
        Widths(
            None if w["overall"] is None else _number(w["overall"]),
            {str(name): _number(width) for name, width in w["by_type"].items()},
            tuple(_number(r) for r in w["residuals"]),
        )
        for w in document["widths"]
    ]
    time, memory = document["configurations"]
    model = IterationModel(
        np.array([_number(x) for x in document["factors"]]),
        (int(time), int(memory)),
        booster,
        names,
        {str(name): (_number(low), _number(high)) for name, (low, high) in document["ranges"].items()},
        (widths[0], widths[1]),
    )
    return StageModel(
        model=model,
        times={name: TimeShares(**_numbers(parts)) for name, parts in document["times"].items()},
        memories={name: MemoryShares(**_numbers(parts)) for name, parts in document["memories"].items()},
        sized=frozenset(str(name) for name in document["sized"]),
        levels={name: tuple(int(size) for size in sizes) for name, sizes in document["levels"].items()},
        between=None if document["between"] is None else _number(document["between"]),
        outside={name: Outside(**_numbers(parts)) for name, parts in document["outside"].items()},
        points={name: int(count) for name, count in document["points"].items()},
        provenance={name: Provenance(word) for name, word in document["provenance"].items()},
        grounds={name: tuple(str(g) for g in found) for name, found in document["grounds"].items()},
        left_out=tuple(str(words) for words in document["left_out"]),
    )


def _numbers(parts: Mapping[str, object]) -> dict[str, float]:
    return {name: _number(value) for name, value in parts.items()}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)
