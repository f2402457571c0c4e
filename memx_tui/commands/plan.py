"""``memx-tui plan``: search, show the ranked plans, save the chosen one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memx_engine import CancelledError, InputError, OutputError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.limit_options import limit_options, parse_flags
from memx_tui.commands.options import (
    FiniteRange,
    compute_options,
    input_options,
    job_options,
    load_inputs,
    sizes_option,
    start_work,
)
from memx_tui.commands.stored import remember, stored_estimator
from memx_tui.commands.what_if import as_earlier, free_inputs, given, read_earlier, replanned, run_sensitivity
from memx_tui.output import emit, emit_json, say

if TYPE_CHECKING:
    from memx_engine import (
        Cluster,
        Estimator,
        FreeSearch,
        Job,
        RankedPlan,
        SearchOptions,
        SearchResult,
        TransformerSpec,
        Variant,
    )


@click.command()
@input_options
@job_options(free=True)
@sizes_option("--tp", "Tensor-parallel sizes to consider.")
@sizes_option("--pp", "Pipeline depths to consider.")
@sizes_option("--dp", "Data-parallel sizes to consider.")
@limit_options
@click.option(
    "--weights",
    default="auto",
    show_default=True,
    metavar="NAME|T,M,V",
    help="auto, heterogeneous, safety, throughput, or shares of time, peak and memory spread that sum to 1.",
)
@click.option(
    "--variance",
    "variance_kind",
    type=click.Choice(["bytes", "utilization"]),
    default="bytes",
    show_default=True,
    help="Memory spread of bytes, or of each GPU's memory divided by its capacity.",
)
@click.option(
    "--top", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N", help="Plans to show."
)
@click.option(
    "--time-limit",
    type=FiniteRange(0, min_open=True),
    metavar="S",
    help="Stop after S seconds with the best found.",
)
@click.option(
    "--front",
    type=click.IntRange(0, 32),
    metavar="N",
    help="Seek the Pareto front of the whole space in N steps, however long it takes; 0 leaves it to the plans shown.",
)
@click.option("--pick", type=click.IntRange(1), metavar="N", help="Describe and save the plan of rank N (default 1).")
@click.option("--without", multiple=True, metavar="NODE", help="Plan without this node; can be repeated.")
@click.option(
    "--from",
    "from_plan",
    metavar="PLAN.yaml",
    help="Plan again from this plan: keep what can stay, tell what moves.",
)
@click.option(
    "--tolerance",
    type=FiniteRange(0),
    default=2.0,
    show_default=True,
    metavar="PCT",
    help="With --from: how far above the best a plan may be that moves less.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Save the plan as YAML.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also search what more memory, a faster link or one more node would buy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as one JSON object.")
@compute_options
def command(
    *,
    cluster: str | None,
    model: str | None,
    job_file: str | None,
    weights: str,
    variance_kind: str,
    top: int,
    time_limit: float | None,
    front: int | None,
    pick: int | None,
    without: tuple[str, ...],
    from_plan: str | None,
    tolerance: float,
    output: Path | None,
    force: bool,
    sensitivity: bool,
    as_json: bool,
    workspace: Path | None,
    seed: int,
    threads: int,
    log_level: str | None,
    **flags: Any,
) -> None:
    """Search for the best plans of a cluster and a model, and save one.

    The ranked table goes to standard output, progress to standard error. Nothing needs to be measured first: until
    it is, every number is labelled uncalibrated. Once the workspace holds measurements, they correct what is
    predicted, and the label says measured, or simulated for those of the testbed.

    \b
    memx-tui plan --cluster paper-20gpu --model llama2-7b -o plan.yaml
    memx-tui plan --cluster my.yaml --model ./config.json --weights 0.6,0.2,0.2 --json
    memx-tui plan --from plan.yaml --without node-3 -o next.yaml
    """
    from memx_engine import SearchOptions, parse_weights

    refuse_unwritable(output, force)
    chosen_weights, limits = parse_weights(weights), parse_flags(flags)
    start_work(workspace, log_level, only_reads=True)
    earlier = None if from_plan is None else read_earlier(from_plan, cluster, model, job_file)
    loaded = load_inputs(
        cluster,
        model,
        job_file,
        base=earlier,
        without=without,
        **{name: flags[name] for name in ("precision", "optimizer", "attention", "framework")},
        **{name: flags[name] and flags[name][0] for name in ("global_batch", "seq_len")},
        micro_batch_sizes=flags["mbs"],
        tp_sizes=flags["tp"],
        pp_sizes=flags["pp"],
        dp_sizes=flags["dp"],
    )
    options = SearchOptions(
        weights=chosen_weights,
        top=max(top, pick or 1),
        time_limit_s=time_limit,
        seed=seed,
        threads=threads,
        variance_kind=variance_kind,
        limits=limits,
    )
    if front is not None:
        options = replace(options, front=front, front_nodes=None)
    if earlier is not None:
        options = as_earlier(options, earlier, loaded, given())
    estimator = stored_estimator(*loaded, workspace)
    variants = free_inputs(loaded, flags)
    free = None if len(variants) == 1 else search_free(loaded[0], variants, options, estimator)
    if free is None:
        (only,) = variants
        estimator = estimator if only.model == loaded[1] else estimator.derive(loaded[0], only.model, only.job)
        result = run_search((loaded[0], only.model, only.job), options, estimator)
    else:
        result = free.result
    remember(estimator)
    if pick is not None and pick > result.feasible:
        raise InputError(f"only {result.feasible} plans were found", where=f"--pick {pick}")
    chosen = result.detail((pick or 1) - 1)
    moving = None
    if earlier is not None:
        moving = replanned(result, earlier, tolerance / 100.0, None if pick is None else chosen)
        chosen = moving.chosen
    if output is not None:
        save(result, chosen, output, force)
    bought = run_sensitivity(result, options) if sensitivity else None
    if as_json:
        from memx_engine import free_document, replan_document, search_document, sensitivity_document

        document = search_document(result, top)
        if free is not None:
            document["free"] = free_document(free)
        if moving is not None:
            document["replan"] = replan_document(moving, result.cluster)
        if bought is not None:
            document["sensitivity"] = sensitivity_document(bought)
        emit_json(document)
        return
    from memx_tui.text.search_view import search_text
    from memx_tui.text.style import Style

    style = Style.of(sys.stdout)
    shown = [result.detail(row) for row in range(min(top, result.feasible))]
    extra: list[str] = []
    before: list[str] = []
    if free is not None:
        from memx_tui.text.free_view import free_text

        before = free_text(free, style)
    if moving is not None:
        from memx_tui.text.replan_view import replan_text

        extra += [*replan_text(moving, result.cluster, style), *([""] if bought is not None else [])]
    if bought is not None:
        from memx_tui.text.sensitivity_view import sensitivity_text

        extra += sensitivity_text(bought, style)
    emit("\n".join([*before, search_text(result, shown, chosen, style, saved=output, extra=extra)]))


def search_free(
    cluster: Cluster, variants: Sequence[Variant], options: SearchOptions, estimator: Estimator
) -> FreeSearch:
    """Search every combination of free hyper-parameters."""
    from memx_engine import search_variants

    return search_variants(
        variants,
        options,
        lambda model, job, chosen: run_search((cluster, model, job), chosen, estimator.derive(cluster, model, job)),
    )


def run_search(
    loaded: tuple[Cluster, TransformerSpec, Job], options: SearchOptions, estimator: Estimator
) -> SearchResult:
    """Search with progress on standard error; Ctrl-C ends it with the best plan so far in the message.

    Raises:
        CancelledError: The operator interrupted the search.
    """
    from memx_engine import search_plans
    from memx_tui.progress import ProgressLine

    progress = ProgressLine()
    with stop_on_interrupt() as stop:
        try:
            result: SearchResult = search_plans(
                *loaded, options=options, estimator=estimator, on_progress=progress, should_stop=stop.is_set
            )
        finally:
            progress.close()
    if stop.is_set():
        raise CancelledError("interrupted; nothing was written", hint=best_so_far(result))
    return result


def best_so_far(result: SearchResult) -> str:
    """The best plan of an interrupted search in one line."""
    from memx_tui.text import numbers
    from memx_tui.text.plan_view import layers_by_type, recompute_by_type
    from memx_tui.text.style import Style

    best = result.detail(0)
    s, style = best.plan.skeleton, Style(unicode=False)
    return (
        f"best so far: tp {s.tp} pp {s.pp} dp {s.dp} mbs {s.micro_batch}, layers {layers_by_type(best.plan, style)}, "
        f"recompute {recompute_by_type(best.plan, style)}, {numbers.seconds(best.estimate.iteration_time_s)} s, "
        f"phi {numbers.phi(best.phi)}"
    )


def refuse_unwritable(output: Path | None, force: bool) -> None:
    """Refuse an output path that cannot be written before the search, not after it.

    Raises:
        OutputError: It exists (without ``--force``), is a folder, or its folder is missing or read-only.
    """
    if output is None:
        return
    where = f"-o {output}"
    if output.is_dir():
        raise OutputError("this is a folder", where=where, hint="name a file in it")
    if output.exists() and not force:
        raise OutputError("this file exists", where=where, hint="add --force to replace it, or choose another name")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"the folder {folder} does not exist", where=where, hint="create it, or choose another")
    try:
        # Only trying tells: permissions, read-only file systems and quotas all refuse in their own way.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"nothing can be written in {folder}: {error.strerror or error}",
            where=where,
            hint="choose a folder you may write to",
        ) from error


def save(result: SearchResult, chosen: RankedPlan, output: Path, force: bool) -> None:
    """Write the plan file and say so."""
    from memx_engine import plan_file, save_plan

    save_plan(plan_file(result, chosen), output, force=force)
    say(f"memx-tui: plan {chosen.rank} saved to {output}")
