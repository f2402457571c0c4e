"""Long work in threads: calls the engine, posts messages, stops when asked. Nothing here touches a widget."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message

from memx_tui.columns import PlanColumns
from memx_tui.ground import stored_estimator
from memx_tui.messages import (
    JobFailed,
    RequestExplained,
    SearchCancelled,
    SearchFinished,
    SearchProgressed,
    SensitivityFound,
    SensitivityProgressed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from memx_engine import Cluster, Job, PlanRequest, SearchOptions, SearchProgress, SearchResult, TransformerSpec

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
) -> None:
    """Search and post the outcome; ``stop`` ends it cooperatively, keeping the plans found so far.

    What the workspace ``folder`` holds corrects the predictions; without one they are first principles.
    """
    from memx_engine import Calibrated, CancelledError, SearchOptions, search_plans

    last = 0.0

    def report(progress: SearchProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_EVERY_S:
            last = now
            post(SearchProgressed(progress))

    try:
        estimator = stored_estimator(cluster, model, job, folder)
        result = search_plans(
            cluster,
            model,
            job,
            options=options or SearchOptions(),
            estimator=estimator,
            on_progress=report,
            should_stop=stop.is_set,
        )
        if isinstance(estimator, Calibrated):
            estimator.remember()
        post(SearchFinished(result, PlanColumns.of(result.table), inputs))
    except CancelledError:
        post(SearchCancelled())
    except Exception as error:  # the edge between engine and screen: whatever it raises is logged and shown
        log.exception("search failed")
        post(JobFailed(error, "searching for plans"))


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
