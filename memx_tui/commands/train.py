"""``memx-tui train``: learn a predictor from what a workspace holds, and say how good it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from memx_engine import InputError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.options import FiniteRange, compute_options, input_options, job_options, load_inputs, start_work
from memx_tui.output import emit, emit_json, say
from memx_tui.paths import find_paths


@click.command()
@input_options
@job_options()
@click.option(
    "--tune",
    "trials",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Try N settings of the trees first, by Bayesian optimisation; Ctrl-C keeps the best so far.",
)
@click.option("--time-limit", type=FiniteRange(0, min_open=True), metavar="S", help="Stop tuning after S seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@compute_options
def command(
    *,
    cluster: str | None,
    model: str | None,
    job_file: str | None,
    trials: int,
    time_limit: float | None,
    as_json: bool,
    workspace: Path | None,
    seed: int,
    threads: int,
    log_level: str | None,
    **flags: Any,
) -> None:
    """Learn from stored measurements: errors of held-out points, trends, importances, the settings of the trees.

    Planning trains by itself when measurements are new; this shows what it learns. --tune looks for better settings,
    which are kept for every later training in the workspace.

    \b
    memx-tui train --cluster paper-20gpu --model llama2-7b --workspace my-runs
    memx-tui train --cluster paper-20gpu --model llama2-7b --workspace my-runs --tune 24
    """
    if time_limit is not None and not trials:
        raise InputError("limits tuning", where="--time-limit", hint="give --tune N too")
    mbs = flags.pop("mbs")
    inputs = load_inputs(cluster, model, job_file, micro_batch_sizes=mbs, **flags)
    from memx_engine import PREDICTORS, Workspace, learn, learned_document
    from memx_tui.progress import CountLine

    folder = workspace or find_paths().workspace(inputs[0].name)
    if not Workspace.exists(folder):
        raise InputError(
            "there are no measurements", where=str(folder), hint="measure with memx-tui profile, or memx-tui import"
        )
    start_work(workspace, log_level, only_reads=not trials)
    progress = CountLine("tuning")
    with Workspace(folder, read_only=True) as store, stop_on_interrupt() as stop:
        try:
            learned = learn(
                *inputs,
                store,
                keep=folder / PREDICTORS,
                trials=trials,
                time_limit_s=time_limit,
                seed=seed,
                on_progress=lambda done, total, _best: progress(done, total),
                should_stop=stop.is_set,
            )
        finally:
            progress.close()
    if learned.estimator.note:
        say(f"memx-tui: {learned.estimator.note}")
    if as_json:
        emit_json(learned_document(learned))
        return
    from memx_tui.text.style import Style
    from memx_tui.text.training_view import training_text

    emit(training_text(learned, inputs, folder, Style.of(sys.stdout)))
