"""What a profiling run came to, and the same as one JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memx_engine.measurement import Truth
from memx_engine.plan import Provenance
from memx_engine.profile.impact import Impact
from memx_engine.profile.progress import TypeProgress, TypeState
from memx_engine.profile.trends import Trend


@dataclass(frozen=True)
class TypeResult:
    """One GPU type at the end: its counts, and what the ablation said of its parameters.

    Attributes:
        impacts: Empty where the run ended before the ablation was complete.
        trends: The linearity check, on the representative type only.
        hint: What to do about ``error``.
    """

    progress: TypeProgress
    impacts: tuple[Impact, ...] = ()
    trends: tuple[Trend, ...] = ()
    hint: str = ""

    @property
    def gpu_type(self) -> str:
        return self.progress.gpu_type

    @property
    def error(self) -> str:
        """Why the type failed; empty when it did not."""
        return self.progress.reason if self.progress.state is TypeState.FAILED else ""


@dataclass(frozen=True)
class ProfileResult:
    """The end of a run. ``excluded``: types that were not designed for, each with the reason."""

    types: tuple[TypeResult, ...]
    truth: Truth
    truth_name: str
    seconds: float
    cancelled: bool = False
    excluded: tuple[tuple[str, str], ...] = ()

    @property
    def provenance(self) -> Provenance:
        return Provenance.SIMULATED if self.truth is Truth.TESTBED else Provenance.MEASURED

    def total(self, name: str) -> int:
        """The sum of ``planned``, ``measured``, ``cached``, ``skipped`` or ``failed`` over the types."""
        return sum(int(getattr(t.progress, name)) for t in self.types)


_COUNTS = ("planned", "measured", "cached", "skipped", "failed")


def profile_document(result: ProfileResult) -> dict[str, Any]:
    """``profile --json``: totals, then every type with its verdicts."""
    return {
        "schema": "memx/profile/v1",
        **{name: result.total(name) for name in _COUNTS},
        "provenance": result.provenance.value,
        "truth": result.truth_name,
        "seconds": round(result.seconds, 3),
        "cancelled": result.cancelled,
        "excluded": dict(result.excluded),
        "types": [_type_document(t) for t in result.types],
    }


def _type_document(result: TypeResult) -> dict[str, Any]:
    progress = result.progress
    return {
        "gpu_type": result.gpu_type,
        "state": progress.state.value,
        "node": progress.node,
        **{name: getattr(progress, name) for name in _COUNTS},
        "out_of_memory": progress.oom,
        "error": result.error or None,
        "impacts": [
            {
                "parameter": i.parameter,
                "time_amplitude": i.time_amplitude,
                "memory_amplitude": i.memory_amplitude,
                "impact": "high" if i.high else "low",
                "predicted": i.predicted,
                "crossed": i.crossed,
                "note": i.note,
            }
            for i in result.impacts
        ],
        "trends": [
            {
                "parameter": t.parameter,
                "metric": t.metric,
                "points": t.points,
                "r_squared": t.r_squared,
                "amplitude": t.amplitude,
                "exponent": t.exponent,
                "verdict": t.verdict.value,
                "done": t.done,
                "values": [list(pair) for pair in t.values],
            }
            for t in result.trends
        ],
    }
