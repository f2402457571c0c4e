"""Reading one file of measurements into a workspace: streamed, in bounded memory, every unreadable line named."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from memx_engine.errors import CancelledError, InputError
from memx_engine.profile.importers.columns import (
    COLUMNS,
    ITERATION_RESULTS,
    LAYER_RESULTS,
    Header,
    Kind,
    RejectedError,
)
from memx_engine.profile.importers.facts import check_row, is_out_of_memory
from memx_engine.profile.importers.layouts import layer_measurement
from memx_engine.profile.importers.logs import read_log
from memx_engine.profile.importers.models import NotJudgeableError
from memx_engine.profile.store import ImportedRow, ImportStore

BATCH = 10_000
"""Rows per transaction: what a killed import loses at most, and what it holds in memory."""

SHOWN = 20
"""Rows named one by one with their line; of the others only the reasons are counted."""

_MOST_REASONS = 100
_ENCODER = json.JSONEncoder(sort_keys=True)
_HEAD_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"PK\x03\x04": "unzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"(\xb5/\xfd": "zstd -d",
}


@dataclass
class Reasons:
    """Why rows were set aside: the first ones by line, all of them by reason with the line of its first."""

    total: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)

    def add(self, line: int, reason: str) -> None:
        self.total += 1
        if len(self.first) < SHOWN:
            self.first.append((line, reason))
        if reason in self.counts or len(self.counts) < _MOST_REASONS:
            self.counts[reason] += 1
            self.first_line.setdefault(reason, line)
        else:
            self.counts["other reasons"] += 1


@dataclass
class FileImport:
    """What became of one file.

    Attributes:
        kind: None for a file that could not be read at all; ``error`` says why.
        added, duplicates: Rows that are new, and rows that the workspace (or the file itself) already had.
        rejected: Rows without a layout, without a result, or with a cell that cannot be read.
        not_judgeable: Rows that are kept but that the cost model cannot be held against (part of added or duplicates).
        notes: What is worth knowing of the whole file.
    """

    source: str
    kind: Kind | None = None
    log: bool = False
    added: int = 0
    duplicates: int = 0
    rejected: Reasons = field(default_factory=Reasons)
    not_judgeable: Reasons = field(default_factory=Reasons)
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def kept(self) -> int:
        return self.added + self.duplicates


def import_file(
    path: Path,
    store: ImportStore,
    *,
    gpu_type: str | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FileImport:
    """Import a CSV table (separators ``,``, ``;`` or tab) or a Megatron-LM log.

    Args:
        gpu_type: For logs, which do not say what they ran on.
        on_progress: Told the number of rows read, once per batch.

    Raises:
        InputError: Nothing of it can be read: no such file, compressed, binary, or neither table nor log.
        CancelledError: Stopped; batches stored so far stay.
    """
    source = path.name
    try:
        with path.open("rb") as raw:
            head = raw.read(_HEAD_BYTES)
    except OSError as error:
        reason = "this is a folder" if os.path.isdir(path) else error.strerror or str(error)
        raise InputError(f"cannot be read: {reason}", where=str(path)) from error
    first = _first_line(head)
    _refuse_unreadable(head, first, str(path))
    try:
        # Bytes that are not UTF-8 become lone surrogates, so that the row that holds them can be named.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            if _looks_like_log(head, first):
                return _import_log(stream, source, str(path), store, gpu_type)
            return _import_table(stream, source, str(path), first, store, on_progress, should_stop)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _refuse_unreadable(head: bytes, first: str, where: str) -> None:
    for magic, tool in _COMPRESSED.items():
        if head.startswith(magic):
            raise InputError("this file is compressed", where=where, hint=f"unpack it first: {tool} {Path(where).name}")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("this file is UTF-16", where=where, hint="save it as UTF-8")
    # A disk that was full or lost power leaves zeros in a table or log: only the lines that hold them are lost.
    if b"\x00" in head and ("\0" in first or not (_is_header(first) or _looks_like_log(head, first))):
        raise InputError("this is a binary file, no table and no log", where=where)
    if not head.strip():
        raise InputError("this file is empty", where=where)


def _first_line(head: bytes) -> str:
    text = head.decode("utf-8-sig", errors="replace").lstrip("\r\n ")
    return text.splitlines()[0] if text else ""


def _is_header(first: str) -> bool:
    """A table's first line names columns."""
    names = {name.strip().strip('"') for separator in ",;\t" for name in first.split(separator)}
    return len(names & {name for columns in COLUMNS.values() for name in columns}) >= 2


