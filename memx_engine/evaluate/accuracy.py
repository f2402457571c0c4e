"""The accuracy table of measured runs: which rows are learned from, which are judged, each method's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from memx_engine.errors import CancelledError, InputError
from memx_engine.evaluate.figures import Mask, disturbed_rows, figures, merged, without
from memx_engine.evaluate.methods import METHODS, Predictions, Split, Truth
from memx_engine.evaluate.metrics import mean_over
from memx_engine.evaluate.rows import JudgedTable
from memx_engine.predict.iteration_model import grouped_folds

SEEDS = (0, 1, 2, 3, 4)
DEFAULT_FOLDS = 5
SCHEMA = "memx/evaluation/v1"


@dataclass(frozen=True)
class AccuracyOptions:
    """How the rows are divided.

    Attributes:
        folds: Folds of configurations; more than there are means leave one out. None: 5, unless rows are counted.
        train_rows: Learn from this many rows, judge the others.
        calibrate: Configurations of the test rows, with their repeats, that are known beforehand and not judged.
        seeds: Figures are means over these.
    """

    folds: int | None = None
    train_rows: int | None = None
    calibrate: int = 0
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class AccuracyTable:
    """What ``evaluate --table accuracy`` shows; ``document`` is its JSON form."""

    document: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.document["rows"])


def accuracy(
    test: JudgedTable,
    train: JudgedTable | None,
    options: AccuracyOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> AccuracyTable:
    """Judge all methods on ``test``, after learning from ``train`` or, without it, from other rows of ``test``.

    Raises:
        InputError: Nothing can be judged, or fewer rows are there than are to be learned from.
        CancelledError: Stopped.
    """
    rows = [*(train.rows if train else []), *test.rows]
    judged_from = len(rows) - len(test.rows)
    labels = {row.label for row in test.rows}
    truth = Truth(rows, train.layers if train else ())
    skipped = [*test.skipped, *(train.skipped if train else []), *truth.refused]
    is_test = np.array([k >= judged_from for k, row in enumerate(rows) if row.label not in dict(truth.refused)])
    if not any(row.label in labels for row in truth.rows):
        raise InputError(
            "no row of the test tables can be judged", where=test.name, hint=skipped[0][1] if skipped else ""
        )
    plans = [list(_splits(truth, is_test, train is not None, options, seed)) for seed in options.seeds]
    total, done = sum(map(len, plans)) * len(METHODS), 0
    runs: dict[str, list[tuple[Mask, Predictions]]] = {name: [] for name in METHODS}
    for seed, splits in zip(options.seeds, plans, strict=True):
        for name, method in METHODS.items():
            made = []
            for split in splits:
                if should_stop is not None and should_stop():
                    raise CancelledError("interrupted; nothing was written")
                made.append(method(truth, split, seed))
                done += 1
                if on_progress is not None:
                    on_progress(done, total)
            runs[name].append((np.any([split.test for split in splits], axis=0), merged(truth, made)))
    everywhere = np.any([judged for judged, _ in runs["memx"]], axis=0)
    named, factor = disturbed_rows(truth, everywhere, [made.values[:, 0] for _, made in runs["memx"]])
    found = []
    for name, tries in runs.items():
        row = {"method": name, "source": test.name, **counted(mean_over([figures(truth, *run) for run in tries]))}
        kept = [figures(truth, judged & ~named, made) for judged, made in tries] if named.any() else []
        found.append({**row, "without_disturbed": counted(mean_over([without(k) for k in kept])) if kept else None})
    return AccuracyTable(
        {
            "schema": SCHEMA,
            "table": "accuracy",
            "truth": test.name,
            "trained_on": train.name if train else None,
            "provenance": "measured",
            "folds": options.folds,
            "train_rows": options.train_rows,
            "calibrate": options.calibrate,
            "seeds": list(options.seeds),
            "skipped": [{"row": label, "reason": reason} for label, reason in skipped],
            "disturbed": [
                {"row": row.label, "times_longer": float(x)}
                for row, is_named, x in zip(truth.rows, named, factor, strict=True)
                if is_named
            ],
            "rows": found,
        }
    )


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """Counts are whole numbers again after the mean over seeds."""
    names = ("n", "n_time", "n_memory", "tp", "fp", "fn", "tn")
    out: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict) and key in ("oom", "by_dimension"):
            out[key] = {k: counted(v) if isinstance(v, dict) else round(v) for k, v in value.items()}
        else:
            out[key] = round(value) if key in names and isinstance(value, float | int) else _inner(value)
    return out


def _inner(value: Any) -> Any:
    return counted(value) if isinstance(value, dict) else value


def _splits(truth: Truth, is_test: Any, held_out: bool, options: AccuracyOptions, seed: int) -> Iterator[Split]:
    """How one seed divides the rows. Rows of one configuration are never on both sides."""
    rng = np.random.default_rng(seed)
    nothing = np.zeros(len(truth.rows), dtype=bool)
    configurations = truth.configurations
    candidates = np.unique(configurations[is_test])
    calibrate = nothing
    if options.calibrate:
        if options.calibrate >= len(candidates):
            raise InputError(
                f"{options.calibrate} configurations cannot be set aside: the test has {len(candidates)}",
                where="--calibrate",
            )
        known = rng.permutation(candidates)[: options.calibrate]
        calibrate = is_test & np.isin(configurations, known)
    if held_out:
        train = ~is_test
        if options.train_rows is not None:
            train = _drawn(train, options.train_rows, rng)
        yield Split(train, calibrate, is_test & ~calibrate)
    elif options.train_rows is not None:
        train = _drawn(is_test & ~calibrate, options.train_rows, rng)
        # What is judged must be new: repeats of a known configuration are left out.
        test = is_test & ~np.isin(configurations, configurations[train | calibrate])
        if not test.any():
            raise InputError("no configuration is left to judge", where="--train-rows")
        yield Split(train, calibrate, test)
    elif options.calibrate and options.folds is None:
        yield Split(nothing, calibrate, is_test & ~calibrate)
    else:
        rest = is_test & ~calibrate
        for mask in grouped_folds(configurations[rest], options.folds or DEFAULT_FOLDS, seed):
            test = nothing.copy()
            test[np.flatnonzero(rest)[mask]] = True
            yield Split(rest & ~test, calibrate, test)


def _drawn(among: Any, count: int, rng: np.random.Generator) -> Any:
    places = np.flatnonzero(among)
    if count > len(places):
        raise InputError(f"{count} rows are to be learned from, {len(places)} are there", where="--train-rows")
    out = np.zeros(len(among), dtype=bool)
    out[rng.permutation(places)[:count]] = True
    return out
