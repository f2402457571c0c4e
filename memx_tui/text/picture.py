"""A plan as an SVG picture, drawn from the same text as the terminal's."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.files import write_text
from memx_tui.text.show_view import show_text
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_engine import PlanFile

_WIDTH = 110


def save_svg(file: PlanFile, target: Path, *, force: bool) -> None:
    """Write the picture, whole or not at all.

    Raises:
        OutputError: The file exists (without ``force``) or cannot be written.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(
        width=_WIDTH, record=True, file=StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False
    )
    console.print(Text.from_ansi(show_text(file, Style(_WIDTH, unicode=True, colour=True))))
    # A fixed id keeps the picture byte for byte the same for the same plan.
    svg = console.export_svg(title=f"memx-tui show: {file.model.name} on {file.cluster.name}", unique_id="memx")
    write_text(target, svg, overwrite=force)
