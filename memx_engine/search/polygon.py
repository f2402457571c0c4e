"""Least value of a concave increasing function over a region known by its supporting lines."""

from __future__ import annotations

Vertex = tuple[float, float]


def clip(chain: list[Vertex], a: float, b: float, least: float, far: Vertex) -> list[Vertex]:
    """Cut ``a·x + b·y >= least`` into a region open to the upper right; a, b >= 0, not both zero.

    ``chain`` lists the lower-left boundary's vertices, x increasing and y decreasing; the boundary goes straight up
    from the first and straight right from the last. No plan lies above or right of ``far``: a nearly level or nearly
    upright line is cut off there, where its end would be so far away that rounding swallows the rest.
    """
    outside = [a * x + b * y < least for x, y in chain]
    if not any(outside):
        return chain
    start = outside.index(True)
    stop = len(chain) - outside[::-1].index(True)
    cut: list[Vertex] = chain[:start]
    if start > 0:
        cut.append(_crossing(chain[start - 1], chain[start], a, b, least))
    elif b > 0:
        x = chain[0][0]
        y = (least - a * x) / b
        cut.append((x, y) if y <= far[1] or a == 0 else ((least - b * far[1]) / a, far[1]))
    if stop < len(chain):
        cut.append(_crossing(chain[stop], chain[stop - 1], a, b, least))
    elif a > 0:
        y = chain[-1][1]
        x = (least - b * y) / a
        cut.append((x, y) if x <= far[0] or b == 0 else (far[0], (least - a * far[0]) / b))
    return cut + chain[stop:]


def _crossing(inside: Vertex, outside: Vertex, a: float, b: float, least: float) -> Vertex:
    (x0, y0), (x1, y1) = inside, outside
    from_inside = a * x0 + b * y0 - least
    share = from_inside / (from_inside - (a * x1 + b * y1 - least))
    return x0 + share * (x1 - x0), y0 + share * (y1 - y0)
