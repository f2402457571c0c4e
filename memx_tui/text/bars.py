"""Per-GPU memory as horizontal bars in segments, equal GPUs of a node folded into one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memx_engine import Estimate, GpuEstimate
from memx_tui.text import numbers
from memx_tui.text.style import Style

LEGEND = ("weights, gradients", "optimizer", "activations, logits", "buffers, context, slack", "free")
_FOLDED_ROWS = 24


@dataclass(frozen=True)
class GpuRow:
    """GPUs of one node with the same type, stage and prediction. ``gpu`` stands for all of them."""

    gpu: GpuEstimate
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]

    @property
    def place(self) -> str:
        first, last = self.nodes[0], self.nodes[-1]
        return first if len(self.nodes) == 1 else f"{first}..{last}"


def fold(gpus: Sequence[GpuEstimate], limit: int = _FOLDED_ROWS) -> list[GpuRow]:
    """One row per node, type and stage; beyond ``limit`` rows, nodes with equal GPUs of one stage fold as well."""
    rows = _group(gpus, by_node=True)
    return rows if len(rows) <= limit else _group(gpus, by_node=False)


def _group(gpus: Sequence[GpuEstimate], *, by_node: bool) -> list[GpuRow]:
    groups: dict[tuple[object, ...], list[GpuEstimate]] = {}
    for gpu in gpus:
        key = (gpu.node if by_node else "", gpu.gpu_type, gpu.stage, round(gpu.peak_bytes), gpu.capacity_bytes)
        groups.setdefault(key, []).append(gpu)
    return [
        GpuRow(members[0], tuple(g.rank for g in members), tuple(dict.fromkeys(g.node for g in members)))
        for members in groups.values()
    ]


def segments(gpu: GpuEstimate) -> tuple[float, float, float, float]:
    """Bytes of the four drawn parts; they sum to the peak."""
    b = gpu.breakdown
    return (
        b.weights + b.gradients,
        b.optimizer,
        b.activations + b.logits,
        b.buffers + b.context + b.fragmentation,
    )


def bar(gpu: GpuEstimate, width: int, style: Style, scale: float = 1.0) -> str:
    """A bar of ``width`` characters whose full length is ``scale`` times the capacity, with a tick at capacity.

    What lies beyond the capacity is drawn as ``!``.
    """
    glyphs = style.glyphs
    unit = gpu.capacity_bytes * scale / width
    limit = min(width, round(width / scale))
    cells: list[str] = []
    filled = 0.0
    for part, glyph in zip(segments(gpu), glyphs.segments, strict=False):
        filled += part
        cells.extend(glyph * max(0, min(width, round(filled / unit)) - len(cells)))
    free = glyphs.segments[-1]
    inside = "".join(cells[:limit]).ljust(limit, free)
    beyond = glyphs.over * max(0, len(cells) - limit)
    if gpu.peak_bytes > gpu.capacity_bytes and not beyond:
        beyond = glyphs.over
    return inside + glyphs.tick + beyond


def memory_bars(estimate: Estimate, style: Style) -> list[str]:
    """The bars of a plan, one row per node and stage, worst marked with ``<``; a legend below."""
    rows = fold(estimate.gpus)
    worst = max((row.gpu.used_fraction for row in rows), default=0.0)
    scale = min(2.0, max(1.0, worst))
    heads = [f"{row.place}" for row in rows]
    kinds = [f"{row.gpu.gpu_type} {style.glyphs.times}{len(row.ranks)}" for row in rows]
    narrow = style.width < 100
    stages = [f"{'s' if narrow else 'stage '}{row.gpu.stage}" for row in rows]
    amounts = [f"{numbers.size(r.gpu.peak_bytes)}/{numbers.size(r.gpu.capacity_bytes)} GiB" for r in rows]
    limits = {
        "head": min(7 if style.width < 80 else 10 if narrow else 18, max(map(len, heads))),
        "kind": min(9 if style.width < 80 else 16 if narrow else 24, max(map(len, kinds))),
    }
    side = limits["head"] + limits["kind"] + max(map(len, stages)) + max(map(len, amounts)) + 15
    width = max(8, min(60, style.width - side))
    lines = []
    for row, head, kind, stage, amount in zip(rows, heads, kinds, stages, amounts, strict=True):
        fraction = row.gpu.used_fraction
        word = "OOM" if fraction > 1 else "<" if fraction == worst else ""
        look = "bad" if fraction > 1 else "warn" if fraction > 0.9 else "accent"
        drawn = bar(row.gpu, width, style, scale).ljust(width + 1)
        lines.append(
            f" {_cut(head, limits['head'], style)} {_cut(kind, limits['kind'], style)} "
            f"{stage.ljust(max(map(len, stages)))} {style.paint(drawn, look)} "
            f"{amount.rjust(max(map(len, amounts)))} {numbers.percent(fraction).rjust(5)} {word}".rstrip()
        )
    legend = "   ".join(f"{glyph} {name}" for glyph, name in zip(style.glyphs.segments, LEGEND, strict=True))
    lines.extend(style.paint(line, "dim") for line in style.wrap(legend, " "))
    return lines


def _cut(text: str, width: int, style: Style) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + style.glyphs.ellipsis
