"""The first-level predictor: how far single stages are from first principles, learned from what was measured of them.

Time is forward and backward together, memory what the allocator reserves beside weights and gradients, whose size is
known. Each GPU type has factors on the parts of both (:mod:`time_shares`, :mod:`memory_shares`); the booster learns
what these leave. All are factors on the cost model's terms, so tables and plans agree. What the device holds outside
the allocator is measured directly: once per process, and once per process group.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import numpy as np

from memx_engine.cost.correction import Correction
from memx_engine.cost.memory import FRAGMENTATION
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Provenance
from memx_engine.predict.augment import augment
from memx_engine.predict.booster import Array, BoosterSettings
from memx_engine.predict.compared import Compared, StageDescriber
from memx_engine.predict.intervals import conformal_width
from memx_engine.predict.iteration_model import Extra, IterationModel, Rows
from memx_engine.predict.memory_shares import MemoryShares, fit_memories
from memx_engine.predict.signatures import Signatures
from memx_engine.predict.time_shares import Seconds, TimeShares, fit_times

STAGE_SETTINGS = BoosterSettings(
    rounds=250, depth=5, learning_rate=0.08, subsample=0.8, columns=0.5, min_child_weight=1.0, l2=0.5, bins=64
)

_PREFERENCE = (Truth.GPU, Truth.TABLE, Truth.CPU, Truth.TESTBED)


@dataclass(frozen=True)
class Outside:
    """Bytes that one process holds on the device outside the allocator, and each of its process groups adds."""

    process_bytes: float
    group_bytes: float


@dataclass(frozen=True, eq=False)
class StageModel:
    """Fitted by :func:`fit_stages`.

    Attributes:
        times, memories: By GPU type. sized: The types whose memory was measured.
        levels: GPU type → the tensor-parallel sizes that were measured.
        between: Half width of the time's logarithm at a size that was not, from leaving each size out in turn.
        model: Logarithms of measured over first principles, time and memory.
        outside: By GPU type, where a device tells.
        points: GPU type → distinct points used. provenance: The weakest ground among them, by type.
        grounds: GPU type → names of the grounds it was measured on. left_out: Sentences.
    """

    model: IterationModel
    times: Mapping[str, TimeShares]
    memories: Mapping[str, MemoryShares]
    sized: frozenset[str]
    levels: Mapping[str, tuple[int, ...]]
    between: float | None
    outside: Mapping[str, Outside]
    points: Mapping[str, int]
    provenance: Mapping[str, Provenance]
    grounds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Changes whenever any prediction could change."""
        model = self.model
        document = [
            model.names,
            model.factors.tolist(),
            sorted(model.ranges.items()),
            [[w.overall, sorted(w.by_type.items()), w.residuals] for w in model.widths],
            [[name, asdict(shares)] for name, shares in sorted(self.times.items())],
            [[name, asdict(shares)] for name, shares in sorted(self.memories.items())],
            [[name, asdict(outside)] for name, outside in sorted(self.outside.items())],
            sorted(self.sized),
            sorted(self.points.items()),
            sorted((name, word.value) for name, word in self.provenance.items()),
            sorted(self.levels.items()),
            self.between,
        ]
        trees = model.booster.to_bytes() if model.booster else b""
        return hashlib.sha256(json.dumps(document).encode() + trees).hexdigest()[:16]

    def width(self, gpu_type: str, tp: int, distance: float) -> float | None:
        """Half width of the 95 % interval of a stage's time, in logarithms; None where nothing was held out."""
        plain = self.model.widths[0].width(gpu_type, distance)
        if plain is None or tp in self.levels.get(gpu_type, ()):
            return plain
        return max(plain, self.between or 0.0)

    def corrections(self, cluster: Cluster) -> dict[str, Correction]:
        """What holds for every stage of a measured type: the parts of time and memory (as reserved, so without a
        share for fragmentation) and the context."""
        out = {}
        for name in self.points:
            if name not in cluster.ranks_by_type:
                continue
            base = cluster.gpu_type(name)
            known = self.outside.get(name)
            context = known.process_bytes / base.context_bytes if known and base.context_bytes else 1.0
            time = self.times[name]
            timed = Correction(
                time=time.layers,
                embedding=time.embedding / time.layers,
                head=time.head / time.layers,
                end_collectives=time.end_collectives / time.layers,
                collectives=time.collectives / time.layers,
                context=context,
            )
            if name not in self.sized:
                out[name] = timed
                continue
            shares = self.memories[name]
            out[name] = replace(
                timed,
                fragmentation=1.0 / (1.0 + FRAGMENTATION),
                activations=shares.held,
                working=shares.working / shares.held,
                passing=shares.passing / shares.held,
                logits=shares.logits / shares.held,
                together=shares.together,
            )
        return out


