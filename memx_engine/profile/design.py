"""Which points are measured: ablation, linearity check, crossed three points, pipeline ends (the offline phase).

The ablation decides what is crossed, so the design of a type has two halves: :meth:`TypeDesign.opening`, known before
anything runs, and :meth:`TypeDesign.closing`, chosen by what the opening measured. Before that the cost model's own
amplitudes stand in, so that the whole plan of measurements can be shown first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.costs import START_UP_S, PointCosts
from memx_engine.profile.described import OfCluster
from memx_engine.profile.impact import THRESHOLD, Impact, Measured, judge
from memx_engine.profile.parameters import Parameter, Setting, Value, exhaustive_count, parameters_of, point_of
from memx_engine.profile.store import MeasurementStore

MAX_POINTS = 300
_ROOM_AT_DEFAULTS = 0.85
"""The default point must leave this much of the device to the values above it."""


@dataclass(frozen=True)
class PlannedPoint:
    """One point of a design and what it is for: ``ablation``, ``linearity``, ``cross`` or ``ends``."""

    point: Point
    purpose: str


@dataclass(frozen=True)
class Closing:
    """What the ablation led to: the verdicts, the points still to measure, and whether the limit cut any."""

    impacts: tuple[Impact, ...]
    points: tuple[PlannedPoint, ...]


@dataclass(frozen=True, eq=False)
class TypeDesign:
    """The design of one GPU type."""

    gpu_type: str
    model: TransformerSpec
    job: Job
    parameters: tuple[Parameter, ...]
    costs: PointCosts = field(repr=False)
    linearity: bool
    threshold: float
    max_points: int
    repetitions: int

    @property
    def base(self) -> Setting:
        return {p.name: p.default for p in self.parameters}

    def point(self, **changes: Value) -> Point:
        """The default point with ``changes``."""
        return point_of(self.gpu_type, self.model, self.job, {**self.base, **changes})

    @property
    def exhaustive(self) -> int:
        """Points of the full grid over every value of every parameter."""
        return exhaustive_count([len(p.every) for p in self.parameters])

    def ablation(self) -> dict[str, tuple[Point, ...]]:
        """Parameter → its points, the others at defaults."""
        return {
            p.name: tuple(self.point(**{p.name: level}) for level in p.levels)
            for p in self.parameters
            if len(p.levels) > 1
        }

    def dense(self) -> dict[str, tuple[tuple[int, Point], ...]]:
        """Numeric parameter → (value, point) of the linearity check; empty where another type does it."""
        if not self.linearity:
            return {}
        return {p.name: tuple((v, self.point(**{p.name: v})) for v in p.dense) for p in self.parameters if p.dense}

    def opening(self) -> tuple[PlannedPoint, ...]:
        """Ablation and linearity check: known before anything is measured."""
        ablation = [PlannedPoint(p, "ablation") for p in (self.point(), *itertools.chain(*self.ablation().values()))]
        dense = [PlannedPoint(p, "linearity") for pairs in self.dense().values() for _, p in pairs]
        return _unique([*ablation, *dense])

    def closing(self, measured: Measured) -> Closing:
        """The verdicts and the rest of the points, from what the opening measured."""
        opening = {planned.point.key for planned in self.opening()}
        impacts = tuple(
            judge(name, points, measured, self.costs.seconds, self.costs.peak_bytes, self.threshold)
            for name, points in self.ablation().items()
        )
        ends = [p for p in self._ends(impacts) if p.key not in opening]
        room = self.max_points - len(opening) - len(ends)
        crossed, notes, cross = self._choose(impacts, opening, room)
        points = _unique([*(PlannedPoint(p, "ends") for p in ends), *(PlannedPoint(p, "cross") for p in cross)])
        # Mixed by their keys, so that a run cut short has points from everywhere and the pace stays even.
        ordered = sorted(points, key=lambda planned: planned.point.key)[: max(self.max_points - len(opening), 0)]
        judged = tuple(replace(i, crossed=i.parameter in crossed, note=notes.get(i.parameter, "")) for i in impacts)
        return Closing(judged, tuple(ordered))

    def _choose(
        self, impacts: Sequence[Impact], opening: set[str], room: int
    ) -> tuple[set[str], dict[str, str], list[Point]]:
        """What is crossed: a plan's own dimensions first, then by amplitude, as long as the points fit in ``room``."""
        by_name = {p.name: p for p in self.parameters}
        rank = {"plan": 0, "job": 1}
        notes: dict[str, str] = {}
        able: list[Impact] = []
        for impact in impacts:
            decided = by_name[impact.parameter].decided_by
            if not impact.high:
                notes[impact.parameter] = "kept at its default"
            elif decided == "model":
                notes[impact.parameter] = "not crossed: the model fixes it"
            elif decided == "place":
                notes[impact.parameter] = "crossed with tp and micro_batch"
            else:
                able.append(impact)
        able.sort(key=lambda i: (rank[by_name[i.parameter].decided_by], -i.largest))
        crossed: list[Parameter] = []
        cross: list[Point] = []
        for impact in able:
            parameter = by_name[impact.parameter]
            wider = [p for p in self._grid([*crossed, parameter]) if p.key not in opening]
            if len(wider) <= room:
                crossed, cross = [*crossed, parameter], wider
                notes[impact.parameter] = f"crossed at {len(parameter.levels)} points"
            else:
                notes[impact.parameter] = f"not crossed: needs {len(wider)} points, {max(room, 0)} are left"
        return {p.name for p in crossed}, notes, cross

    def _grid(self, crossed: Sequence[Parameter]) -> list[Point]:
        names = [p.name for p in crossed]
        settings = itertools.product(*(p.levels for p in crossed))
        points = {p.key: p for p in (self.point(**dict(zip(names, s, strict=True))) for s in settings)}
        return list(points.values())

    def _ends(self, impacts: Sequence[Impact]) -> list[Point]:
        """Embedding and head with every TP and micro-batch: what the stages at the pipeline's ends add.

        The head also with recompute: whether its logits and the recomputed layers are there at the same time.
        """
        high = [i.parameter for i in impacts if i.high]
        levels = {p.name: p.levels for p in self.parameters}
        points = [
            self.point(**{end: True, "tp": tp, "micro_batch": mbs})
            for end in ("embedding", "head")
            if end in high
            for tp in levels["tp"]
            for mbs in levels["micro_batch"]
        ]
        if "head" in high and "recompute" in high:
            most = levels["recompute"][-1]
            points += [self.point(head=True, recompute=most, micro_batch=mbs) for mbs in levels["micro_batch"]]
        return points

    def predicted_closing(self) -> Closing:
        """The closing as the cost model expects it."""
        return self.closing(_nothing)

    def expected(self) -> tuple[PlannedPoint, ...]:
        """All points as they are expected before anything is measured."""
        return (*self.opening(), *self.predicted_closing().points)

    def stored(self, store: MeasurementStore, truth_name: str) -> int:
        """How many of the expected points ``store`` already has from this ground, with a result that stands."""
        return self._with_outcome(store, truth_name, (Outcome.OK, Outcome.OOM, Outcome.TIMEOUT))

    def failed(self, store: MeasurementStore, truth_name: str) -> int:
        """How many of the expected points crashed or hung when they were last tried on this ground."""
        return self._with_outcome(store, truth_name, (Outcome.CRASHED, Outcome.TIMEOUT))

    def _with_outcome(self, store: MeasurementStore, truth_name: str, outcomes: tuple[Outcome, ...]) -> int:
        own = OfCluster(store, self.costs.cluster)
        found = own.latest(truth_name, [p.point.key for p in self.expected()])
        return sum(m.outcome in outcomes for m in found.values())

    def device_seconds(self, points: Iterable[PlannedPoint]) -> float:
        """About how long ``points`` take on the device, start-up of every process included."""
        return sum(START_UP_S + self.costs.work_s(p.point, self.repetitions) for p in points)


