"""How metrics follow one numeric parameter: straight, straight in two pieces, a power, constant, or none of these.

The MemX paper's section 3.2.2 and table 2: what is nearly a straight line may be interpolated, what is not must be cut,
fitted by a power law, or left alone. The verdict is a claim about the range that was measured, never beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from memx_engine.inputs.job import Attention
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.profile.impact import Measured, amplitude, peak_bytes

LINEAR_R2 = 0.95
CONSTANT_AMPLITUDE = 0.02
INTERPOLATION_ERROR = 0.05
"""Most that an interior point may be off when its neighbours stand for it; between worse ones nothing is filled in."""

NUMERIC = ("layers", "micro_batch", "in_flight", "seq_len")
"""Fields of a point that are sizes."""

_SUPERLINEAR = 1.0
_STEEPER = 1.2
"""Memory per token may grow so much along the sequence (allocator rounding) before the attention kernel is doubted."""


class Verdict(StrEnum):
    """What a line is, in the paper's words."""

    LINEAR = "strong linear"
    PIECEWISE = "near-linear"
    POWER = "superlinear"
    CONSTANT = "constant"
    IRREGULAR = "irregular"


DONE = {
    Verdict.LINEAR: "large steps between points",
    Verdict.PIECEWISE: "split, small steps in each part",
    Verdict.POWER: "power law, small steps",
    Verdict.CONSTANT: "fixed at its default",
    Verdict.IRREGULAR: "not interpolated",
}


