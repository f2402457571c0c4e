"""Corrections of stages from tables of single layers: what a layer, the embedding and the head really take.

For every GPU type, the logarithms of measured over predicted are smoothed over the sizes of the measurements (kernel
regression around the type's median), so that a measured layer keeps its figure and one between two takes theirs.
Memory in such tables includes states in ways of their own; what grows with the micro-batch is activations, so its
slope is compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Point
from memx_engine.predict.points import PointEstimator
from memx_engine.profile.importers.columns import Columns
from memx_engine.profile.importers.layouts import layer_measurement
from memx_engine.units import MIB

Array = NDArray[np.float64]

REACH = 1.5
"""Doublings of a size over which a layer's ratio loses most of its say on another's."""

NOISE = 0.1
"""Standard deviation of a measured logarithm relative to that of the ratios around their median."""


@dataclass(frozen=True)
class LayerRow:
    """One measured layer, embedding or head.

    Attributes:
        time_s: Forward and backward, one micro-batch; None where only memory is known.
        slope_bytes: Memory that one more sequence in the micro-batch takes; None where it cannot be told.
        count: How many layers of its model it stands for.
    """

    point: Point
    time_s: float | None
    slope_bytes: float | None = None
    count: int = 1

    @property
    def kind(self) -> str:
        """``embedding``, ``head`` or ``layer``."""
        return "embedding" if self.point.embedding else "head" if self.point.head else "layer"


def read_layers(rows: Iterable[Columns]) -> list[LayerRow]:
    """The layers of a table's rows, memory turned into slopes; NotJudgeableError where one has no time or layout."""
    found: list[tuple[Columns, LayerRow]] = []
    series: dict[tuple[object, ...], list[tuple[int, float]]] = defaultdict(list)
    for columns in rows:
        measurement = layer_measurement(columns, "table")
        row = LayerRow(measurement.point, measurement.time_s, None, int(columns.get("layer_count", 1)))
        found.append((columns, row))
        if "layer_mem_mib" in columns:
            series[_series(row)].append((row.point.micro_batch, columns["layer_mem_mib"] * MIB))
    slopes = {key: _slope(points) for key, points in series.items()}
    return [replace(row, slope_bytes=slopes.get(_series(row)) if "layer_mem_mib" in c else None) for c, row in found]


def _series(row: LayerRow) -> tuple[object, ...]:
    return replace(row.point, micro_batch=1).key, row.count


def _slope(points: list[tuple[int, float]]) -> float | None:
    """Bytes per sequence by least squares on relative errors; None with fewer than two micro-batch sizes."""
    batch, size = np.array(points, dtype=np.float64).T
    if len(np.unique(batch)) < 2:
        return None
    design = np.stack([np.ones_like(batch), batch], axis=1) / size[:, None]
    slope = float(np.linalg.lstsq(design, np.ones_like(size), rcond=None)[0][1])
    return slope if slope > 0 else None


def _sizes(point: Point) -> list[float]:
    m = point.model
    values = (point.tp, point.micro_batch, point.seq_len, m.hidden, m.ffn, m.heads)
    return [math.log2(value) for value in values]


@dataclass(frozen=True, eq=False)
class _Smooth:
    """Ratios of one kind of layer on one type: ``shift(x) = median + k(x, X) weights``."""

    median: float
    places: Array
    weights: Array

    @classmethod
    def of(cls, places: list[list[float]], logs: list[float]) -> _Smooth:
        x, y = np.array(places, dtype=np.float64), np.array(logs, dtype=np.float64)
        median = float(np.median(y))
        kernel = _kernel(x, x) + NOISE**2 * np.eye(len(x))
        return cls(median, x, np.asarray(np.linalg.solve(kernel, y - median), dtype=np.float64))

    def shift(self, place: list[float]) -> float:
        return self.median + float((_kernel(np.array([place]), self.places) @ self.weights)[0])


def _kernel(a: Array, b: Array) -> Array:
    distance = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-distance / (2 * REACH**2)))


