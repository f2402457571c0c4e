"""The Pareto plot: its frontier, its contract with plotext, and odd data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_tui.glyphs import ASCII
from memx_tui.plotting import draw_pareto, frontier, nice_ticks, step_line

VALUES = st.one_of(
    st.floats(0.1, 100, allow_nan=False), st.sampled_from([1.0, 2.0, 3.0, float("nan"), float("inf"), -float("inf")])
)
POINTS = st.lists(st.tuples(VALUES, VALUES), max_size=40)

SIX_X = np.array([6.4, 6.9, 7.5, 8.2, 9.0, 7.7])
SIX_Y = np.array([91.0, 88.0, 70.0, 60.0, 58.0, 90.0])
SIX_KINDS = np.array([0, 1, 2, 3, 4, 0])


@given(POINTS)
def test_check_12_the_frontier_is_what_no_point_dominates(points: list[tuple[float, float]]) -> None:
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    front = set(frontier(x, y).tolist())
    finite = [i for i in range(len(points)) if np.isfinite(x[i]) and np.isfinite(y[i])]

    def dominated(i: int) -> bool:
        return any(x[j] <= x[i] and y[j] <= y[i] and (x[j] < x[i] or y[j] < y[i]) for j in finite)

    assert {(x[i], y[i]) for i in front} == {(x[i], y[i]) for i in finite if not dominated(i)}
    assert len(front) == len({(x[i], y[i]) for i in front})


@given(POINTS)
def test_check_12_the_step_line_is_axis_aligned_and_never_below_the_frontier(points: list[tuple[float, float]]) -> None:
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    front = frontier(x, y)
    corners = step_line(x[front], y[front])
    for (x0, y0), (x1, y1) in zip(corners, corners[1:], strict=False):
        assert x0 == x1 or y0 == y1
        assert x1 >= x0 and y1 <= y0


@settings(max_examples=40, deadline=None)
@given(POINTS, st.integers(0, 39))
def test_check_12_the_selected_marker_is_on_the_selected_plan(points: list[tuple[float, float]], pick: int) -> None:
    x, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    selected = pick if pick < len(points) else None
    drawing = draw_pareto(x, y, np.zeros(len(points), dtype=np.int64), 50, 12, selected=selected)
    assert len(drawing.lines) == 12 and all(len(line) == 50 for line in drawing.lines)
    shown = [(line.index("@"), n) for n, line in enumerate(drawing.roles) if "@" in line]
    if selected is None or not (np.isfinite(x[selected]) and np.isfinite(y[selected])):
        assert shown == []
        return
    assert len(shown) == 1
    # Points to the left of or above the selected one are never drawn to the right of or below it.
    for line_number, line in enumerate(drawing.roles):
        for column, role in enumerate(line):
            if role in "01234abcde" and line_number < shown[0][1]:
                assert any(y[i] >= y[selected] for i in range(len(points)) if np.isfinite(y[i])), (column, role)


def test_check_12_the_selected_marker_moves_with_the_selection() -> None:
    places = []
    for selected in range(6):
        drawing = draw_pareto(SIX_X, SIX_Y, SIX_KINDS, 60, 14, selected=selected)
        places.append(next((line.index("@"), n) for n, line in enumerate(drawing.roles) if "@" in line))
    by_x = [places[i][0] for i in np.argsort(SIX_X)]
    by_y = [places[i][1] for i in np.argsort(-SIX_Y)]
    assert by_x == sorted(by_x) and len(set(by_x)) == 6
    assert by_y == sorted(by_y)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1.0], [2.0]),
        ([1.0, 2.0], [2.0, 1.0]),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([float("nan"), 1.0], [1.0, 2.0]),
        ([float("inf"), 1.0], [1.0, float("-inf")]),
        ([float("nan")], [float("nan")]),
        ([1e-9, 1e9], [1e9, 1e-9]),
    ],
)
@pytest.mark.parametrize("size", [(60, 14), (16, 5), (4, 2), (0, 0), (200, 50)])
def test_check_12_odd_data_and_sizes_do_not_raise(x: list[float], y: list[float], size: tuple[int, int]) -> None:
    kinds = np.zeros(len(x), dtype=np.int64)
    drawing = draw_pareto(np.array(x), np.array(y), kinds, *size, selected=0 if x else None)
    assert len(drawing.lines) == size[1] == len(drawing.roles)


def test_check_13_the_drawn_text_of_six_points() -> None:
    drawing = draw_pareto(SIX_X, SIX_Y, SIX_KINDS, 60, 14, selected=1, labels=[(3, "A")])
    assert "\n".join(line.rstrip() for line in drawing.lines) == (
        "  ┌────────────────────────────────────────────────────────┐\n"
        "  │  •─────────┐                                           │\n"
        "90┤            ◉───────────┐   •                           │\n"
        "  │                        │                               │\n"
        "80┤                        │                               │\n"
        "  │                        │                               │\n"
        "  │                        │                               │\n"
        "70┤                        ×────────────┐                  │\n"
        "  │                                     │                  │\n"
        "  │                                     │                  │\n"
        "60┤                                     A───────────────┐  │\n"
        "  │                                                     ◇  │\n"
        "  └──────────────┬──────────────────┬───────────────────┬──┘\n"
        "                 7                  8                   9"
    )
    for line, glyph, role in (
        (2, "◉", "@"),
        (2, "•", "0"),
        (7, "×", "c"),
        (10, "A", "M"),
        (11, "◇", "e"),
        (1, "─", "-"),
    ):
        assert drawing.roles[line][drawing.lines[line].index(glyph)] == role
    assert drawing.outside == 0


def test_check_13_the_drawn_text_in_ascii() -> None:
    lines = draw_pareto(SIX_X, SIX_Y, SIX_KINDS, 60, 14, selected=1, labels=[(3, "A")], glyphs=ASCII).lines
    assert all(line.isascii() for line in lines)
    assert lines[2].rstrip() == "90+            @-----------+   .                           |"


def test_many_points_are_thinned_and_the_frontier_is_kept() -> None:
    rng = np.random.default_rng(7)
    x, y = rng.gamma(3, 2, 30_000) + 6, rng.gamma(2, 20, 30_000) + 10
    drawing = draw_pareto(x, y, rng.integers(0, 5, 30_000), 100, 36)
    assert sum(role in "abcde" for line in drawing.roles for role in line) > 0
    assert 0 <= drawing.outside < 6_000


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_lie_inside_and_rise(low: float, span: float, count: int) -> None:
    ticks = nice_ticks(low, low + span, count)
    assert 1 <= len(ticks) <= count + 2
    assert all(b > a for a, b in zip(ticks, ticks[1:], strict=False))
    assert all(low - 1e-6 * span <= t <= low + span + 1e-6 * span for t in ticks)