@dataclass(frozen=True)
class Trend:
    """One metric over one numeric parameter on one GPU type.

    Attributes:
        metric: ``memory`` (bytes), ``time`` (seconds), or ``throughput`` (tokens per second over the parameter's log2).
        values: (value of the parameter, metric), ascending, at least three.
        r_squared: Of one straight line. amplitude: (max - min) / mean.
        exponent: Slope of the logarithms; None where a value is not positive.
        split: Where the line breaks in two straight ones; None unless near-linear.
        worst: Most that an interior point is off when the verdict's rule stands for it from its neighbours.
    """

    gpu_type: str
    parameter: str
    metric: str
    values: tuple[tuple[float, float], ...]
    verdict: Verdict
    r_squared: float
    amplitude: float
    exponent: float | None
    split: float | None
    worst: float

    @property
    def points(self) -> int:
        return len(self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether the line runs over log2 of the parameter."""
        return self.metric == "throughput"

    @property
    def done(self) -> str:
        """What interpolation makes of it, in words."""
        if self.verdict is Verdict.PIECEWISE and self.split is not None:
            return f"split at {self.split:g}, small steps in each part"
        if self.verdict is Verdict.POWER and self.exponent is not None:
            return f"power law x^{self.exponent:.2f}, small steps"
        return DONE[self.verdict]

    def between(self, low: tuple[float, float], high: tuple[float, float], value: float) -> float | None:
        """The metric at ``value`` between two measured points by the verdict's rule; None where it allows none.

        An interval across the split of a near-linear trend is left alone.
        """
        if self.verdict is Verdict.IRREGULAR:
            return None
        if self.split is not None and low[0] < self.split < high[0]:
            return None
        if self.verdict is Verdict.POWER:
            return _by_power(low, high, value)
        return _by_line(low, high, value, self.logarithmic)


def r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """Share of the variance of ``y`` that a straight line over ``x`` explains; 1 where ``y`` does not vary."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    sxx = sum((a - mean_x) ** 2 for a in x)
    syy = sum((b - mean_y) ** 2 for b in y)
    sxy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    if syy <= 0.0 or sxx <= 0.0:
        return 1.0
    return sxy * sxy / (sxx * syy)


def log_slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Least-squares slope of log y over log x; None where a value is not positive or x does not vary."""
    if min(*x, *y) <= 0.0:
        return None
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    spread = sum((v - mean_a) ** 2 for v in a)
    if spread <= 0.0:
        return None
    return sum((v - mean_a) * (w - mean_b) for v, w in zip(a, b, strict=True)) / spread


def judge_trend(gpu_type: str, parameter: str, metric: str, values: Sequence[tuple[float, float]]) -> Trend:
    """The verdict on at least three (parameter, metric) pairs.

    Constant below :data:`CONSTANT_AMPLITUDE`; strong linear above :data:`LINEAR_R2`; else near-linear where two
    straight pieces of at least three points each are above it; else superlinear where the logarithms' slope is above 1
    and straight; else irregular.
    """
    if len(values) < 3:
        raise ValueError("a trend needs three points")
    ordered = tuple(sorted(values))
    logarithmic = metric == "throughput"
    x = [math.log2(a) if logarithmic else a for a, _ in ordered]
    y = [b for _, b in ordered]
    straight, width, exponent = r_squared(x, y), amplitude(y) or 0.0, log_slope([a for a, _ in ordered], y)
    split: float | None = None
    if width < CONSTANT_AMPLITUDE:
        verdict = Verdict.CONSTANT
    elif straight > LINEAR_R2:
        verdict = Verdict.LINEAR
    elif (at := _best_split(x, y)) is not None:
        verdict, split = Verdict.PIECEWISE, ordered[at][0]
    elif exponent is not None and exponent > _SUPERLINEAR and _log_r_squared(ordered) > LINEAR_R2:
        verdict = Verdict.POWER
    else:
        verdict = Verdict.IRREGULAR
    found = Trend(gpu_type, parameter, metric, ordered, verdict, straight, width, exponent, split, 0.0)
    return replace(found, worst=_worst(found))


def _best_split(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Index of the point that two straight pieces share, both above the threshold; the best by the worse piece."""
    best: tuple[float, int] | None = None
    for at in range(2, len(x) - 2):
        worse = min(r_squared(x[: at + 1], y[: at + 1]), r_squared(x[at:], y[at:]))
        if worse > LINEAR_R2 and (best is None or worse > best[0]):
            best = (worse, at)
    return best[1] if best else None


def _log_r_squared(values: Sequence[tuple[float, float]]) -> float:
    return r_squared([math.log(a) for a, _ in values], [math.log(b) for _, b in values])


def _by_line(low: tuple[float, float], high: tuple[float, float], value: float, logarithmic: bool) -> float:
    place: Callable[[float], float] = math.log2 if logarithmic else float
    a, b, x = place(low[0]), place(high[0]), place(value)
    return low[1] + (high[1] - low[1]) * (x - a) / (b - a)


def _by_power(low: tuple[float, float], high: tuple[float, float], value: float) -> float | None:
    if min(*low, *high, value) <= 0.0:
        return None
    share = math.log(value / low[0]) / math.log(high[0] / low[0])
    return float(low[1] * (high[1] / low[1]) ** share)


def _worst(trend: Trend) -> float:
    worst = 0.0
    for low, middle, high in zip(trend.values, trend.values[1:], trend.values[2:], strict=False):
        guess = trend.between(low, high, middle[0])
        if guess is not None and middle[1] > 0:
            worst = max(worst, abs(guess / middle[1] - 1.0))
    return worst


def trends(gpu_type: str, dense: Mapping[str, Sequence[tuple[int, Point]]], measured: Measured) -> tuple[Trend, ...]:
    """One line per numeric parameter and metric with at least three measured points.

    Micro-batches also count by their logarithm against throughput (tokens per second), as in the paper's table 2.
    """
    out: list[Trend] = []
    for name, pairs in dense.items():
        found = [(v, p, m) for v, p in pairs if (m := measured(p)) is not None and m.outcome is Outcome.OK]
        lines: dict[str, list[tuple[float, float]]] = {
            "memory": [(float(v), float(peak)) for v, _, m in found if (peak := peak_bytes(m)) is not None],
            "time": [(float(v), m.time_s) for v, _, m in found if m.time_s],
        }
        if name == "micro_batch":
            lines["throughput"] = [(float(v), p.micro_batch * p.seq_len / m.time_s) for v, p, m in found if m.time_s]
        out.extend(judge_trend(gpu_type, name, metric, line) for metric, line in lines.items() if len(line) >= 3)
    return tuple(out)


def attention_doubt(found: Sequence[Trend], attention: Attention) -> str:
    """A warning where memory grows faster than the sequence although attention is taken to be fused; else empty.

    Fused attention keeps bytes in proportion to the tokens, so memory per added token is the same everywhere; a kernel
    that keeps its scores adds more with every token.
    """
    if attention is not Attention.FUSED:
        return ""
    for trend in found:
        if trend.parameter != "seq_len" or trend.metric != "memory":
            continue
        (a, at_a), (b, at_b) = trend.values[0], trend.values[1]
        (y, at_y), (z, at_z) = trend.values[-2], trend.values[-1]
        first, last = (at_b - at_a) / (b - a), (at_z - at_y) / (z - y)
        if first > 0 and last / first > _STEEPER:
            return (
                f"{trend.gpu_type}: memory per added token grows {last / first:.1f}-fold from {a:g} to {z:g} tokens, "
                "which fused attention cannot do: its kernel seems to keep the scores; --attention unfused says so"
            )
    return ""


def measured_trends(measurements: Sequence[Measurement]) -> tuple[Trend, ...]:
    """The trends along every line of stored measurements that differ in one numeric parameter alone.

    Of each GPU type, parameter and metric the line with the most points counts (of equal ones the first by key), so
    that what was measured for the linearity check is found again without its design.
    """
    best: dict[tuple[str, str], tuple[int, str]] = {}
    found: dict[tuple[str, str], dict[int, Point]] = {}
    by_key = {m.point.key: m for m in reversed(measurements) if m.outcome is Outcome.OK}
    for name in NUMERIC:
        lines: dict[str, dict[int, Point]] = {}
        for m in by_key.values():
            same: dict[str, Any] = {name: 1}
            lines.setdefault(replace(m.point, **same).key, {})[getattr(m.point, name)] = m.point
        for rest, line in lines.items():
            where = (next(iter(line.values())).gpu_type, name)
            score = (-len(line), rest)
            if len(line) >= 3 and (where not in best or score < best[where]):
                best[where], found[where] = score, line
    out: list[Trend] = []
    for (gpu_type, name), line in sorted(found.items()):
        out.extend(trends(gpu_type, {name: sorted(line.items(), key=_value)}, lambda point: by_key.get(point.key)))
    return tuple(out)


def _value(item: tuple[int, Point]) -> int:
    return item[0]
