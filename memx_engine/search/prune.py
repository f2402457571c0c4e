"""When a skeleton need not be solved: the memory rule and the time rule (placement is :mod:`.space`'s)."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from memx_engine.search.bounds import PlanFigures
from memx_engine.search.pareto import Front

TIME_RULES = ("corner", "paper")
"""``corner``: the skeleton's corner of bounds is worse than the N-th best Phi and dominated by the front found so far.
``paper``: its time bound alone is worse than the N-th fastest plan found; this can delete a better Phi."""


@dataclass
class Incumbents:
    """The plans found so far, as far as the time rule needs them.

    ``keep`` is N. ``ceiling_phi``: at least N skeletons are known to hold a plan of this Phi or better.
    """

    keep: int
    rule: str = "corner"
    ceiling_phi: float = float("inf")
    front: Front = field(default_factory=Front)
    _phis: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    _counted: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, skeleton: int, found: PlanFigures, phi: float) -> None:
        """A plan of skeleton number ``skeleton``, of which only the latest counts: a later one is never worse."""
        self.front.add(found.time_s, found.peak_bytes, found.variance_bytes2)
        before = self._counted.get(skeleton)
        self._counted[skeleton] = (phi, found.time_s)
        for k, (values, value) in enumerate(((self._phis, phi), (self._times, found.time_s))):
            if before is not None and before[k] in values:
                values.remove(before[k])
            insort(values, value)
            del values[self.keep :]

    @property
    def phi_limit(self) -> float:
        """At least the N-th best Phi: a skeleton may be closed only above it."""
        return min(self.ceiling_phi, self._phis[-1]) if len(self._phis) == self.keep else self.ceiling_phi

    def closes(self, corner: PlanFigures, phi: float) -> bool:
        """Whether the time rule removes a skeleton with this corner of bounds and this Phi of the corner."""
        if self.rule == "paper":
            return len(self._times) == self.keep and corner.time_s > self._times[-1]
        return phi > self.phi_limit and self.front.dominates(corner.time_s, corner.peak_bytes, corner.variance_bytes2)
