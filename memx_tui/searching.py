"""The app's part in searching: one search at a time, started and cancelled from anywhere, and plans judged."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from textual import work

from memx_engine import MemxError
from memx_tui import jobs
from memx_tui.messages import JobFailed, SearchCancelled, SearchFinished, SearchProgressed
from memx_tui.profiling import ProfilingApp

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from memx_engine import PlanRequest, SearchResult


class SearchingApp(ProfilingApp):
    """What of the app deals with searching."""

    _stop_search: threading.Event | None = None
    _stop_sensitivity: threading.Event | None = None

    def start_search(self) -> None:
        """Search with the session's inputs in a thread; one at a time."""
        session = self.session
        if session.searching:
            self.say("a search is running; ctrl+c cancels it")
            return
        try:
            job = session.job()
        except MemxError as error:
            self.show_error(error)
            return
        assert session.cluster is not None and session.model is not None
        self._stop_search = threading.Event()
        session.searching, session.progress, session.failure = True, None, None
        self.publish("search")
        self._search(
            partial(
                jobs.run_search,
                session.cluster,
                session.model,
                job,
                session.options,
                session.inputs(),
                self.workspace_folder(),
                self.post_message,
                self._stop_search,
            )
        )

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _search(self, run: partial[None]) -> None:
        run()

    def cancel_search(self) -> None:
        """Ask the running search to stop; the plans found so far are kept."""
        if self._stop_search is not None:
            self._stop_search.set()

    def on_search_progressed(self, event: SearchProgressed) -> None:
        if self.session.searching:
            self.session.progress = event.progress
            self.publish("search")

    def on_search_finished(self, event: SearchFinished) -> None:
        self.search_ended()
        self.session.accept(event.result, event.columns, event.inputs)
        self.publish("result")

    def on_search_cancelled(self, event: SearchCancelled) -> None:
        self.search_ended()
        self.publish("search")
        self.say("search cancelled before any plan was found")

    def search_ended(self) -> None:
        """No search runs any more."""
        self.session.searching, self.session.progress = False, None
        self._stop_search = None

    def explain(self, request: PlanRequest, asker: MessagePump) -> None:
        """Judge a plan in a thread; the answer is posted to ``asker``."""
        session = self.session
        try:
            job = session.job()
        except MemxError as error:
            asker.post_message(JobFailed(error, "explaining a plan"))
            return
        assert session.cluster is not None and session.model is not None
        known = session.result if session.result is not None and not session.stale else None
        self._explain(
            partial(
                jobs.run_explain,
                session.cluster,
                session.model,
                job,
                request,
                known,
                self.workspace_folder(),
                asker.post_message,
            )
        )

    def find_sensitivity(self, result: SearchResult, asker: MessagePump) -> None:
        """Search what changes of the cluster would buy, in a thread; the answer is posted to ``asker``."""
        self._stop_sensitivity = threading.Event()
        options = self.session.options
        self._sensitivity(partial(jobs.run_sensitivity, result, options, asker.post_message, self._stop_sensitivity))

    @work(thread=True, exclusive=True, group="sensitivity", exit_on_error=False)
    def _sensitivity(self, run: partial[None]) -> None:
        run()

    def cancel_sensitivity(self) -> None:
        """Ask the running searches of changes to stop."""
        if self._stop_sensitivity is not None:
            self._stop_sensitivity.set()

    @work(thread=True, exclusive=True, group="explain", exit_on_error=False)
    def _explain(self, run: partial[None]) -> None:
        run()
