"""One method's figures over the judged rows: errors, ranks, coverage, dimension by dimension, and what did not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memx_engine.evaluate.methods import Predictions, Truth
from memx_engine.evaluate.metrics import (
    Array,
    coverage_band_pct,
    coverage_pct,
    errors_pct,
    half_width_pct,
    memory_metrics,
    time_metrics,
)
from memx_engine.predict.contaminated import beyond_neighbours, beyond_type, far_above
from memx_engine.predict.iteration_model import SIZES

Mask = NDArray[np.bool_]

DIMENSIONS = ("gpu_type", "gpus", "tp", "pp", "dp", "micro_batch", "seq_len", "layers", "hidden", "recompute")
_MOST_VALUES = 40

BAND_ROWS = 100
"""Judged rows from which on the band in which the coverage should lie is given."""


def merged(truth: Truth, made: Sequence[Predictions]) -> Predictions:
    """The predictions of all splits in one."""
    values = np.full(truth.measured.shape, np.nan)
    widths = values.copy()
    for part in made:
        known = ~np.isnan(part.values)
        values[known] = part.values[known]
        widths[known] = part.widths[known]
    return Predictions(values, widths, sum(part.held_out for part in made) // max(len(made), 1))


def figures(truth: Truth, judged: Mask, made: Predictions) -> dict[str, Any]:
    """One seed's figures of one method over the ``judged`` rows."""
    values, widths = made.values, made.widths
    asked = judged[truth.row_of]
    measured = np.where(asked[:, None], truth.measured, np.nan)
    known = ~np.isnan(measured) & ~np.isnan(values)
    timed, sized = known[:, 0], known[:, 1]
    types = [name for name, kept in zip(truth.types, sized, strict=True) if kept]
    return {
        "n": int(judged.sum()),
        "n_time": int(timed.sum()),
        "n_memory": len(np.unique(truth.row_of[sized])),
        **time_metrics(values[timed, 0], measured[timed, 0]),
        **memory_metrics(values[sized, 1], measured[sized, 1], types),
        "coverage_95_pct": coverage_pct(values[timed, 0], widths[timed, 0], measured[timed, 0]),
        "coverage_band_pct": _band(int((timed & np.isfinite(widths[:, 0])).sum()), made.held_out),
        "memory_coverage_95_pct": coverage_pct(values[sized, 1], widths[sized, 1], measured[sized, 1]),
        "interval_width_pct": half_width_pct(widths[timed, 0]),
        "by_dimension": _by_dimension(truth, known, measured, values),
        "oom": _out_of_memory(truth, judged, values),
    }


def _band(rows: int, held_out: int) -> dict[str, float] | None:
    if rows < BAND_ROWS or held_out < 1:
        return None
    low, high = coverage_band_pct(rows, held_out)
    return {"low": low, "high": high}


def _by_dimension(truth: Truth, known: Mask, measured: Array, values: Array) -> dict[str, dict[str, dict[str, Any]]]:
    """Dimension → value → rows and mean errors; those with one value, or very many, are left out."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for name, column in truth.dimensions(DIMENSIONS).items():
        seen = [value for value in dict.fromkeys(column[known.any(axis=1)].tolist())]
        if not 2 <= len(seen) <= _MOST_VALUES:
            continue
        out[name] = {}
        for value in sorted(seen, key=_as_number):
            own = known & (column == value)[:, None]
            errors = [errors_pct(values[own[:, k], k], measured[own[:, k], k]) for k in range(2)]
            out[name][value] = {
                "n": len(np.unique(truth.row_of[own.any(axis=1)])),
                "time_mape_pct": float(errors[0].mean()) if len(errors[0]) else None,
                "memory_mape_pct": float(errors[1].mean()) if len(errors[1]) else None,
            }
    return out


def _as_number(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return 0.0, value


def _out_of_memory(truth: Truth, judged: Mask, values: Array) -> dict[str, int] | None:
    """Counts over judged rows of "does not fit" said and true; None where no judged row ran out of memory."""
    failed = truth.out_of_memory
    if not (failed & judged).any():
        return None
    too_large = values[:, 1] + truth.outside_bytes > truth.capacity_bytes
    said, asked = np.zeros(len(truth.rows), dtype=np.bool_), np.zeros(len(truth.rows), dtype=np.bool_)
    np.logical_or.at(said, truth.row_of, too_large)
    np.logical_or.at(asked, truth.row_of, ~np.isnan(values[:, 1]))
    asked &= judged
    return {
        "tp": int((asked & said & failed).sum()),
        "fp": int((asked & said & ~failed).sum()),
        "fn": int((asked & ~said & failed).sum()),
        "tn": int((asked & ~said & ~failed).sum()),
    }


def disturbed_rows(truth: Truth, judged: Mask, predicted: Sequence[Array]) -> tuple[Mask, Array]:
    """Which judged rows took far longer than they should, and by which factor longer than ``predicted``.

    A row is named when it lies far above its GPU type, or above its neighbours and above what was predicted of it
    without having been seen.

    Args:
        predicted: (n,) seconds, one array per seed.
    """
    asked = judged[truth.row_of]
    time_s = np.where(asked, truth.measured[:, 0], np.nan)
    logs = np.log(time_s / truth.predicted()[:, 0])
    types, groups = np.array(truth.types), truth.configurations[truth.row_of]
    samples = truth.samples()
    sizes = [name for name in SIZES if name in samples[0].skeleton]
    places = np.array([[sample.skeleton[name] for name in sizes] for sample in samples])
    tries = np.log(time_s / np.array(predicted))
    some = ~np.isnan(tries).all(axis=0)
    left = np.full(len(time_s), np.nan)
    left[some] = np.nanmedian(tries[:, some], axis=0)
    named = beyond_type(logs, types) | (beyond_neighbours(logs, places, groups, types) & far_above(left))
    rows, factor = np.zeros(len(truth.rows), dtype=np.bool_), np.full(len(truth.rows), np.nan)
    for k in np.flatnonzero(named):
        rows[truth.row_of[k]] = True
        factor[truth.row_of[k]] = np.exp(left[k])
    return rows, factor


def without(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method's figures those of time, as they are given once more without the disturbed rows."""
    names = ("n_time", "time_mape_pct", "time_median_pct", "time_max_pct", "spearman_time", "kendall_time")
    return {name: found[name] for name in names}
