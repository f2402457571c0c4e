"""What ``plan`` can ask beside its plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from memx_engine import CancelledError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.limit_options import LIMITS

if TYPE_CHECKING:
    from memx_engine import (
        Cluster,
        Job,
        PlanFile,
        RankedPlan,
        Replan,
        SearchOptions,
        SearchResult,
        Sensitivity,
        TransformerSpec,
        Variant,
    )


def run_sensitivity(result: SearchResult, options: SearchOptions) -> Sensitivity:
    """Search again under every change, with progress; Ctrl-C keeps the changes that are done.

    Raises:
        CancelledError: Stopped before the first was done.
    """
    from memx_engine import find_sensitivity
    from memx_tui.progress import CountLine

    line = CountLine("trying changes of the cluster")
    with stop_on_interrupt() as stop:
        try:
            found = find_sensitivity(
                result,
                options=options,
                on_progress=lambda done, total, words: line(done, total),
                should_stop=stop.is_set,
            )
        finally:
            line.close()
    if stop.is_set() and not found.gains:
        raise CancelledError("interrupted while trying changes of the cluster")
    return found


def read_earlier(source: str, *others: str | None) -> PlanFile:
    """The plan file of ``--from``. InputError also where standard input is asked for twice."""
    from memx_engine import InputError, load_plan

    if source == "-" and "-" in others:
        raise InputError("standard input can be read only once", where="--from", hint="give one of them as a file")
    return load_plan(source)


def as_earlier(
    options: SearchOptions, file: PlanFile, inputs: tuple[Cluster, TransformerSpec, Job], given: set[str]
) -> SearchOptions:
    """``options`` with the weights, references and limits of the plan file, as far as no flag gives others.

    Where the job has another batch or sequence, time counts per token.
    """
    from memx_engine import per_token

    cluster, _, job = inputs
    if not given & {"weights", "variance_kind"}:
        tokens = file.job.global_batch * file.job.seq_len
        options = replace(options, objective=per_token(file.objective, tokens, job.global_batch * job.seq_len))
    if not given & LIMITS:
        options = replace(options, limits=file.limits.among([t.name for t in cluster.gpu_types]))
    return options


def replanned(result: SearchResult, file: PlanFile, tolerance: float, picked: RankedPlan | None) -> Replan:
    """What moving from the plan file to the plan that moves least, or to the picked one, takes."""
    from memx_engine import Before, replan

    before = Before(file.cluster, file.model, file.job, file.plan)
    return replan(result, before, tolerance=tolerance, only=picked)


def given() -> set[str]:
    """The options that the command line gave, by their parameters' names."""
    context = click.get_current_context()
    return {
        name for name in context.params if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }


def free_inputs(loaded: tuple[Cluster, TransformerSpec, Job], flags: dict[str, Any]) -> tuple[Variant, ...]:
    """The models and jobs of every value listed of a free hyper-parameter; one where nothing is free."""
    from memx_engine import free_variants

    cluster, model, job = loaded
    return free_variants(
        cluster,
        model,
        job,
        global_batches=flags["global_batch"] or (),
        seq_lens=flags["seq_len"] or (),
        heads=flags["heads"] or (),
        kv_heads=flags["kv_heads"] or (),
    )
