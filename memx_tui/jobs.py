"""Long work in threads: calls the engine, posts messages, stops when asked. Nothing here touches a widget."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.message import Message

from memx_tui.columns import PlanColumns
from memx_tui.ground import stored_estimator
from memx_tui.limit_form import variants_of
from memx_tui.messages import (
    JobFailed,
    ReplanFound,
    ReplanProgressed,
    RequestExplained,
    SearchCancelled,
    SearchFinished,
    SearchProgressed,
    SensitivityFound,
    SensitivityProgressed,
)
from memx_tui.replanning import Leaving, Replanned

if TYPE_CHECKING:
    from pathlib import Path

    from memx_engine import (
        Cluster,
        Estimator,
        FreeSearch,
        Job,
        PlanRequest,
        SearchOptions,
        SearchProgress,
        SearchResult,
        TransformerSpec,
    )

Post = Callable[[Message], object]
log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.1
"""At most ten progress reports a second, so that a slow connection is not flooded."""


def run_search(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    options: SearchOptions | None,
    inputs: tuple[object, ...],
    folder: Path,
    post: Post,
    stop: threading.Event,
    free: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Search and post the outcome; ``stop`` ends it cooperatively, keeping the plans found so far.

    What the workspace ``folder`` holds corrects the predictions; without one they are first principles. ``free``:
    values to choose from, by the names of :data:`memx_tui.limit_form.FREE_FIELDS`.
    """
    from memx_engine import Calibrated, CancelledError, SearchOptions

    try:
        estimator = stored_estimator(cluster, model, job, folder)
        chosen = options or SearchOptions()
        found = None
        if free:
            found = _search_free(cluster, model, job, chosen, estimator, free, post, stop)
            result = found.result
        else:
            result = _search(cluster, model, job, chosen, estimator, _reporter(post), stop)
        if isinstance(estimator, Calibrated):
            estimator.remember()
        if found is not None and len(found.searched) == 1:
            found = None
        post(SearchFinished(result, PlanColumns.of_result(result), inputs, found))
    except CancelledError:
        post(SearchCancelled())
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("search failed")
        post(JobFailed(error, "searching for plans"))


def run_replan(
    asked: Leaving,
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    options: SearchOptions,
    folder: Path,
    post: Post,
    stop: threading.Event,
) -> None:
    """Search ``cluster``, which has lost nodes, choose what moves least from the plan in hand, and post the answer."""
    from memx_engine import replan

    try:
        estimator = stored_estimator(cluster, model, job, folder)
        report = _reporter(lambda message: post(ReplanProgressed(message.progress)))
        result = _search(cluster, model, job, options, estimator, report, stop)
        found = None
        if asked.hand is not None:
            found = replan(result, asked.hand.before, tolerance=asked.tolerance)
        post(ReplanFound(Replanned(asked, result, found.chosen if found else result.plans[0], found)))
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("planning again failed")
        post(JobFailed(error, "planning again"))


def _search_free(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    options: SearchOptions,
    estimator: Estimator | None,
    free: Mapping[str, tuple[int, ...]],
    post: Post,
    stop: threading.Event,
) -> FreeSearch:
    """Search every combination of the values that are free."""
    from memx_engine import search_variants

    variants = variants_of(cluster, model, job, free)
    at = 0

    def one(other: TransformerSpec, its_job: Job, chosen: SearchOptions) -> SearchResult:
        nonlocal at
        at += 1
        own = None if estimator is None else estimator.derive(cluster, other, its_job)
        part = f"{at} of {len(variants)}: " if len(variants) > 1 else ""
        return _search(cluster, other, its_job, chosen, own, _reporter(post, part), stop)

    return search_variants(variants, options, one, should_stop=stop.is_set)


def _search(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    options: SearchOptions,
    estimator: Estimator | None,
    report: Callable[[SearchProgress], None],
    stop: threading.Event,
) -> SearchResult:
    from memx_engine import search_plans

    result: SearchResult = search_plans(
        cluster, model, job, options=options, estimator=estimator, on_progress=report, should_stop=stop.is_set
    )
    return result


def _reporter(post: Callable[[SearchProgressed], object], part: str = "") -> Callable[[SearchProgress], None]:
    """Posts what a search reports, not more often than is read; ``part``: which of several searches it is."""
    last = 0.0

    def report(progress: SearchProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_EVERY_S:
            last = now
            post(SearchProgressed(replace(progress, phase=part + progress.phase) if part else progress))

    return report


def run_explain(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    request: PlanRequest,
    result: SearchResult | None,
    folder: Path,
    post: Post,
) -> None:
    """Judge a plan that is not in the list, against the list's best where there is one, and post the answer."""
    from memx_engine import explain_request

    try:
        estimator = stored_estimator(cluster, model, job, folder)
        explanation = explain_request(cluster, model, job, request, estimator=estimator, result=result)
        post(RequestExplained(explanation))
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("explaining a plan failed")
        post(JobFailed(error, "explaining a plan"))


def run_sensitivity(result: SearchResult, options: SearchOptions | None, post: Post, stop: threading.Event) -> None:
    """Search what changes of the cluster would buy and post the answer; ``stop`` ends it with what is done."""
    from memx_engine import find_sensitivity

    try:
        found = find_sensitivity(
            result,
            options=options,
            on_progress=lambda done, total, words: post(SensitivityProgressed(done, total, words)),
            should_stop=stop.is_set,
        )
        post(SensitivityFound(found))
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("searching changes of the cluster failed")
        post(JobFailed(error, "searching changes of the cluster"))
