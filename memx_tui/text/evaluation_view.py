"""The accuracy table as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from memx_tui.text.style import Style

_FIGURES = (
    ("time MAPE", "time_mape_pct", "%"),
    ("median", "time_median_pct", "%"),
    ("max", "time_max_pct", "%"),
    ("within 20 %", "within_20_pct", "%"),
    ("beyond 50 %", "beyond_50_pct", "%"),
    ("Spearman", "spearman_time", ""),
    ("Kendall", "kendall_time", ""),
    ("memory MAPE", "memory_mape_pct", "%"),
    ("memory median", "memory_median_pct", "%"),
    ("95 % interval covers", "coverage_95_pct", "%"),
    ("its half width", "interval_width_pct", "%"),
)

_MOST = 10
"""Values of a dimension that are listed one by one."""


def accuracy_text(document: dict[str, Any], style: Style) -> str:
    """One column per method, one line per figure; skipped rows by reason."""
    rows = document["rows"]
    first = rows[0]
    judged = f"{first['n']} rows ({first['n_time']} with time, {first['n_memory']} with memory)"
    if document["provenance"] == "simulated":
        seeds = len(document["seeds"])
        each = f" {style.glyphs.times} {seeds} seeds" if seeds > 1 else ""
        judged = f"{first['n']} plans{each} of {document['model']} on {document['cluster']}"
    trained = f", learned from {document['trained_on']}" if document["trained_on"] else ""
    lines = [
        style.paint(f"Accuracy on {document['truth']}: {judged}{trained}", "bold"),
        f"{document['provenance']}; means over seeds {', '.join(map(str, document['seeds']))}",
        "",
    ]
    noise = document.get("noise")
    if noise is not None:
        judged_on = f"on {document['device']}; " if document["device"] else ""
        lines.insert(
            2,
            f"{judged_on}two measurements of one point differ by {noise['time_pct']:.1f} % in time "
            f"({noise['repeats']} of each judged point)",
        )
    types = sorted({name for row in rows for name in row["memory_by_type_pct"] or {}})
    labels = [*(label for label, _, _ in _FIGURES), *(f"memory {name}" for name in types), "out of memory, rightly"]
    width = max(map(len, labels)) + 2
    lines.append(" " * width + "".join(f"{row['method']:>18}" for row in rows))
    for label, key, unit in _FIGURES:
        if any(row[key] is not None for row in rows):
            lines.append(f"{label:<{width}}" + "".join(f"{_figure(row[key], unit):>18}" for row in rows))
    for name in types:
        values = [(row["memory_by_type_pct"] or {}).get(name) for row in rows]
        lines.append(f"{'memory ' + name:<{width}}" + "".join(f"{_figure(v, '%'):>18}" for v in values))
    if any(row["oom"] for row in rows):
        words = {"tp": "rightly", "fp": "wrongly", "fn": "missed"}
        for key, word in words.items():
            values = [f"{row['oom'][key]:.1f}" if row["oom"] else "-" for row in rows]
            lines.append(f"{'out of memory, ' + word:<{width}}" + "".join(f"{v:>18}" for v in values))
    lines += _disturbed(document, style, width) + _by_dimension(rows)
    reasons = Counter(item["reason"] for item in document["skipped"])
    if reasons:
        lines += ["", f"{reasons.total()} rows cannot be judged:"]
        lines += [f"  {count} {style.glyphs.times} {reason}" for reason, count in reasons.most_common()]
    return style.plain("\n".join(lines))


def _disturbed(document: dict[str, Any], style: Style, width: int) -> list[str]:
    """The runs that took far longer than they should, and the figures without them; the table above has them all."""
    named = document.get("disturbed")
    if not named:
        return []
    lines = ["", f"{len(named)} runs look disturbed; they count above. Without them:"]
    for label, key in (("time MAPE", "time_mape_pct"), ("max", "time_max_pct")):
        values = [(row["without_disturbed"] or {}).get(key) for row in document["rows"]]
        lines.append(f"{label:<{width}}" + "".join(f"{_figure(value, '%'):>18}" for value in values))
    return lines + [f"  {item['row']}: {item['times_longer']:.1f}{style.glyphs.times} as long" for item in named]


def _by_dimension(rows: list[dict[str, Any]]) -> list[str]:
    """Mean errors of the last method, value by value, of the dimensions with few values."""
    found = {name: values for name, values in (rows[-1].get("by_dimension") or {}).items() if len(values) <= _MOST}
    if not found:
        return []
    lines = ["", f"{rows[-1]['method']} by dimension: time MAPE, memory MAPE, rows"]
    width = max(len(f"  {name} {value}") for name, values in found.items() for value in values) + 2
    for name, values in found.items():
        for value, own in values.items():
            shown = f"{_figure(own['time_mape_pct'], '%'):>12}{_figure(own['memory_mape_pct'], '%'):>12}{own['n']:>8}"
            lines.append(f"  {name} {value}".ljust(width) + shown)
    return lines


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} %" if unit else f"{value:.4f}"
