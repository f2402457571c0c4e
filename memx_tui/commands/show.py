"""``memx-tui show``: a plan file as the dashboard shows it, as text or as an SVG picture."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from memx_tui.output import emit, say


@click.command()
@click.argument("plan", metavar="PLAN.yaml")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture instead.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(*, plan: str, svg: Path | None, force: bool) -> None:
    """Show a plan file: stages, memory of every node, where the time goes, why it was chosen."""
    from memx_engine import load_plan

    file = load_plan(plan)
    from memx_tui.text.style import Style

    if svg is not None:
        from memx_tui.text.picture import save_svg

        save_svg(file, svg, force=force)
        say(f"memx-tui: picture saved to {svg}")
        return
    from memx_tui.text.show_view import show_text

    emit(show_text(file, Style.of(sys.stdout)))
