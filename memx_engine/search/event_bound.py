"""Phi by events that no plan of the space undercuts, 1F1B or interleaved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memx_engine.search.event_times import STEPS, StageRows, least_event_times
from memx_engine.search.fitting import Fitting
from memx_engine.search.found import Found
from memx_engine.search.objective import Objective
from memx_engine.search.sketch_bounds import batches

_LEVELS = ((64, 0), (8, STEPS))
"""How many skeletons get their least event time at once, and with how many steps it is raised."""


def event_lower_bound(fitting: Fitting, objective: Objective, found: Found) -> float:
    """No plan of the skeletons has less Phi by events.

    The least over the skeletons of the larger of two bounds: Phi of (least event time, least peak, least variance), and
    what is proven of the closed form, made smaller by as much as the event time can be shorter; peak and variance are
    the same by both. The first is asked for, and raised, only of those that the least bound may be of.

    Args:
        found: Plans of solved skeletons; the closed form's bounds of others are those of ``fitting``.
    """
    times, less = fitting.closed_times, fitting.closed_less_s
    closed_s, peak, variance = fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2
    closed = objective.phi_array(closed_s, peak, variance)
    closed[found.numbers] = np.maximum(closed[found.numbers], found.closed_form_phi)
    # (A - less) / (times · A) rises with A, or falls to 1 / times.
    share = np.maximum(1.0 - np.maximum(less, 0.0) / closed_s, 0.0) / times
    bounds = closed * share**objective.weights.time
    level = np.zeros(len(fitting), dtype=np.int64)
    while (now := int(level[bounds.argmin()])) < len(_LEVELS):
        count, steps = _LEVELS[now]
        at = np.argsort(bounds, kind="stable")[:count]
        at = at[level[at] == now]
        least = np.maximum(_least_event_times(fitting, at.tolist(), steps), (closed_s[at] - less[at]) / times[at])
        bounds[at] = np.maximum(bounds[at], objective.phi_array(least, peak[at], variance[at]))
        level[at] += 1
    # Rounding must not lift the bound above a plan that reaches it.
    return float(bounds.min()) * (1.0 - 1e-9)


def _least_event_times(fitting: Fitting, places: Sequence[int], steps: int) -> NDArray[np.float64]:
    """Least event times of these skeletons, in their order."""
    made = {i: own.least_s for i, own in fitting.own_events.items() if i in places}
    sketched = [(i, sketch) for i in places if (sketch := fitting.sketches[i]) is not None]
    sketches = [sketch for _, sketch in sketched]
    for at in batches(sketches):
        times = least_event_times(StageRows.of_sketches([sketches[k] for k in at]), steps)
        made |= zip((sketched[k][0] for k in at), times.tolist(), strict=True)
    return np.array([made[i] for i in places])