@dataclass(frozen=True, eq=False)
class ProfileDesign:
    """The designs of all types that are measured.

    Attributes:
        excluded: Types that are left out, each with the reason.
    """

    types: tuple[TypeDesign, ...]
    excluded: Mapping[str, str]

    @property
    def representative(self) -> str:
        """The type that does the linearity check; empty without one."""
        return next((t.gpu_type for t in self.types if t.linearity), "")

    def summary(self) -> tuple[DesignSummary, ...]:
        """One row per type, for the plan of measurements that is shown first."""
        return tuple(_summary(t) for t in self.types)


@dataclass(frozen=True)
class DesignSummary:
    """What a type's design comes to.

    Attributes:
        by_purpose: Points expected by purpose. skipped: Of these, surely too large for the device.
        device_s: About how long the others take. exhaustive: Points of the full grid.
        crossed: Parameters expected to be crossed.
    """

    gpu_type: str
    points: int
    by_purpose: Mapping[str, int]
    skipped: int
    device_s: float
    exhaustive: int
    crossed: tuple[str, ...]


def _summary(design: TypeDesign) -> DesignSummary:
    closing = design.predicted_closing()
    points = (*design.opening(), *closing.points)
    runnable = [p for p in points if not design.costs.cannot_fit(p.point)]
    counted: dict[str, int] = {}
    for planned in points:
        counted[planned.purpose] = counted.get(planned.purpose, 0) + 1
    return DesignSummary(
        design.gpu_type,
        len(points),
        counted,
        len(points) - len(runnable),
        design.device_seconds(runnable),
        design.exhaustive,
        tuple(i.parameter for i in closing.impacts if i.crossed),
    )


