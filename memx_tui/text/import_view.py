"""What an import did, as text: one line per file, then what was set aside and why."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.text.grid import Column, table
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import FileImport, Reasons

LINES_SHOWN = 5
REASONS_SHOWN = 5


def import_text(files: Sequence[FileImport], folder: Path, default: bool, style: Style) -> str:
    """The summary.

    Args:
        default: The folder was not given, so that planning must be told of it.
    """
    lines = [style.section("Imported"), *_table(files, style)]
    for made in files:
        lines += _details(made, style)
    lines += ["", *style.wrap(f"kept in {folder}", " ", first=" ")]
    if default and any(made.kept for made in files):
        hint = f"plan on them with: memx-tui plan --workspace {shlex.quote(str(folder))} ..."
        lines += style.wrap(hint, " ", first=" ")
    return "\n".join(lines)


def _table(files: Sequence[FileImport], style: Style) -> list[str]:
    def kind(made: FileImport) -> str:
        if made.kind is None:
            return "not read"
        return "log" if made.log else made.kind.value

    return table(
        [
            Column("file", [made.source for made in files], shrink=16),
            Column("kind", [kind(made) for made in files]),
            Column("imported", [f"{made.added:,}" for made in files], right=True),
            Column("duplicates", [f"{made.duplicates:,}" for made in files], right=True),
            Column("not judgeable", [f"{made.not_judgeable.total:,}" for made in files], right=True),
            Column("rejected", [f"{made.rejected.total:,}" for made in files], right=True),
        ],
        style,
    )


def _details(made: FileImport, style: Style) -> list[str]:
    lines: list[str] = []
    if made.error:
        lines += style.wrap(made.error.replace("\n", " "), "   ", first=" - ")
    for note in made.notes:
        lines += style.wrap(note, "   ", first=" - ")
    if made.rejected.total:
        lines += style.wrap(f"rejected, {made.rejected.total:,} in all; the first:", "   ", first=" - ")
        for line, reason in made.rejected.first[:LINES_SHOWN]:
            lines += style.wrap(f"line {line}: {reason}", "       ", first="     ")
    if made.not_judgeable.total:
        lines += style.wrap(f"kept, but not judgeable, {made.not_judgeable.total:,} in all:", "   ", first=" - ")
        lines += _by_reason(made.not_judgeable, style)
    return ["", style.section(made.source), *lines] if lines else []


def _by_reason(reasons: Reasons, style: Style) -> list[str]:
    lines: list[str] = []
    common = reasons.counts.most_common()
    for reason, count in common[:REASONS_SHOWN]:
        line = reasons.first_line.get(reason)
        where = "" if line is None else f", first on line {line}" if count > 1 else f", line {line}"
        lines += style.wrap(f"{count:,} row{'s' * (count > 1)}{where}: {reason}", "       ", first="     ")
    rest = sum(count for _, count in common[REASONS_SHOWN:])
    if rest:
        lines.append(f"     {rest:,} rows for other reasons")
    return lines
