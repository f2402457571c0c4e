"""Plans side by side: every metric with its difference from the first plan, in numbers and in a word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from memx_engine.errors import InputError
from memx_engine.export.documents import Document, layout_document, plain, prediction_document
from memx_engine.export.plan_file import PlanFile
from memx_engine.export.plan_reading import VARIANCE_UNIT

COMPARE_SCHEMA: Final = "memx/compare/v1"

_GROUNDS: Final = (
    "the numbers do not rest on the same ground (see the provenance of each plan): what differs is marked (?), as "
    "neither better nor worse is known"
)
_EQUAL: Final = 1e-9  # relative; what two runs of the same arithmetic can differ by


@dataclass(frozen=True)
class _Metric:
    """``better``: ``lower`` or ``higher``."""

    name: str
    unit: str
    better: str
    value: Callable[[PlanFile], float]


_METRICS: Final = (
    _Metric("iteration_time_s", "s", "lower", lambda f: f.estimate.iteration_time_s),
    _Metric("tokens_per_s", "1/s", "higher", lambda f: f.estimate.tokens_per_s),
    _Metric("peak_memory_bytes", "bytes", "lower", lambda f: f.estimate.peak_bytes),
    _Metric("worst_used_fraction", "1", "lower", lambda f: f.estimate.worst_gpu.used_fraction),
    _Metric("memory_variance_mib2", "MiB^2", "lower", lambda f: f.estimate.memory_variance_bytes2 / VARIANCE_UNIT),
)

_CHOICES: Final[tuple[tuple[str, Callable[[PlanFile], Any]], ...]] = (
    ("tp", lambda f: f.plan.skeleton.tp),
    ("pp", lambda f: f.plan.skeleton.pp),
    ("dp", lambda f: f.plan.skeleton.dp),
    ("micro_batch", lambda f: f.plan.skeleton.micro_batch),
    ("micro_batches", lambda f: f.plan.skeleton.micro_batches),
    ("global_batch", lambda f: f.plan.skeleton.global_batch),
    ("seq_len", lambda f: f.plan.skeleton.seq_len),
    ("schedule", lambda f: f.plan.skeleton.schedule),
    ("virtual_stages", lambda f: f.plan.skeleton.virtual_stages),
    ("type_order", lambda f: list(f.plan.skeleton.type_order)),
    ("layers", lambda f: list(f.plan.layers)),
    ("recompute", lambda f: [str(r) for r in f.plan.recompute]),
    ("ranks", lambda f: [list(stage.ranks) for stage in f.plan.stages]),
)


def compare_document(files: Sequence[PlanFile], names: Sequence[str | Path] | None = None) -> Document:
    """What ``compare --json`` prints.

    ``metrics`` holds, for each metric, the plans' values and, for each plan, its difference from the first:
    ``{absolute, relative, word}`` with the word ``better``, ``worse`` or ``same`` (null for the first plan itself). The
    word is null too where the two plans' numbers rest on different grounds, such as simulated and uncalibrated.
    ``phi`` is each plan's value under the FIRST plan's weights and references, so that the values can be compared.
    ``differences`` lists the choices in which the plans differ, ``notes`` what makes the comparison less than plain.

    Args:
        files: Two or more plans; the first is the base.
        names: What to call them; ``A``, ``B``, ... when left out.
    """
    if len(files) < 2:
        raise InputError("a comparison needs at least two plans", where="compare")
    shown = [str(name) for name in names] if names is not None else [chr(ord("A") + i) for i in range(len(files))]
    base = files[0]
    phi = _Metric("phi", "1", "lower", lambda f: _phi(base, f))
    metrics = [*_METRICS, phi]
    for part in dict.fromkeys(name for file in files for name in file.estimate.time_breakdown_s):
        metrics.append(_Metric(f"time_breakdown_s.{part}", "s", "lower", _time_part(part)))
    return plain(
        {
            "schema": COMPARE_SCHEMA,
            "base": 0,
            "notes": comparison_notes(files),
            "plans": [_plan(name, file) for name, file in zip(shown, files, strict=True)],
            "metrics": [_compared(metric, files) for metric in metrics],
            "differences": [
                {"name": name, "values": [value(f) for f in files]}
                for name, value in _CHOICES
                if any(value(f) != value(base) for f in files)
            ],
        }
    )


def comparison_notes(files: Sequence[PlanFile]) -> list[str]:
    """What makes comparing ``files`` less than plain, one sentence each."""
    checks: tuple[tuple[Callable[[PlanFile], object], str], ...] = (
        (lambda f: f.cluster.fingerprint, "the plans are for different clusters"),
        (lambda f: f.model.fingerprint, "the plans are for different models"),
        (lambda f: f.job, "the jobs differ: compare tokens per second rather than iteration time"),
        (lambda f: f.objective, "weights or references differ: phi is given under those of the first plan"),
        (lambda f: f.predictor_fingerprint, "the numbers come from different predictors: explain each plan anew"),
        (lambda f: f.provenance, _GROUNDS),
    )
    return [note for key, note in checks if any(key(f) != key(files[0]) for f in files)]


def _plan(name: str, file: PlanFile) -> Document:
    return {
        "name": name,
        "cluster": {"name": file.cluster.name, "fingerprint": file.cluster.fingerprint, "gpus": len(file.cluster.gpus)},
        "model": {"name": file.model.name, "fingerprint": file.model.fingerprint},
        "provenance": file.provenance,
        "predictor_fingerprint": file.predictor_fingerprint,
        "memx_version": file.version,
        "weights": {
            "profile": file.objective.weights.profile,
            "time": file.objective.weights.time,
            "peak": file.objective.weights.peak,
            "variance": file.objective.weights.variance,
        },
        "phi": file.phi,
        **layout_document(file.plan, file.cluster),
        **prediction_document(file.estimate),
    }


def _phi(base: PlanFile, file: PlanFile) -> float:
    """Phi under the base's objective."""
    return file.phi if base.objective == file.objective else base.objective.phi_of(file.estimate)


def _time_part(part: str) -> Callable[[PlanFile], float]:
    return lambda file: file.estimate.time_breakdown_s.get(part, math.nan)


def _compared(metric: _Metric, files: Sequence[PlanFile]) -> Document:
    values = [metric.value(file) for file in files]
    deltas: list[Document | None] = [None]
    for file, value in zip(files[1:], values[1:], strict=True):
        delta = _delta(values[0], value, metric.better)
        if delta is not None and file.provenance != files[0].provenance and delta["word"] != "same":
            delta["word"] = None
        deltas.append(delta)
    return {"name": metric.name, "unit": metric.unit, "better": metric.better, "values": values, "deltas": deltas}


def _delta(base: float, value: float, better: str) -> Document | None:
    if not (math.isfinite(base) and math.isfinite(value)):
        return None
    absolute = value - base
    relative = absolute / abs(base) if base else None
    if abs(absolute) <= _EQUAL * max(abs(base), abs(value)):
        word = "same"
    else:
        word = "better" if (absolute < 0) == (better == "lower") else "worse"
    return {"absolute": absolute, "relative": relative, "word": word}
