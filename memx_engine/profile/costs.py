"""What the cost model says of a point before it is measured: what it surely needs, and about how long it takes."""

from __future__ import annotations

from dataclasses import replace

from memx_engine.cost.activations import Shape
from memx_engine.cost.network import Network, Rate
from memx_engine.cost.recompute import Counts, counts
from memx_engine.cost.stage import StageCost, stage_cost
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.measurement import Point
from memx_engine.plan import StagePlacement
from memx_engine.units import gib

SURE_SHARE = 0.8
"""Share of the predicted activations and logits that is held to be certain; parameters and gradients are exact."""

MARGIN = 0.05
"""How far the bound must exceed the capacity before a point is not even tried."""

START_UP_S = 11.0
"""A process that imports its framework and reaches the device, before anything is measured."""

WARM_UP = 2


class PointCosts:
    """The cost model on the representative devices of one cluster, for points of one job."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self.cluster, self.job = cluster, job
        self._network = Network(cluster)
        self._known: dict[tuple[object, ...], StageCost] = {}

    def capacity_bytes(self, gpu_type: str) -> int:
        """Memory of the representative device."""
        return self.cluster.gpus[self.cluster.ranks_by_type[gpu_type][0]].capacity_bytes

    def cost(self, point: Point) -> StageCost:
        """The terms of the point's stage on its representative device; its TP group takes that node's first ranks."""
        key = (
            point.gpu_type, point.model.fingerprint, point.tp, point.micro_batch, point.seq_len, point.embedding,
            point.head, point.precision, point.attention, point.sequence_parallel,
        )  # fmt: skip
        if key not in self._known:
            ranks = self.cluster.ranks_by_type[point.gpu_type][: point.tp]
            placed = self._network.place((StagePlacement(point.gpu_type, point.tp, 1, ranks),))
            job = replace(self.job, precision=point.precision, attention=point.attention)
            self._known[key] = stage_cost(
                point.model,
                job,
                Shape(point.tp, point.micro_batch, point.seq_len, point.sequence_parallel),
                self.cluster.gpu_type(point.gpu_type),
                dp=1,
                tp_link=placed.tp[0],
                dp_link=Rate(),
                first=point.embedding,
                last=point.head,
            )
        return self._known[key]

    def counts_of(self, point: Point) -> Counts:
        """The point's layers by what happens to them; InputError where its recompute does not exist there."""
        found = counts(point.layers, point.recompute)
        if found is None:
            raise InputError(f"{point.recompute} recomputes more than the {point.layers} layers of the point")
        return found

    def peak_bytes(self, point: Point) -> float:
        """The peak that is measured: weights, gradients, activations and work space, no optimizer state."""
        memory = self.cost(point).memory
        c = self.counts_of(point)
        held = point.in_flight * (memory.chunk_bytes(c) + memory.per_flight_bytes) + memory.head_bytes
        return self._state_bytes(point) + held + max(memory.logits_bytes, memory.working_bytes(c))

    def lower_bound_bytes(self, point: Point) -> float:
        """What the point needs at the very least: its state, and most of the activations that must be held."""
        memory = self.cost(point).memory
        held = point.in_flight * memory.chunk_bytes(self.counts_of(point)) + memory.logits_bytes
        return self._state_bytes(point) + SURE_SHARE * held

    def _state_bytes(self, point: Point) -> float:
        memory = self.cost(point).memory
        return memory.parameters(point.layers) * (memory.state.weights + memory.state.gradients)

    def cannot_fit(self, point: Point) -> str:
        """Why ``point`` surely does not fit, with the bound; empty when it may."""
        bound, capacity = self.lower_bound_bytes(point), self.capacity_bytes(point.gpu_type)
        if bound <= capacity * (1.0 + MARGIN):
            return ""
        return f"not run: it needs at least {gib(bound):.1f} GiB and the device has {gib(capacity):.1f} GiB"

    def seconds(self, point: Point) -> float:
        """Forward and backward of one micro-batch."""
        return self.cost(point).time((self.counts_of(point),)).total_s

    def work_s(self, point: Point, repetitions: int) -> float:
        """Device time of a measurement beyond its start-up."""
        time = self.cost(point).time((self.counts_of(point),))
        return (point.in_flight - 1) * time.forward_s + (WARM_UP + repetitions) * time.total_s
