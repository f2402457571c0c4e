"""The objective: a weighted product of iteration time, peak memory and memory variance (paper eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.errors import InputError

PROFILES: dict[str, tuple[float, float, float]] = {
    "heterogeneous": (0.4, 0.2, 0.4),
    "safety": (0.3, 0.5, 0.2),
    "throughput": (0.7, 0.2, 0.1),
}


@dataclass(frozen=True)
class Weights:
    """Elasticities of time, peak and variance; non-negative, summing to 1. ``reason``: why this profile."""

    profile: str
    time: float
    peak: float
    variance: float
    reason: str = ""

    def __post_init__(self) -> None:
        values = (self.time, self.peak, self.variance)
        if not all(np.isfinite(v) and v >= 0 for v in values) or abs(sum(values) - 1.0) > 1e-9:
            shown = ", ".join(f"{v:g}" for v in values)
            raise InputError(
                f"weights {shown} must be non-negative and sum to 1 (they sum to {sum(values):g})",
                where="--weights",
                hint="for example 0.4,0.2,0.4, or a profile: auto, heterogeneous, safety, throughput",
            )


@dataclass(frozen=True)
class References:
    """Fixed scales of the three terms; part of every result, so that comparisons hold them fixed."""

    time_s: float
    peak_bytes: float
    variance_bytes2: float
    epsilon_bytes2: float


@dataclass(frozen=True)
class Objective:
    """Phi with its weights and references; ``variance_kind``: ``bytes`` or ``utilization`` (memory / capacity)."""

    weights: Weights
    references: References
    variance_kind: str = "bytes"

    def phi(self, time_s: float, peak_bytes: float, variance_bytes2: float) -> float:
        """Phi of one plan; 1.0 at the references."""
        return float(self.phi_array(np.array(time_s), np.array(peak_bytes), np.array(variance_bytes2)))

    def phi_array(
        self, time_s: NDArray[np.float64], peak_bytes: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Phi of many plans; arrays of one shape."""
        w, ref = self.weights, self.references
        log_phi = (
            w.time * np.log(time_s / ref.time_s)
            + w.peak * np.log(peak_bytes / ref.peak_bytes)
            + w.variance * np.log((variance + ref.epsilon_bytes2) / (ref.variance_bytes2 + ref.epsilon_bytes2))
        )
        return np.asarray(np.exp(log_phi))
