"""Which skeletons are looked at first when not all can be: those that differ in what the predictor finds important.

The MemX paper varies features of high importance with priority (section 3.2.2). Here the search is exhaustive unless
its time runs out; only then does the order decide what was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from memx_engine.plan import Skeleton

MATTERS = 0.05
"""Share of the gain from which on a dimension is varied first."""

# Knuth's multiplicative hash: neighbours in the enumeration land far apart, the same way every time.
_SCATTER = 2654435761

_VALUES: Mapping[str, Callable[[Skeleton], Hashable]] = {
    "tp": lambda skeleton: skeleton.placements[0].tp,
    "micro_batch": lambda skeleton: skeleton.micro_batch,
    "types": lambda skeleton: tuple(dict.fromkeys(placement.gpu_type for placement in skeleton.placements)),
}


def varied_first(skeletons: Sequence[Skeleton], gains: Mapping[str, float]) -> list[int]:
    """Indices of all ``skeletons``, scattered over the space.

    Every combination of values of the dimensions that matter comes once before any comes twice.

    Args:
        gains: ``tp``, ``micro_batch`` or ``types`` → share of the predictor's gain; empty where nothing is learned.
    """
    scattered = sorted(range(len(skeletons)), key=lambda i: i * _SCATTER % 2**32)
    important = [_VALUES[name] for name in _VALUES if gains.get(name, 0.0) >= MATTERS]
    if not important:
        return scattered
    seen: Counter[tuple[Hashable, ...]] = Counter()
    turns: list[tuple[int, int, int]] = []
    for place, i in enumerate(scattered):
        combination = tuple(value(skeletons[i]) for value in important)
        turns.append((seen[combination], place, i))
        seen[combination] += 1
    return [i for _, _, i in sorted(turns)]
