"""The Profile screen: measure what the plans rest on, watch it, pause it, stop it, go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Static

from memx_tui.profile_canvas import Canvas, Colors
from memx_tui.profile_state import ProfileSettings, Survey
from memx_tui.profile_tables import plan_lines, verdict_lines
from memx_tui.profile_text import log_lines, overall_lines, type_lines
from memx_tui.profile_trends import trends_lines
from memx_tui.screens.base import ModeScreen
from memx_tui.session import Change
from memx_tui.status import new_measurements_words
from memx_tui.widgets.chrome import Hint, fit
from memx_tui.widgets.pane import Pane
from memx_tui.widgets.text_view import TextView

Lower = Literal["plan", "log", "verdict", "trends"]
LOWER: tuple[Lower, ...] = ("plan", "log", "verdict")
"""What the pane turns through; the trends are only shown over the whole screen."""
TITLES = {"plan": "plan of measurements", "log": "log", "verdict": "what matters", "trends": "trends"}


class ProfileScreen(ModeScreen):
    """Profiling of the session's cluster."""

    MODE = "profile"
    TITLE = "Profile"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "start", "Start", id="profile.start", tooltip="Measure what is not stored yet; nothing twice"),
        Binding("space", "pause", "Pause", id="profile.pause", tooltip="Start no new point, or go on"),
        Binding("x", "cancel", "Cancel", id="profile.cancel", tooltip="Stop; every finished point is kept"),
        Binding("f", "retry", "Retry", id="profile.retry", tooltip="Measure again what failed or hung"),
        Binding("o", "runner", "Runner", id="profile.runner", tooltip="Where to measure, and in which workspace"),
        Binding("p", "plan", "Plan", id="profile.plan", tooltip="Search for plans with what is measured by now"),
        Binding("l", "full_log", "Log", id="profile.log", tooltip="The whole log, or all panes again"),
        Binding("t", "trends", "Trends", id="profile.trends", tooltip="Trends, and what is learned from them"),
        Binding(
            "tab,right_square_bracket",
            "turn(1)",
            "Pane",
            id="profile.turn",
            show=False,
            tooltip="Plan, log or verdict below",
        ),
        Binding(
            "shift+tab,left_square_bracket",
            "turn(-1)",
            "Back",
            id="profile.turn-back",
            show=False,
            tooltip="The pane before",
        ),
        Binding("escape", "back", "Back", id="profile.back", show=False, tooltip="Leave the full log or the trends"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lower: Lower = "plan"
        self._full = False
        self._was_running = False
        self._top = True
        self._trends: list[Text] = []
        self._trends_of: tuple[object, ...] = ()

    # Building

    def compose_body(self) -> ComposeResult:
        overall = TextView(id="overall")
        types = TextView(id="types")
        overall.can_focus = types.can_focus = False
        yield overall
        yield Pane("GPU types", types, id="types-pane")
        yield Pane("plan", TextView(id="lower", follow=True), id="lower-pane")
        yield Static(id="ground", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        state = self.session.profile
        self._was_running = state.running
        if state.running or state.log:
            self._lower = "verdict" if state.result is not None else "log"
        self.query_one("#lower", TextView).focus()
        self._expect_survey()
        self._show()

    def _expect_survey(self) -> None:
        """Cluster and model are known: what is stored of them is being looked up."""
        if self.session.profile.survey is None and self.session.ready:
            self.session.profile.survey = Survey()

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self._expect_survey()
        self._show()
        if not self.session.profile.running:
            self.memx.survey_profile()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show)

    def session_changed(self, change: Change) -> None:
        if change in ("cluster", "model", "job"):
            if not self.session.profile.running:
                self.session.profile.forget()
                self.session.profile.survey = Survey() if self.session.ready else None
                if self.is_current:
                    self.memx.survey_profile()
        elif change == "theme":
            # The new colours are known once the stylesheet has been applied.
            self.call_after_refresh(self._show)
        elif change != "profile":
            return
        state = self.session.profile
        if state.running and not self._was_running:
            self._turn_to("log")
        elif self._was_running and not state.running and state.result is not None and not state.result.cancelled:
            self._turn_to("verdict")
        ended = self._was_running and not state.running
        self._was_running = state.running
        if self.is_current:
            if self._lower == "trends" and (ended or not state.learned_of):
                self.memx.learn_profile()
            self._show()
            self.refresh_bindings()

    # What is shown

    def canvas(self, width: int) -> Canvas:
        """What the lines are drawn with."""
        view = self.query_one("#overall", TextView)
        names = ("bar", "quiet", "good", "warning", "bad")
        colors = Colors(*(view.get_component_rich_style(f"text--{name}", partial=True) for name in names))
        return Canvas(width, self.memx.glyphs, colors)

    def _show(self) -> None:
        if not self.is_mounted or not self.size.width:
            return
        state = self.session.profile
        canvas = self.canvas(self.size.width)
        self.query_one("#overall", TextView).set_lines(overall_lines(state, canvas))
        self.query_one("#types", TextView).set_lines(type_lines(state, canvas))
        of = f" of {state.subject}" if state.progress is not None and state.subject != self.session.subject else ""
        self.query_one("#types-pane", Pane).title_bar.show(f"GPU types{of}", [Text(state.settings.where_words())])
        self._show_lower(replace(canvas, width=self.size.width - 1))
        survey = state.survey
        words = survey.ground.line() if survey is not None else ""
        if state.looking:
            words = "Reading what is measured now."
        if state.running:
            words = "Every result is kept as it arrives; quitting loses at most what runs now."
        self.query_one("#ground", Static).update(Text(f" {fit(words, self.size.width - 2)}", no_wrap=True))

    def _show_lower(self, canvas: Canvas) -> None:
        state = self.session.profile
        if self._lower == "plan":
            lines = plan_lines(state.survey, canvas, state.settings.runner.lanes_at_once)
        elif self._lower == "log":
            lines = log_lines(state.log, canvas, full=self._full)
        elif self._lower == "trends":
            lines = self._trend_lines(canvas)
        else:
            order = [t.gpu_type for t in state.progress.types] if state.progress is not None else []
            lines = verdict_lines({name: state.verdicts.get(name, ()) for name in order}, canvas)
        view = self.query_one("#lower", TextView)
        view.follow = self._lower == "log"
        view.set_lines(lines, top=self._top and self._lower != "log")
        if self._top and self._lower == "log":
            view.chase()
        self._top = False
        title = TITLES[self._lower]
        if self._full and self._lower == "trends":
            title, right = "trends and what is learned", [Text("t or esc: back")]
            if state.learning:
                right = [Text("learning, it comes below; t or esc: back"), Text("learning"), *right]
        elif self._full:
            title, right = "full log", [Text("all points, l or esc: back")]
        else:
            others = f"tab: {', '.join(name for name in LOWER if name != self._lower)}"
            right = [Text(f"t: trends, {others}"), Text(others)] if self._has_trends else [Text(others)]
        self.query_one("#lower-pane", Pane).title_bar.show(title, right)

    def _trend_lines(self, canvas: Canvas) -> list[Text]:
        """Drawn anew only when something in them has changed: their plots are dear."""
        state = self.session.profile
        of = (state.result, state.learned, state.unlearned, state.learning, self.session.inputs(), canvas)
        if self._trends_of != of:
            self._trends_of, self._trends = of, trends_lines(self.session, canvas)
        return self._trends

    @property
    def _has_trends(self) -> bool:
        """Something is measured that trends could be drawn of."""
        state = self.session.profile
        there = state.survey is not None and state.survey.there > 0
        return there or (state.progress is not None and state.progress.measured > 0)

    def _turn_to(self, lower: Lower) -> None:
        if self._lower != lower and not self._full:
            self._lower, self._top = lower, True

    def status(self) -> list[str]:
        session = self.session
        if session.unused_measurements and not session.searching and not session.profile.running:
            return new_measurements_words("p")
        return super().status()

    def hints(self) -> Iterator[Hint]:
        state = self.session.profile
        survey = state.survey
        crowded = self.check_action("retry", ())
        for hint in super().hints():
            if hint.action == "full_log" and crowded:
                continue  # tab shows the log, and eight hints are what 80 columns hold
            if hint.action == "start" and survey is not None and survey.there:
                hint = replace(hint, label="Resume")
            elif hint.action == "pause" and state.paused:
                hint = replace(hint, label="Go on")
            yield hint

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        state = self.session.profile
        if action in ("start", "runner"):
            return not state.running
        if action in ("pause", "cancel"):
            return state.running and not state.stopping
        if action == "retry":
            failed = state.progress.failed if state.progress is not None else state.survey.failed if state.survey else 0
            return not state.running and (failed > 0 or state.failure is not None)
        if action == "plan":
            return self.session.ready
        if action == "trends":
            return self._has_trends or self._lower == "trends"
        if action == "back":
            return self._full
        return True

    # Actions

    def action_start(self) -> None:
        self.memx.start_profile()

    def action_retry(self) -> None:
        self.memx.start_profile(retry_failed=True)

    def action_pause(self) -> None:
        self.memx.pause_profile()

    def action_cancel(self) -> None:
        self.memx.cancel_profile()

    def action_plan(self) -> None:
        self.memx.plan_on_measured()

    def action_runner(self) -> None:
        from memx_tui.screens.runner import RunnerDialog

        session = self.session
        folder = self.memx.paths.workspace(session.cluster.name if session.cluster else "")

        def use(settings: ProfileSettings | None) -> None:
            if settings is not None and settings != session.profile.settings:
                self._turn_to("plan")
                self.memx.set_profile_settings(settings)

        self.app.push_screen(RunnerDialog(session.profile.settings, folder), use)

    def action_full_log(self) -> None:
        self._open("log", full=not (self._full and self._lower == "log"))

    def action_trends(self) -> None:
        if self._full and self._lower == "trends":
            self.action_back()
            return
        self._open("trends", full=True)
        self.memx.learn_profile()

    def _open(self, lower: Lower, *, full: bool) -> None:
        """Show a pane; ``full``: over the whole screen."""
        self._full, self._lower, self._top = full, lower, True
        self.set_class(full, "-full")
        self._show()
        self.refresh_bindings()

    def action_back(self) -> None:
        if self._full:
            after: Lower = "verdict" if self.session.profile.result is not None else "log"
            self._open("log" if self._lower == "log" else after, full=False)

    def action_turn(self, by: int) -> None:
        if self._full:
            self.action_back()
        self._lower, self._top = LOWER[(LOWER.index(self._lower) + by) % len(LOWER)], True
        self._show()
