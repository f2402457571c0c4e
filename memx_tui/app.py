"""The dashboard: one app, one session, numbered screens, jobs in threads."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Event, Key
from textual.signal import Signal

from memx_engine import MemxError
from memx_tui.config import Config
from memx_tui.glyphs import ASCII, UNICODE, AsciiFilter
from memx_tui.keys import binding_ids
from memx_tui.messages import JobFailed
from memx_tui.modes import MODE_TABLE, Mode
from memx_tui.paths import Paths, find_paths
from memx_tui.profile_job import DOING as PROFILING
from memx_tui.profile_job import LOOKING
from memx_tui.remembering import SessionKeeper
from memx_tui.screens.error import ErrorDialog
from memx_tui.searching import SearchingApp
from memx_tui.session import Change, Session
from memx_tui.session_file import add_recent
from memx_tui.themes import FALLBACKS, choose_theme, load_themes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.actions import ActionParseResult
    from textual.dom import DOMNode
    from textual.filter import LineFilter

    from memx_engine import Cluster, RankedPlan, SearchResult, TransformerSpec

log = logging.getLogger(__name__)

_ESCAPED = re.compile(r"alt\+(shift\+)?[a-z]")
QUIT_WITHIN_S = 2.0
"""A second ctrl+c within this time quits."""


class MemxApp(SearchingApp):
    """Plans on screen.

    Args:
        session: What is known at the start; with cluster and model a search starts at once.
        theme: Name of a theme; None takes the last one or what suits the terminal.
        ascii_only: Draw with bytes below 0x80 only.
        paths: Where files live.
        config: What the configuration file says.
        problems: What went wrong before the start; each is shown once.
        remember: Write the session file.
    """

    TITLE = "memx"
    CSS_PATH = ["styles/memx.tcss", "styles/dialogs.tcss", "styles/cluster.tcss", "styles/profile.tcss"]
    ENABLE_COMMAND_PALETTE = False  # the palette of palette.py takes its place
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, so that dialogs have it too; where a text is typed, a question mark is one.
        Binding(
            "question_mark,f1", "help", "Help", id="help", priority=True, tooltip="Keys of this screen, searchable"
        ),
        Binding("ctrl+p,colon", "palette", "Palette", id="palette", tooltip="Every action by name"),
        Binding("q", "request_quit", "Quit", id="quit", tooltip="Quit; asks when something would be lost"),
        Binding("ctrl+q", "request_quit", "Quit", id="quit.always", show=False, priority=True, tooltip="Quit"),
        Binding(
            "ctrl+c",
            "interrupt",
            "Cancel",
            id="interrupt",
            show=False,
            priority=True,
            tooltip="Cancel what runs; twice within two seconds quits",
        ),
        *(
            Binding(
                mode.key,
                f"open_mode('{mode.name}')",
                mode.label,
                id=f"mode.{mode.name}",
                show=False,
                tooltip=f"Open the {mode.label} screen",
            )
            for mode in MODE_TABLE
        ),
    ]

    def __init__(
        self,
        session: Session | None = None,
        *,
        theme: str | None = None,
        ascii_only: bool = False,
        paths: Paths | None = None,
        config: Config | None = None,
        problems: Sequence[MemxError] = (),
        remember: bool = False,
    ) -> None:
        super().__init__()
        self.config = config or Config()
        self.session = session or Session()
        self.paths = paths or find_paths()
        self.ascii_only = ascii_only
        self.glyphs = ASCII if ascii_only else UNICODE
        self.mode_table = MODE_TABLE
        self.session_changed: Signal[Change] = Signal(self, "session-changed")
        self._ascii_filter = AsciiFilter()
        self._interrupted_at = 0.0
        self.failure: Exception | None = None
        self.ended_by_signal = False
        for mode in MODE_TABLE:
            self.add_mode(mode.name, mode.build)
        self.themes, theme_problems = load_themes(self.paths.themes)
        for file in self.themes.values():
            self.register_theme(file.to_textual())
        self.chosen_theme = theme
        self.theme, problem = choose_theme(theme, self.themes, os.environ)
        self._problems = [*problems, *theme_problems, *([problem] if problem else [])]
        self._keeper = SessionKeeper(self, self.paths.session_file) if remember else None
        if self.config.keymap:
            self._problems += self.config.keymap_problems(binding_ids())
            self.set_keymap(dict(self.config.keymap))

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        return {name: variables[source] for name, source in FALLBACKS.items()} | variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*filters, self._ascii_filter] if self.ascii_only else filters

    def on_mount(self) -> None:
        self.animation_level = "none"
        self._end_on_signals()
        for problem in self._problems:
            self.say(str(problem), warning=True)
        self.open_mode(self.session.mode or ("plans" if self.session.cluster else "cluster"))
        if self.session.ready and self.session.result is None:
            self.start_search()

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action; whatever it raises is logged and shown, and the app lives on."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except Exception as error:
            self.report_failure(error, "doing that")
            return True

    async def on_event(self, event: Event) -> None:
        """Take escape and a letter apart that a terminal sent as one key: tmux waits half a second for the second."""
        if isinstance(event, Key) and not event.is_forwarded and event.character and _ESCAPED.fullmatch(event.key):
            if event.key not in self.screen.active_bindings:
                await self._check_bindings("escape", priority=True) or await self._check_bindings("escape")
                event = Key(event.character, event.character)
        await super().on_event(event)

    # Screens

    def open_mode(self, name: str) -> None:
        """Show one of the numbered screens."""
        if self.current_mode != name:
            self.session.mode = name
            self.switch_mode(name)
            self.publish("mode")

    def action_open_mode(self, name: str) -> None:
        self.open_mode(name)

    def tab_label(self, mode: Mode) -> str:
        """A screen's name in the tab row; Compare carries the number of marks."""
        marks = len(self.session.marks)
        return f"{mode.label}({marks})" if mode.name == "compare" and marks else mode.label

    def bindings(self) -> Iterator[Binding]:
        """The keys that work on every screen."""
        for binding in self.BINDINGS:
            if isinstance(binding, Binding):
                yield binding

    # Session

    def publish(self, change: Change) -> None:
        """Tell the screens that something in the session has changed."""
        self.session_changed.publish(change)
        if self._keeper is not None:
            self._keeper.changed(change)

    def set_cluster(self, cluster: Cluster, source: str = "") -> None:
        """Work on another cluster; results of the old one stay visible and are called stale."""
        self.session.cluster, self.session.cluster_source = cluster, source
        there = {node.name for node in cluster.nodes}
        self.session.without = tuple(name for name in self.session.without if name in there)
        if source:
            self.session.recent = add_recent(self.session.recent, source)
        self.publish("cluster")

    def set_model(self, model: TransformerSpec, source: str = "") -> None:
        """Work on another model; results of the old one stay visible and are called stale."""
        self.session.model, self.session.model_source = model, source
        self.publish("model")

    def open_cluster(self, source: str) -> None:
        """Show the Cluster screen with a sample or file opened in it."""
        from memx_tui.screens.cluster import ClusterScreen

        self.open_mode("cluster")
        screen = self.screen
        if isinstance(screen, ClusterScreen):
            screen.call_after_refresh(screen.open_source, source)

    def choose_theme(self, name: str) -> None:
        """Change the theme, and keep it for the next start."""
        self.theme = self.chosen_theme = name
        self.publish("theme")

    def sort_plans(self, key: str) -> None:
        """List the plans by one of the sort keys."""
        self.session.view.sort = key
        self.open_mode("plans")
        self.publish("view")

    # Jobs

    def on_job_failed(self, event: JobFailed) -> None:
        if event.doing.startswith("searching"):
            self.search_ended()
            self.session.failure = event.error
        elif event.doing == PROFILING:
            self.profile_failed(event)
        elif event.doing == LOOKING:
            self.session.profile.looking = False
        self.publish("search")
        self.show_error(event.error, doing=event.doing)

    # Talking to the operator

    def show_error(self, error: BaseException, *, doing: str = "") -> None:
        """Open the error dialog: reason, hint and log, never a traceback."""
        log_path = str(self.paths.log_file)
        if isinstance(error, MemxError):
            from memx_tui.field_words import in_fields

            message, where, hint = (in_fields(words) for words in (error.message, error.where, error.hint))
            self.push_screen(ErrorDialog(error.title, message, where=where, hint=hint, log_path=log_path))
            return
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        title = f"Failed while {doing}" if doing else MemxError.title
        hint = "this is a fault of memx; the log has the details, everything else keeps working"
        self.push_screen(ErrorDialog(title, reason, hint=hint, log_path=log_path))

    def say(self, text: str, *, warning: bool = False) -> None:
        """A short notice, its brackets literal; warnings stay longer."""
        self.notify(text, markup=False, severity="warning" if warning else "information", timeout=8 if warning else 4)

    def copy(self, text: str, what: str) -> None:
        """Send text to the terminal's clipboard and say so."""
        self.copy_to_clipboard(text)
        tmux = "; tmux needs set-clipboard on" if os.environ.get("TMUX") else ""
        self.say(f"{what} sent to terminal clipboard (OSC 52){tmux}")

    def write(self, text: str, name: str) -> None:
        """Write text to a new file in the working directory and say where it is: for terminals without a clipboard."""
        from memx_tui.files import write_new

        try:
            self.say(f"saved {write_new(Path.cwd() / name, text)}")
        except (MemxError, OSError) as error:
            self.show_error(error, doing="writing a file")

    def report_failure(self, error: BaseException, doing: str) -> None:
        """Log what the engine raised and show it."""
        log.error("failed while %s", doing, exc_info=error)
        self.show_error(error, doing=doing)

    # What can be done with a plan

    def choose_model(self) -> None:
        """Choose another model and search with it."""
        from memx_tui.choosers import model_dialog

        self.push_screen(model_dialog(self.session.model_source), self._model_chosen)

    def _model_chosen(self, source: str | None) -> None:
        from memx_engine import load_model

        if source is None:
            return
        try:
            model = load_model(source)
        except MemxError as error:
            self.show_error(error)
            return
        self.set_model(model, source)
        if self.session.ready and not self.session.searching:
            self.start_search()

    def export(self, ranked: RankedPlan | None) -> None:
        """Open the export dialog for a plan."""
        if ranked is None or self.session.result is None:
            self.say("there is no plan to export")
            return
        from memx_tui.screens.export import plan_export

        self.push_screen(plan_export(self.session.result, ranked))

    def copy_plan(self, ranked: RankedPlan | None) -> None:
        """Send a plan's YAML to the terminal's clipboard."""
        if ranked is None or self.session.result is None:
            self.say("there is no plan to copy")
            return
        text = self._plan_text(self.session.result, ranked)
        if text is not None:
            self.copy(text, f"plan #{ranked.rank} as YAML")

    def write_plan(self, ranked: RankedPlan | None) -> None:
        """Write a plan's YAML to a new file in the working directory."""
        if ranked is None or self.session.result is None:
            self.say("there is no plan to write")
            return
        from memx_tui.screens.export import plan_file_name

        text = self._plan_text(self.session.result, ranked)
        if text is not None:
            self.write(text, plan_file_name(self.session.result, ranked))

    def _plan_text(self, result: SearchResult, ranked: RankedPlan) -> str | None:
        from memx_engine import plan_file, plan_text

        try:
            return plan_text(plan_file(result, ranked))
        except Exception as error:  # the edge between engine and screen: the dialog says it, the log has it
            self.report_failure(error, "writing the plan as YAML")
            return None

    def action_palette(self) -> None:
        from memx_tui.palette import Palette

        self.push_screen(Palette())

    def action_help(self) -> None:
        from memx_tui.screens.help import HelpDialog

        if not isinstance(self.screen, HelpDialog):
            self.push_screen(HelpDialog())

    # Leaving

    def _handle_exception(self, error: Exception) -> None:
        """Leave on a fault of the interface itself; the caller reports ``failure``.

        Textual would print the traceback, with local variables, over the operator's terminal.
        """
        self.failure = self.failure or error
        super()._handle_exception(error)
        self._exit_renderables.clear()

    def action_interrupt(self) -> None:
        """ctrl+c: cancel what runs; pressed twice, quit."""
        now = time.monotonic()
        if self.cancel_sensitivity():
            self.say("stopping; what is searched so far is shown")
        elif self.cancel_replan():
            self.say("stopping; the best plan so far is shown")
        elif self.session.searching and not (self._stop_search and self._stop_search.is_set()):
            self.cancel_search()
            self.say("cancelling the search; ctrl+c again quits")
        elif self.session.profile.running and not self.session.profile.stopping:
            self.cancel_profile()
            self.say("cancelling profiling, its results are kept; ctrl+c again quits")
        elif now - self._interrupted_at < QUIT_WITHIN_S:
            self.leave()
        else:
            self.say("press ctrl+c again to quit, or q")
        self._interrupted_at = now

    def action_request_quit(self) -> None:
        """Quit at once, unless a job runs or unsaved changes would be lost; then ask."""
        lost = []
        if self.session.searching:
            lost.append("The running search will be stopped.")
        if self.session.profile.running:
            lost.append("Profiling will be stopped. Every finished point is stored already; r goes on next time.")
        if self.session.unsaved:
            lost.append(f"{self.session.unsaved} has changes in no file; they come back at the next start.")
        if not lost:
            self.leave()
            return
        from memx_tui.screens.prompt import ConfirmDialog

        dialog = ConfirmDialog("Quit?", " ".join(lost), yes="Quit")
        self.push_screen(dialog, lambda yes: self.leave() if yes else None)

    def _end_on_signals(self) -> None:
        """A scheduler's SIGTERM and a closed terminal end the dashboard as quitting does, the terminal put right."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # What is ignored (nohup) stays ignored; only the main thread may be told of signals.
            if signal.getsignal(number) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
                loop.add_signal_handler(number, self._end_by_signal)

    def _end_by_signal(self) -> None:
        self.ended_by_signal = True
        self.leave()

    def leave(self) -> None:
        """Stop every job and exit."""
        self.cancel_search()
        self.cancel_profile()
        if self._keeper is not None:
            self._keeper.write()
        self.exit()
