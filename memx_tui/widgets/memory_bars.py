"""Memory of every GPU as bars in segments: equal ranks of a node folded into one row, capacity ticked, worst marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from memx_tui.glyphs import UNICODE, Glyphs
from memx_tui.widgets.chrome import fit

if TYPE_CHECKING:
    from memx_engine import GpuEstimate, MemoryBreakdown

_GIB = float(1 << 30)
SEGMENTS = ("weights", "optimizer", "activations", "other")
OVERFLOW_CELLS = 3
"""Cells right of the capacity tick, where a bar that does not fit ends."""


def segments_of(breakdown: MemoryBreakdown) -> tuple[float, float, float, float]:
    """Bytes of weights with gradients, optimizer, activations with logits, and the rest; they sum to the peak."""
    b = breakdown
    return (
        b.weights + b.gradients,
        b.optimizer,
        b.activations + b.logits,
        b.buffers + b.context + b.fragmentation,
    )


@dataclass(frozen=True)
class BarRow:
    """One row: a GPU, or the GPUs of one node that hold the same.

    ``segments``: Bytes of each of :data:`SEGMENTS`.
    """

    node: str
    gpu_type: str
    ranks: tuple[int, ...]
    stage: int
    segments: tuple[float, ...]
    capacity_bytes: int
    worst: bool

    @property
    def peak_bytes(self) -> float:
        return sum(self.segments)

    @property
    def fraction(self) -> float:
        return self.peak_bytes / self.capacity_bytes if self.capacity_bytes > 0 else float("inf")


def rows_of(gpus: Sequence[GpuEstimate], *, fold: bool) -> tuple[BarRow, ...]:
    """Rows in the order of the ranks; with ``fold`` neighbours of one node that hold the same are one row."""
    worst = max((gpu.used_fraction for gpu in gpus), default=0.0)
    rows: list[BarRow] = []
    groups: list[list[GpuEstimate]] = []
    for gpu in sorted(gpus, key=lambda g: g.rank):
        last = groups[-1][-1] if groups else None
        same = last is not None and (last.node, last.gpu_type, last.stage, last.capacity_bytes, last.breakdown) == (
            gpu.node,
            gpu.gpu_type,
            gpu.stage,
            gpu.capacity_bytes,
            gpu.breakdown,
        )
        if fold and same:
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    for group in groups:
        first = group[0]
        rows.append(
            BarRow(
                first.node,
                first.gpu_type,
                tuple(gpu.rank for gpu in group),
                first.stage,
                segments_of(first.breakdown),
                first.capacity_bytes,
                first.used_fraction >= worst * (1 - 1e-9),
            )
        )
    return tuple(rows)


def split_cells(values: Sequence[float], scale_bytes: float, cells: int) -> list[int]:
    """Cells of each segment so that their sum is the rounded total; ``scale_bytes`` fills ``cells``."""
    if scale_bytes <= 0:
        return [0] * len(values)
    edges = [0]
    total = 0.0
    for value in values:
        total += value
        edges.append(round(total / scale_bytes * cells))
    return [max(0, b - a) for a, b in zip(edges, edges[1:], strict=False)]


def bar_cells(row: BarRow, cells: int, glyphs: Glyphs, overflow: int = OVERFLOW_CELLS) -> list[tuple[str, str]]:
    """A bar of ``cells`` cells as (text, role): role is a segment name, ``free``, ``over`` or ``tick``.

    The tick stands where the capacity ends; what lies right of it, at most ``overflow`` cells, does not fit.
    """
    inner = max(1, cells - overflow - 1)
    parts = split_cells(row.segments, float(row.capacity_bytes), inner)
    drawn: list[tuple[str, str]] = []
    used = 0
    for name, count in zip(SEGMENTS, parts, strict=True):
        take = min(count, inner - used)
        if take > 0:
            drawn.append((getattr(glyphs, name) * take, name))
        used += max(0, take)
    drawn.append((glyphs.free * (inner - used), "free"))
    drawn.append((glyphs.tick, "tick"))
    over = 0
    if row.fraction > 1:
        over = min(overflow, max(1, sum(parts) - inner))
        drawn.append((glyphs.over * over, "over"))
    drawn.append((" " * (overflow - over), "tick"))
    return [(text, role) for text, role in drawn if text]


def amount(row: BarRow) -> str:
    """``36.5/40.0``: peak and capacity in GiB."""
    return f"{row.peak_bytes / _GIB:.1f}/{row.capacity_bytes / _GIB:.1f}"


class MemoryBars(ScrollView, can_focus=True):
    """Bars of the selected plan."""

    DEFAULT_CSS = """
    MemoryBars { height: 1fr; overflow-x: hidden; background: $background; scrollbar-size-vertical: 1; }
    MemoryBars > .memory--label { color: $foreground; }
    MemoryBars > .memory--dim { color: $text-muted; }
    MemoryBars > .memory--weights { color: $memory-weights; }
    MemoryBars > .memory--optimizer { color: $memory-optimizer; }
    MemoryBars > .memory--activations { color: $memory-activations; }
    MemoryBars > .memory--other { color: $memory-other; }
    MemoryBars > .memory--free { color: $memory-free; }
    MemoryBars > .memory--tick { color: $foreground; }
    MemoryBars > .memory--over { color: $memory-over; text-style: bold; }
    MemoryBars > .memory--worst { color: $warning; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "memory--label",
        "memory--dim",
        "memory--weights",
        "memory--optimizer",
        "memory--activations",
        "memory--other",
        "memory--free",
        "memory--tick",
        "memory--over",
        "memory--worst",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", id="memory.up", show=False, tooltip="Scroll up"),
        Binding("down,j", "scroll_down", "Down", id="memory.down", show=False, tooltip="Scroll down"),
        Binding("pageup,ctrl+u", "page_up", "Page up", id="memory.page-up", show=False, tooltip="One page up"),
        Binding(
            "pagedown,ctrl+d", "page_down", "Page down", id="memory.page-down", show=False, tooltip="One page down"
        ),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.glyphs = glyphs
        self.gpus: tuple[GpuEstimate, ...] = ()
        self.rows: tuple[BarRow, ...] = ()
        self.unfolded = False
        self.note = ""

    def show(self, gpus: Sequence[GpuEstimate], note: str = "") -> None:
        """Show the memory of these GPUs; ``note`` is said when there are none."""
        self.gpus, self.note = tuple(gpus), note
        self._rebuild()

    def toggle_fold(self) -> None:
        """Between one row per node and one row per GPU."""
        self.unfolded = not self.unfolded
        self._rebuild()
        self.scroll_to(y=0, animate=False)

    def _rebuild(self) -> None:
        self.rows = rows_of(self.gpus, fold=not self.unfolded)
        self.virtual_size = Size(self.size.width, len(self.rows))
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows))

    def legend(self) -> list[Text]:
        """The meaning of the segments, longest version first."""
        names = [
            ("weights", "weights+grads", "weights"),
            ("optimizer", "optimizer", "optim"),
            ("activations", "activations", "act"),
            ("other", "context, buffers", "other"),
            ("free", "free", "free"),
        ]
        out = []
        for which in (1, 2):
            text = Text(no_wrap=True)
            for name in names:
                style = self.get_component_rich_style(f"memory--{name[0]}", partial=True)
                text.append(("  " if which == 1 else " ") if text else "")
                text.append(getattr(self.glyphs, name[0]), style).append(f" {name[which]}")
            out.append(text)
        return out

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        index = y + self.scroll_offset.y
        if index < len(self.rows):
            return self._row(self.rows[index], width)
        if not self.rows and y == 0 and self.note:
            text = set_cell_size(fit(f"  {self.note}", width), width)
            return Strip([Segment(text, self._style("dim"))], width)
        return Strip.blank(width, self.rich_style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"memory--{name}")

    def _label_cells(self, width: int) -> tuple[int, int, int]:
        """Cells of node name, GPU type and count or rank, for the rows at hand."""
        node = max((cell_len(row.node) for row in self.rows), default=4)
        kind = max((cell_len(row.gpu_type) for row in self.rows), default=4)
        count = max((cell_len(self._count(row)) for row in self.rows), default=2)
        share = max(8, width // 6)
        if width < 60:
            return min(node, 10), 0, count
        return min(node, share), min(kind, share), count

    def _count(self, row: BarRow) -> str:
        return f"x{len(row.ranks)}" if not self.unfolded else f"r{row.ranks[0]}"

    def _row(self, row: BarRow, width: int) -> Strip:
        node, kind, count = self._label_cells(width)
        label, dim = self._style("label"), self._style("dim")
        segments = [Segment(" " + set_cell_size(fit(row.node, node), node) + " ", label)]
        if kind:
            segments.append(Segment(set_cell_size(fit(row.gpu_type, kind), kind) + " ", dim))
        segments.append(Segment(self._count(row).rjust(count) + " ", dim))
        over = row.fraction > 1
        numbers = f" {amount(row):>11} {row.fraction * 100:4.0f}%"
        flag = " OOM" if over else f" {self.glyphs.worst}  " if row.worst else "    "
        tail = self._place(row) if width >= 100 else f"s{row.stage:<2} " if width >= 70 else ""
        left = sum(cell_len(s.text) for s in segments)
        cells = width - left - len(numbers) - cell_len(flag) - len(tail) - 1
        if cells >= 8:
            segments += [Segment(text, self._style(role)) for text, role in bar_cells(row, cells, self.glyphs)]
        style = self._style("over" if over else "worst" if row.worst else "label")
        segments += [Segment(numbers, style), Segment(flag, style), Segment(tail, dim)]
        return Strip(segments).adjust_cell_length(width, label)

    def _place(self, row: BarRow) -> str:
        ranks = row.ranks
        which = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        return f"  stage {row.stage:<3} ranks {which:<9}"
