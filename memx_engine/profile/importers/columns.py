"""The columns of the two kinds of measurement tables, and how a cell becomes a value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from memx_engine.errors import InputError
from memx_engine.units import MIB

Value = str | int | float
Columns = Mapping[str, Any]
"""One row: column → value; empty cells are absent."""


class Kind(StrEnum):
    """What a row is: one training run, or one kind of layer on one device."""

    ITERATION = "iteration"
    LAYER = "layer"


ITERATION_COLUMNS = (
    "source", "ref", "model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len", "gpu_type",
    "num_gpus", "gpus_per_node", "tp", "pp", "dp", "cp", "ep", "vp", "zero_stage", "mbs", "gbs", "recompute",
    "precision", "framework", "iter_time_s", "samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu",
    "peak_mem_gib", "mem_kind", "hetero", "verified", "notes", "stages", "max_position", "campaign",
)  # fmt: skip
LAYER_COLUMNS = (
    "source", "ref", "model", "layer_kind", "layer_count", "hidden", "heads", "ffn", "seq_len", "vocab", "gpu_type",
    "gpu_mem_gib", "precision", "tp", "mbs", "fwd_ms", "bwd_ms", "opt_update_ms", "fwd_bwd_ms", "layer_mem_mib",
    "param_bytes", "act_bytes", "notes", "kv_heads", "in_flight", "recompute",
)  # fmt: skip
COLUMNS = {Kind.ITERATION: ITERATION_COLUMNS, Kind.LAYER: LAYER_COLUMNS}
"""In the order in which they are written; the last ones of each are this tool's additions to the common format."""

ITERATION_RESULTS = ("iter_time_s", "tokens_per_s_per_gpu", "samples_per_s", "peak_mem_gib", "tflops_per_gpu", "mfu")
LAYER_RESULTS = ("fwd_ms", "bwd_ms", "fwd_bwd_ms", "opt_update_ms", "layer_mem_mib")

_COUNTS = frozenset(
    "layers hidden ffn heads kv_heads vocab seq_len num_gpus gpus_per_node tp pp dp cp ep vp mbs gbs layer_count "
    "max_position in_flight".split()
)
_NUMBERS = frozenset((*ITERATION_RESULTS, "gpu_mem_gib"))
# Zero is a value here: no ZeRO, or a layer quicker than the clock shows.
_PLAIN_NUMBERS = frozenset(("param_bytes", "act_bytes", "zero_stage", *LAYER_RESULTS))

MEMORY_BY_TYPE = re.compile(r"peak_mem_(?!mib|gb|mb)(\w+)_gib")
"""Peak memory of one device type of a mixed run."""

_GIB_PER_MIB = MIB / 2**30
ALIASES: Mapping[str, tuple[str, float]] = {
    "iter_ms": ("iter_time_s", 1e-3),
    "iter_time_ms": ("iter_time_s", 1e-3),
    "iteration_time_ms": ("iter_time_s", 1e-3),
    "iteration_time_s": ("iter_time_s", 1.0),
    "gbs_inferred": ("gbs", 1.0),
    "global_batch": ("gbs", 1.0),
    "global_batch_size": ("gbs", 1.0),
    "micro_batch": ("mbs", 1.0),
    "micro_batch_size": ("mbs", 1.0),
    "dtype": ("precision", 1.0),
    "max_pos": ("max_position", 1.0),
    "peak_mem_mib": ("peak_mem_gib", _GIB_PER_MIB),
    "peak_mem_mib_rank0": ("peak_mem_gib", _GIB_PER_MIB),
    "peak_mem_mib_rank1": ("peak_mem_gib", _GIB_PER_MIB),
    "flags": ("notes", 1.0),
    "fwd_s": ("fwd_ms", 1e3),
    "bwd_s": ("bwd_ms", 1e3),
    "layer_mem_gib": ("layer_mem_mib", 1024.0),
}
"""Other name → (column, factor to its unit). Several that name one column: the largest value counts."""

_UNREAD: Any = object()
_REMEMBERED = 2_000
_EMPTY = frozenset(("", "nan", "none", "null", "n/a", "na", "-"))


class RejectedError(Exception):
    """A row that cannot be read; the message is the reason."""


def _count(name: str, text: str, factor: float) -> int:
    try:
        value = float(text)
    except ValueError:
        raise RejectedError(f"{name} is {text[:40]!r}, not a number") from None
    if not 1 <= value <= 1e12 or value != int(value):
        raise RejectedError(f"{name} is {text[:40]}, not a whole number of at least 1")
    return int(value)


def _number(name: str, text: str, factor: float, *, zero: bool = False) -> float | int:
    try:
        value = float(text)
    except ValueError:
        unit = f"; the column is {_unit(name)}" if _unit(name) else ""
        raise RejectedError(f"{name} is {text[:40]!r}, not a number{unit}") from None
    if value < 0 or value == float("inf") or (value == 0 and not zero):
        raise RejectedError(f"{name} is {text[:40]}, which cannot be")
    value *= factor
    return int(value) if value == int(value) and "." not in text and factor == 1.0 else value


