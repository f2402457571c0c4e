"""Remembered predictions: what was asked is returned, and never anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memx_engine.errors import InputError, OutputError
from memx_engine.predict import signatures
from memx_engine.predict.signatures import Signatures

Array = NDArray[np.float64]
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 1e-300, 3.0000000000000004, 3.0, 1e9, 7.25])
ROWS = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=12)


def answer(rows: Array) -> Array:
    """A prediction that differs wherever any number differs."""
    return np.stack([rows @ [1.0, 1e3, 1e-3], np.sin(rows).sum(axis=1)], axis=1)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_what_is_returned_is_always_what_would_be_predicted(batches: list[list[list[float]]]) -> None:
    kept = Signatures("a", 3, 2)
    seen: set[tuple[float, ...]] = set()
    for batch in batches:
        rows = np.array(batch)
        assert (kept.get(rows, answer) == answer(rows)).all()
        seen |= {tuple(row) for row in batch}
    assert kept.misses == len(seen) == len(kept)
    assert kept.hits == sum(map(len, batches)) - len(seen)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 2), NUMBERS)
def test_one_changed_number_is_another_signature(batch: list[list[float]], column: int, value: float) -> None:
    kept = Signatures("a", 3, 2)
    rows = np.array(batch)
    kept.get(rows, answer)
    changed = rows.copy()
    changed[:, column] = value
    assert (kept.get(changed, answer) == answer(changed)).all()


def test_rows_of_one_hash_are_never_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signatures, "_hash", lambda self, rows: np.zeros(len(rows), dtype=np.uint64))
    kept = Signatures("a", 3, 2)
    rows = np.arange(12.0).reshape(4, 3)
    for _ in range(3):
        assert (kept.get(rows, answer) == answer(rows)).all()
    assert len(kept) == 1


def test_a_full_memory_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "MOST_ROWS", 2)
    kept = Signatures("a", 3, 2)
    rows = np.arange(15.0).reshape(5, 3)
    for _ in range(2):
        assert (kept.get(rows, answer) == answer(rows)).all()
    assert len(kept) == 2


def test_files_are_of_one_predictor_and_checked(tmp_path: Path) -> None:
    kept = Signatures("a", 3, 2)
    rows = np.arange(12.0).reshape(4, 3)
    kept.get(rows, answer)
    path = tmp_path / "a.npz"
    kept.save(path)
    again = Signatures("a", 3, 2)
    again.load(path)

    def never(_rows: Array) -> Array:
        raise AssertionError("asked the trees again")

    assert (again.get(rows, never) == answer(rows)).all() and again.misses == 0
    with pytest.raises(InputError, match="another predictor"):
        Signatures("b", 3, 2).load(path)
    with pytest.raises(InputError, match="damaged"):
        Signatures("a", 4, 2).load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="damaged"):
        Signatures("a", 3, 2).load(path)
    with pytest.raises(InputError, match="damaged"):
        Signatures("a", 3, 2).load(tmp_path / "none.npz")
    with pytest.raises(OutputError):
        kept.save(tmp_path / "no folder" / "a.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
