"""Measured points beside what first principles says of exactly the same stages, and the factors between the two."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Point
from memx_engine.predict.booster import Array
from memx_engine.predict.iteration_model import Rows
from memx_engine.predict.memory_shares import MemoryShares, Sizes
from memx_engine.predict.points import PointEstimator
from memx_engine.predict.stage_features import stage_features
from memx_engine.predict.time_shares import Seconds, TimeShares
from memx_engine.profile.costs import PointCosts


class StageDescriber:
    """Features of points on one cluster's representative devices."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._costs = PointCosts(cluster, job)
        self._types = {t.name: t for t in cluster.gpu_types}

    def features(self, point: Point) -> dict[str, float]:
        """Raises InputError where the device lacks the point's precision."""
        return stage_features(point, self._costs.cost(point), self._types[point.gpu_type])

    def seconds(self, point: Point) -> Seconds:
        """Forward and backward of first principles, part by part; InputError for a recompute that cannot be there."""
        cost = self._costs.cost(point)
        time = cost.time((self._costs.counts_of(point),))
        e, h = cost.embedding, cost.head
        embedding, head = e.forward_s + e.backward_s, h.forward_s + h.backward_s
        comm = e.forward_comm_s + e.backward_comm_s + h.forward_comm_s + h.backward_comm_s
        layers = time.total_s - time.comm_s - embedding - head
        return Seconds(layers, embedding, head, time.comm_s - comm, comm)

    def sizes(self, point: Point) -> Sizes:
        """What first principles expects beside weights and gradients, part by part."""
        memory, counts = self._costs.cost(point).memory, self._costs.counts_of(point)
        held = point.in_flight * (memory.chunk_bytes(counts) + memory.per_flight_bytes) + memory.head_bytes
        working = memory.working_bytes(counts) - memory.transient_bytes
        return Sizes(held, working, memory.transient_bytes, memory.logits_bytes, memory.buffers_bytes)


@dataclass(eq=False)
class Compared:
    """Columns of compared points.

    Attributes:
        seconds, sizes: Of first principles.
        targets: Logarithms of measured seconds, and of the bytes beside weights and gradients.
        groups: The same for points that the trees cannot tell apart. keys: Of the points.
    """

    described: list[dict[str, float]] = field(default_factory=list)
    seconds: list[Seconds] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    targets: list[tuple[float, float]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, measurements: Iterable[Measurement], cluster: Cluster, model: TransformerSpec, job: Job) -> Compared:
        estimator = PointEstimator(FirstPrinciples(cluster, model, job))
        describer = StageDescriber(cluster, job)
        made = cls()
        for m in measurements:
            try:
                estimate, features = estimator.estimate(m.point), describer.features(m.point)
                parts, size = describer.seconds(m.point), describer.sizes(m.point)
            except InputError:
                # A precision that the device lacks, or a recompute deeper than the point: nothing to compare with.
                continue
            known = estimate.memory.weights + estimate.memory.gradients
            reserved = m.peak_reserved_bytes or m.peak_allocated_bytes
            time = np.log(m.time_s) if m.time_s and m.collectives and estimate.time_s > 0 else np.nan
            memory = np.nan
            if reserved is not None and reserved > known and estimate.dynamic_bytes > 0:
                memory = np.log(reserved - known)
            if np.isnan(time) and np.isnan(memory):
                continue
            made.described.append(features)
            made.seconds.append(parts)
            made.sizes.append(size)
            made.targets.append((time, memory))
            made.groups.append(_signature(features))
            made.keys.append(m.point.key)
            made.types.append(m.point.gpu_type)
        return made

    @property
    def logs(self) -> Array:
        """(n, 2)"""
        return np.array(self.targets, dtype=np.float64).reshape(-1, 2)

    def rows(self, times: Mapping[str, TimeShares], memories: Mapping[str, MemoryShares]) -> Rows:
        """What the factors leave to the trees."""
        names = tuple(self.described[0]) if self.described else ()
        known = [
            (
                math.log(times[name].seconds(parts)) if name in times else 0.0,
                math.log(memories[name].bytes(size)) if name in memories else 0.0,
            )
            for parts, size, name in zip(self.seconds, self.sizes, self.types, strict=True)
        ]
        return Rows(
            np.array([[row[name] for name in names] for row in self.described], dtype=np.float64),
            self.logs - np.array(known).reshape(-1, 2),
            names,
            np.array(self.groups, dtype=np.str_),
            tuple(self.types),
        )


def _signature(features: Mapping[str, float]) -> str:
    return hashlib.sha256(repr(tuple(features.values())).encode()).hexdigest()[:16]
