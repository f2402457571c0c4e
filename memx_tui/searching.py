"""The app's part in searching: one search at a time, started and cancelled from anywhere, and plans judged."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from textual import work

from memx_engine import MemxError, Workspace, with_plan
from memx_tui import jobs
from memx_tui.columns import PlanColumns
from memx_tui.messages import JobFailed, SearchCancelled, SearchFinished, SearchProgressed
from memx_tui.profiling import ProfilingApp
from memx_tui.replanning import inputs_of, options_on

if TYPE_CHECKING:
    from textual.message_pump import MessagePump
    from textual.timer import Timer

    from memx_engine import PlanRequest, SearchResult
    from memx_tui.limit_form import Asked
    from memx_tui.replanning import Leaving, Replanned


TICK_S = 1.0
"""How often the clock of a search moves that has reported nothing yet."""


class SearchingApp(ProfilingApp):
    """What of the app deals with searching."""

    _stop_search: threading.Event | None = None
    _stop_sensitivity: threading.Event | None = None
    _stop_replan: threading.Event | None = None
    _search_again = False
    """The running search is stopped because another one is wanted."""
    _waiting: Timer | None = None

    def start_search(self) -> None:
        """Search with the session's inputs in a thread; one at a time."""
        from memx_engine import SearchOptions

        session = self.session
        if session.searching:
            self.say("a search is running; ctrl+c cancels it")
            return
        try:
            cluster, model, job = session.planned()
            assert session.cluster is not None
            options = options_on(session.cluster, cluster, model, job, session.options or SearchOptions())
        except MemxError as error:
            self.show_error(error)
            return
        self._stop_search = threading.Event()
        session.searching, session.progress, session.failure = True, None, None
        session.search_began_s = time.monotonic()
        session.search_learns = Workspace.exists(self.workspace_folder())
        if session.search_learns:
            self._waiting = self.set_interval(TICK_S, self._still_waiting)
        self.publish("search")
        self._search(
            partial(
                jobs.run_search,
                cluster,
                model,
                job,
                options,
                session.inputs(),
                self.workspace_folder(),
                self.post_message,
                self._stop_search,
                session.free,
            )
        )

    def search_within(self, asked: Asked) -> None:
        """Search again within other limits."""
        session = self.session
        session.options, session.free = asked.options(session.options), dict(asked.free)
        self.publish("job")
        if session.searching:
            self._search_again = True
            self.cancel_search()
        elif session.ready:
            self.start_search()

    def _still_waiting(self) -> None:
        """Nothing is reported while the predictor is trained: the clock shows that it goes on."""
        if self.session.searching and self.session.progress is None:
            self.publish("search")
        elif self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

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
        self.session.accept(event.result, event.columns, event.inputs, event.free)
        self.publish("result")

    def on_search_cancelled(self, event: SearchCancelled) -> None:
        again = self._search_again
        self.search_ended()
        self.publish("search")
        if not again:
            self.say("search cancelled before any plan was found")

    def search_ended(self) -> None:
        """No search runs any more."""
        self.session.searching, self.session.progress = False, None
        self._stop_search = None
        if self._search_again:
            self._search_again = False
            self.call_later(self.start_search)

    def explain(self, request: PlanRequest, asker: MessagePump) -> None:
        """Judge a plan in a thread; the answer is posted to ``asker``."""
        session = self.session
        known = session.result if session.result is not None and not session.stale else None
        try:
            # Of free values, or without some nodes, it is the search that is shown which is asked about.
            cluster, model, job = (known.cluster, known.model, known.job) if known else session.planned()
        except MemxError as error:
            asker.post_message(JobFailed(error, "explaining a plan"))
            return
        self._explain(
            partial(
                jobs.run_explain,
                cluster,
                model,
                job,
                request,
                known,
                self.workspace_folder(),
                asker.post_message,
            )
        )

    def replan(self, asked: Leaving, asker: MessagePump) -> None:
        """Plan again without some nodes, in a thread; the answer is posted to ``asker``."""
        try:
            inputs = inputs_of(self.session, asked)
        except MemxError as error:
            asker.post_message(JobFailed(error, "planning again"))
            return
        self._stop_replan = threading.Event()
        folder = self.workspace_folder()
        self._replan(partial(jobs.run_replan, asked, *inputs, folder, asker.post_message, self._stop_replan))

    @work(thread=True, exclusive=True, group="replan", exit_on_error=False)
    def _replan(self, run: partial[None]) -> None:
        run()

    def cancel_replan(self) -> bool:
        """Ask the running planning to stop; False when none runs that was not asked already."""
        stop, self._stop_replan = self._stop_replan, None
        if stop is None:
            return False
        stop.set()
        return True

    def take_replanned(self, answer: Replanned) -> None:
        """Show the plans of ``answer`` instead of those before, its own one under the cursor."""
        session = self.session
        result, row = with_plan(answer.result, answer.chosen)
        session.without = answer.asked.without
        session.hand = answer.asked.hand
        session.accept(result, PlanColumns.of_result(result), session.inputs())
        session.selected_row = row
        self.publish("result")

    def find_sensitivity(self, result: SearchResult, asker: MessagePump) -> None:
        """Search what changes of the cluster would buy, in a thread; the answer is posted to ``asker``."""
        self._stop_sensitivity = threading.Event()
        options = self.session.options
        self._sensitivity(partial(jobs.run_sensitivity, result, options, asker.post_message, self._stop_sensitivity))

    @work(thread=True, exclusive=True, group="sensitivity", exit_on_error=False)
    def _sensitivity(self, run: partial[None]) -> None:
        run()

    def cancel_sensitivity(self) -> bool:
        """Ask the running searches of changes to stop; False when none runs that was not asked already."""
        stop, self._stop_sensitivity = self._stop_sensitivity, None
        if stop is None:
            return False
        stop.set()
        return True

    @work(thread=True, exclusive=True, group="explain", exit_on_error=False)
    def _explain(self, run: partial[None]) -> None:
        run()
