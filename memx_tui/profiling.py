"""The app's part in profiling: one job at a time, started, paused and stopped from anywhere."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.app import App

from memx_engine import MemxError
from memx_tui import profile_job
from memx_tui.field_words import in_fields
from memx_tui.messages import JobFailed, ProfileEnded, ProfileLearned, ProfileProgressed, ProfileSurveyed
from memx_tui.profile_job import ProfileFeed
from memx_tui.profile_state import LogLine, ProfileSettings, Survey
from memx_tui.runners import make_runner

if TYPE_CHECKING:
    from memx_tui.paths import Paths
    from memx_tui.session import Change, Session


class ProfilingApp(App[None]):
    """What of the app deals with profiling."""

    _feed: ProfileFeed | None = None

    if TYPE_CHECKING:  # what it uses of the whole app
        session: Session
        paths: Paths

        def publish(self, change: Change) -> None: ...

        def say(self, text: str, *, warning: bool = False) -> None: ...

        def show_error(self, error: BaseException, *, doing: str = "") -> None: ...

        def open_mode(self, name: str) -> None: ...

        def start_search(self) -> None: ...

    # Where

    def workspace_folder(self) -> Path:
        """The workspace of the session: the one chosen, or the cluster's own."""
        session = self.session
        if session.profile.settings.folder is not None:
            return session.profile.settings.folder
        return self.paths.workspace(session.cluster.name if session.cluster else "")

    def set_profile_settings(self, settings: ProfileSettings) -> None:
        """Profile in another way from the next start on."""
        state = self.session.profile
        state.settings = settings
        if not state.running:
            state.forget()
        self.publish("settings")
        self.survey_profile(anew=True)

    def plan_on_measured(self) -> None:
        """Open Plans and search with what is measured by now."""
        session = self.session
        self.open_mode("plans")
        if not session.searching:
            self.start_search()
        elif session.unused_measurements:
            self.say("a search is running on older measurements; r searches again when it ends")

    # Looking

    def survey_profile(self, *, anew: bool = False) -> None:
        """Find out in a thread what would be measured, what is there, and what planning rests on.

        Args:
            anew: What was known does not hold any more and is not shown in the meantime.
        """
        session = self.session
        if anew:
            session.profile.survey = Survey() if session.ready else None
            self.publish("profile")
        if not session.ready:
            return
        try:
            job = session.job()
        except MemxError as error:
            session.profile.survey = Survey(problem=in_fields(error.message))
            self.publish("profile")
            return
        assert session.cluster is not None and session.model is not None
        self._survey(
            partial(
                profile_job.run_survey,
                (session.cluster, session.model, job),
                session.profile.settings,
                self.workspace_folder(),
                self.post_message,
            )
        )

    @work(thread=True, exclusive=True, group="survey", exit_on_error=False)
    def _survey(self, run: partial[None]) -> None:
        run()

    def on_profile_surveyed(self, event: ProfileSurveyed) -> None:
        session = self.session
        current = event.inputs[:2] == (session.cluster, session.model) and event.settings == session.profile.settings
        if not current:
            return
        before = session.profile.survey.ground.notice if session.profile.survey else ""
        session.profile.survey, session.profile.looking = event.survey, False
        notice = event.survey.ground.notice
        if notice and notice != before and not session.profile.running:
            session.profile.log.append(LogLine(profile_job.wall_clock(), "", notice, bad=True))
            self.say(notice, warning=True)
        self.publish("profile")

    # Learning

    def learn_profile(self) -> None:
        """Train in a thread on what is measured by now, unless that is done already; the Profile screen shows it."""
        session, state = self.session, self.session.profile
        if not session.ready:
            return
        try:
            job = session.job()
        except MemxError as error:
            state.unlearned = error.message
            self.publish("profile")
            return
        assert session.cluster is not None and session.model is not None
        folder = self.workspace_folder()
        measured = state.progress.measured if state.running and state.progress is not None else -1
        of = (*session.inputs(), folder, measured)
        if of == state.learned_of:
            return
        state.learned_of = of
        if not state.running:
            state.learned, state.unlearned = None, ""
        if not state.learning:
            state.learning = True
            # A daemon: training cannot be stopped half-way, and leaving must not wait for it.
            run = partial(
                profile_job.run_learning, (session.cluster, session.model, job), folder, of, self.post_message
            )
            threading.Thread(target=run, name="learning", daemon=True).start()
        self.publish("profile")

    def on_profile_learned(self, event: ProfileLearned) -> None:
        state = self.session.profile
        state.learning = False
        if event.of == state.learned_of:
            state.learned, state.unlearned = event.learned, event.problem
        elif state.learned_of:
            state.learned_of = ()
            self.learn_profile()
        self.publish("profile")

    # Running

    def start_profile(self, *, retry_failed: bool = False) -> None:
        """Measure what is not stored yet, in a thread; one at a time."""
        session, state = self.session, self.session.profile
        if state.running:
            self.say("profiling runs already; x cancels it, what it has is kept")
            return
        try:
            job = session.job()
            runner = make_runner(state.settings.runner)
        except MemxError as error:
            self.show_error(error)
            return
        assert session.cluster is not None and session.model is not None
        feed = self._feed = ProfileFeed()
        state.running, state.paused, state.stopping = True, False, False
        state.progress = state.result = state.failure = None
        state.verdicts, state.subject = {}, session.subject
        state.log.append(LogLine(profile_job.wall_clock(), "", f"profiling, {state.settings.where_words()}"))
        self._profile(
            partial(
                profile_job.run_profile_job,
                (session.cluster, session.model, job),
                state.settings,
                runner,
                self.workspace_folder(),
                retry_failed,
                feed,
                self.post_message,
            )
        )
        self.publish("profile")

    @work(thread=True, exclusive=True, group="profile", exit_on_error=False)
    def _profile(self, run: partial[None]) -> None:
        run()

    def pause_profile(self) -> None:
        """Start no new point, or go on; points that run are finished."""
        state = self.session.profile
        if self._feed is None or not state.running or state.stopping:
            return
        state.paused = not state.paused
        (self._feed.pause.set if state.paused else self._feed.pause.clear)()
        self.publish("profile")

    def cancel_profile(self) -> None:
        """Ask the job to stop; every finished point is stored already."""
        state = self.session.profile
        if self._feed is None or not state.running:
            return
        self._feed.stop.set()
        state.stopping = True
        self.publish("profile")

    def on_profile_progressed(self, event: ProfileProgressed) -> None:
        if self.session.profile.running:
            self.session.profile.progress = event.progress
            self._take_lines()
            self.publish("profile")

    def on_profile_ended(self, event: ProfileEnded) -> None:
        from memx_engine import ProfileProgress

        state, result = self.session.profile, event.result
        state.progress = ProfileProgress(result.seconds, tuple(t.progress for t in result.types))
        state.result = result
        state.verdicts = {t.gpu_type: t.impacts for t in result.types if t.impacts}
        for failed in (t for t in result.types if t.hint):
            self._take_lines()
            state.log.append(LogLine(profile_job.wall_clock(), failed.gpu_type, in_fields(failed.hint), bad=True))
        kept = result.total("measured") + result.total("cached")
        word = "cancelled" if result.cancelled else "finished"
        missing = [t.gpu_type for t in result.types if t.error]
        without = f" without {', '.join(missing)}" if missing else ""
        self._profile_ended(f"profiling {word}{without}; {kept:,} results are kept")

    def profile_failed(self, event: JobFailed) -> None:
        """The job raised; what it had stored stays."""
        self.session.profile.failure = event.error
        words = getattr(event.error, "message", None) or f"{type(event.error).__name__}: {event.error}"
        self._profile_ended(f"profiling failed: {words}", bad=True)

    def _profile_ended(self, words: str, *, bad: bool = False) -> None:
        state = self.session.profile
        self._take_lines()
        state.log.append(LogLine(profile_job.wall_clock(), "", words, bad=bad))
        state.running = state.paused = state.stopping = False
        if state.progress is None or state.progress.measured:
            state.version += 1
        state.looking = True
        self._feed = None
        self.publish("profile")
        if not bad and self.session.mode != "profile":
            self.say(words)
        self.survey_profile()

    def _take_lines(self) -> None:
        if self._feed is not None:
            self.session.profile.log.extend(self._feed.take())
            self.session.profile.verdicts.update(self._feed.verdicts())
