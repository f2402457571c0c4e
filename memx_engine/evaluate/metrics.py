"""Figures by which predictions are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def errors_pct(predicted: Array, measured: Array) -> Array:
    """Absolute relative errors in percent of what was measured."""
    return np.asarray(100.0 * np.abs(predicted - measured) / measured)


def time_metrics(predicted: Array, measured: Array) -> dict[str, float | None]:
    """Errors and rank agreement of times; every figure is None without rows, ranks also with fewer than three."""
    if not len(measured):
        names = ("time_mape_pct", "time_median_pct", "time_max_pct", "within_20_pct", "beyond_50_pct")
        return dict.fromkeys((*names, "spearman_time", "kendall_time"))
    errors = errors_pct(predicted, measured)
    return {
        "time_mape_pct": float(errors.mean()),
        "time_median_pct": float(np.median(errors)),
        "time_max_pct": float(errors.max()),
        "within_20_pct": float(100.0 * (errors < 20.0).mean()),
        "beyond_50_pct": float(100.0 * (errors > 50.0).mean()),
        "spearman_time": rank_agreement(predicted, measured, kendall=False),
        "kendall_time": rank_agreement(predicted, measured, kendall=True),
    }


def memory_metrics(predicted: Array, measured: Array, types: Sequence[str]) -> dict[str, object]:
    """Errors of peaks over all (row, type) pairs, and their mean by GPU type."""
    if not len(measured):
        return {"memory_mape_pct": None, "memory_median_pct": None, "memory_by_type_pct": None}
    errors = errors_pct(predicted, measured)
    names = np.array(types)
    return {
        "memory_mape_pct": float(errors.mean()),
        "memory_median_pct": float(np.median(errors)),
        "memory_by_type_pct": {name: float(errors[names == name].mean()) for name in sorted(set(types))},
    }


def rank_agreement(predicted: Array, measured: Array, *, kendall: bool) -> float | None:
    """Spearman's rho or Kendall's tau-b; None where it is not defined (fewer than three rows, or all equal)."""
    from scipy.stats import kendalltau, spearmanr

    if len(measured) < 3 or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    value = float((kendalltau if kendall else spearmanr)(predicted, measured).statistic)
    return value if np.isfinite(value) else None


def coverage_pct(predicted: Array, width: Array, measured: Array) -> float | None:
    """Share of measurements inside ``predicted * exp(±width)``; rows without a width are left out."""
    known = np.isfinite(width)
    if not known.any():
        return None
    inside = np.abs(np.log(measured[known] / predicted[known])) <= width[known]
    return float(100.0 * inside.mean())


def half_width_pct(widths: Array) -> float | None:
    """The median half width in percent, of half widths of logarithms; None where none is known."""
    known = widths[np.isfinite(widths)]
    return float(100.0 * np.expm1(np.median(known))) if len(known) else None


def coverage_band_pct(rows: int, held_out: int, level: float = 0.95, confidence: float = 0.99) -> tuple[float, float]:
    """Where the coverage of ``rows`` new rows lies with ``confidence`` when ``held_out`` rows set the width.

    Beta-binomial: the width's true level is Beta(k, n + 1 - k) with k = ceil((n + 1) * level) (Vovk 2012).
    """
    from scipy.stats import betabinom

    place = min(int(np.ceil((held_out + 1) * level)), held_out)
    law = betabinom(rows, place, held_out + 1 - place)
    tail = (1.0 - confidence) / 2.0
    return 100.0 * float(law.ppf(tail)) / rows, 100.0 * float(law.ppf(1.0 - tail)) / rows


def mean_over(seeds: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """The mean of every figure over the seeds that have it, key by key where a figure is itself a mapping."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(key for seed in seeds for key in seed):
        values = [value for seed in seeds if (value := seed.get(name)) is not None]
        if not values:
            out[name] = None
        elif isinstance(values[0], Mapping):
            out[name] = mean_over([value for value in values if isinstance(value, Mapping)])
        elif isinstance(values[0], int | float):
            out[name] = float(np.mean(np.array(values, dtype=np.float64)))
    return out
