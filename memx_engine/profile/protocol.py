"""The tool and the probe: a point as the probe's specification, the probe's line as a measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile import probe

PROBE_PATH = Path(probe.__file__)


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
) -> dict[str, Any]:
    """The probe's specification of ``point``; plain JSON values."""
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


def find_result(output: str) -> dict[str, Any] | None:
    """The probe's document in ``output``, whatever banners surround it; None when there is none."""
    for line in reversed(output.splitlines()):
        start = line.find(probe.MARK)
        if start < 0:
            continue
        try:
            document = json.loads(line[start + len(probe.MARK) :])
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return None


def _seconds(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if good and value is not None else None


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = _seconds(document, key)
    return None if value is None else int(value)


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
    forward_s, backward_s = _seconds(document, "forward_s"), _seconds(document, "backward_s")
    detail = str(document.get("detail", ""))[:500]
    if outcome is Outcome.OK and (not forward_s or not backward_s):
        outcome, detail = Outcome.CRASHED, "the probe said ok without usable times"
    repetitions = document.get("repetitions_s")
    kept = [float(r) for r in repetitions if isinstance(r, int | float)] if isinstance(repetitions, list) else []
    versions = document.get("versions")
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
        node=node or str(document.get("node", "")),
        device=str(document.get("device", "")),
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        started_at=_seconds(document, "started_at") or 0.0,
        duration_s=_seconds(document, "duration_s") or 0.0,
        detail=detail,
        collectives=point.tp == 1 or document.get("collectives") is not False,
    )
