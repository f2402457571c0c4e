"""What ``plan`` can ask beside its plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memx_engine import CancelledError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.limit_options import LIMITS

if TYPE_CHECKING:
    from memx_engine import Cluster, PlanFile, RankedPlan, Replan, SearchOptions, SearchResult, Sensitivity


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


def as_earlier(options: SearchOptions, file: PlanFile, cluster: Cluster, given: set[str]) -> SearchOptions:
    """``options`` with the weights, references and limits of the plan file, as far as no flag gives others."""
    if not given & {"weights", "variance_kind"}:
        options = replace(options, objective=file.objective)
    if not given & LIMITS:
        options = replace(options, limits=file.limits.among([t.name for t in cluster.gpu_types]))
    return options


def replanned(result: SearchResult, file: PlanFile, tolerance: float, picked: RankedPlan | None) -> Replan:
    """What moving from the plan file to the plan that moves least, or to the picked one, takes."""
    from memx_engine import Before, replan

    before = Before(file.cluster, file.model, file.job, file.plan)
    return replan(result, before, tolerance=tolerance, only=picked)