def _looks_like_log(head: bytes, first: str) -> bool:
    """A log is told by words that no table has in its first lines."""
    if _is_header(first):
        return False
    text = head.decode("utf-8", errors="replace")
    return any(word in text for word in ("elapsed time per iteration", " arguments ----", "[Rank ", " iteration "))


def _separator(first: str) -> str:
    return max(",;\t", key=first.count)


def _import_table(
    stream: IO[str],
    source: str,
    where: str,
    first: str,
    store: ImportStore,
    on_progress: Callable[[int], None] | None,
    should_stop: Callable[[], bool] | None,
) -> FileImport:
    rejected = Reasons()
    reader = csv.reader(_lines(stream, where, rejected), delimiter=_separator(first), skipinitialspace=True)
    try:
        names = next((row for row in reader if any(cell.strip() for cell in row)), [])
    except csv.Error as error:
        raise InputError(f"the header cannot be read: {error}", where=f"{where}:{reader.line_num}") from error
    header = Header.of(names, where)
    made = FileImport(source, header.kind, rejected=rejected, notes=_header_notes(header))
    batch: list[ImportedRow] = []
    read = 0
    for line, row in _rows(reader, made.rejected):
        try:
            batch.append(_stored(header.read(row), header.kind, source, line, made))
        except RejectedError as error:
            made.rejected.add(line, str(error))
        read += 1
        if read % BATCH == 0:
            _store(batch, store, made)
            batch = []
            if on_progress is not None:
                on_progress(read)
            if should_stop is not None and should_stop():
                raise CancelledError(f"the import was stopped; {made.kept} rows of {source} are stored")
    _store(batch, store, made)
    if on_progress is not None:
        on_progress(read)
    if not read:
        if rejected.total:
            line, reason = rejected.first[0]
            raise InputError(f"no row can be read; the first: {reason}", where=f"{where}:{line}")
        made.notes += ("there is a header, and no row below it",)
    return made


def _lines(stream: IO[str], where: str, rejected: Reasons) -> Iterator[str]:
    """The stream's lines; one so long that no table has it is rejected, or the file where it is the first."""
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if len(line) < _LONGEST_LINE:
            yield line
            continue
        if number == 1:
            raise InputError("this line is longer than 1 MiB, no measurement table has that", where=f"{where}:1")
        # Read to its end in pieces, so that memory stays bounded; the blank keeps the count of lines.
        while line and not line.endswith(("\n", "\r")):
            line = stream.readline(_LONGEST_LINE)
        rejected.add(number, "this line is longer than 1 MiB")
        yield "\n"


def _header_notes(header: Header) -> tuple[str, ...]:
    notes = [f"{name} is read as {column}" for name, column in header.renamed]
    if header.unknown:
        names = ", ".join(header.unknown[:8]) + (", ..." if len(header.unknown) > 8 else "")
        notes.append(f"columns that the format does not know are kept as they are: {names}")
    return tuple(notes)


