"""Judging what was measured: amplitudes of the ablation, high or low impact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memx_engine.measurement import Measurement, Outcome, Point

THRESHOLD = 0.05

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
