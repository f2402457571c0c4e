"""The first-level predictor: how far single stages are from first principles, learned from what was measured of them.

Time is forward and backward together. Each GPU type has a factor for computing and one for collectives, which carry
over to sizes that were not measured (trees are steps: between TP 2 and 8 they know no 4); the booster learns what these
leave. Memory is what the allocator reserves beside weights and gradients, whose size is known. Both are factors on the
cost model's terms, so a stage's time and memory stay linear in its layers and tables and plans agree. What the device
holds outside the allocator is measured directly: once per process, and once per process group.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.memory import FRAGMENTATION
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Provenance
from memx_engine.predict.booster import Array, BoosterSettings
from memx_engine.predict.intervals import conformal_width
from memx_engine.predict.iteration_model import IterationModel, Rows
from memx_engine.predict.memory_shares import MemoryShares, Sizes, fit_memories
from memx_engine.predict.points import PointEstimator
from memx_engine.predict.stage_features import stage_features
from memx_engine.profile.costs import PointCosts

STAGE_SETTINGS = BoosterSettings(
    rounds=250, depth=5, learning_rate=0.08, subsample=0.8, columns=0.5, min_child_weight=1.0, l2=0.5, bins=64
)

PRIOR_POINTS = 1.0

_PREFERENCE = (Truth.GPU, Truth.TABLE, Truth.CPU, Truth.TESTBED)


@dataclass(frozen=True)
class Outside:
    """Bytes that one process holds on the device outside the allocator, and each of its process groups adds."""

    process_bytes: float
    group_bytes: float


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


@dataclass(frozen=True, eq=False)
class StageModel:
    """Fitted by :func:`fit_stages`.

    Attributes:
        speeds, memories: By GPU type.
        levels: GPU type → the tensor-parallel sizes that were measured.
        between: Half width of the time's logarithm at a size that was not, from leaving each size out in turn.
        model: Logarithms of measured over first principles, time and memory.
        outside: By GPU type, where a device tells.
        points: GPU type → distinct points used. provenance: The weakest ground among them, by type.
        grounds: Names of the grounds. left_out: Sentences.
    """

    model: IterationModel
    speeds: Mapping[str, Speeds]
    memories: Mapping[str, MemoryShares]
    levels: Mapping[str, tuple[int, ...]]
    between: float | None
    outside: Mapping[str, Outside]
    points: Mapping[str, int]
    provenance: Mapping[str, Provenance]
    grounds: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def width(self, gpu_type: str, tp: int, distance: float) -> float | None:
        """Half width of the 95 % interval of a stage's time, in logarithms; None where nothing was held out."""
        plain = self.model.widths[0].width(gpu_type, distance)
        if plain is None or tp in self.levels.get(gpu_type, ()):
            return plain
        return max(plain, self.between or 0.0)

    def corrections(self, cluster: Cluster) -> dict[str, Correction]:
        """What holds for every stage of a measured type: memory's parts (as reserved, so without a share for
        fragmentation) and the context."""
        out = {}
        for name in self.points:
            base = cluster.gpu_type(name)
            known = self.outside.get(name)
            context = known.process_bytes / base.context_bytes if known and base.context_bytes else 1.0
            shares = self.memories[name]
            out[name] = Correction(
                fragmentation=1.0 / (1.0 + FRAGMENTATION),
                context=context,
                activations=shares.held,
                working=shares.working / shares.held,
                passing=shares.passing / shares.held,
                logits=shares.logits / shares.held,
                together=shares.together,
            )
        return out


def fit_stages(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    measurements: Iterable[Measurement],
    *,
    settings: BoosterSettings = STAGE_SETTINGS,
) -> StageModel | None:
    """Learn from measured points on the cluster's types; None where none can be compared.

    Of one GPU type only the first kind of ground that it has is used: a simulation never moves what is real.
    """
    usable = [
        m
        for m in measurements
        if m.outcome is Outcome.OK
        and m.point.gpu_type in cluster.ranks_by_type
        and m.point.tp <= len(cluster.ranks_by_type[m.point.gpu_type])
    ]
    chosen, left_out = _best_ground(usable)
    estimator = PointEstimator(FirstPrinciples(cluster, model, job))
    describer = StageDescriber(cluster, job)
    described: list[dict[str, float]] = []
    seconds: list[tuple[float, float]] = []
    sizes: list[Sizes] = []
    targets: list[tuple[float, float]] = []
    groups: list[str] = []
    types: list[str] = []
    for m in chosen:
        try:
            estimate, features = estimator.estimate(m.point), describer.features(m.point)
        except InputError:
            # A precision that the device lacks, or a recompute deeper than the point: nothing to compare with.
            continue
        known = estimate.memory.weights + estimate.memory.gradients
        reserved = m.peak_reserved_bytes or m.peak_allocated_bytes
        time = np.log(m.time_s / estimate.time_s) if m.time_s and estimate.time_s > 0 else np.nan
        memory = np.nan
        if reserved is not None and reserved > known and estimate.dynamic_bytes > 0:
            memory = np.log(reserved - known)
        if np.isnan(time) and np.isnan(memory):
            continue
        described.append(features)
        seconds.append(describer.seconds(m.point))
        sizes.append(describer.sizes(m.point))
        targets.append((time, memory))
        groups.append(m.point.key)
        types.append(m.point.gpu_type)
    if not described:
        return None
    names = tuple(described[0])
    logs_of_time = np.array([time for time, _ in targets])
    speeds = _fit_speeds(seconds, types, logs_of_time)
    memories = fit_memories(sizes, types, np.array([memory for _, memory in targets]))
    for i, (pair, size, name) in enumerate(zip(seconds, sizes, types, strict=True)):
        time, memory = targets[i]
        targets[i] = (time - math.log(speeds[name].factor(*pair)), memory - math.log(memories[name].bytes(size)))
    rows = Rows(
        np.array([[row[name] for name in names] for row in described]),
        np.array(targets, dtype=np.float64),
        names,
        np.array(groups),
        tuple(types),
    )
    truths = defaultdict(set)
    for m in chosen:
        truths[m.point.gpu_type].add(m.truth)
    levels = {
        name: tuple(sorted({m.point.tp for m in chosen if m.point.gpu_type == name})) for name in sorted(set(types))
    }
    return StageModel(
        IterationModel.fit(rows, settings),
        speeds,
        memories,
        levels,
        _between(rows, seconds, logs_of_time, settings),
        measured_outside(chosen),
        dict(Counter(name for _, name in {(g, t) for g, t in zip(groups, types, strict=True)})),
        {
            name: Provenance.SIMULATED if Truth.TESTBED in found else Provenance.MEASURED
            for name, found in truths.items()
        },
        tuple(sorted({m.truth_name for m in chosen})),
        left_out,
    )