def _rows(reader: Any, rejected: Reasons) -> Iterator[tuple[int, list[str]]]:
    """(line on which it starts, cells) of every row that is not blank; what the csv module refuses is rejected."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            rejected.add(line, f"cannot be read: {error}: a quote that is never closed?")
            continue
        if any(cell and not cell.isspace() for cell in row):
            yield line, row


def _stored(columns: dict[str, Any], kind: Kind, source: str, line: int, made: FileImport) -> ImportedRow:
    """The row to store. Raises RejectedError without a layout or without a result; notes why it is not judgeable."""
    if kind is Kind.ITERATION:
        missing = [name for name in ("tp", "pp") if name not in columns and not (name == "pp" and "stages" in columns)]
        if missing:
            raise RejectedError(f"no layout: {', '.join(missing)} missing")
        if not (
            any(name in columns for name in ITERATION_RESULTS)
            or any(name.startswith("peak_mem_") for name in columns)
            or is_out_of_memory(columns)
        ):
            raise RejectedError("no result: neither time, rate, memory nor out of memory")
    elif not any(name in columns for name in LAYER_RESULTS):
        raise RejectedError("no result: neither times nor memory")
    text = _ENCODER.encode(columns)
    if "\\udc" in text and not _is_text(columns):
        raise RejectedError("not UTF-8 text")
    if "\\u0000" in text and any("\0" in f"{name}{value}" for name, value in columns.items()):
        raise RejectedError("holds NUL bytes")
    try:
        if kind is Kind.ITERATION:
            check_row(columns)
        else:
            layer_measurement(columns, source)
    except NotJudgeableError as error:
        made.not_judgeable.add(line, str(error))
    return ImportedRow(source, kind.value, columns, hashlib.sha256(f"{kind.value}{text}".encode()).hexdigest()[:32])


def _is_text(columns: dict[str, Any]) -> bool:
    """Whether all cells are real characters, none the lone surrogate that stands for a byte that is not UTF-8."""
    try:
        "".join(f"{name}{value}" for name, value in columns.items()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _store(batch: list[ImportedRow], store: ImportStore, made: FileImport) -> None:
    added = store.add_imported(batch) if batch else 0
    made.added += added
    made.duplicates += len(batch) - added


def _import_log(stream: IO[str], source: str, where: str, store: ImportStore, gpu_type: str | None) -> FileImport:
    columns, log = read_log(iter(lambda: stream.readline(_LONGEST_LINE), ""), gpu_type=gpu_type)
    made = FileImport(source, Kind.ITERATION, log=True)
    for line, text in log.unread:
        made.rejected.add(line, f"cannot be read: {text}")
    if not log.iterations_s and not log.reserved_bytes and not log.out_of_memory:
        raise InputError(
            "this is neither a measurement table nor a training log with times or memory",
            where=where,
            hint="Megatron-LM prints 'elapsed time per iteration (ms)' with --log-interval, and memory per rank",
        )
    columns["source"] = source
    try:
        _store([_stored(columns, Kind.ITERATION, source, 1, made)], store, made)
    except RejectedError as error:
        made.rejected.add(1, f"{error}: the log's list of arguments is needed, which Megatron-LM prints at its start")
    if gpu_type is None:
        made.notes = ("a log does not say which GPUs it ran on: give --gpu-type",)
    return made


def import_document(files: list[FileImport], folder: Path) -> dict[str, Any]:
    """What ``import --json`` prints."""
    return {
        "schema": "memx/import/v1",
        "workspace": str(folder),
        "files": [
            {
                "file": made.source,
                "kind": None if made.kind is None else made.kind.value,
                "log": made.log,
                "added": made.added,
                "duplicates": made.duplicates,
                "rejected": _reasons_document(made.rejected),
                "not_judgeable": _reasons_document(made.not_judgeable),
                "notes": list(made.notes),
                "error": made.error or None,
            }
            for made in files
        ],
        "added": sum(made.added for made in files),
        "duplicates": sum(made.duplicates for made in files),
        "rejected": sum(made.rejected.total for made in files),
        "not_judgeable": sum(made.not_judgeable.total for made in files),
    }


def _reasons_document(reasons: Reasons) -> dict[str, Any]:
    return {
        "total": reasons.total,
        "first": [{"line": line, "reason": reason} for line, reason in reasons.first],
        "reasons": dict(reasons.counts.most_common()),
    }
