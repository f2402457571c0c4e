"""Imported whole iterations: one factor per GPU type on what the composed stages are predicted to take."""

from __future__ import annotations

import heapq
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memx_engine.cost.table import Estimator
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster, GpuType
from memx_engine.inputs.job import Job, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement
from memx_engine.plan import Plan, Provenance
from memx_engine.predict.factors import Factor, shrunk_factor
from memx_engine.profile.importers.columns import Columns
from memx_engine.profile.importers.facts import known_type
from memx_engine.profile.importers.layouts import Layout, is_simulated, layer_measurement, row_layout
from memx_engine.profile.importers.models import NotJudgeableError
from memx_engine.profile.store import ImportedRow

MOST_RUNS = 300
"""Runs that are compared; of more matching rows a fixed sample is taken, the same whatever else is stored."""

MOST_LAYERS = 3_000


@dataclass(frozen=True)
class Run:
    """One imported iteration on GPU types of the cluster."""

    layout: Layout
    time_s: float
    source: str
    simulated: bool


@dataclass(frozen=True)
class Runs:
    """The runs to compare with, how many rows matched, and what was left out."""

    used: tuple[Run, ...] = ()
    matching: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def real_types(self) -> frozenset[str]:
        """GPU types of which there is a real run."""
        return frozenset(name for run in self.used if not run.simulated for name in run.layout.facts.gpu_types)


@dataclass(frozen=True)
class Composition:
    """One GPU type's factor on iteration times; a mixed run counts for every type it ran on."""

    gpu_type: str
    factor: Factor
    sources: Mapping[str, int]
    provenance: Provenance

    def __str__(self) -> str:
        tables = ", ".join(f"{name} ({count})" for name, count in self.sources.items())
        word = "simulated" if self.provenance is Provenance.SIMULATED else "imported"
        runs = f"{self.factor.points} {word} layouts of {tables}"
        return f"{self.gpu_type}: iteration times corrected by {runs}: {self.factor}"


def find_runs(cluster: Cluster, job: Job, rows: Iterable[ImportedRow]) -> Runs:
    """The rows with a time whose GPU types are all in ``cluster`` and whose elements are as wide as the job's."""
    own = {t.name: t for t in cluster.gpu_types}
    sample: list[tuple[str, str, Columns]] = []
    matching = 0
    for row in rows:
        if "iter_time_s" not in row.document and "tokens_per_s_per_gpu" not in row.document:
            continue
        if not _types(row.document, own) <= cluster.ranks_by_type.keys():
            continue
        matching += 1
        # Negated order: the largest digest of the kept ones goes first when the heap is full.
        heapq.heappush(sample, (_inverse(row.digest), row.source, row.document))
        if len(sample) > MOST_RUNS:
            heapq.heappop(sample)
    used: list[Run] = []
    reasons: Counter[str] = Counter()
    for _, source, columns in sorted(sample, key=lambda item: item[0]):
        try:
            layout = row_layout(columns, cluster)
        except NotJudgeableError as error:
            reasons[str(error)] += 1
            continue
        if _wide(layout.facts.precision) != _wide(job.precision):
            reasons[f"runs in {layout.facts.precision} while the job runs in {job.precision}"] += 1
        elif layout.facts.time_s is not None:
            stated = str(columns.get("source", ""))
            used.append(Run(layout, layout.facts.time_s, source, is_simulated(stated)))
    if any(not run.simulated for run in used):
        simulated = sum(run.simulated for run in used)
        reasons["simulated, and there are real ones"] += simulated
        used = [run for run in used if not run.simulated]
    left_out = [f"{count} imported rows are left out: {reason}" for reason, count in reasons.most_common(3) if count]
    if matching > MOST_RUNS:
        left_out.append(f"of {matching} imported rows on these GPU types a sample of {MOST_RUNS} is looked at")
    return Runs(tuple(used), matching, tuple(left_out))


def _inverse(digest: str) -> str:
    return digest.translate(str.maketrans("0123456789abcdef", "fedcba9876543210"))


def _types(columns: Columns, own: Mapping[str, GpuType]) -> set[str]:
    """GPU types of a row; an empty name where one of them is not known."""
    if "stages" in columns:
        names = [part.split(":")[0] for part in str(columns["stages"]).split("|")]
    else:
        names = str(columns.get("gpu_type", "")).split("+")
    try:
        return {known_type(name, own) for name in names}
    except NotJudgeableError:
        return {""}


def _wide(precision: Precision) -> bool:
    return precision is Precision.FP32


def fit_compositions(
    runs: Runs, estimator_of: Callable[[Cluster, TransformerSpec, Job], Estimator]
) -> dict[str, Composition]:
    """Measured over composed time, by GPU type; layouts that repeat count once, by their median.

    Args:
        estimator_of: What the stages are predicted by on a run's own cluster, model and job.
    """
    ratios: dict[str, dict[tuple[Plan, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    simulated: set[str] = set()
    for run in runs.used:
        layout = run.layout
        try:
            estimator = estimator_of(layout.cluster, layout.model, layout.job)
            predicted = estimator.estimate(layout.plan).iteration_time_s
        except InputError:
            # A device that lacks the row's precision or whose peak nobody published.
            continue
        for name in layout.facts.gpu_types:
            ratios[name][layout.plan, layout.model.fingerprint].append(run.time_s / predicted)
            sources[name][run.source] += 1
            if run.simulated:
                simulated.add(name)
    return {
        name: Composition(
            name,
            shrunk_factor([statistics.median(repeats) for repeats in by_layout.values()]),
            dict(sources[name].most_common(5)),
            Provenance.SIMULATED if name in simulated else Provenance.MEASURED,
        )
        for name, by_layout in ratios.items()
    }


def layer_measurements(cluster: Cluster, rows: Iterable[ImportedRow]) -> list[Measurement]:
    """The times of imported layer rows on the cluster's GPU types; rows that cannot be compared are passed over."""
    own = {t.name: t for t in cluster.gpu_types}
    kept: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        found = _types(row.document, own)
        if not found <= cluster.ranks_by_type.keys():
            continue
        name = next(iter(found))
        if len(kept[name]) >= MOST_LAYERS:
            continue
        try:
            kept[name].append(layer_measurement(row.document, row.source, cluster))
        except NotJudgeableError:
            # Said when the table was imported.
            continue
    return [measurement for found in kept.values() for measurement in found]
