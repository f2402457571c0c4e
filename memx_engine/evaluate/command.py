"""What ``evaluate`` is asked, resolved: which truth, which rows are learned from, which table is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from memx_engine.errors import InputError
from memx_engine.evaluate.accuracy import AccuracyOptions, AccuracyTable, accuracy
from memx_engine.evaluate.rows import read_judged

TABLES = ("accuracy",)


def evaluate(
    truth: Sequence[str] = (),
    *,
    train: Sequence[str] = (),
    test: Sequence[str] = (),
    table: str = "accuracy",
    options: AccuracyOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> AccuracyTable:
    """Judge every method on a truth.

    Args:
        truth: Files, whose own rows are split into learned and judged ones. train, test: Files of each instead.

    Raises:
        InputError: Neither or both forms are given, a table is not known, or a file cannot be used.
        CancelledError: Stopped.
    """
    if table not in TABLES:
        raise InputError(f"no table is called {table!r}", where="--table", hint=f"tables: {', '.join(TABLES)}")
    if bool(truth) == bool(train or test) or bool(train) != bool(test):
        raise InputError(
            "say what to judge", where="--truth", hint="either --truth FILE..., or --train FILE... and --test FILE..."
        )
    chosen = options or AccuracyOptions()
    judged = read_judged([Path(name) for name in truth or test])
    known = read_judged([Path(name) for name in train]) if train else None
    return accuracy(judged, known, chosen, on_progress=on_progress, should_stop=should_stop)
