"""The rows of measured tables as runs that predictions can be held against."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from memx_engine.errors import InputError
from memx_engine.predict.layers import LayerRow, read_layers
from memx_engine.profile.importers.columns import MEMORY_BY_TYPE, Columns, Header, Kind, RejectedError
from memx_engine.profile.importers.facts import is_out_of_memory
from memx_engine.profile.importers.layouts import Layout, layer_measurement, row_layout
from memx_engine.profile.importers.models import NotJudgeableError
from memx_engine.units import GIB


@dataclass(frozen=True, eq=False)
class JudgedRow:
    """One measured run.

    Attributes:
        label: File and line.
        time_s: Seconds per iteration, None where the row has none.
        memory_bytes: GPU type → the highest peak among its GPUs; empty where the row has none.
        memory_kind: ``allocated``, ``reserved`` or ``device``: which part of the memory was counted.
        framework: Whose software ran, in the table's words.
        configuration: The same for runs that differ in their results only.
        out_of_memory: The run did not fit; it has neither time nor memory.
    """

    label: str
    layout: Layout
    time_s: float | None
    memory_bytes: Mapping[str, float]
    memory_kind: str
    framework: str
    configuration: str
    out_of_memory: bool = False


@dataclass
class JudgedTable:
    """One or more files: the rows to judge, the others with the reason, and single layers to learn stages from."""

    name: str
    rows: list[JudgedRow] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_judged(paths: list[Path], *, layers: bool = False) -> JudgedTable:
    """Read iteration tables, and with ``layers`` also tables of layers.

    Raises:
        InputError: A file cannot be read, is no table, or is a table of layers where runs are to be judged.
    """
    table = JudgedTable("+".join(path.name for path in paths))
    for path in paths:
        if layers and table_kind(path) is Kind.LAYER:
            table.layers += _layers(path, table)
            continue
        for line, columns in _read(path, table):
            label = f"{path.name}:{line}"
            try:
                table.rows.append(judged_row(columns, label))
            except NotJudgeableError as error:
                table.skipped.append((label, str(error)))
    return table


def _layers(path: Path, table: JudgedTable) -> list[LayerRow]:
    kept = []
    for line, columns in _read(path, table, Kind.LAYER):
        try:
            layer_measurement(columns, path.name)
        except NotJudgeableError as error:
            table.skipped.append((f"{path.name}:{line}", str(error)))
        else:
            kept.append(columns)
    return read_layers(kept)


def table_kind(path: Path) -> Kind:
    """Whether a file is a table of iterations or of layers; InputError when it is neither."""
    with _opened(path) as stream:
        return Header.of(next(csv.reader(stream), []), str(path)).kind


def _opened(path: Path) -> IO[str]:
    try:
        return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _read(path: Path, table: JudgedTable, kind: Kind = Kind.ITERATION) -> Iterator[tuple[int, Columns]]:
    with _opened(path) as stream:
        reader = csv.reader(stream)
        header = Header.of(next(reader, []), str(path))
        if header.kind is not kind:
            raise InputError(
                "this is a table of layers, not of iterations", where=str(path), hint="layers can be given to --train"
            )
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                yield reader.line_num, header.read(cells)
            except RejectedError as error:
                table.skipped.append((f"{path.name}:{reader.line_num}", str(error)))


def judged_row(columns: Columns, label: str) -> JudgedRow:
    """The run of one row; NotJudgeableError with the reason where it cannot be rebuilt or has no result."""
    layout = row_layout(columns)
    time_s, memory = layout.facts.time_s, _memory(columns, layout)
    failed = is_out_of_memory(columns)
    if time_s is None and not memory and not failed:
        raise NotJudgeableError("neither time nor memory")
    return JudgedRow(
        label,
        layout,
        time_s,
        memory,
        _memory_kind(str(columns.get("mem_kind", ""))),
        str(columns.get("framework", "")),
        _configuration(layout),
        failed,
    )


def _memory(columns: Columns, layout: Layout) -> dict[str, float]:
    """Columns per device type stand in the order of the types of the row; else the one peak of its only type."""
    types = layout.facts.gpu_types
    by_type = [name for name in columns if MEMORY_BY_TYPE.fullmatch(name)]
    if len(types) > 1:
        order = sorted(by_type, key=lambda name: _place(name, types))
        named = {types[_place(name, types)]: columns[name] * GIB for name in order if _place(name, types) < len(types)}
        return {name: float(size) for name, size in named.items()}
    peak = columns.get("peak_mem_gib")
    return {} if peak is None else {types[0]: float(peak) * GIB}


def _place(column: str, types: tuple[str, ...]) -> int:
    """Which of ``types`` a per-type column speaks of: the one whose id begins like it, else the last."""
    match = MEMORY_BY_TYPE.fullmatch(column)
    word = match[1].replace("_", "-") if match else ""
    for k, name in enumerate(types):
        if name == word or name.startswith(f"{word}-"):
            return k
    return len(types) - 1


def _memory_kind(words: str) -> str:
    said = words.casefold()
    if "reserved" in said:
        return "reserved"
    return "allocated" if "allocated" in said else "device"


def _configuration(layout: Layout) -> str:
    plan, job = layout.plan, layout.job
    s = plan.skeleton
    stages = [[stage.gpu_type, *stage.chunk_layers, str(stage.recompute)] for stage in plan.stages]
    sizes = [s.tp, s.pp, s.dp, s.micro_batch, s.seq_len, s.global_batch, s.virtual_stages]
    document = {k: v for k, v in asdict(job).items() if k != "assumed"}
    text = json.dumps([layout.model.fingerprint, stages, sizes, document], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