@dataclass(frozen=True, eq=False)
class Prepared:
    """What there is to learn: points that stand, the parts' factors, and what these leave to the trees."""

    chosen: Sequence[Measurement]
    left_out: tuple[str, ...]
    compared: Compared
    times: Mapping[str, TimeShares]
    memories: Mapping[str, MemoryShares]
    rows: Rows
    extra: Extra | None


def prepare(
    cluster: Cluster, model: TransformerSpec, job: Job, measurements: Iterable[Measurement], *, augmented: bool = True
) -> Prepared | None:
    """The rows that the trees of :func:`fit_stages` learn from; None where nothing can be compared."""
    usable = [
        m
        for m in measurements
        if m.outcome is Outcome.OK
        and m.point.gpu_type in cluster.ranks_by_type
        and m.point.tp <= len(cluster.ranks_by_type[m.point.gpu_type])
    ]
    chosen, left_out = _best_ground(usable)
    compared = Compared.of(chosen, cluster, model, job)
    if not compared.groups:
        return None
    logs, types = compared.logs, compared.types
    times = fit_times(compared.seconds, types, logs[:, 0])
    memories = fit_memories(compared.sizes, types, logs[:, 1])
    rows = compared.rows(times, memories)
    extra = _between_points(chosen, compared, times, memories, cluster, model, job) if augmented else None
    return Prepared(chosen, left_out, compared, times, memories, rows, extra)


def fit_stages(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    measurements: Iterable[Measurement],
    *,
    settings: BoosterSettings = STAGE_SETTINGS,
    augmented: bool = True,
) -> StageModel | None:
    """Learn from measured points on the cluster's types; None where none can be compared.

    ``augmented``: the trees also learn from what lies between points where that is valid (:mod:`.augment`).

    Of one GPU type only the first kind of ground that it has is used: a simulation never moves what is real.
    """
    prepared = prepare(cluster, model, job, measurements, augmented=augmented)
    if prepared is None:
        return None
    chosen, compared, times, memories = prepared.chosen, prepared.compared, prepared.times, prepared.memories
    logs, types, rows = compared.logs, compared.types, prepared.rows
    truths = defaultdict(set)
    for m in chosen:
        truths[m.point.gpu_type].add(m.truth)
    levels = {
        name: tuple(sorted({m.point.tp for m in chosen if m.point.gpu_type == name})) for name in sorted(set(types))
    }
    return StageModel(
        IterationModel.fit(rows, settings, extra=prepared.extra),
        times,
        memories,
        frozenset(name for name, size in zip(types, logs[:, 1].tolist(), strict=True) if not np.isnan(size)),
        levels,
        _between(rows, compared.seconds, logs[:, 0], settings),
        measured_outside(chosen),
        dict(Counter(name for _, name in set(zip(compared.keys, types, strict=True)))),
        {
            name: Provenance.SIMULATED if Truth.TESTBED in found else Provenance.MEASURED
            for name, found in truths.items()
        },
        {name: tuple(sorted({m.truth_name for m in chosen if m.point.gpu_type == name})) for name in truths},
        prepared.left_out,
    )


