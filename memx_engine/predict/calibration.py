"""Factors over first principles, one per GPU type and metric, fitted from stored measurements of single stages."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Provenance
from memx_engine.predict.factors import Factor, shrunk_factor
from memx_engine.predict.points import PointEstimate, PointEstimator

_METRICS = ("time", "activations", "fragmentation", "context")
_PREFERENCE = (Truth.GPU, Truth.TABLE, Truth.CPU, Truth.TESTBED)
"""Of one GPU type only the first kind of ground that it has is used: a simulation never moves what is real."""


@dataclass(frozen=True)
class TypeCalibration:
    """What was learned of one GPU type.

    Attributes:
        factors: By metric of :class:`Correction`.
        truths: Name of the ground → distinct points used of it.
        provenance: ``measured`` or ``simulated``.
        out_of_memory: Points that ran out of memory on the device. out_of_memory_missed: Those that the corrected
            model takes to fit.
    """

    gpu_type: str
    factors: Mapping[str, Factor]
    truths: Mapping[str, int]
    provenance: Provenance
    out_of_memory: int = 0
    out_of_memory_missed: int = 0

    @property
    def correction(self) -> Correction:
        return Correction(**{name: factor.value for name, factor in self.factors.items()})

    def __str__(self) -> str:
        known = [f"{name} {factor}" for name, factor in self.factors.items() if factor.points]
        unknown = [name for name, factor in self.factors.items() if not factor.points]
        grounds = ", ".join(f"{count} points of {name}" for name, count in self.truths.items())
        word = " (simulated)" if self.provenance is Provenance.SIMULATED else ""
        text = f"{self.gpu_type}: first principles corrected by {grounds}{word}: {', '.join(known)}"
        if unknown:
            text += f"; {', '.join(unknown)} not measured"
        if self.out_of_memory:
            missed = self.out_of_memory_missed
            text += f"; of {self.out_of_memory} points that ran out of memory {missed or 'none'} would be taken to fit"
        return text


@dataclass(frozen=True)
class Calibration:
    """What was learned of every GPU type of a cluster.

    ``left_out`` says in sentences what was not used and why; ``used`` are the measurements that were.
    """

    types: Mapping[str, TypeCalibration] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    used: tuple[Measurement, ...] = field(default=(), repr=False)

    @property
    def corrections(self) -> Mapping[str, Correction]:
        return {name: calibration.correction for name, calibration in self.types.items()}


def calibrate(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    measurements: Iterable[Measurement],
    *,
    really_measured: frozenset[str] = frozenset(),
) -> Calibration:
    """Fit the factors.

    Args:
        measurements: In the order they came; repeats of a point count once, by the median of their ratios.
        really_measured: GPU types of which something real is known elsewhere, so that simulations are left out.

    Measurements of other models, sequences or batch sizes count: the cost model is asked for exactly their points.
    Those in another precision than the job's are left out, as are types that the cluster does not have.
    """
    by_type: dict[str, list[Measurement]] = defaultdict(list)
    left_out: list[str] = []
    other_precision: Counter[tuple[str, Precision]] = Counter()
    for measurement in measurements:
        point = measurement.point
        # An embedding or a head alone tells little of what layers take.
        if (
            point.layers == 0
            or point.gpu_type not in cluster.ranks_by_type
            or measurement.outcome not in (Outcome.OK, Outcome.OOM)
        ):
            continue
        if point.precision is not job.precision:
            other_precision[point.gpu_type, point.precision] += 1
            continue
        by_type[point.gpu_type].append(measurement)
    for (gpu_type, precision), count in sorted(other_precision.items()):
        left_out.append(
            f"{count} measurements of {gpu_type} in {precision} are left out: the job runs in {job.precision}"
        )
    estimator = PointEstimator(FirstPrinciples(cluster, model, job))
    types: dict[str, TypeCalibration] = {}
    used: list[Measurement] = []
    for gpu_type, found in by_type.items():
        chosen, dropped = _choose(found, real=gpu_type in really_measured)
        if dropped:
            names = ", ".join(sorted({m.truth_name for m in dropped}))
            left_out.append(f"{len(dropped)} measurements of {gpu_type} from {names} are left out: there are real ones")
        fitted = _fit(cluster, gpu_type, chosen, estimator)
        used += chosen
        if fitted is not None:
            types[gpu_type] = _bounded(cluster, model, job, fitted, chosen)
    return Calibration(types, tuple(left_out), tuple(used))


def _choose(found: Sequence[Measurement], *, real: bool) -> tuple[list[Measurement], list[Measurement]]:
    """The measurements of the best kind of ground among ``found``, and the others."""
    kinds = {m.truth for m in found}
    best = next(kind for kind in _PREFERENCE if kind in kinds)
    if real and best is Truth.TESTBED:
        return [], list(found)
    return [m for m in found if m.truth is best], [m for m in found if m.truth is not best]


def _fit(
    cluster: Cluster, gpu_type: str, measurements: Sequence[Measurement], estimator: PointEstimator
) -> TypeCalibration | None:
    """The factors of one type; None where nothing can be compared."""
    ratios: dict[str, dict[tuple[str, str], list[float]]] = {name: defaultdict(list) for name in _METRICS}
    predicted: dict[str, PointEstimate | None] = {}
    for m in measurements:
        key = m.point.key
        if key not in predicted:
            predicted[key] = _predict(estimator, m.point, len(cluster.ranks_by_type[gpu_type]))
        estimate = predicted[key]
        if estimate is None or m.outcome is not Outcome.OK:
            continue
        for name, ratio in _ratios(m, estimate).items():
            ratios[name][m.truth_name, key].append(ratio)
    factors = {
        name: shrunk_factor([statistics.median(repeats) for repeats in points.values()])
        for name, points in ratios.items()
    }
    if not any(factor.points for factor in factors.values()):
        return None
    used = {place for points in ratios.values() for place in points}
    simulated = any(m.truth is Truth.TESTBED for m in measurements)
    return TypeCalibration(
        gpu_type,
        factors,
        dict(sorted(Counter(name for name, _ in used).items())),
        Provenance.SIMULATED if simulated else Provenance.MEASURED,
    )


def _predict(estimator: PointEstimator, point: Point, gpus: int) -> PointEstimate | None:
    if point.tp > gpus:
        return None
    try:
        return estimator.estimate(point)
    except InputError:
        # A precision that the device lacks, or a recompute deeper than the point: nothing to compare with.
        return None


def _ratios(m: Measurement, estimate: PointEstimate) -> dict[str, float]:
    """Measured over predicted, by metric, where both are known and positive."""
    out: dict[str, float] = {}
    if m.time_s and m.collectives and estimate.time_s > 0:
        out["time"] = m.time_s / estimate.time_s
    memory = estimate.memory
    static = memory.weights + memory.gradients
    lost = memory.fragmentation / max(memory.total - memory.context - memory.fragmentation, 1.0)
    allocated = m.peak_allocated_bytes
    if allocated is None and m.peak_reserved_bytes is not None:
        allocated = int(m.peak_reserved_bytes / (1.0 + lost))
    if allocated is not None and allocated > static and estimate.dynamic_bytes > 0:
        out["activations"] = (allocated - static) / estimate.dynamic_bytes
    if m.peak_allocated_bytes and m.peak_reserved_bytes:
        out["fragmentation"] = max(m.peak_reserved_bytes / m.peak_allocated_bytes, 1.0) / (1.0 + lost)
    if m.outside_bytes and memory.context > 0:
        out["context"] = m.outside_bytes / memory.context
    return out


def _bounded(
    cluster: Cluster, model: TransformerSpec, job: Job, fitted: TypeCalibration, measurements: Sequence[Measurement]
) -> TypeCalibration:
    """``fitted`` with what its OOM points say: one-sided, the peak was above the device's memory."""
    failed = {m.point.key: m for m in measurements if m.outcome is Outcome.OOM}
    if not failed:
        return fitted
    ranks = cluster.ranks_by_type[fitted.gpu_type]
    estimator = PointEstimator(FirstPrinciples(cluster, model, job, {fitted.gpu_type: fitted.correction}))
    missed = 0
    for m in failed.values():
        estimate = _predict(estimator, m.point, len(ranks))
        capacity = m.capacity_bytes or cluster.gpus[ranks[0]].capacity_bytes
        missed += estimate is not None and estimate.memory.total <= capacity
    return replace(fitted, out_of_memory=len(failed), out_of_memory_missed=missed)
