"""What the cost model says of exactly the stage that was measured, so that the two can be divided."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memx_engine.cost.correction import UNCORRECTED, corrected
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.measurement import Point
from memx_engine.plan import MemoryBreakdown
from memx_engine.profile.costs import PointCosts


@dataclass(frozen=True)
class PointEstimate:
    """One micro-batch's seconds and one rank's peak memory of a point, optimizer state left out as in the probe."""

    forward_s: float
    backward_s: float
    memory: MemoryBreakdown

    @property
    def time_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def dynamic_bytes(self) -> float:
        """Everything the allocator holds beside weights and gradients, without fragmentation."""
        return self.memory.activations + self.memory.logits + self.memory.buffers


class PointEstimator:
    """Estimates of points on the representative nodes of an estimator's cluster, stages remembered."""

    def __init__(self, first_principles: FirstPrinciples) -> None:
        self._costs = PointCosts(first_principles.cluster, first_principles.job)
        self._corrections = first_principles.corrections

    def estimate(self, point: Point) -> PointEstimate:
        """Raises InputError where the device lacks the point's precision or the recompute does not exist there."""
        cost = corrected(self._costs.cost(point), self._corrections.get(point.gpu_type, UNCORRECTED))
        counts = self._costs.counts_of(point)
        time = cost.time((counts,))
        memory = replace(cost.memory, state=replace(cost.memory.state, optimizer=0.0))
        held = point.in_flight * memory.chunk_bytes(counts)
        breakdown = memory.breakdown(point.layers, held, point.in_flight, memory.working_bytes(counts))
        return PointEstimate(time.forward_s, time.backward_s, breakdown)


def point_estimate(first_principles: FirstPrinciples, point: Point) -> PointEstimate:
    """One point's estimate; :class:`PointEstimator` for many."""
    return PointEstimator(first_principles).estimate(point)