def _between_points(
    chosen: Sequence[Measurement],
    compared: Compared,
    times: Mapping[str, TimeShares],
    memories: Mapping[str, MemoryShares],
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
) -> Extra | None:
    """What lies between measured points, one row for all that the trees cannot tell apart and did not see measured."""
    made = augment(chosen).rows
    between = Compared.of([row.measurement for row in made], cluster, model, job)
    group_of = dict(zip(compared.keys, compared.groups, strict=True))
    parents_of = {row.measurement.point.key: row.parents for row in made}
    parents: dict[str, set[str]] = defaultdict(set)
    for key, group in zip(between.keys, between.groups, strict=True):
        parents[group] |= {group_of[parent] for parent in parents_of[key] if parent in group_of}
    rows = between.rows(times, memories)
    new = [group for group in dict.fromkeys(between.groups) if group not in set(compared.groups)]
    if not new:
        return None
    places = [np.flatnonzero(rows.groups == group) for group in new]
    kept = rows.part(np.isin(np.arange(len(rows)), [own[0] for own in places]))
    order = {group: k for k, group in enumerate(kept.groups.tolist())}
    targets = kept.targets.copy()
    for group, own in zip(new, places, strict=True):
        for k in range(targets.shape[1]):
            known = rows.targets[own, k][~np.isnan(rows.targets[own, k])]
            targets[order[group], k] = np.median(known) if len(known) else np.nan
    return Extra(replace(kept, targets=targets), tuple(frozenset(parents[g]) for g in kept.groups.tolist()))


def _between(rows: Rows, seconds: Sequence[Seconds], logs_of_time: Array, settings: BoosterSettings) -> float | None:
    """How far time is off at a tensor-parallel size between measured ones, when it is left out."""
    tp = rows.features[:, rows.names.index("tp")]
    # Targets are what the parts left; the parts themselves must not have seen what is left out.
    types = np.array(rows.types)
    left = np.full(len(rows), np.nan)
    quick = replace(settings, rounds=max(settings.rounds // 2, 1))
    for name in sorted(set(rows.types)):
        sizes = np.unique(tp[types == name])
        for size in sizes[1:-1].tolist():
            out = (types == name) & (tp == size)
            kept = rows.part(~out)
            parts = [part for part, gone in zip(seconds, out, strict=True) if not gone]
            logs = logs_of_time[~out]
            times = fit_times(parts, kept.types, logs)
            adjusted = kept.targets.copy()
            adjusted[:, 0] = logs - np.log([times[t].seconds(p) for t, p in zip(kept.types, parts, strict=True)])
            model = IterationModel.fit(replace(kept, targets=adjusted), quick, intervals=False)
            own = np.log([times[name].seconds(seconds[k]) for k in np.flatnonzero(out).tolist()])
            left[out] = logs_of_time[out] - own - model.shifts(rows.features[out])[:, 0]
    return conformal_width(left)


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
            out[name] = Outside(float(alone), float(max(grouped - alone, 0.0)) if grouped is not None else 0.0)
        elif grouped is not None:
            out[name] = Outside(float(grouped), 0.0)
    return out


def stage_factors(
    model: StageModel,
    describer: StageDescriber,
    points: Sequence[Point],
    signatures: Signatures | None = None,
) -> tuple[Array, Array, list[tuple[str, ...]], int]:
    """What the trees put on the parts of ``points``, whose layers and micro-batches in flight do not matter.

    A larger micro-batch never needs less memory: every part of it grows with the micro-batch, so a factor may fall by
    no more than the micro-batch grew; where the trees say so, the smaller one's memory is kept.

    Args:
        signatures: Where predictions are remembered.

    Returns:
        (n, 2) factors of time and memory, (n,) distance outside the measured range, the sizes that are outside, and how
        many memories were repaired.
    """
    chains = [_smaller(point) for point in points]
    flat = list(dict.fromkeys(p for chain in chains for p in chain))
    place = {p: k for k, p in enumerate(flat)}
    described = [describer.features(p) for p in flat]
    matrix = np.array([[row[name] for name in model.model.names] for row in described])
    shifts = model.model.shifts(matrix) if signatures is None else signatures.get(matrix, model.model.shifts)
    factors = np.exp(shifts)
    distance, outside = model.model.distances(matrix)
    last = [place[chain[-1]] for chain in chains]
    out = factors[last]
    repaired = 0
    for i, chain in enumerate(chains):
        least = max(factors[place[p], 1] * p.micro_batch for p in chain) / chain[-1].micro_batch
        if chain[-1].gpu_type not in model.sized:
            out[i, 1] = 1.0
        elif least > out[i, 1]:
            repaired += 1
            out[i, 1] = least
    return out, distance[last], [outside[k] for k in last], repaired


def _smaller(point: Point) -> list[Point]:
    """The same stage at 1, 2, 4 ... up to its own micro-batch."""
    sizes = [1 << k for k in range(point.micro_batch.bit_length()) if 1 << k < point.micro_batch]
    return [*(replace(point, micro_batch=size) for size in sizes), point]
