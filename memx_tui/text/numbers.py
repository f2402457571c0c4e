"""Numbers as people read them: three significant figures or so, always with their unit."""

from __future__ import annotations

import math

from memx_engine import gib


def seconds(value: float) -> str:
    """A duration: ``0.812``, ``48.21``, ``1234``; four significant digits, at most three decimals."""
    if not math.isfinite(value):
        return "-"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"


def milliseconds(value_s: float) -> str:
    """A duration of one micro-batch in milliseconds."""
    value = value_s * 1e3
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def rate(value: float) -> str:
    """Tokens per second: ``812``, ``43.5k``, ``1.24M``."""
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if value >= limit:
            scaled = value / divisor
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}"


def count(value: float) -> str:
    """A count: ``1,482``, and ``2.1e9`` from ten million."""
    return f"{value:,.0f}" if value < 1e7 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


def parameters(value: int) -> str:
    """Parameters of a model: ``6.74 B``."""
    return f"{value / 1e9:.2f} B" if value >= 1e9 else f"{value / 1e6:.0f} M"


def size(value_bytes: float) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return f"{gib(value_bytes):.1f}"


def percent(fraction: float) -> str:
    """A fraction as whole percent, rounded up at the limit so that 100.2 % never shows as 100 %."""
    if not math.isfinite(fraction):
        return "-"
    shown = math.ceil(round(fraction * 100, 9)) if fraction > 1 else round(fraction * 100)
    return f"{shown}%"


def change(new: float, old: float) -> str:
    """A relative change with sign, ``+8.9%``; ``same`` when equal to three decimals."""
    if not (math.isfinite(new) and math.isfinite(old)):
        return "-"
    if old == 0:
        return "same" if new == 0 else "-"
    relative = (new - old) / old
    return "same" if abs(relative) < 5e-6 else f"{relative:+.1%}" if abs(relative) >= 0.0005 else f"{relative:+.3%}"


def phi(value: float) -> str:
    """The objective, where differences in the third decimal matter."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.4f}" if value < 10 else f"{value:.3g}"


def spread_gib(variance_bytes2: float) -> float:
    """Memory spread: the standard deviation of the peaks over the GPUs, in GiB."""
    return gib(math.sqrt(max(variance_bytes2, 0.0)))


def risk(probability: float) -> str:
    """A probability that is never quite 0 or 1: ``<1%``, ``12%``, ``>99%``."""
    if probability < 0.01:
        return "<1%"
    return ">99%" if probability > 0.99 else percent(probability)
