"""Judged rows as what the iteration booster learns from: features, and measured over predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.evaluate.rows import JudgedRow
from memx_engine.inputs.job import Attention
from memx_engine.plan import MemoryBreakdown
from memx_engine.predict.iteration_features import (
    raw_features,
    recompute_features,
    skeleton_features,
    slowest_type,
)
from memx_engine.predict.layers import LayerCorrections


@dataclass(frozen=True)
class Convention:
    """What tables do not say of the software that ran: which attention kernel, and whether norms are split over TP."""

    attention: Attention
    sequence_parallel: bool


CONVENTIONS = tuple(Convention(a, s) for a in Attention for s in (True, False))
"""The first one is what the cost model assumes where nobody says otherwise."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One measured figure or two of a run, on one GPU type.

    Attributes:
        row: Index of the judged row. subject: The GPU type whose memory is meant, or the slowest for time alone.
        time_s, memory_bytes: Measured; None where this sample is about the other.
        predicted_time_s, predicted_memory_bytes: What the cost model composes for the row's own plan.
        outside_bytes: Predicted memory that the row's kind of figure does not count.
        skeleton, recompute, raw: Features, see :mod:`memx_engine.predict.iteration_features`.
    """

    row: int
    subject: str
    time_s: float | None
    memory_bytes: float | None
    predicted_time_s: float
    predicted_memory_bytes: float
    outside_bytes: float
    skeleton: Mapping[str, float]
    recompute: Mapping[str, float]
    raw: Mapping[str, float]


def counted_bytes(breakdown: MemoryBreakdown, kind: str) -> float:
    """The part of a peak that a table of this kind counts."""
    if kind == "allocated":
        return breakdown.total - breakdown.context - breakdown.fragmentation
    return breakdown.total - breakdown.context if kind == "reserved" else breakdown.total


def row_samples(
    row: JudgedRow, index: int, convention: Convention, layers: LayerCorrections | None = None
) -> list[Sample]:
    """The samples of one row; InputError where the cost model refuses its devices or its plan."""
    layout = row.layout
    job = replace(layout.job, attention=convention.attention, sequence_parallel=convention.sequence_parallel)
    skeleton = layout.plan.skeleton
    known = layers.corrections(layout.cluster, layout.model, job, skeleton.tp, skeleton.micro_batch) if layers else {}
    estimator = FirstPrinciples(layout.cluster, layout.model, job, known)
    estimate = estimator.estimate(layout.plan)
    slowest = slowest_type(estimate, layout.plan)
    subjects = list(skeleton.type_order) if row.out_of_memory else list(row.memory_bytes) or [slowest]
    if row.time_s is not None and slowest not in subjects:
        subjects.append(slowest)
    timed = slowest if row.time_s is not None else ""
    raw = raw_features(skeleton, layout.model, job)
    out = []
    for subject in subjects:
        peaks = [counted_bytes(gpu.breakdown, row.memory_kind) for gpu in estimate.gpus if gpu.gpu_type == subject]
        features = skeleton_features(estimator, skeleton, subject, untied=layout.plan.untied)
        recompute = recompute_features(estimator, layout.plan, subject)
        devices = {name: value for name, value in features.items() if name.startswith(("type", "least", "most"))}
        out.append(
            Sample(
                row=index,
                subject=subject,
                time_s=row.time_s if subject == timed else None,
                memory_bytes=row.memory_bytes.get(subject),
                predicted_time_s=estimate.iteration_time_s,
                predicted_memory_bytes=max(peaks),
                outside_bytes=max(g.breakdown.total for g in estimate.gpus if g.gpu_type == subject) - max(peaks),
                skeleton=features,
                recompute=recompute,
                raw=raw
                | devices
                | {k: v for k, v in recompute.items() if k not in ("recompute_time", "recompute_memory")},
            )
        )
    return out


def all_samples(
    rows: Sequence[JudgedRow], convention: Convention, layers: LayerCorrections | None = None
) -> tuple[list[Sample], list[tuple[str, str]]]:
    """The samples of all rows, stages corrected by ``layers``, and the rows that the cost model refuses."""
    made: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for index, row in enumerate(rows):
        try:
            made += row_samples(row, index, convention, layers)
        except InputError as error:
            refused.append((row.label, error.message))
    return made, refused
