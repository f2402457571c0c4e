"""``memx-tui paths``: where the tool keeps its files."""

from __future__ import annotations

import click

from memx_tui.output import emit, emit_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """Say where configuration, themes, state and the log are kept. MEMX_HOME moves all of them."""
    from memx_tui.paths import find_paths

    places = {name: str(path) for name, path in find_paths().as_dict().items()}
    if as_json:
        emit_json(places)
        return
    width = max(map(len, places))
    emit("\n".join(f"{name.ljust(width)}  {path}" for name, path in places.items()))