def _between(
    rows: Rows, seconds: Sequence[tuple[float, float]], logs_of_time: Array, settings: BoosterSettings
) -> float | None:
    """How far time is off at a tensor-parallel size between measured ones, when it is left out."""
    tp = rows.features[:, rows.names.index("tp")]
    # Targets are what the speeds left; the speeds themselves must not have seen what is left out.
    types = np.array(rows.types)
    left = np.full(len(rows), np.nan)
    quick = replace(settings, rounds=max(settings.rounds // 2, 1))
    for name in sorted(set(rows.types)):
        sizes = np.unique(tp[types == name])
        for size in sizes[1:-1].tolist():
            out = (types == name) & (tp == size)
            kept = rows.part(~out)
            pairs = [pair for pair, gone in zip(seconds, out, strict=True) if not gone]
            logs = logs_of_time[~out]
            speeds = _fit_speeds(pairs, kept.types, logs)
            adjusted = kept.targets.copy()
            adjusted[:, 0] = logs - np.log([speeds[t].factor(*p) for t, p in zip(kept.types, pairs, strict=True)])
            model = IterationModel.fit(replace(kept, targets=adjusted), quick, intervals=False)
            own = np.log([speeds[name].factor(*seconds[k]) for k in np.flatnonzero(out).tolist()])
            left[out] = logs_of_time[out] - own - model.shifts(rows.features[out])[:, 0]
    return conformal_width(left)


def _fit_speeds(seconds: Sequence[tuple[float, float]], types: Sequence[str], logs: Array) -> dict[str, Speeds]:
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


def _best_ground(measurements: Sequence[Measurement]) -> tuple[list[Measurement], tuple[str, ...]]:
    by_type: dict[str, list[Measurement]] = defaultdict(list)
    for m in measurements:
        by_type[m.point.gpu_type].append(m)
    chosen: list[Measurement] = []
    left_out = []
    for name, found in by_type.items():
        kinds = {m.truth for m in found}
        best = next(kind for kind in _PREFERENCE if kind in kinds)
        own = [m for m in found if m.truth is best]
        if len(own) < len(found):
            left_out.append(f"{len(found) - len(own)} measurements of {name} are left out: there are better ones")
        chosen += own
    return chosen, tuple(left_out)


def measured_outside(measurements: Sequence[Measurement]) -> dict[str, Outside]:
    """One rank alone holds what a process holds; a tensor-parallel one also what its group does."""
    by_type: dict[str, dict[bool, list[int]]] = defaultdict(lambda: defaultdict(list))
    for m in measurements:
        if m.outside_bytes:
            by_type[m.point.gpu_type][m.point.tp > 1].append(m.outside_bytes)
    out = {}
    for name, found in by_type.items():
        alone = statistics.median(found[False]) if found[False] else None
        grouped = statistics.median(found[True]) if found[True] else None
        if alone is not None:
            out[name] = Outside(alone, max(grouped - alone, 0.0) if grouped is not None else 0.0)
        elif grouped is not None:
            out[name] = Outside(grouped, 0.0)
    return out


def stage_shifts(model: StageModel, describer: StageDescriber, points: Sequence[Point]) -> tuple[Array, Array, int]:
    """(n, 2) factors of time and memory, (n,) distance outside the measured range, and how many memories were repaired.

    A larger micro-batch never needs less memory: where the trees say so, the smaller one's memory is kept.
    """
    chains = [_smaller(point) for point in points]
    flat = [p for chain in chains for p in chain]
    described = [describer.features(p) for p in flat]
    matrix = np.array([[row[name] for name in model.model.names] for row in described])
    factors = np.exp(model.model.shifts(matrix))
    distance, _ = model.model.distances(matrix)
    out = np.empty((len(points), 2))
    far = np.empty(len(points))
    at, repaired = 0, 0
    for i, chain in enumerate(chains):
        least = 0.0
        for place, p in enumerate(chain, start=at):
            whole = model.memories[p.gpu_type].bytes(describer.sizes(p))
            size = factors[place, 1] * whole
            if size < least:
                repaired += 1
                size = least
            least = size
        at += len(chain)
        speed = model.speeds[chain[-1].gpu_type].factor(*describer.seconds(chain[-1]))
        out[i] = factors[at - 1, 0] * speed, least / whole if whole > 0 else factors[at - 1, 1]
        far[i] = distance[at - 1]
    return out, far, repaired


def _smaller(point: Point) -> list[Point]:
    """The same stage at 1, 2, 4 ... up to its own micro-batch."""
    sizes = [1 << k for k in range(point.micro_batch.bit_length()) if 1 << k < point.micro_batch]
    return [*(replace(point, micro_batch=size) for size in sizes), point]
