"""Measured points beside what first principles says of exactly the same stages, and the factors between the two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from memx_engine.profile.costs import PointCosts

PRIOR_POINTS = 1.0


class StageDescriber:
    """Features of points on one cluster's representative devices."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._costs = PointCosts(cluster, job)
        self._types = {t.name: t for t in cluster.gpu_types}

    def features(self, point: Point) -> dict[str, float]:
        """Raises InputError where the cost model refuses the point."""
        counts = self._costs.counts_of(point)
        return stage_features(point, self._costs.cost(point), counts, self._types[point.gpu_type])

    def seconds(self, point: Point) -> tuple[float, float]:
        """Forward and backward of first principles, and the collectives in them."""
        time = self._costs.cost(point).time((self._costs.counts_of(point),))
        return time.total_s, time.comm_s

    def sizes(self, point: Point) -> Sizes:
        """What first principles expects beside weights and gradients, part by part."""
        memory, counts = self._costs.cost(point).memory, self._costs.counts_of(point)
        held = point.in_flight * (memory.chunk_bytes(counts) + memory.per_flight_bytes) + memory.head_bytes
        working = memory.working_bytes(counts) - memory.transient_bytes
        return Sizes(held, working, memory.transient_bytes, memory.logits_bytes, memory.buffers_bytes)


@dataclass(frozen=True)
class Speeds:
    """Factors on the seconds that first principles expects of computing and of tensor-parallel collectives."""

    compute: float = 1.0
    collectives: float = 1.0

    def factor(self, total_s: float, comm_s: float) -> float:
        """What they make of a stage that takes ``total_s``, ``comm_s`` of it in collectives."""
        if total_s <= 0:
            return self.compute
        return self.compute + (self.collectives - self.compute) * comm_s / total_s


def fit_speeds(seconds: Sequence[tuple[float, float]], types: Sequence[str], logs: Array) -> dict[str, Speeds]:
    """Least relative squares per type, pulled towards one common factor (the median) by :data:`PRIOR_POINTS` points."""
    out = {}
    for name in sorted(set(types)):
        own = [k for k, kind in enumerate(types) if kind == name and not np.isnan(logs[k])]
        if not own:
            out[name] = Speeds()
            continue
        middle = float(np.median(logs[own])) * len(own) / (len(own) + PRIOR_POINTS)
        common = math.exp(middle)
        shares = np.array([seconds[k][1] / seconds[k][0] for k in own])
        # Columns: computing and collectives over what was measured, so that every point counts by its relative error.
        relative = np.exp(-logs[own])
        matrix = np.stack([(1.0 - shares) * relative, shares * relative], axis=1)
        pull = PRIOR_POINTS**0.5 / common * np.eye(2)
        left = np.concatenate([np.ones(len(own)), np.full(2, PRIOR_POINTS**0.5)])
        found = np.linalg.lstsq(np.concatenate([matrix, pull]), left, rcond=None)[0]
        compute, collectives = np.maximum(found, common / 10.0)
        out[name] = Speeds(float(compute), float(collectives))
    return out


@dataclass(eq=False)
class Compared:
    """Columns of compared points.

    Attributes:
        seconds: Of first principles: whole, and collectives in it.
        targets: Logarithms of measured over expected time, and of the bytes beside weights and gradients.
        groups: Keys of the points.
    """

    described: list[dict[str, float]] = field(default_factory=list)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    targets: list[tuple[float, float]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, measurements: Iterable[Measurement], cluster: Cluster, model: TransformerSpec, job: Job) -> Compared:
        estimator = PointEstimator(FirstPrinciples(cluster, model, job))
        describer = StageDescriber(cluster, job)
        made = cls()
        for m in measurements:
            try:
                estimate, features = estimator.estimate(m.point), describer.features(m.point)
            except InputError:
                # A precision that the device lacks, or a recompute deeper than the point: nothing to compare with.
                continue
            known = estimate.memory.weights + estimate.memory.gradients
            reserved = m.peak_reserved_bytes or m.peak_allocated_bytes
            time = np.log(m.time_s / estimate.time_s) if m.time_s and m.collectives and estimate.time_s > 0 else np.nan
            memory = np.nan
            if reserved is not None and reserved > known and estimate.dynamic_bytes > 0:
                memory = np.log(reserved - known)
            if np.isnan(time) and np.isnan(memory):
                continue
            made.described.append(features)
            made.seconds.append(describer.seconds(m.point))
            made.sizes.append(describer.sizes(m.point))
            made.targets.append((time, memory))
            made.groups.append(m.point.key)
            made.types.append(m.point.gpu_type)
        return made

    @property
    def logs(self) -> Array:
        """(n, 2)"""
        return np.array(self.targets, dtype=np.float64).reshape(-1, 2)

    def rows(self, speeds: Mapping[str, Speeds], memories: Mapping[str, MemoryShares]) -> Rows:
        """What the factors leave to the trees."""
        names = tuple(self.described[0]) if self.described else ()
        known = [
            (
                math.log(speeds[name].factor(*pair)) if name in speeds else 0.0,
                math.log(memories[name].bytes(size)) if name in memories else 0.0,
            )
            for pair, size, name in zip(self.seconds, self.sizes, self.types, strict=True)
        ]
        return Rows(
            np.array([[row[name] for name in names] for row in self.described], dtype=np.float64),
            self.logs - np.array(known).reshape(-1, 2),
            names,
            np.array(self.groups, dtype=np.str_),
            tuple(self.types),
        )
