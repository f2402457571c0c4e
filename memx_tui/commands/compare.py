"""``memx-tui compare``: two to four plan files side by side."""

from __future__ import annotations

import sys

import click

from memx_engine import InputError
from memx_tui.output import emit, emit_json

MAX_PLANS = 4


@click.command()
@click.argument("plans", nargs=-1, metavar="A.yaml B.yaml ...")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
def command(*, plans: tuple[str, ...], as_json: bool) -> None:
    """Put two to four plan files side by side; the first is the base of every difference."""
    if not 2 <= len(plans) <= MAX_PLANS:
        raise InputError(f"compare takes 2 to {MAX_PLANS} plan files, {len(plans)} given")
    if plans.count("-") > 1:
        raise InputError("standard input can be read only once", where="-")
    from memx_engine import compare_document, load_plan

    files = [load_plan(source) for source in plans]
    if as_json:
        emit_json(compare_document(files, plans))
        return
    from memx_tui.text.compare_view import compare_text
    from memx_tui.text.style import Style

    emit(compare_text(files, plans, Style.of(sys.stdout)))
