"""Remembered predictions, by signature: exactly the numbers that the trees read, so that nothing else can be returned.

A batch is looked up at once: a hash of every row finds its place, and the row that is kept there is compared with the
one that is asked, number by number. A changed GPU type, model shape, batch or recompute changes some number; a changed
predictor has another digest and starts with nothing remembered.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memx_engine.errors import InputError, OutputError

Array = NDArray[np.float64]

MOST_ROWS = 200_000
"""Signatures that are kept; beyond them new ones are predicted every time."""

MAX_BYTES = 512 << 20


class Signatures:
    """Values of rows of one predictor.

    Args:
        digest: The predictor's. features, outputs: Numbers in a row, and of a prediction.

    Attributes:
        hits, misses: Rows that were remembered, and those that were predicted.
    """

    def __init__(self, digest: str, features: int, outputs: int) -> None:
        self.digest = digest
        self.hits = self.misses = 0
        self._rows, self._values = np.empty((0, features)), np.empty((0, outputs))
        self._hashes = np.empty(0, dtype=np.uint64)
        # Odd, so that no bit of a feature is lost; the same everywhere, so that files can be read again.
        rng = np.random.default_rng(features)
        self._odd = rng.integers(0, 2**63, features, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, rows: Array, make: Callable[[Array], Array]) -> Array:
        """(n, outputs) for (n, features); ``make`` predicts rows that are not remembered, each different one once."""
        # Negative zero equals zero and must have its bits.
        rows = np.ascontiguousarray(rows, dtype=np.float64) + 0.0
        hashes = self._hash(rows)
        places, known = self._find(rows, hashes)
        out = np.empty((len(rows), self._values.shape[1]))
        out[known] = self._values[places[known]]
        missing = np.flatnonzero(~known)
        self.hits += len(rows) - len(missing)
        if len(missing):
            unique, inverse = np.unique(rows[missing], axis=0, return_inverse=True)
            made = np.asarray(make(unique), dtype=np.float64)
            self.misses += len(unique)
            self.hits += len(missing) - len(unique)
            out[missing] = made[inverse.ravel()]
            self._add(unique, made)
        return out

    def _find(self, rows: Array, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not len(self._hashes):
            return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.bool_)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known = self._hashes[places] == hashes
        known[known] = (self._rows[places[known]] == rows[known]).all(axis=1)
        return places, known

    def _add(self, rows: Array, values: Array) -> None:
        room = max(MOST_ROWS - len(self._rows), 0)
        rows, values = rows[:room], values[:room]
        hashes = self._hash(rows)
        # Two rows of one hash: the first stays, the other is predicted every time it is asked.
        new = ~np.isin(hashes, self._hashes)
        hashes, first = np.unique(hashes[new], return_index=True)
        rows, values = rows[new][first], values[new][first]
        merged = np.concatenate([self._hashes, hashes])
        order = np.argsort(merged, kind="stable")
        self._hashes = merged[order]
        self._rows = np.concatenate([self._rows, rows])[order]
        self._values = np.concatenate([self._values, values])[order]

    def _hash(self, rows: Array) -> NDArray[np.uint64]:
        bits = np.ascontiguousarray(rows).view(np.uint64)
        # Round numbers have only zeros in their low half, which multiplying would keep.
        bits = bits ^ (bits >> np.uint64(32))
        mixed = (bits * self._odd).sum(axis=1, dtype=np.uint64)
        return np.asarray(mixed ^ (mixed >> np.uint64(29)), dtype=np.uint64)

    def save(self, path: Path) -> None:
        """Write what is remembered, replacing an older file.

        Raises:
            OutputError: It cannot be written.
        """
        buffer = io.BytesIO()
        np.savez_compressed(buffer, digest=np.array(self.digest), rows=self._rows, values=self._values)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_bytes(buffer.getvalue())
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise OutputError(f"cannot be written: {error.strerror or error}", where=str(path)) from error

    def load(self, path: Path) -> None:
        """Remember what a file holds too; numbers only, nothing in it is run.

        Raises:
            InputError: The file is damaged, or is of another predictor.
        """
        try:
            if path.stat().st_size > MAX_BYTES:
                raise InputError("larger than any file of signatures", where=str(path))
            with np.load(path, allow_pickle=False) as file:
                digest, rows, values = str(file["digest"]), file["rows"], file["values"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError("the file of signatures is damaged", where=str(path), hint="delete it") from error
        if digest != self.digest:
            raise InputError("the file of signatures is of another predictor", where=str(path))
        shapes = (rows.ndim, values.ndim, rows.shape[-1], values.shape[-1], len(rows))
        wanted = (2, 2, self._rows.shape[1], self._values.shape[1], len(values))
        if shapes != wanted or not (np.isfinite(rows).all() and np.isfinite(values).all()):
            raise InputError("the file of signatures is damaged", where=str(path), hint="delete it")
        self._add(np.asarray(rows, dtype=np.float64), np.asarray(values, dtype=np.float64))
