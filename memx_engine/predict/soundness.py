"""Measurements that nothing can be learned from, or that contradict each other: found, left out, and told."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from memx_engine.measurement import Measurement, Outcome

LEAST_TO_JUDGE = 5
"""Distinct points from which on equal results mean that something other than the device was measured."""

CONTRADICTION = 1.5
"""Repeats of one point whose times differ by more than this factor contradict each other."""


def sound(measurements: Iterable[Measurement]) -> tuple[list[Measurement], tuple[str, ...]]:
    """What can be learned from, and sentences about the rest.

    Times that are no positive number go with their measurement, memories that are none alone. A type whose times are
    all the same is left out, one whose memories are all the same keeps its times. Contradicting repeats stay: intervals
    are as wide as they differ.
    """
    by_type: dict[str, list[Measurement]] = defaultdict(list)
    order: list[Measurement] = []
    refused: dict[str, int] = defaultdict(int)
    for m in measurements:
        if m.outcome is Outcome.OK and not _finite(m):
            refused[m.point.gpu_type] += 1
            continue
        order.append(m)
        by_type[m.point.gpu_type].append(m)
    said = [
        f"{count} measurements of {name} are left out: a time or a memory that is no positive number"
        for name, count in sorted(refused.items())
    ]
    same_times = {name for name, own in by_type.items() if _all_equal(own, "time_s")}
    same_memory = {name for name, own in by_type.items() if _all_equal(own, "peak_reserved_bytes")}
    said += [
        f"{len(by_type[name])} measurements of {name} are left out: points of all sizes took the same time"
        for name in sorted(same_times)
    ]
    said += [
        f"the memory of {name} is left out: points of all sizes reserved the same"
        for name in sorted(same_memory - same_times)
    ]
    said += _contradictions(by_type)
    kept = [
        replace(m, peak_reserved_bytes=None, peak_allocated_bytes=None) if m.point.gpu_type in same_memory else m
        for m in order
        if m.point.gpu_type not in same_times
    ]
    return kept, tuple(said)


def _finite(m: Measurement) -> bool:
    known = (m.forward_s, m.backward_s, m.whole_s, m.peak_allocated_bytes, m.peak_reserved_bytes, m.outside_bytes)
    if any(value is not None and not (math.isfinite(value) and value >= 0) for value in known):
        return False
    return m.time_s is None or m.time_s > 0


def _all_equal(measurements: Sequence[Measurement], name: str) -> bool:
    found = {m.point.key: getattr(m, name) for m in measurements if m.outcome is Outcome.OK}
    values = [value for value in found.values() if value]
    sizes = {(m.point.layers, m.point.micro_batch, m.point.seq_len, m.point.tp) for m in measurements}
    if len(values) < LEAST_TO_JUDGE or len(sizes) < LEAST_TO_JUDGE:
        return False
    return bool(max(values) <= min(values) * (1.0 + 1e-9))


def _contradictions(by_type: dict[str, list[Measurement]]) -> list[str]:
    said = []
    for name, own in sorted(by_type.items()):
        repeats: dict[tuple[str, str], list[float]] = defaultdict(list)
        for m in own:
            if m.time_s:
                repeats[m.truth_name, m.point.key].append(m.time_s)
        apart = [max(times) / min(times) for times in repeats.values() if max(times) > CONTRADICTION * min(times)]
        if apart:
            said.append(
                f"{len(apart)} points of {name} were measured again and took up to {max(apart):.1f} times as long: "
                "the intervals are as wide as they differ"
            )
    return said
