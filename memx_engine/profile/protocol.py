"""The tool and the probe: a point as the probe's specification, the probe's line as a measurement."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile import probe
from memx_engine.profile.process import without_controls

PROBE_PATH = Path(probe.__file__)
_LARGEST = 2.0**62
"""No time, size or count that a device can have is larger."""
_MOST_KEPT = 1000
"""Repetitions kept of one result."""


def probe_device(wanted: str, truth: Truth) -> str:
    """The device kind to ask for: where a GPU's truth is wanted, a node without one must not answer with its CPU."""
    if truth is Truth.CPU:
        return "cpu"
    return "accelerator" if wanted == "auto" else wanted


def probe_spec(
    point: Point,
    *,
    time_limit_s: float,
    repetitions: int = 5,
    warm_up: int = 2,
    device: str = "auto",
    threads: int | None = None,
    memory_limit_bytes: int | None = None,
    tethered: bool = False,
) -> dict[str, Any]:
    """The probe's specification of ``point``; plain JSON values.

    Args:
        tethered: The probe ends itself when its standard input closes.
    """
    model = point.model
    return {
        "spec": probe.SPEC_VERSION,
        "key": point.key,
        "device": device,
        "threads": threads,
        "time_limit_s": time_limit_s,
        "repetitions": repetitions,
        "warm_up": warm_up,
        "memory_limit_bytes": memory_limit_bytes,
        "tethered": tethered,
        "tp": point.tp,
        "micro_batch": point.micro_batch,
        "seq_len": point.seq_len,
        "layers": point.layers,
        "embedding": point.embedding,
        "head": point.head,
        "in_flight": point.in_flight,
        "recompute_kind": point.recompute.kind,
        "recompute_n": point.recompute.n,
        "precision": point.precision.value,
        "attention": point.attention.value,
        "sequence_parallel": point.sequence_parallel and point.tp > 1,
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "padded_vocab": model.padded_vocab(point.tp),
        "position_rows": model.position_rows,
        "gated": model.gated,
        "norm": model.norm,
        "norms_per_layer": model.norms_per_layer,
        "qk_norm": model.qk_norm,
        "qkv_bias": model.qkv_bias,
        "attention_output_bias": model.attention_output_bias,
        "mlp_bias": model.mlp_bias,
        "dropout": model.dropout,
        "parallel_block": model.parallel_block,
    }


def _results(output: str) -> Iterator[dict[str, Any]]:
    """Every document that the probe's ranks printed, whatever banners surround them."""
    for line in output.splitlines():
        start = line.find(probe.MARK)
        if start < 0:
            continue
        # RecursionError: brackets a hundred thousand deep are as little a result as a broken line.
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(line[start + len(probe.MARK) :])
            if isinstance(document, dict):
                yield document


def find_result(output: str) -> dict[str, Any] | None:
    """The document in ``output`` that tells how the point ended; None when there is none.

    A rank without memory takes the others down with it, which then tell of a lost peer or a time limit: memory comes
    first, else the first failure, else the last result.
    """
    found = list(_results(output))
    for failed in ([d for d in found if d.get("outcome") == "oom"], [d for d in found if d.get("outcome") != "ok"]):
        if failed:
            return failed[0]
    return found[-1] if found else None


def _number(value: object) -> float | None:
    """A plain number of at least zero; None for anything else that a broken or hostile program may print."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LARGEST else None


def _seconds(document: Mapping[str, Any], key: str) -> float | None:
    return _number(document.get(key))


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = _seconds(document, key)
    return None if value is None else int(value)


def _versions(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {_words(k)[:100]: _words(v) for k, v in list(found.items())[:100]}


def _words(value: object) -> str:
    return without_controls(str(value)[:500])


def read_result(output: str, point: Point, *, truth: Truth, truth_name: str, node: str = "") -> Measurement:
    """What the probe printed, as a measurement; silence and broken lines are a crash with the output's last words.

    Args:
        output: Everything the process printed.
        node: The node's name for the scheduler, where it is known; else the probe names its own.
    """
    document = find_result(output)
    if document is None:
        words = " / ".join(line.strip() for line in output.splitlines()[-3:] if line.strip())
        detail = f"the probe printed no result; its last words: {words[:400]}" if words else "the probe printed nothing"
        return Measurement(point, Outcome.CRASHED, truth, truth_name, node=node, detail=detail)
    try:
        outcome = Outcome(str(document.get("outcome")))
    except ValueError:
        outcome = Outcome.CRASHED
    if outcome is Outcome.SKIPPED:
        # Only the design skips points; a probe was really started.
        outcome = Outcome.CRASHED
    forward_s, backward_s = _seconds(document, "forward_s"), _seconds(document, "backward_s")
    detail = _words(document.get("detail", ""))
    if outcome is Outcome.OK and (not forward_s or not backward_s):
        outcome, detail = Outcome.CRASHED, "the probe said ok without usable times"
    repetitions = document.get("repetitions_s")
    listed = repetitions[:_MOST_KEPT] if isinstance(repetitions, list) else []
    kept = [seconds for seconds in map(_number, listed) if seconds is not None]
    ok = outcome is Outcome.OK
    return Measurement(
        point=point,
        outcome=outcome,
        truth=truth,
        truth_name=truth_name,
        forward_s=forward_s if ok else None,
        backward_s=backward_s if ok else None,
        optimizer_s=_seconds(document, "optimizer_s") if ok else None,
        repetitions_s=tuple(kept),
        stragglers=_count(document, "stragglers") or 0,
        peak_allocated_bytes=_count(document, "peak_allocated_bytes"),
        peak_reserved_bytes=_count(document, "peak_reserved_bytes"),
        outside_bytes=_count(document, "outside_bytes"),
        capacity_bytes=_count(document, "capacity_bytes"),
        node=node or _words(document.get("node", "")),
        device=_words(document.get("device", "")),
        versions=_versions(document.get("versions")),
        started_at=_seconds(document, "started_at") or 0.0,
        duration_s=_seconds(document, "duration_s") or 0.0,
        detail=detail,
        collectives=point.tp == 1 or document.get("collectives") is not False,
    )