def _unit(name: str) -> str:
    for ending, unit in (("_s", "in seconds"), ("_ms", "in milliseconds"), ("_gib", "in GiB"), ("_mib", "in MiB")):
        if name.endswith(ending) and not name.endswith("per_s"):
            return unit
    return ""


@dataclass(frozen=True)
class _Cell:
    """Which column a cell fills, and how it is read.

    Attributes:
        read: None leaves the text as it is. shared: Another cell may fill the same column.
        known: Texts read before, and their values.
    """

    index: int
    name: str
    read: Callable[[str, str, float], Value] | None
    factor: float
    shared: bool = False
    known: dict[str, Any] = field(default_factory=dict)

    def value(self, text: str) -> Value | None:
        """What ``text`` says; None where the cell is empty."""
        text = text.strip()
        if not text or (len(text) < 5 and text.casefold() in _EMPTY):
            return None
        return text if self.read is None else self.read(self.name, text, self.factor)


@dataclass(frozen=True)
class Header:
    """The columns of one table.

    Attributes:
        kind: What its rows are.
        unknown: Columns that the format does not know; kept as text.
        renamed: (name in the file, column) where they differ.
    """

    kind: Kind
    width: int
    cells: tuple[_Cell, ...] = field(repr=False)
    unknown: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], where: str) -> Header:
        """Read a header line.

        Raises:
            InputError: It names a column twice, or is the header of neither kind of table.
        """
        plain = [name.strip() for name in names]
        while plain and not plain[-1]:
            plain.pop()
        twice = sorted({name for name in plain if name and plain.count(name) > 1})
        if twice:
            raise InputError(f"the column {twice[0]!r} stands twice in the header", where=f"{where}:1")
        kind = _kind(plain, where)
        cells, unknown, renamed = [], [], []
        filled = [ALIASES.get(name, (name, 1.0))[0] for name in plain]
        for index, name in enumerate(plain):
            column, factor = ALIASES.get(name, (name, 1.0))
            if column != name:
                renamed.append((name, column))
            if column in _COUNTS:
                read: Callable[[str, str, float], Value] | None = _count
            elif column in _NUMBERS or MEMORY_BY_TYPE.fullmatch(column):
                read = _number
            elif column in _PLAIN_NUMBERS:
                read = _plain_number
            else:
                read = None
                if column and column not in COLUMNS[kind]:
                    unknown.append(column)
            if column:
                cells.append(_Cell(index, column, read, factor, shared=filled.count(column) > 1))
        return cls(kind, len(plain), tuple(cells), tuple(unknown), tuple(renamed))

    def read(self, row: Sequence[str]) -> dict[str, Any]:
        """The row's columns; RejectedError names the cell that cannot be read."""
        if len(row) > self.width and any(cell.strip() for cell in row[self.width :]):
            raise RejectedError(f"{len(row)} cells where the header has {self.width}: a separator that is not quoted?")
        found: dict[str, Any] = {}
        present = len(row)
        for cell in self.cells:
            if cell.index >= present:
                break
            text = row[cell.index]
            if not text:
                continue
            value = cell.known.get(text, _UNREAD)
            if value is _UNREAD:
                value = cell.value(text)
                # Sizes repeat from row to row; measured figures do not and would only fill the memory.
                if len(cell.known) < _REMEMBERED:
                    cell.known[text] = value
            if value is None:
                continue
            before = found.get(cell.name) if cell.shared else None
            found[cell.name] = value if before is None or isinstance(before, str) else max(before, value)
        return found


def _plain_number(name: str, text: str, factor: float) -> Value:
    return _number(name, text, factor, zero=True)


def _kind(names: Sequence[str], where: str) -> Kind:
    columns = {ALIASES.get(name, (name, 1.0))[0] for name in names}
    kind: Kind
    needed: list[str]
    results: tuple[str, ...]
    if columns & set(LAYER_RESULTS) or "layer_kind" in columns:
        kind, needed, results = Kind.LAYER, ["gpu_type"], LAYER_RESULTS
    else:
        kind, results = Kind.ITERATION, ITERATION_RESULTS
        needed = ["tp"] if "stages" in columns else ["tp", "pp"]
    missing = [name for name in needed if name not in columns]
    if not missing and not columns & set(results):
        missing = [f"one of {', '.join(results)}"]
    if not missing:
        return kind
    known = columns & set(ITERATION_COLUMNS + LAYER_COLUMNS)
    close = [
        f"{name!r} looks like {match[0]}"
        for name in names
        if name not in known and (match := difflib.get_close_matches(name.casefold(), (*needed, *results), 1, 0.75))
    ]
    raise InputError(
        f"this is no measurement table: the header lacks {', '.join(missing)}",
        where=f"{where}:1",
        hint="; ".join(close)
        or "a table of iterations has tp, pp and iter_time_s; a table of layers has gpu_type and fwd_ms",
    )
