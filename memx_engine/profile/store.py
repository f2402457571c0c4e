"""Where measurements go the moment they arrive: the seam between profiling and the workspace on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from memx_engine.measurement import Measurement

Accept = Callable[[Measurement], bool]


class MeasurementStore(Protocol):
    """Keeps every repetition of every point. Writes are durable when ``add`` returns."""

    def add(self, measurement: Measurement) -> None:
        """Store one measurement for good; StorageError when the disk is full or not writable."""
        ...

    def measurements(self) -> Iterator[Measurement]:
        """All measurements in the order they came."""
        ...

    def latest(self, truth_name: str, keys: Collection[str], accept: Accept | None = None) -> dict[str, Measurement]:
        """The latest measurement of every point key among ``keys`` that this ground has and ``accept`` takes."""
        ...

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many measurements there are by (truth name, GPU type, outcome)."""
        ...


@dataclass(frozen=True)
class ImportedRow:
    """One row of an imported table or log.

    Attributes:
        source: Name of the file. kind: ``iteration`` or ``layer``. document: Its columns, empty cells left out.
        digest: The same for equal rows, whatever file they come from.
    """

    source: str
    kind: str
    document: dict[str, Any]
    digest: str


class ImportStore(Protocol):
    """Keeps imported rows, each once."""

    def add_imported(self, rows: list[ImportedRow]) -> int:
        """Store ``rows`` for good; returns how many were new."""
        ...

    def imported(self, kind: str) -> Iterator[ImportedRow]:
        """The rows of one kind in the order they came."""
        ...


class Store(MeasurementStore, ImportStore, Protocol):
    """All that planning reads: measurements and imported rows."""


class MemoryStore:
    """A store for tests and for planning without a workspace."""

    def __init__(self) -> None:
        self._kept: list[Measurement] = []
        self._imported: dict[str, ImportedRow] = {}

    def add(self, measurement: Measurement) -> None:
        self._kept.append(measurement)

    def measurements(self) -> Iterator[Measurement]:
        return iter(tuple(self._kept))

    def latest(self, truth_name: str, keys: Collection[str], accept: Accept | None = None) -> dict[str, Measurement]:
        wanted = set(keys)
        found = (m for m in self._kept if m.truth_name == truth_name and m.point.key in wanted)
        return {m.point.key: m for m in found if accept is None or accept(m)}

    def counts(self) -> dict[tuple[str, str, str], int]:
        return dict(Counter((m.truth_name, m.point.gpu_type, m.outcome.value) for m in self._kept))

    def add_imported(self, rows: list[ImportedRow]) -> int:
        before = len(self._imported)
        for row in rows:
            self._imported.setdefault(row.digest, row)
        return len(self._imported) - before

    def imported(self, kind: str) -> Iterator[ImportedRow]:
        return iter([row for row in self._imported.values() if row.kind == kind])
