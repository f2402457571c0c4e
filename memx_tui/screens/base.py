"""What every mode screen has: title row, tab row, footer, and the words in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.screen import Screen

from memx_tui.session import Change
from memx_tui.status import search_words
from memx_tui.text.search_view import certainty
from memx_tui.widgets.chrome import FooterBar, Hint, Tab, TabBar, TitleBar

if TYPE_CHECKING:
    from memx_tui.app import MemxApp
    from memx_tui.session import Session

_KEY_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "space": "spc",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "colon": ":",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
}


def key_name(key: str) -> str:
    """How a key is written in footer and help: ``?``, ``spc``, ``^p``."""
    key = key.split(",")[0].strip()
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return _KEY_NAMES.get(key, key)


class ModeScreen(Screen[None]):
    """Base of the numbered screens: implement :meth:`compose_body`, and extend :meth:`status` for the tab row.

    Footer hints are the screen's bindings with ``show=True`` in the order in which they are declared, after ``?``.
    """

    HORIZONTAL_BREAKPOINTS = [
        (0, "-tiny"),
        (60, "-narrow"),
        (100, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-medium"), (30, "-tall")]
    MODE: ClassVar[str] = ""

    @property
    def memx(self) -> MemxApp:
        """The app with its own type."""
        return cast("MemxApp", self.app)

    @property
    def session(self) -> Session:
        return self.memx.session

    def compose(self) -> ComposeResult:
        yield TitleBar()
        yield TabBar()
        yield Container(*self.compose_body(), id="body")
        yield FooterBar()

    def compose_body(self) -> ComposeResult:
        """The widgets between tab row and footer."""
        yield from ()

    def on_mount(self) -> None:
        self.memx.session_changed.subscribe(self, self._on_session_changed)
        self.bindings_updated_signal.subscribe(self, self._on_bindings_updated)
        self.refresh_chrome()

    def on_screen_resume(self) -> None:
        self.refresh_chrome()

    def _on_session_changed(self, change: Change) -> None:
        self.refresh_chrome()
        self.session_changed(change)

    def _on_bindings_updated(self, screen: Screen[object]) -> None:
        if self.is_mounted:
            self.query_one(FooterBar).show(list(self.hints()))

    def session_changed(self, change: Change) -> None:
        """Called after every change of the session; screens that show session values override it."""

    def refresh_chrome(self) -> None:
        """Bring the three rows up to date."""
        if not self.is_mounted:
            return
        self.query_one(TitleBar).show(*self.title_words())
        tabs = [Tab(mode.key, self.memx.tab_label(mode), mode.name) for mode in self.memx.mode_table]
        self.query_one(TabBar).show(tabs, self.MODE, self.status())
        self.query_one(FooterBar).show(list(self.hints()))

    def title_words(self) -> tuple[list[str], list[tuple[str, bool]]]:
        """Left versions (longest first) and right words of the title row."""
        session = self.session
        dot = f" {self.memx.glyphs.dot} "
        cluster, model = session.cluster, session.model
        name = cluster.name if cluster else "no cluster"
        model_name = model.name if model else "no model"
        long = short = f"{name}{dot}{model_name}"
        if cluster:
            counts = ", ".join(f"{len(cluster.ranks_by_type[t.name])}x {t.name}" for t in cluster.gpu_types)
            long = f"{name} ({counts}){dot}{model_name}"
            short = f"{name}, {len(cluster.gpus)} GPUs{dot}{model_name}"
        lefts = [long, short, f"{name}{dot}{model_name}", name]
        job = session.job_words()
        if job:
            lefts = [f"{long}, {job}", f"{short}, {job}", *lefts]
        right: list[tuple[str, bool]] = []
        result = session.result
        right.append((session.profile.short_words(), False))
        if session.stale:
            right.append(("STALE", True))
        if result is not None:
            right.append((f"{result.feasible:,} of {result.skeletons:,} fit", False))
            right.append((certainty(result), False))
        else:
            right.append(("uncalibrated", False))
        return lefts, right

    def status(self) -> list[str]:
        """Versions of the tab row's right side, longest first."""
        return search_words(self.session)

    def hints(self) -> Iterator[Hint]:
        """Footer entries: help first, then this screen's shown bindings, then palette and quit; keys as remapped."""
        keys: dict[str | None, Binding] = {}
        for active in self.active_bindings.values():
            keys.setdefault(active.binding.id, active.binding)
        own = [binding.id for binding in type(self).BINDINGS if isinstance(binding, Binding) and binding.show]
        for binding_id in ("help", *own, "palette", "quit"):
            binding = keys.get(binding_id)
            if binding is not None:
                yield Hint(binding.key_display or key_name(binding.key), binding.description, binding.action)

    def on_tab_bar_chosen(self, event: TabBar.Chosen) -> None:
        event.stop()
        self.memx.open_mode(event.mode)

    async def on_footer_bar_pressed(self, event: FooterBar.Pressed) -> None:
        event.stop()
        await self.run_action(event.action)
