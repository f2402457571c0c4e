"""Imported rows and stored measurements as CSV, in the columns that the importers read."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import IO, Any

from memx_engine.measurement import Measurement, Outcome
from memx_engine.profile.importers.columns import COLUMNS, LAYER_COLUMNS, Kind
from memx_engine.profile.store import Store
from memx_engine.units import GIB, MIB

EXPORTS = ("iteration", "layer", "measured")
"""What can be written: imported iterations, imported layers, measured points (as layer rows)."""


def write_rows(rows: Iterable[Mapping[str, Any]], kind: Kind, stream: IO[str]) -> int:
    """Write ``rows`` with the format's columns, then whatever other columns they have; returns how many.

    Rows come once and the header must be known before the first, so they pass through a temporary file.
    """
    known = COLUMNS[kind]
    used: dict[str, None] = {}
    count = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as held:
        for row in rows:
            used.update(dict.fromkeys(row))
            held.write(json.dumps(row) + "\n")
            count += 1
        extra = [name for name in used if name not in known]
        writer = csv.DictWriter(stream, [*known, *extra], restval="", lineterminator="\n")
        writer.writeheader()
        held.seek(0)
        for line in held:
            writer.writerow({name: _cell(value) for name, value in json.loads(line).items()})
    return count


def _cell(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def measurement_columns(measurement: Measurement) -> dict[str, Any] | None:
    """A measured stage as a layer row; None where nothing was measured. ``source`` names its ground."""
    m, p = measurement, measurement.point
    if m.outcome is not Outcome.OK:
        return None
    kind = "stage" if m.collectives else "shard"
    kind += (" with embedding" if p.embedding else "") + (" with head" if p.head else "")
    values: dict[str, Any] = {
        "source": m.truth_name,
        "ref": p.key,
        "model": p.model.name,
        "layer_kind": kind,
        "layer_count": p.layers,
        "hidden": p.model.hidden,
        "heads": p.model.heads,
        "kv_heads": p.model.kv_heads,
        "ffn": p.model.ffn,
        "seq_len": p.seq_len,
        "vocab": p.model.vocab,
        "gpu_type": p.gpu_type,
        "gpu_mem_gib": None if m.capacity_bytes is None else m.capacity_bytes / GIB,
        "precision": p.precision.value,
        "tp": p.tp,
        "mbs": p.micro_batch,
        "fwd_ms": _ms(m.forward_s),
        "bwd_ms": _ms(m.backward_s),
        "opt_update_ms": _ms(m.optimizer_s),
        "fwd_bwd_ms": _ms(m.time_s),
        "layer_mem_mib": None if m.peak_reserved_bytes is None else m.peak_reserved_bytes / MIB,
        "recompute": str(p.recompute),
        "in_flight": p.in_flight,
        "notes": _conditions(m),
    }
    return {name: values[name] for name in LAYER_COLUMNS if values.get(name) not in (None, "")}


def _conditions(m: Measurement) -> str:
    """Device, node, versions and time, as they named themselves."""
    versions = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(m.started_at)) if m.started_at else ""
    return "; ".join(part for part in (m.device, m.node, versions, when, m.detail) if part)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def export_table(store: Store, what: str, stream: IO[str]) -> int:
    """Write one of :data:`EXPORTS` of ``store`` as CSV; returns the number of rows."""
    if what == "measured":
        rows = (row for m in store.measurements() if (row := measurement_columns(m)) is not None)
        return write_rows(rows, Kind.LAYER, stream)
    return write_rows((row.document for row in store.imported(what)), Kind(what), stream)
