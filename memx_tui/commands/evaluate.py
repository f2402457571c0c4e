"""``memx-tui evaluate``: how far predictions are from a ground truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memx_engine import InputError, OutputError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.options import compute_options, input_options, start_work
from memx_tui.commands.plan import refuse_unwritable
from memx_tui.output import emit, emit_json

if TYPE_CHECKING:
    from memx_engine import Ground

_LISTS = ("--truth", "--train", "--test")


class _WithLists(click.Command):
    """Takes ``--train A.csv B.csv`` as ``--train A.csv --train B.csv``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, expand_lists(args))


def expand_lists(args: list[str]) -> list[str]:
    """Repeat a list option before each of its values."""
    out: list[str] = []
    current = ""
    for word in args:
        if word.startswith("-") and word != "-":
            current = word if word in _LISTS else ""
            if not current:
                out.append(word)
        elif current:
            out += [current, word]
        else:
            out.append(word)
    # A list option without a value is click's to complain about.
    return [*out, current] if args and args[-1] in _LISTS else out


@click.command(cls=_WithLists)
@click.option(
    "--truth",
    multiple=True,
    metavar="FILE...|testbed[:hard][:SEED]|cpu",
    help="Tables whose rows are learned from and judged in turn; or the simulated cluster; or this machine's CPU.",
)
@click.option("--train", multiple=True, metavar="FILE...", help="Tables to learn from.")
@click.option("--test", multiple=True, metavar="FILE...", help="Tables to judge.")
@click.option("--table", default="accuracy", show_default=True, metavar="NAME", help="Which table to make.")
@click.option("--folds", type=click.IntRange(2), metavar="N", help="Folds of configurations (default 5).")
@click.option("--train-rows", type=click.IntRange(1), metavar="N", help="Learn from N rows only, judge the others.")
@click.option(
    "--calibrate", type=click.IntRange(0), default=0, metavar="N", help="Configurations of the test known beforehand."
)
@input_options
@click.option(
    "--measured-on", metavar="FILE|SAMPLE", help="Testbed: the cluster that is measured, where it is not --cluster."
)
@click.option(
    "--plans", type=click.IntRange(3, 10_000), default=150, show_default=True, help="Testbed: plans judged per seed."
)
@click.option("--python", metavar="PATH", help="cpu: a Python that has torch (default: this one).")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON document there.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON object.")
@compute_options
def command(
    *,
    truth: tuple[str, ...],
    train: tuple[str, ...],
    test: tuple[str, ...],
    table: str,
    folds: int | None,
    train_rows: int | None,
    calibrate: int,
    cluster: str | None,
    model: str | None,
    measured_on: str | None,
    plans: int,
    python: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    workspace: Path | None,
    seed: int,
    threads: int,
    log_level: str | None,
) -> None:
    """Judge first principles, the paper's direct form and the learned predictor on measured runs.

    Rows of one configuration are never both learned from and judged. On the testbed the minimal set of points is
    learned from, and whole plans that nobody measured are judged. Figures are means over five seeds, from --seed on.

    \b
    memx-tui evaluate --truth testbed
    memx-tui evaluate --truth cpu --python /path/to/python-with-torch
    memx-tui evaluate --truth testbed:hard --cluster paper-40gpu --measured-on paper-20gpu
    memx-tui evaluate --truth runs.csv --folds 5
    memx-tui evaluate --train single.csv --test multi.csv --calibrate 4 --json
    """
    refuse_unwritable(output, force)
    start_work(workspace, log_level, only_reads=True)
    from memx_engine import AccuracyOptions, CancelledError, evaluate_predictions
    from memx_tui.progress import CountLine

    seeds = tuple(range(seed, seed + 5))
    options = AccuracyOptions(folds=folds, train_rows=train_rows, calibrate=calibrate, seeds=seeds)
    progress = CountLine("evaluating")
    with stop_on_interrupt() as stop:
        try:
            made = evaluate_predictions(
                truth,
                train=train,
                test=test,
                table=table,
                options=options,
                ground=_ground(truth, cluster, model, measured_on, plans),
                python=python,
                on_progress=progress,
                should_stop=stop.is_set,
            )
        finally:
            progress.close()
    if stop.is_set():
        raise CancelledError("interrupted; nothing was written")
    if output is not None:
        _write(made.document, output)
    if as_json:
        emit_json(made.document)
        return
    from memx_tui.text.evaluation_view import accuracy_text
    from memx_tui.text.style import Style

    emit(accuracy_text(made.document, Style.of(sys.stdout)))


def _ground(
    truth: tuple[str, ...], cluster: str | None, model: str | None, measured_on: str | None, plans: int
) -> Ground | None:
    """What the testbed simulates; None for tables, which say themselves where they were measured."""
    from memx_engine import Ground, is_testbed, load_cluster, load_model, resolve_job

    if not any(is_testbed(name) for name in truth):
        given = {"--cluster": cluster, "--model": model, "--measured-on": measured_on}
        named = [flag for flag, value in given.items() if value is not None]
        if named:
            raise InputError("only a testbed is told this: tables name their own", where=", ".join(named))
        return None
    default = Ground.default()
    judged = load_cluster(cluster) if cluster else default.cluster
    spec = load_model(model) if model else default.model
    measured = load_cluster(measured_on) if measured_on else None
    return Ground(judged, spec, resolve_job(judged, spec), measured, plans)


def _write(document: dict[str, object], output: Path) -> None:
    import json

    try:
        output.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=f"-o {output}") from error
