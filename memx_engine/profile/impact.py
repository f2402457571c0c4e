"""Judging what was measured: amplitudes of the ablation, high or low impact, straight lines or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memx_engine.measurement import Measurement, Outcome, Point

THRESHOLD = 0.05
LINEAR_R2 = 0.95
CONSTANT_AMPLITUDE = 0.02

Measured = Callable[[Point], Measurement | None]
Predicted = Callable[[Point], float]


@dataclass(frozen=True)
class Impact:
    """What one parameter does on one GPU type when it alone is varied.

    Attributes:
        time_amplitude, memory_amplitude: (max - min) / mean over the ablation; None where nothing can be said.
        predicted: True where fewer than two of its points were measured, so that the cost model had to answer.
        crossed: Whether its three points are crossed with those of the others.
        note: Why it is crossed or not, in words.
    """

    parameter: str
    time_amplitude: float | None
    memory_amplitude: float | None
    threshold: float
    predicted: bool = False
    crossed: bool = False
    note: str = ""

    @property
    def largest(self) -> float:
        return max(self.time_amplitude or 0.0, self.memory_amplitude or 0.0)

    @property
    def high(self) -> bool:
        return self.largest > self.threshold


@dataclass(frozen=True)
class Trend:
    """How straight the line of one numeric parameter is: ``linear`` (R² > 0.95), ``constant`` or ``not linear``."""

    gpu_type: str
    parameter: str
    metric: str
    points: int
    r_squared: float
    amplitude: float

    @property
    def verdict(self) -> str:
        if self.amplitude < CONSTANT_AMPLITUDE:
            return "constant"
        return "linear" if self.r_squared > LINEAR_R2 else "not linear"


def amplitude(values: Sequence[float]) -> float | None:
    """(max - min) / mean; None of fewer than two values, or of zeros."""
    mean = sum(values) / len(values) if values else 0.0
    return (max(values) - min(values)) / mean if len(values) > 1 and mean > 0 else None


def peak_bytes(measurement: Measurement) -> int | None:
    """What the allocator handed out at the peak, else what it reserved."""
    if measurement.peak_allocated_bytes is not None:
        return measurement.peak_allocated_bytes
    return measurement.peak_reserved_bytes


def judge(
    parameter: str,
    points: Sequence[Point],
    measured: Measured,
    seconds: Predicted,
    peak: Predicted,
    threshold: float,
) -> Impact:
    """The impact of ``parameter`` from its ablation ``points``; the cost model answers where too few came back."""
    found = [m for m in map(measured, points) if m is not None and m.outcome is Outcome.OK]
    times = [m.time_s for m in found if m.time_s is not None]
    peaks = [float(p) for m in found if (p := peak_bytes(m)) is not None]
    time_amplitude, memory_amplitude = amplitude(times), amplitude(peaks)
    if time_amplitude is not None or memory_amplitude is not None:
        return Impact(parameter, time_amplitude, memory_amplitude, threshold)
    return Impact(
        parameter,
        amplitude([seconds(p) for p in points]),
        amplitude([peak(p) for p in points]),
        threshold,
        predicted=True,
    )


def r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """Share of the variance of ``y`` that a straight line over ``x`` explains; 1 where ``y`` does not vary."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    sxx = sum((a - mean_x) ** 2 for a in x)
    syy = sum((b - mean_y) ** 2 for b in y)
    sxy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    if syy <= 0.0 or sxx <= 0.0:
        return 1.0
    return sxy * sxy / (sxx * syy)


def trends(gpu_type: str, dense: Mapping[str, Sequence[tuple[int, Point]]], measured: Measured) -> tuple[Trend, ...]:
    """One line per numeric parameter and metric with at least three measured points.

    Micro-batches count by their logarithm against throughput (tokens per second), as in the paper's table 2.
    """
    out: list[Trend] = []
    for name, pairs in dense.items():
        found = [
            (value, point, m)
            for value, point in pairs
            if (m := measured(point)) is not None and m.outcome is Outcome.OK
        ]
        lines: list[tuple[str, list[tuple[float, float]]]] = [
            ("memory", [(float(v), float(p)) for v, _, m in found if (p := peak_bytes(m)) is not None])
        ]
        if name == "micro_batch":
            rates = [(math.log2(v), p.micro_batch * p.seq_len / t) for v, p, m in found if (t := m.time_s)]
            lines.append(("throughput over log2", rates))
        else:
            lines.append(("time", [(float(v), t) for v, _, m in found if (t := m.time_s)]))
        for metric, line in lines:
            if len(line) >= 3:
                x, y = [a for a, _ in line], [b for _, b in line]
                out.append(Trend(gpu_type, name, metric, len(line), r_squared(x, y), amplitude(y) or 0.0))
    return tuple(out)
