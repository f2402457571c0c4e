"""Predictions beside what really happened, one by one, and the figures of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memx_engine.evaluate.metrics import (
    coverage_band_pct,
    coverage_pct,
    errors_pct,
    half_width_pct,
    memory_metrics,
    time_metrics,
)

BAND_ROWS = 100
"""Judged runs from which on the band in which the coverage should lie is given."""

Pair = tuple[float, float]


class Judged:
    """One method's predictions; pairs are (predicted, measured)."""

    def __init__(self, held_out: int = 0) -> None:
        """``held_out``: rows that the intervals come from; 0 where there are none."""
        self._held_out = held_out
        self._times: list[Pair] = []
        self._widths: list[float] = []
        self._peaks: list[Pair] = []
        self._types: list[str] = []
        self._runs: list[int] = []
        self._places: list[Mapping[str, str]] = []
        self._oom = {"tp": 0, "fp": 0, "fn": 0, "tn": 0}

    def add(
        self, time_s: Pair, width: float, peaks: Sequence[tuple[str, float, float]], place: Mapping[str, str]
    ) -> None:
        """Take in a run that worked.

        Args:
            width: Half width of the logarithm of the time, NaN where unknown.
            peaks: (GPU type, predicted, measured) of every GPU. place: Dimension → value.
        """
        for name, predicted, measured in peaks:
            self._peaks.append((predicted, measured))
            self._types.append(name)
            self._runs.append(len(self._times))
        self._times.append(time_s)
        self._widths.append(width)
        self._places.append(place)

    def add_outcome(self, *, said: bool, failed: bool) -> None:
        """Count whether running out of memory was said, and whether it happened."""
        self._oom[("t" if said == failed else "f") + ("p" if said else "n")] += 1

    def figures(self) -> dict[str, Any]:
        """The row of the accuracy table."""
        times, widths = np.array(self._times).reshape(-1, 2), np.array(self._widths)
        peaks = np.array(self._peaks).reshape(-1, 2)
        known = int(np.isfinite(widths).sum())
        band = None
        if known >= BAND_ROWS and self._held_out:
            low, high = coverage_band_pct(known, self._held_out)
            band = {"low": low, "high": high}
        return {
            "n": len(times),
            "n_time": len(times),
            "n_memory": len(set(self._runs)),
            **time_metrics(times[:, 0], times[:, 1]),
            **memory_metrics(peaks[:, 0], peaks[:, 1], self._types),
            "coverage_95_pct": coverage_pct(times[:, 0], widths, times[:, 1]),
            "coverage_band_pct": band,
            "memory_coverage_95_pct": None,
            "interval_width_pct": half_width_pct(widths),
            "by_dimension": self._by_dimension(times, peaks),
            "oom": dict(self._oom) if any(self._oom.values()) else None,
        }

    def _by_dimension(self, times: Any, peaks: Any) -> dict[str, dict[str, dict[str, Any]]]:
        out: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        runs = np.array(self._runs, dtype=np.int64)
        for name in self._places[0] if self._places else ():
            column = np.array([place[name] for place in self._places])
            seen = sorted(set(column.tolist()), key=lambda value: (len(value), value))
            if len(seen) < 2:
                continue
            for value in seen:
                own = column == value
                memory = errors_pct(*peaks[own[runs]].T)
                out[name][value] = {
                    "n": int(own.sum()),
                    "time_mape_pct": float(errors_pct(*times[own].T).mean()),
                    "memory_mape_pct": float(memory.mean()) if len(memory) else None,
                }
        return dict(out)
