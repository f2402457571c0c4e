"""Where measurements go the moment they arrive: the seam between profiling and the workspace on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from memx_engine.measurement import Measurement


class MeasurementStore(Protocol):
    """Keeps every repetition of every point. Writes are durable when ``add`` returns."""

    def add(self, measurement: Measurement) -> None:
        """Store one measurement for good; StorageError when the disk is full or not writable."""
        ...

    def measurements(self) -> Iterator[Measurement]:
        """All measurements in the order they came."""
        ...


class MemoryStore:
    """A store for tests and for planning without a workspace."""

    def __init__(self) -> None:
        self._kept: list[Measurement] = []

    def add(self, measurement: Measurement) -> None:
        self._kept.append(measurement)

    def measurements(self) -> Iterator[Measurement]:
        return iter(tuple(self._kept))
