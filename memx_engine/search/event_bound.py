"""Phi by events that no plan of the space undercuts, 1F1B or interleaved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.sketch import Sketch
from memx_engine.search.assign import Assigned
from memx_engine.search.event_times import StageRows, least_event_times, shrinking
from memx_engine.search.fitting import Fitting
from memx_engine.search.objective import Objective

_MOST_NUMBERS = 2_000_000
"""Numbers of one temporary array; larger batches are cut."""


def event_lower_bound(fitting: Fitting, objective: Objective, found: Sequence[Assigned]) -> float:
    """No plan of the skeletons has less Phi by events.

    The least over the skeletons of the larger of two bounds: Phi of (least event time, least peak, least variance), and
    what is proven of the closed form, made smaller by as much as the event time can be shorter; peak and variance are
    the same by both.

    Args:
        found: Plans of solved skeletons; the closed form's bounds of others are those of ``fitting``.
    """
    least, times, less = _event_times(fitting)
    closed_s, peak, variance = fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2
    corner = objective.phi_array(np.maximum(least, (closed_s - less) / times), peak, variance)
    closed = objective.phi_array(closed_s, peak, variance)
    place = {id(skeleton): i for i, skeleton in enumerate(fitting.skeletons)}
    for assigned in found:
        i = place.get(id(assigned.skeleton))
        if i is not None:
            closed[i] = max(closed[i], assigned.lower_bound_phi)
    # (A - less) / (times · A) rises with A, or falls to 1 / times.
    share = np.maximum(1.0 - np.maximum(less, 0.0) / closed_s, 0.0) / times
    # Rounding must not lift the bound above a plan that reaches it.
    return float(np.maximum(corner, closed * share**objective.weights.time).min()) * (1.0 - 1e-9)


def _event_times(fitting: Fitting) -> NDArray[np.float64]:
    """(3, n) least event times, and the two numbers by which the closed form is made smaller."""
    out = np.empty((3, len(fitting)))
    alike: dict[tuple[int, int], list[tuple[int, Sketch]]] = {}
    for i, sketch in enumerate(fitting.sketches):
        if sketch is None:
            own = fitting.own_events[i]
            out[:, i] = own.least_s, own.times, own.less_s
        else:
            alike.setdefault((id(sketch.book), len(sketch.rows)), []).append((i, sketch))
    for at, rows in _batches(alike.values()):
        out[0, at] = least_event_times(rows)
        out[1:, at] = shrinking(rows)
    return out


def _batches(alike: Iterable[list[tuple[int, Sketch]]]) -> Iterator[tuple[list[int], StageRows]]:
    for members in alike:
        numbers = len(members[0][1].rows) * (members[0][1].book.units + 1)
        step = max(1, _MOST_NUMBERS // numbers)
        for start in range(0, len(members), step):
            some = members[start : start + step]
            yield [i for i, _ in some], StageRows.of_sketches([sketch for _, sketch in some])