@dataclass
class LayerCorrections:
    """What layer rows say of the stages of a run, under the conventions of that run's job."""

    rows: list[LayerRow]
    _fits: dict[tuple[object, ...], dict[str, _Smooth]] = field(default_factory=dict, repr=False)

    def corrections(
        self, cluster: Cluster, model: TransformerSpec, job: Job, tp: int, micro_batch: int
    ) -> Mapping[str, Correction]:
        """By GPU type, the factors for a model that is run so; types without layers of the job's width are left out."""
        out = {}
        for gpu_type in cluster.gpu_types:
            point = Point(
                gpu_type.name, model, tp, micro_batch, job.seq_len, 1, precision=job.precision,
                attention=job.attention, sequence_parallel=job.sequence_parallel,
            )  # fmt: skip
            estimator = PointEstimator(FirstPrinciples(cluster, model, job))
            found = self._correction(point, estimator)
            if found is not None:
                out[gpu_type.name] = found
        return out

    def _correction(self, point: Point, estimator: PointEstimator) -> Correction | None:
        fits = self._fitted(point, estimator)
        if "layer time" not in fits and "layer memory" not in fits:
            return None
        parts = {
            "layer": point,
            "embedding": replace(point, layers=0, embedding=True),
            "head": replace(point, layers=0, head=True),
        }
        factors = {}
        for kind, part in parts.items():
            for metric in ("time", "memory"):
                smooth = fits.get(f"{kind} {metric}") or fits.get(f"layer {metric}")
                factors[kind, metric] = math.exp(smooth.shift(_sizes(part))) if smooth else 1.0
        layer, sizes = factors["layer", "time"], factors["layer", "memory"]
        return Correction(
            time=layer,
            embedding=factors["embedding", "time"] / layer,
            head=factors["head", "time"] / layer,
            end_collectives=factors["head", "time"] / layer,
            activations=sizes,
            logits=factors["head", "memory"] / sizes,
        )

    def _fitted(self, like: Point, estimator: PointEstimator) -> dict[str, _Smooth]:
        """Smoothed ratios of the rows on the type of ``like``, by kind and metric; remembered per convention."""
        key = (like.gpu_type, like.attention, like.sequence_parallel, like.precision is Precision.FP32)
        if key not in self._fits:
            places: dict[str, list[list[float]]] = defaultdict(list)
            logs: dict[str, list[float]] = defaultdict(list)
            for row in _fastest(self.rows):
                p = row.point
                if p.gpu_type != like.gpu_type or (p.precision is Precision.FP32) != key[3]:
                    continue
                point = replace(p, attention=like.attention, sequence_parallel=like.sequence_parallel)
                try:
                    estimate = estimator.estimate(point)
                except InputError:
                    # A precision that the device lacks, or more tensor parallelism than it has GPUs.
                    continue
                slope = None if row.slope_bytes is None else row.slope_bytes * point.micro_batch
                held = estimate.memory.activations + (estimate.memory.logits if point.head else 0.0)
                for metric, measured, predicted in (("time", row.time_s, estimate.time_s), ("memory", slope, held)):
                    if measured and predicted > 0:
                        places[f"{row.kind} {metric}"].append(_sizes(point))
                        logs[f"{row.kind} {metric}"].append(math.log(measured / predicted))
            self._fits[key] = {name: _Smooth.of(places[name], logs[name]) for name in places}
        return self._fits[key]


def _fastest(rows: Iterable[LayerRow]) -> list[LayerRow]:
    """One row per point: of repeats the shortest time, since what disturbs a single layer only adds to it."""
    best: dict[str, LayerRow] = {}
    for row in rows:
        known = best.setdefault(row.point.key, row)
        times = [t for t in (known.time_s, row.time_s) if t is not None]
        slope = known.slope_bytes if known.slope_bytes is not None else row.slope_bytes
        best[row.point.key] = replace(known, time_s=min(times, default=None), slope_bytes=slope)
    return list(best.values())
