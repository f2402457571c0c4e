"""More rows to learn from: what lies between measured points where a trend was found valid.

The MemX paper's section 3.2.2. A synthetic row stands between two points that differ in one size alone, on a line whose
inner points the trend's rule reproduces. It carries the keys of everything it was made from, so that it can be kept out
of whatever judges those; rows are made from the rows at hand, so that augmenting inside a fold never looks outside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.trends import INTERPOLATION_ERROR, NUMERIC, Trend, Verdict, measured_trends

MOST_GROWTH = 10
"""Synthetic and measured rows together are at most so many times the measured ones, as in the paper."""

_STEPS = {Verdict.LINEAR: 4, Verdict.PIECEWISE: 2, Verdict.POWER: 2}
_SEQUENCE_STEP = 128
_METRICS = ("forward_s", "backward_s", "whole_s", "peak_allocated_bytes", "peak_reserved_bytes")
_TIMES = _METRICS[:3]


@dataclass(frozen=True)
class Synthetic:
    """A row that nobody measured. ``parents``: keys of the measured points that it was made from."""

    measurement: Measurement
    parents: frozenset[str]


@dataclass(frozen=True)
class Augmentation:
    """``rows`` made, and how many ``intervals`` were filled and ``refused`` because their line is not valid."""

    rows: tuple[Synthetic, ...]
    filled: int
    refused: int


def augment(measurements: Iterable[Measurement], trends: Sequence[Trend] | None = None) -> Augmentation:
    """Fill the intervals of ``measurements`` that ``trends`` allow; of None, their own lines' trends.

    Trends of one GPU type speak for all: the linearity check runs on one. Each line must hold on its own type too:
    every inner point within :data:`~memx_engine.profile.trends.INTERPOLATION_ERROR` of what its neighbours say.
    """
    measured = [m for m in measurements if m.outcome is Outcome.OK]
    rules = _rules(measured_trends(measured) if trends is None else trends)
    rows = [Synthetic(m, frozenset((m.point.key,))) for m in measured]
    filled = refused = 0
    for name in NUMERIC:
        made: list[Synthetic] = []
        for line in _lines(rows, name):
            more, bad = _fill(line, name, rules)
            made += more
            filled += bool(more)
            refused += bad
        known = {row.measurement.point.key for row in rows}
        rows += [row for row in made if row.measurement.point.key not in known]
    synthetic = sorted(rows[len(measured) :], key=lambda row: row.measurement.point.key)
    return Augmentation(tuple(synthetic[: (MOST_GROWTH - 1) * len(measured)]), filled, refused)


def _rules(trends: Sequence[Trend]) -> Mapping[tuple[str, str], Trend]:
    """(parameter, ``time`` or ``memory``) → the trend to interpolate by; the least exact type's, so that it holds for
    all. Micro-batches go by time or by throughput over log2, whichever stands for its points better."""
    chosen: dict[tuple[str, str], Trend] = {}
    by_type: dict[tuple[str, str, str], list[Trend]] = defaultdict(list)
    for trend in trends:
        metric = "memory" if trend.metric == "memory" else "time"
        by_type[trend.gpu_type, trend.parameter, metric].append(trend)
    for (_, parameter, metric), found in by_type.items():
        able = [t for t in found if t.verdict in _STEPS and t.worst <= INTERPOLATION_ERROR]
        best = min(able or found, key=lambda t: (t.verdict not in _STEPS, t.worst))
        other = chosen.get((parameter, metric))
        if other is None or (best.verdict not in _STEPS, best.worst) > (other.verdict not in _STEPS, other.worst):
            chosen[parameter, metric] = best
    return {k: t for k, t in chosen.items() if t.verdict in _STEPS and t.worst <= INTERPOLATION_ERROR}


def _lines(rows: Sequence[Synthetic], name: str) -> list[list[Synthetic]]:
    """Rows that differ in ``name`` alone and stand on the same ground, ascending, at least three of them."""
    lines: dict[tuple[str, str], dict[int, Synthetic]] = defaultdict(dict)
    for row in rows:
        point = row.measurement.point
        key = (_at(point, name, 1).key, row.measurement.truth_name)
        lines[key].setdefault(getattr(point, name), row)
    return [[line[v] for v in sorted(line)] for line in lines.values() if len(line) >= 3]


def _fill(line: Sequence[Synthetic], name: str, rules: Mapping[tuple[str, str], Trend]) -> tuple[list[Synthetic], int]:
    """What goes between the points of one line, and 1 where no metric of it may be interpolated."""
    able = {
        metric: rule
        for metric in ("time", "memory")
        if (rule := rules.get((name, metric))) is not None and _holds(line, name, metric, rule)
    }
    if not able:
        return [], 1
    out: list[Synthetic] = []
    steps = max(_STEPS[rule.verdict] for rule in able.values())
    for low, high in zip(line, line[1:], strict=False):
        for value in _values_between(name, low.measurement.point, high.measurement.point, steps):
            row = _between(low, high, name, value, able)
            if row is not None:
                out.append(row)
    return out, 0


def _holds(line: Sequence[Synthetic], name: str, metric: str, rule: Trend) -> bool:
    for low, middle, high in zip(line, line[1:], line[2:], strict=False):
        guess = _between(low, high, name, getattr(middle.measurement.point, name), {metric: rule})
        if guess is None:
            return False
        for field in _fields(metric):
            truth, said = getattr(middle.measurement, field), getattr(guess.measurement, field)
            if truth and said is not None and abs(said / truth - 1.0) > INTERPOLATION_ERROR:
                return False
    return True


def _fields(metric: str) -> tuple[str, ...]:
    return _TIMES if metric == "time" else _METRICS[3:]


def _between(low: Synthetic, high: Synthetic, name: str, value: int, able: Mapping[str, Trend]) -> Synthetic | None:
    """The row at ``value``; a metric that may not be interpolated is missing in it. None where all are."""
    at = tuple(float(getattr(row.measurement.point, name)) for row in (low, high))
    found: dict[str, Any] = dict.fromkeys(_METRICS)
    for metric, rule in able.items():
        for field in _fields(metric):
            ends = [getattr(row.measurement, field) for row in (low, high)]
            if None in ends:
                continue
            # Throughput over log2 is a rate: tokens per second of the point's own micro-batch.
            scale = at if rule.logarithmic else (1.0, 1.0)
            sides = [s / y if rule.logarithmic else y for s, y in zip(scale, ends, strict=True)]
            said = rule.between((at[0], sides[0]), (at[1], sides[1]), float(value))
            if said is not None:
                said = value / said if rule.logarithmic else said
                found[field] = round(said) if field.endswith("_bytes") else said
    if all(v is None for v in found.values()):
        return None
    point = _at(low.measurement.point, name, value)
    made = replace(low.measurement, point=point, repetitions_s=(), stragglers=0, optimizer_s=None, **found)
    return Synthetic(made, low.parents | high.parents)


def _values_between(name: str, low: Point, high: Point, steps: int) -> list[int]:
    """Up to ``steps`` values that a plan may have, evenly between those of two points."""
    a, b = getattr(low, name), getattr(high, name)
    if name == "micro_batch":
        return [1 << k for k in range(a.bit_length(), b.bit_length()) if a < 1 << k < b]
    unit = _SEQUENCE_STEP if name == "seq_len" else 1
    every = [
        v for v in range(a - a % unit + unit, b, unit) if not low.sequence_parallel or v % low.tp == 0 or unit == 1
    ]
    if len(every) <= steps:
        return every
    return sorted({every[round((k + 1) * (len(every) - 1) / (steps + 1))] for k in range(steps)})


def _at(point: Point, name: str, value: int) -> Point:
    change: dict[str, Any] = {name: value}
    return replace(point, **change)
