"""What a workspace has measured, point by point, as a table that a person can check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memx_engine import Outcome, Truth
from memx_engine import gib as to_gib
from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import Measurement

_RESULTS = {
    Outcome.OOM: "out of memory",
    Outcome.TIMEOUT: "hung",
    Outcome.CRASHED: "crashed",
    Outcome.SKIPPED: "too big",
}


def measurements_text(measurements: Sequence[Measurement], folder: Path, style: Style) -> str:
    """One table per model, conditions and ground; below each, the words of what did not come to a time."""
    blocks: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in measurements:
        blocks.setdefault(_block(m), []).append(m)
    lines = [style.section(f"Measurements in {folder}", f"{len(measurements):,} rows")]
    for (model, conditions, ground), rows in blocks.items():
        lines.extend(["", style.section(f"{model} · {conditions}", ground), *_table(rows, style)])
        devices = dict.fromkeys(_device(m) for m in rows if m.device)
        lines.extend(line for words in devices for line in style.wrap(words, "   ", first=" - "))
        for m in rows:
            if m.outcome is not Outcome.OK and m.detail:
                words = f"{m.point.gpu_type}, {m.point.label}: {_RESULTS[m.outcome]}: {' '.join(m.detail.split())}"
                lines.extend(style.wrap(words, "   ", first=" - "))
    caption = (
        "ms: forward and backward of one micro-batch, medians of the repetitions; +-: half the distance of the "
        "quartiles over the median; MiB, GiB: the allocator's peak with weights and gradients, without optimizer state"
    )
    return "\n".join([*lines, "", *style.wrap(caption, " ")])


def _block(m: Measurement) -> tuple[str, str, str]:
    p = m.point
    simulated = m.truth is Truth.TESTBED
    ground = f"simulated by {m.truth_name}" if simulated else "on CPUs" if m.truth is Truth.CPU else "on GPUs"
    return p.model.name, f"{p.precision.value} · {p.attention.value} attention", ground


def _device(m: Measurement) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in m.versions.items())
    return f"{m.point.gpu_type} on {m.node or '-'}: {m.device}{f' ({versions})' if versions else ''}"


def _table(rows: Sequence[Measurement], style: Style) -> list[str]:
    def cells(cell: Callable[[Measurement], str]) -> list[str]:
        return [cell(m) for m in rows]

    def optional(cell: Callable[[Measurement], str]) -> list[str]:
        """Nothing where no row has the figure, so that the column goes."""
        found = cells(cell)
        return [""] * len(found) if set(found) == {"-"} else found

    # Small stages, on a CPU say, would all read 0.0 GiB.
    small = max((m.peak_allocated_bytes or 0 for m in rows), default=0) < 1 << 30
    kv_heads = {m.point.model.kv_heads for m in rows}

    def size(size_bytes: int | None) -> str:
        if size_bytes is None:
            return "-"
        return f"{to_gib(size_bytes) * 1024:.2f}" if small else f"{to_gib(size_bytes):.3f}"

    return table(
        [
            Column("type", cells(lambda m: m.point.gpu_type), shrink=8),
            Column("stage", cells(_stage)),
            Column("tp", cells(lambda m: str(m.point.tp)), right=True),
            Column("mbs", cells(lambda m: str(m.point.micro_batch)), right=True),
            Column("seq", cells(lambda m: str(m.point.seq_len)), right=True),
            *([Column("kv", cells(lambda m: str(m.point.model.kv_heads)), right=True)] if len(kv_heads) > 1 else []),
            Column("recompute", cells(lambda m: str(m.point.recompute))),
            Column("held", cells(lambda m: str(m.point.in_flight)), right=True),
            Column("result", cells(lambda m: _RESULTS.get(m.outcome, "ok"))),
            Column("fwd ms", optional(lambda m: _ms(m.forward_s)), right=True, drop=2),
            Column("bwd ms", optional(lambda m: _ms(m.backward_s)), right=True, drop=2),
            Column("ms", cells(lambda m: _ms(m.time_s)), right=True),
            Column("+-", cells(lambda m: "-" if m.spread is None else f"{m.spread:.1%}"), right=True),
            Column("n", cells(lambda m: str(len(m.repetitions_s) or "-")), right=True, drop=1),
            Column("MiB" if small else "GiB", cells(lambda m: size(m.peak_allocated_bytes)), right=True),
            Column("reserved", optional(lambda m: size(m.peak_reserved_bytes)), right=True, drop=3),
            Column("node", cells(lambda m: m.node or "-"), shrink=8, drop=4),
        ],
        style,
    )


def _stage(m: Measurement) -> str:
    p = m.point
    return "+".join([*(["emb"] if p.embedding else []), f"{p.layers}L", *(["head"] if p.head else [])])


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else numbers.milliseconds(seconds)
