"""The objective: a weighted product of iteration time, peak memory and memory variance (paper eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.errors import InputError
from memx_engine.plan import Estimate

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
    """Phi with its weights and references.

    ``variance_kind``: ``bytes``, or ``utilization``, in which the variance is of memory / capacity and every
    ``variance_bytes2`` is a share squared.
    """

    weights: Weights
    references: References
    variance_kind: str = "bytes"

    def phi(self, time_s: float, peak_bytes: float, variance_bytes2: float) -> float:
        """Phi of one plan; 1.0 at the references."""
        return float(self.phi_array(np.array(time_s), np.array(peak_bytes), np.array(variance_bytes2)))

    def phi_of(self, estimate: Estimate) -> float:
        """Phi of what is predicted of a plan, with its iteration time by events."""
        return self.phi(estimate.iteration_time_s, estimate.peak_bytes, self.variance_of(estimate))

    def variance_of(self, estimate: Estimate) -> float:
        """Variance of the plan's memory in this objective's kind."""
        return estimate.memory_variance_bytes2 if self.variance_kind == "bytes" else utilization_variance(estimate)

    def phi_array(
        self, time_s: NDArray[np.float64], peak_bytes: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Phi of many plans; arrays of one shape."""
        w, ref = self.weights, self.references
        log_phi = w.time * np.log(time_s / ref.time_s) + w.peak * np.log(peak_bytes / ref.peak_bytes)
        if w.variance:
            # Without weight, a variance of zero where ε is zero must not count either.
            log_phi = log_phi + w.variance * np.log(
                (variance + ref.epsilon_bytes2) / (ref.variance_bytes2 + ref.epsilon_bytes2)
            )
        return np.asarray(np.exp(log_phi))


TIME_ALONE = Objective(Weights("fastest", 1.0, 0.0, 0.0), References(1.0, 1.0, 1.0, 1.0))
"""What to choose by where only the iteration time counts."""
PEAK_ALONE = Objective(Weights("lightest", 0.0, 1.0, 0.0), References(1.0, 1.0, 1.0, 1.0))
"""What to choose by where it matters only whether, or how nearly, something fits."""


def utilization_variance(estimate: Estimate) -> float:
    """Variance of memory / capacity over the plan's GPUs; a stage counts with the least capacity of its GPUs."""
    capacity: dict[int, int] = {}
    for gpu in estimate.gpus:
        capacity[gpu.stage] = min(gpu.capacity_bytes, capacity.get(gpu.stage, gpu.capacity_bytes))
    return float(np.var([gpu.peak_bytes / capacity[gpu.stage] for gpu in estimate.gpus]))


# The command line's words beside the profiles' own names.
_PROFILE_WORDS = {
    "heterogeneous": "heterogeneous",
    "safety": "safety",
    "safety-first": "safety",
    "throughput": "throughput",
    "throughput-first": "throughput",
}
_HINT = "use auto, heterogeneous, safety, throughput, or three numbers for time, peak and variance such as 0.4,0.2,0.4"

SAFETY_MARGIN = 0.10
"""Below this best margin of memory the safety-first profile is chosen."""
UNIFORM_COMPUTE = 0.10
"""Up to this heterogeneity index a cluster counts as homogeneous."""


def profile_weights(profile: str, reason: str = "") -> Weights:
    """The weights of a named profile; KeyError when there is no such profile."""
    time, peak, variance = PROFILES[profile]
    return Weights(profile, time, peak, variance, reason)


def parse_weights(text: str) -> Weights | None:
    """Read ``auto`` (None), a profile's name, or ``T,M,V``; InputError otherwise."""
    word = text.strip().lower()
    if word == "auto":
        return None
    if word in _PROFILE_WORDS:
        return profile_weights(_PROFILE_WORDS[word], "as asked")
    parts = word.split(",")
    if len(parts) != 3:
        raise InputError(f"weights {text!r} are neither a profile nor three numbers", where="--weights", hint=_HINT)
    try:
        time, peak, variance = (float(part) for part in parts)
    except ValueError:
        raise InputError(f"weights {text!r} are not numbers", where="--weights", hint=_HINT) from None
    return Weights("custom", time, peak, variance, "as asked")


def choose_weights(best_margin: float, heterogeneity: float) -> Weights:
    """The profile that ``auto`` stands for.

    Args:
        best_margin: The largest, over feasible plans, of the smallest per-GPU free fraction of memory.
        heterogeneity: Standard deviation over mean of the devices' compute.
    """
    if best_margin < SAFETY_MARGIN:
        return profile_weights(
            "safety",
            f"even the roomiest plan leaves only {best_margin:.1%} of its fullest GPU free (below {SAFETY_MARGIN:.0%})",
        )
    if heterogeneity <= UNIFORM_COMPUTE:
        return profile_weights(
            "throughput",
            f"the devices compute alike (heterogeneity index {heterogeneity:.2f}, at most {UNIFORM_COMPUTE:.2f})",
        )
    return profile_weights(
        "heterogeneous",
        f"the devices differ (heterogeneity index {heterogeneity:.2f}, above {UNIFORM_COMPUTE:.2f})",
    )


def compute_references(
    times_s: Sequence[float],
    peaks_bytes: Sequence[float],
    variances_bytes2: Sequence[float],
    *,
    rule: str = "memx",
    utilizations: Sequence[float] | None = None,
) -> References:
    """Scales of the three terms: medians over the skeletons' even-split plans, and the floor of the variance.

    The paper's floor, 1 % of the reference variance (rule ``paper``), lets a plan of zero variance buy almost any
    slowdown; the default adds the square of 10 % of the reference peak. ValueError when the sequences are empty.

    Args:
        utilizations: The peaks as shares of capacity, where the variances are of shares; the floor is then of these.
    """
    if not times_s:
        raise ValueError("no plan to take references from")
    time_s, peak, variance = (float(np.median(np.asarray(x))) for x in (times_s, peaks_bytes, variances_bytes2))
    floor = 0.01 * variance
    if rule == "memx":
        level = peak if utilizations is None else float(np.median(np.asarray(utilizations)))
        floor = max(floor, (0.1 * level) ** 2)
    elif rule != "paper":
        raise ValueError(f"epsilon rule {rule!r} is not known (memx, paper)")
    # One byte squared, or as small a share, keeps Phi finite where every plan has equal memory everywhere.
    return References(time_s, peak, variance, max(floor, 1.0 if utilizations is None else 1e-12))
