"""``memx-tui themes``: which themes there are, and what is wrong with those that cannot be used."""

from __future__ import annotations

import click

from memx_tui.output import emit, emit_json, say


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """List the dashboard's themes, shipped and your own."""
    from memx_tui.paths import find_paths
    from memx_tui.themes import load_themes

    themes, problems = load_themes(find_paths().themes)
    for problem in problems:
        say(f"memx-tui: {problem}")
    if as_json:
        rows = [
            {"name": t.name, "title": t.title, "dark": t.dark, "ansi": t.ansi, "file": str(t.file)}
            for t in themes.values()
        ]
        emit_json({"themes": rows})
        return
    width = max(map(len, themes), default=0)
    lines = []
    for theme in themes.values():
        kind = f"{'dark' if theme.dark else 'light'}{', 16 colours' if theme.ansi else ''}"
        lines.append(f"{theme.name.ljust(width)}  {kind.ljust(17)}  {theme.title}")
    emit("\n".join(lines))