def design_document(design: ProfileDesign, stored: Mapping[str, int]) -> dict[str, Any]:
    """``profile --dry-run --json``. ``stored``: GPU type → points that are there already."""
    rows = design.summary()
    return {
        "schema": "memx/profile-plan/v1",
        "planned": sum(r.points for r in rows),
        "cached": sum(stored.values()),
        "skipped": sum(r.skipped for r in rows),
        "exhaustive": sum(r.exhaustive for r in rows),
        "seconds": round(max(r.device_s for r in rows), 1),
        "excluded": dict(design.excluded),
        "types": [
            {
                "gpu_type": r.gpu_type,
                "planned": r.points,
                "cached": stored.get(r.gpu_type, 0),
                "by_purpose": dict(r.by_purpose),
                "skipped": r.skipped,
                "seconds": round(r.device_s, 1),
                "exhaustive": r.exhaustive,
                "crossed": list(r.crossed),
            }
            for r in rows
        ],
    }


def design_profile(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    *,
    types: Sequence[str] | None = None,
    max_points: int = MAX_POINTS,
    threshold: float = THRESHOLD,
    repetitions: int = 5,
) -> ProfileDesign:
    """Design the measurements of every GPU type of ``cluster`` (or of ``types``).

    The type with the most memory does the linearity check, since its large points fit.

    Raises:
        InputError: ``types`` names one that the cluster does not have, or no type is left.
    """
    known = {t.name for t in cluster.gpu_types}
    for name in types or ():
        if name not in known:
            raise InputError(f"the cluster has no type {name!r}", where="--types", hint=f"it has {', '.join(known)}")
    costs = PointCosts(cluster, job)
    designs: list[TypeDesign] = []
    excluded: dict[str, str] = {}
    for gpu_type in cluster.gpu_types:
        if types is not None and gpu_type.name not in types:
            continue
        if not gpu_type.supports(job.precision.value):
            excluded[gpu_type.name] = f"it lacks {job.precision.value}"
            continue
        base = TypeDesign(
            gpu_type.name,
            model,
            job,
            parameters_of(cluster, model, job, gpu_type.name),
            costs,
            linearity=False,
            threshold=threshold,
            max_points=max_points,
            repetitions=repetitions,
        )
        designs.append(_fitting(base, cluster))
    if not designs:
        reasons = "; ".join(f"{name}: {why}" for name, why in excluded.items())
        raise InputError(f"no GPU type can be measured ({reasons})", hint="choose another precision")
    first = max(designs, key=lambda d: costs.capacity_bytes(d.gpu_type))
    return ProfileDesign(tuple(replace(d, linearity=d is first) for d in designs), excluded)


def _fitting(design: TypeDesign, cluster: Cluster) -> TypeDesign:
    """``design`` with defaults that fit the device: the smallest change of them that leaves room."""
    capacity = design.costs.capacity_bytes(design.gpu_type) - cluster.gpu_type(design.gpu_type).context_bytes
    for name, last in (("micro_batch", False), ("tp", True), ("layers", False)):
        if design.costs.peak_bytes(design.point()) <= _ROOM_AT_DEFAULTS * capacity:
            break
        by_name = {p.name: p for p in design.parameters}
        value = by_name[name].levels[-1 if last else 0]
        parameters = tuple(replace(p, default=value) if p.name == name else p for p in design.parameters)
        if name == "tp":
            fresh = parameters_of(cluster, design.model, design.job, design.gpu_type, default_tp=int(value))
            legal = next(p for p in fresh if p.name == "kv_heads")
            parameters = tuple(legal if p.name == "kv_heads" else p for p in parameters)
        design = replace(design, parameters=parameters)
    return design


def _unique(points: Iterable[PlannedPoint]) -> tuple[PlannedPoint, ...]:
    """``points`` without repeats, each under its first purpose."""
    seen: dict[str, PlannedPoint] = {}
    for planned in points:
        seen.setdefault(planned.point.key, planned)
    return tuple(seen.values())


def _nothing(_point: Point) -> Measurement | None:
    return None
