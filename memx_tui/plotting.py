"""The one place that touches plotext: points and a frontier become lines of text, without colour.

plotext 5 keeps one global figure, so it is cleared before each drawing and used from the interface thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_tui.glyphs import UNICODE, Glyphs, to_ascii

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_POINTS = 2000
SHOWN_QUANTILE = 0.9
"""The slowest tenth of the plans is left outside the plot unless it is on the frontier or chosen."""
MIN_WIDTH, MIN_HEIGHT = 16, 5


@dataclass(frozen=True)
class Drawing:
    """Lines of equal width and, cell by cell, what is drawn there.

    Attributes:
        roles: Same shape as ``lines``: a blank, or one of ``0``-``4`` (a point, its recompute class), ``a``-``e`` (a
            point on the frontier), ``-`` (the frontier's line), ``M`` (a marked plan's letter), ``@`` (the selected).
        outside: Points beyond the edges, so not drawn.
    """

    lines: tuple[str, ...]
    roles: tuple[str, ...]
    outside: int = 0


def frontier(x: Floats, y: Floats) -> Ints:
    """Indices of the points that no other dominates (less is better in both), by x; of equal points the first.

    Points that are not finite are never on it.
    """
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    order = finite[np.lexsort((finite, y[finite], x[finite]))]
    best = np.inf
    out = []
    for index in order:
        if y[index] < best:
            best = y[index]
            out.append(index)
    return np.array(out, dtype=np.int64)


def step_line(x: Floats, y: Floats) -> list[tuple[float, float]]:
    """Corners of the axis-aligned line through frontier points: right to the next point's x, then down to it."""
    corners: list[tuple[float, float]] = []
    for i, (px, py) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        if i:
            corners.append((px, corners[-1][1]))
        corners.append((px, py))
    return corners


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """At most ``count`` + 1 round values in [low, high]."""
    span = high - low
    if not np.isfinite(span) or span <= 0 or count < 1:
        return [low]
    raw = span / count
    power = 10.0 ** np.floor(np.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = np.ceil(low / step - 1e-9)
    ticks = [float((first + i) * step) for i in range(count + 2)]
    return [t for t in ticks if t <= high + 1e-9 * span] or [low]


def draw_pareto(
    x: Floats,
    y: Floats,
    kinds: Ints,
    width: int,
    height: int,
    *,
    selected: int | None = None,
    labels: Sequence[tuple[int, str]] = (),
    glyphs: Glyphs = UNICODE,
) -> Drawing:
    """Draw points, their frontier as a step line, labelled points and the selected one.

    Args:
        x, y: Values to be small; points that are not finite are skipped.
        kinds: Index of each point's glyph in ``glyphs.recompute``.
        width, height: Cells, frame and tick labels included.
        selected: Index of the chosen point.
        labels: Points that carry a letter, as (index, letter).
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return _blank("", width, height)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return _blank("no plans to plot", width, height)
    front = frontier(x, y)
    special = [i for i in [selected, *(i for i, _ in labels)] if i is not None and finite[i]]
    x_low, x_high = _range(x[finite], x[front], x[special])
    y_low, y_high = _range(y[finite], y[front], y[special])
    inside = finite & (x <= x_high) & (y <= y_high)
    shown = _thin(x, y, np.flatnonzero(inside), front, (x_low, x_high, y_low, y_high), width, height)

    import plotext as plt

    plt.clear_figure()
    plt.limit_size(False, False)
    plt.plot_size(width, height)
    plt.theme("clear")
    plt.xlim(x_low, x_high)
    plt.ylim(y_low, y_high)
    for axis, (low, high), count in (("x", (x_low, x_high), max(2, width // 12)), ("y", (y_low, y_high), height // 3)):
        # One tick alone tells no scale.
        ticks = next(ticks for n in range(4) if len(ticks := nice_ticks(low, high, max(1, count) + n)) > 1 or n == 3)
        (plt.xticks if axis == "x" else plt.yticks)(ticks, _tick_labels(ticks))

    def points(indices: Ints, role: str) -> None:
        if len(indices):
            plt.scatter(x[indices].tolist(), y[indices].tolist(), marker=_stand_in(role))

    for kind in range(len(glyphs.recompute)):
        points(shown[kinds[shown] == kind], str(kind))
    _draw_steps(plt, step_line(x[front], y[front]), (x_low, x_high, y_low, y_high), width, height)
    for kind in range(len(glyphs.recompute)):
        points(front[kinds[front] == kind], "abcde"[kind])
    for index, letter in labels:
        points(np.array([index] if finite[index] else [], dtype=np.int64), letter)
    if selected is not None and finite[selected]:
        points(np.array([selected]), "@")
    text = plt.uncolorize(plt.build())
    plt.clear_figure()
    return _read_back(text, width, height, int(finite.sum() - inside.sum()), glyphs)


def draw_line(x: Sequence[float], y: Sequence[float], width: int, height: int, glyphs: Glyphs = UNICODE) -> list[str]:
    """A small plot of measured points over their least-squares straight line, as ``height`` lines of ``width`` cells.

    The vertical axis starts at 0, so that a metric that hardly moves looks like one.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT or len(x) < 2:
        return list(_blank("", width, height).lines)
    import plotext as plt

    slope, start = np.polyfit(x, y, 1)
    x_low, x_high, y_high = min(x), max(x), max(y) * 1.1 or 1.0
    pad = 0.05 * (x_high - x_low) or 1.0
    plt.clear_figure()
    plt.limit_size(False, False)
    plt.plot_size(width, height)
    plt.theme("clear")
    plt.xlim(x_low - pad, x_high + pad)
    plt.ylim(0.0, y_high)
    x_ticks, y_ticks = nice_ticks(x_low, x_high, max(2, width // 10)), nice_ticks(0.0, y_high, max(1, height // 3))
    plt.xticks(x_ticks, _tick_labels(x_ticks))
    plt.yticks(y_ticks, _tick_labels(y_ticks))
    along = np.linspace(x_low, x_high, width)
    on = start + slope * along
    inside = (on >= 0.0) & (on <= y_high)
    plt.scatter(along[inside].tolist(), on[inside].tolist(), marker=_stand_in("-"))
    plt.scatter(list(x), list(y), marker=_stand_in("@"))
    text = plt.uncolorize(plt.build())
    plt.clear_figure()
    return list(_read_back(text, width, height, 0, glyphs).lines)


def _stand_in(role: str) -> str:
    """A private character for a role, so that what plotext drew can be told from its frame and labels."""
    return chr(0xE000 + ord(role))


def _blank(note: str, width: int, height: int) -> Drawing:
    lines = [" " * width] * max(0, height)
    if lines:
        lines[height // 2] = note.center(width)[:width]
    return Drawing(tuple(lines), (" " * width,) * len(lines))


def _range(values: Floats, front: Floats, special: Floats) -> tuple[float, float]:
    """Axis limits: all but the largest tenth, and always the frontier and the chosen points; never empty."""
    low = float(values.min())
    high = float(max(np.quantile(values, SHOWN_QUANTILE), front.max(), special.max(initial=-np.inf)))
    pad = 0.03 * (high - low) or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def _thin(
    x: Floats, y: Floats, indices: Ints, front: Ints, limits: tuple[float, float, float, float], width: int, height: int
) -> Ints:
    """At most one point per cell, the best ranked; at most MAX_POINTS beside the frontier."""
    x_low, x_high, y_low, y_high = limits
    column = ((x[indices] - x_low) / (x_high - x_low) * width).astype(np.int64)
    line = ((y[indices] - y_low) / (y_high - y_low) * height).astype(np.int64)
    _, first = np.unique(line * (width + 1) + column, return_index=True)
    kept: Ints = indices[np.sort(first)]
    return kept[:MAX_POINTS]


def _draw_steps(
    plt: object,
    corners: list[tuple[float, float]],
    limits: tuple[float, float, float, float],
    width: int,
    height: int,
) -> None:
    """The step line cell by cell, so that horizontal and vertical parts have their own characters."""
    x_low, x_high, y_low, y_high = limits
    flat: list[tuple[float, float]] = []
    upright: list[tuple[float, float]] = []
    for (x0, y0), (x1, y1) in zip(corners, corners[1:], strict=False):
        if y0 == y1:
            n = 2 + int(2 * width * abs(x1 - x0) / (x_high - x_low))
            flat += [(float(v), y0) for v in np.linspace(x0, x1, n)]
        else:
            n = 2 + int(2 * height * abs(y1 - y0) / (y_high - y_low))
            upright += [(x0, float(v)) for v in np.linspace(y0, y1, n)]
    bends = [b for a, b, c in zip(corners, corners[1:], corners[2:], strict=False) if a[1] == b[1] and b[0] == c[0]]
    scatter = plt.scatter  # type: ignore[attr-defined]  # plotext has no types
    for points, marker in ((upright, "|"), (flat, "-"), (bends, "+")):
        if points:
            scatter([p[0] for p in points], [p[1] for p in points], marker=_stand_in(marker))


def _tick_labels(ticks: list[float]) -> list[str]:
    """Ticks with just the digits that tell them apart."""
    for digits in range(0, 6):
        out = [f"{t:.{digits}f}" for t in ticks]
        if all(abs(float(text) - t) <= 1e-6 * max(1.0, abs(t)) for text, t in zip(out, ticks, strict=True)):
            return out
    return [f"{t:.4g}" for t in ticks]


def _read_back(text: str, width: int, height: int, outside: int, glyphs: Glyphs) -> Drawing:
    """Put glyphs for stand-ins; raises ValueError where the frame is missing, so that a broken plot is seen."""
    raw = [line[:width].ljust(width) for line in text.split("\n")[:height]]
    raw += [" " * width] * (height - len(raw))
    if "┌" not in raw[0]:
        raise ValueError("plotext drew no frame; is its version 5?")
    shown = {"@": glyphs.selected, "|": glyphs.vertical, "-": glyphs.horizontal, "+": glyphs.corner}
    for kind, glyph in enumerate(glyphs.recompute):
        shown[str(kind)] = shown["abcde"[kind]] = glyph
    lines, roles = [], []
    for line in raw:
        drawn = [chr(ord(char) - 0xE000) if 0xE000 <= ord(char) < 0xE080 else "" for char in line]
        plain = to_ascii(line) if glyphs.selected.isascii() else line
        lines.append("".join(shown.get(d, d) if d else char for d, char in zip(drawn, plain, strict=True)))
        roles.append("".join("-" if d in ("|", "+") else "M" if "A" <= d <= "D" else d or " " for d in drawn))
    return Drawing(tuple(lines), tuple(roles), outside)
