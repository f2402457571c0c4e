"""``memx-tui profile``: measure the minimal set of points on one device of each type, and keep every result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memx_engine import CancelledError, InputError, MemxError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.options import FiniteRange, compute_options, input_options, job_options, load_inputs, start_work
from memx_tui.commands.runner_options import runner_options, runner_settings
from memx_tui.output import emit, emit_json, say
from memx_tui.paths import find_paths
from memx_tui.runners import RunnerSettings, make_runner

if TYPE_CHECKING:
    from memx_engine import Cluster, Job, ProfileDesign, ProfileOptions, ProfileResult, Runner, TransformerSpec

    Inputs = tuple[Cluster, TransformerSpec, Job]


@click.command()
@input_options
@job_options()
@runner_options
@click.option("--types", metavar="TYPE,TYPE..", help="GPU types to measure (default: all of the cluster).")
@click.option("--resume", is_flag=True, help="Go on in a workspace that holds measurements of this cluster.")
@click.option("--retry-failed", is_flag=True, help="With --resume: measure again what hung.")
@click.option("--list", "as_list", is_flag=True, help="Show what was measured, point by point, and run nothing.")
@click.option("--dry-run", is_flag=True, help="Show the plan of measurements and run nothing.")
@click.option(
    "--point-timeout",
    type=FiniteRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="A measurement that takes longer counts as hung.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="How often a crashed point is tried again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
@compute_options
def command(
    *,
    cluster: str | None,
    model: str | None,
    job_file: str | None,
    types: str | None,
    resume: bool,
    retry_failed: bool,
    as_list: bool,
    dry_run: bool,
    point_timeout: float,
    retries: int,
    as_json: bool,
    workspace: Path | None,
    seed: int,
    threads: int,
    log_level: str | None,
    **flags: Any,
) -> None:
    """Measure what the plans rest on: a minimal set of points on one device of each GPU type.

    Every result is stored the moment it arrives. Ctrl-C, a lost connection or a killed session lose at most the
    point that was running; --resume goes on and measures nothing twice.

    \b
    memx-tui profile --cluster paper-20gpu --model llama2-7b --dry-run
    memx-tui profile --cluster my.yaml --model llama2-7b --runner slurm --partition gpu --resume
    memx-tui profile --cluster my.yaml --model llama2-7b --runner command --command './run.sh {node} {tp} ...'
    memx-tui profile --list --workspace my-runs
    """
    from memx_engine import ProfileOptions

    if as_list:
        _show_measured(cluster, workspace, _split(types), as_json)
        return
    settings = runner_settings(flags, seed)
    runner = make_runner(settings)
    start_work(None if dry_run else workspace, log_level)
    names = ("global_batch", "seq_len", "precision", "optimizer", "attention", "framework")
    inputs = load_inputs(
        cluster, model, job_file, **{name: flags[name] for name in names}, micro_batch_sizes=flags["mbs"]
    )
    options = ProfileOptions(
        types=_split(types),
        resume=resume,
        retry_failed=retry_failed,
        repetitions=settings.repetitions,
        point_timeout_s=point_timeout,
        retries=retries,
        lanes_at_once=settings.lanes_at_once,
    )
    folder = workspace or find_paths().workspace(inputs[0].name)
    design = options.design(*inputs)
    if dry_run:
        _show_plan(design, inputs, settings, runner, folder, as_json)
        return
    if flags["runner"] is None:
        say(
            "memx-tui: no --runner is given, so the measurements are simulated by the testbed; for real ones use "
            "--runner local, slurm, ssh or command"
        )
    result = _run(design, inputs, settings, runner, options, folder)
    _say_failures(result)
    if result.cancelled:
        kept = result.total("measured") + result.total("cached")
        raise CancelledError(
            f"interrupted; {kept} results are kept in {folder}",
            hint="the same command with --resume goes on and measures nothing twice",
        )
    if as_json:
        from memx_engine import profile_document

        emit_json({**profile_document(result), "workspace": str(folder)})
        return
    from memx_tui.text.profile_view import result_text
    from memx_tui.text.style import Style

    emit(result_text(result, inputs, where_words(settings, runner), folder, Style.of(sys.stdout)))


def _show_measured(cluster: str | None, folder: Path | None, types: tuple[str, ...] | None, as_json: bool) -> None:
    """Every measurement of a workspace on standard output; only reads it, also while another session writes."""
    from memx_engine import Workspace, load_cluster, measurement_to_document

    if folder is None:
        if cluster is None:
            raise InputError("is needed", where="--list", hint="name the folder with --workspace, or its --cluster")
        folder = find_paths().workspace(load_cluster(cluster).name)
    with Workspace(folder, read_only=True) as store:
        rows = [m for m in store.measurements() if types is None or m.point.gpu_type in types]
    if as_json:
        documents = [measurement_to_document(m) for m in rows]
        emit_json({"schema": "memx/measurements/v1", "workspace": str(folder), "measurements": documents})
        return
    from memx_tui.text.measurements_view import measurements_text
    from memx_tui.text.style import Style

    emit(measurements_text(rows, folder, Style.of(sys.stdout)))


def where_words(settings: RunnerSettings, runner: Runner) -> str:
    """What measures, in words that cannot be mistaken: ``simulated by testbed:0``, ``measured by slurm``."""
    if settings.simulated:
        return f"simulated by {runner.truth_name}"
    on = " on CPUs" if settings.device == "cpu" else ""
    return f"measured by {settings.kind}{on}"


def _split(types: str | None) -> tuple[str, ...] | None:
    if types is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in types.split(",") if name.strip()))
    if not names:
        raise InputError("names no GPU type", where="--types", hint="for example --types a100-sxm-80g,mi300x")
    return names


def _show_plan(
    design: ProfileDesign, inputs: Inputs, settings: RunnerSettings, runner: Runner, folder: Path, as_json: bool
) -> None:
    """The plan of measurements on standard output; reads the workspace, writes nothing."""
    cached = _already_there(design, runner, folder)
    if as_json:
        from memx_engine import design_document

        emit_json({**design_document(design, cached), "runner": settings.name, "workspace": str(folder)})
        return
    from memx_tui.text.profile_view import plan_text
    from memx_tui.text.style import Style

    words, style = where_words(settings, runner), Style.of(sys.stdout)
    emit(plan_text(design, inputs, words, cached, style, lanes_at_once=settings.lanes_at_once))


def _already_there(design: ProfileDesign, runner: Runner, folder: Path) -> dict[str, int]:
    """GPU type → how many of its expected points the workspace already has; empty without a workspace."""
    from memx_engine import StorageError, Workspace

    try:
        with Workspace(folder, read_only=True) as store:
            return {t.gpu_type: t.stored(store, runner.ground(t.gpu_type)[1]) for t in design.types}
    except StorageError:
        if (folder / "memx.sqlite").exists():
            raise
        return {}


def _run(
    design: ProfileDesign,
    inputs: Inputs,
    settings: RunnerSettings,
    runner: Runner,
    options: ProfileOptions,
    folder: Path,
) -> ProfileResult:
    """Profile with progress on standard error; the first Ctrl-C ends it with what is there."""
    from memx_engine import Workspace, refuse_without_resume, run_profile
    from memx_tui.profile_progress import ProfileLines
    from memx_tui.text.profile_view import plan_text
    from memx_tui.text.style import Style

    with Workspace(folder) as store:
        for notice in store.notices:
            say(f"memx-tui: {notice}; what it had measured is kept")
        if not options.resume:
            refuse_without_resume(store, inputs[0], [t.gpu_type for t in design.types])
        words, style = where_words(settings, runner), Style.of(sys.stderr)
        say(plan_text(design, inputs, words, {}, style, lanes_at_once=settings.lanes_at_once))
        lines = ProfileLines()
        with stop_on_interrupt() as stop:
            try:
                return run_profile(*inputs, runner, store, options=options, on_event=lines, should_stop=stop.is_set)
            finally:
                lines.close()


def _say_failures(result: ProfileResult) -> None:
    """A type that failed alone must not go unseen when standard output is a file."""
    for outcome in result.types:
        if outcome.error:
            error = MemxError(outcome.error, where=outcome.gpu_type, hint=outcome.hint)
            say(f"memx-tui: {error}")
