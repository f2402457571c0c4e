"""What the tab row says at its right: how the search stands."""

from __future__ import annotations

import time

from memx_tui.session import Session
from memx_tui.text import numbers


def search_words(session: Session) -> list[str]:
    """What the search is doing or has done, longest version first."""
    if session.searching:
        progress = session.progress
        if progress is None:
            if not session.search_learns:
                return ["searching"]
            elapsed = f"{time.monotonic() - session.search_began_s:.0f} s"
            return [
                f"reading the measurements, training the predictor, {elapsed}, ctrl+c cancels",
                f"training the predictor, {elapsed}",
                f"training, {elapsed}",
            ]
        counts = f"{progress.done:,} of {progress.total:,}"
        gap = "" if progress.gap is None else f", gap {progress.gap:.1%}"
        return [
            f"{progress.phase} {counts}, {progress.feasible:,} fit{gap}, {progress.elapsed_s:.1f} s, ctrl+c cancels",
            f"{progress.phase} {counts}, {progress.feasible:,} fit{gap}",
            f"{progress.phase} {counts}{gap}",
            f"searching {counts}",
            counts,
        ]
    result = session.result
    if result is None:
        return [""]
    stopped = "cancelled, best so far, " if result.cancelled else ""
    return [
        f"{stopped}{numbers.count(result.plans_covered)} plans covered in {result.seconds:.1f} s",
        f"{stopped}{result.seconds:.1f} s",
        "cancelled" if result.cancelled else "",
    ]


def new_measurements_words(key: str) -> list[str]:
    """Where what was measured since is not in the plans yet, and ``key`` brings it there; longest version first."""
    return [f"new measurements: {key} searches with them", f"{key} uses new measurements", f"{key}: new data"]
