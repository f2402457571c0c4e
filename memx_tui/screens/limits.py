"""Limits: what every plan of a search must keep, written as on the command line; Enter searches within them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import DescendantFocus, Key, Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from memx_tui.field_words import in_fields
from memx_tui.limit_form import LIMIT_FORM, Asked, LimitField, check_form, form_texts
from memx_tui.widgets.quiet import QuietInput

if TYPE_CHECKING:
    from memx_engine import InputError
    from memx_tui.app import MemxApp

_MOST_CHARACTERS = 2000
_FRAME = 5
"""Rows of the dialog that are not fields: border, two of hint, keys."""


class LimitInput(QuietInput):
    """The value of one field; where only some words are allowed, space turns to the next."""

    def __init__(self, spec: LimitField, value: str) -> None:
        placeholder = spec.choices[0] if spec.choices else spec.empty
        super().__init__(
            value, placeholder=placeholder, id=f"limit-{spec.key}", classes="form-field", max_length=_MOST_CHARACTERS
        )
        self.spec = spec

    async def _on_key(self, event: Key) -> None:
        words = self.spec.choices
        if event.key == "ctrl+r":  # here, so that what is typed right after it stays
            event.stop()
            event.prevent_default()
            await self.app.run_action("screen.clear")
        elif event.key == "space" and words:
            event.stop()
            event.prevent_default()
            at = words.index(self.value) if self.value in words else 0
            self.value = words[(at + 1) % len(words)]


class LimitsDialog(ModalScreen[Asked | None]):
    """One line for each limit, what is wrong with it below it; returns what to search within.

    Closing keeps what was typed for the next time the dialog is opened, and changes nothing else.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="limits.close", tooltip="Close; what was typed is kept for next time"),
        # With priority, so that what is typed right after the key goes to the next field and not to this one.
        Binding(
            "tab,down", "app.focus_next", "Next", id="limits.next", show=False, priority=True, tooltip="Next field"
        ),
        Binding(
            "shift+tab,up",
            "app.focus_previous",
            "Previous",
            id="limits.previous",
            show=False,
            priority=True,
            tooltip="Previous field",
        ),
        Binding("enter", "search", "Search", id="limits.search", tooltip="Search again within these limits"),
        Binding("ctrl+r", "clear", "Empty all", id="limits.clear", tooltip="Empty every field"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._problems: dict[str, InputError] = {}

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        session = self.memx.session
        start = session.limit_draft
        if start is None:
            start = form_texts(session.options, session.free)
        with Vertical(classes="dialog limits-dialog") as box:
            box.border_title = Content("Limits of every plan")  # Content is kept literal
            with Vertical(classes="limit-fields"):
                for key, spec in LIMIT_FORM.items():
                    with Horizontal(classes="form-row"):
                        yield Label(spec.label, classes="form-label", markup=False)
                        yield LimitInput(spec, start.get(key, ""))
                    yield Static(id=f"problem-{key}", classes="limit-problem", markup=False)
            yield Static(classes="limit-hint", markup=False)
            yield Static(
                Content("enter Search again   tab Next   ctrl+r Empty all   esc Close, keep text"),
                classes="dialog-keys",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one(LimitInput).focus()
        self._check()

    def on_resize(self, event: Resize) -> None:
        # The fields scroll; the hint and the keys below them always stay in sight.
        self.query_one(".limit-fields").styles.max_height = max(3, int(event.size.height * 0.9) - _FRAME)

    @property
    def texts(self) -> dict[str, str]:
        """What stands in the fields; empty ones are absent."""
        values = {field.spec.key: field.value.strip() for field in self.query(LimitInput)}
        return {key: value for key, value in values.items() if value}

    @property
    def problems(self) -> dict[str, InputError]:
        """What is wrong with a field, by its key."""
        return dict(self._problems)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, LimitInput):
            self.query_one(".limit-hint", Static).update(Content(event.widget.spec.hint))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._check()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_search()

    def action_search(self) -> None:
        asked = self._check()
        if self._problems:
            bad = next(key for key in LIMIT_FORM if key in self._problems)
            self.query_one(f"#limit-{bad}", LimitInput).focus()
            return
        self.memx.session.limit_draft = None
        self.dismiss(asked)

    def _check(self) -> Asked:
        """Read the fields and say below each what is wrong with it and what to do."""
        focused = self.focused
        editing = focused.spec.key if isinstance(focused, LimitInput) else ""
        asked, self._problems = check_form(self.texts, self.memx.session, editing)
        for key in LIMIT_FORM:
            try:
                line = self.query_one(f"#problem-{key}", Static)
            except NoMatches:
                continue  # a field changes while the dialog is being built
            problem = self._problems.get(key)
            words = "" if problem is None else f"{problem.message}{f'; {problem.hint}' if problem.hint else ''}"
            line.update(Content(in_fields(words, places=False)))
            line.display = problem is not None
        return asked

    def action_clear(self) -> None:
        for field in self.query(LimitInput):
            field.value = ""

    def action_close(self) -> None:
        session, texts = self.memx.session, self.texts
        session.limit_draft = None if texts == form_texts(session.options, session.free) else texts
        self.dismiss(None)
