"""The training pane: model, job and weights. It changes the session and says so; the search is the screen's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.message import Message

from memx_engine import MemxError, load_model, parse_weights
from memx_tui.choosers import model_dialog
from memx_tui.job_form import SPECS, WEIGHTS, next_profile, parse_value, set_weights, stepped, training_fields
from memx_tui.remembering import weights_text
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.screens.prompt import PromptDialog
from memx_tui.widgets.fields import FieldList
from memx_tui.widgets.pane import Pane

if TYPE_CHECKING:
    from memx_tui.app import MemxApp
    from memx_tui.session import Session


class TrainingPane(Pane):
    """The form of what is trained."""

    class SearchWanted(Message):
        """The last line was chosen."""

    def __init__(self, fields: FieldList, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__("training", fields, id=id)

    @property
    def _memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    @property
    def _session(self) -> Session:
        return self._memx.session

    @property
    def _weights(self) -> str:
        options = self._session.options
        return weights_text(options.weights if options else None)

    @property
    def _fields(self) -> FieldList:
        return self.query_one(FieldList)

    def show(self, session: Session) -> MemxError | None:
        """Bring the form up to date; returns why this job cannot be planned."""
        fields, problem = training_fields(session)
        self._fields.show(fields)
        ready = session.ready and problem is None
        self.title_bar.show("training", [Text("r Search")] if ready else [])
        return problem

    def choose_model(self) -> None:
        """Open the list of models."""

        def choose(source: str | None) -> None:
            if source is None:
                return
            try:
                model = load_model(source)
            except MemxError as error:
                self._memx.show_error(error)
            else:
                self._memx.set_model(model, source)

        self.app.push_screen(model_dialog(self._session.model_source), choose)

    def on_field_list_chosen(self, event: FieldList.Chosen) -> None:
        event.stop()
        key = event.key
        if key == "model":
            self.choose_model()
        elif key == "search":
            self.post_message(self.SearchWanted())
        elif key == "weights":
            dialog = PromptDialog(
                "Weights", self._weights, hint=WEIGHTS.hint, check=lambda text: parse_weights(text or "auto")
            )
            self.app.push_screen(dialog, partial(self._answer, key))
        elif SPECS[key].choices:
            self._choose_word(key)
        else:
            self._ask(key)

    def on_field_list_stepped(self, event: FieldList.Stepped) -> None:
        event.stop()
        key = event.key
        if key == "weights":
            self._set(key, next_profile(self._weights, event.by))
        elif key in SPECS:
            self._put(key, stepped(self._session, key, event.by))

    def on_field_list_cleared(self, event: FieldList.Cleared) -> None:
        event.stop()
        if event.key in SPECS or event.key == "weights":
            self._set(event.key, "")

    def _choose_word(self, key: str) -> None:
        spec = SPECS[key]
        current = next((field.value for field in self._fields.shown if field.key == key), "")
        items = [Item(word, (word,)) for word in spec.choices]
        dialog = PickDialog(f"{spec.label}: {spec.hint}", items, selected=current)
        self.app.push_screen(dialog, partial(self._answer, key))

    def _ask(self, key: str) -> None:
        spec = SPECS[key]
        own = self._session.job_overrides.get(key)
        shown = "" if own is None else str(own) if isinstance(own, int) else ", ".join(map(str, own))
        empty = "free" if spec.many and not spec.default else "the default"
        dialog = PromptDialog(
            spec.label, shown, hint=f"{spec.hint}; empty: {empty}", check=lambda text: parse_value(key, text)
        )
        self.app.push_screen(dialog, partial(self._answer, key))

    def _answer(self, key: str, text: str | None) -> None:
        """What a dialog returned; None is no answer."""
        if text is not None:
            self._set(key, text)

    def _set(self, key: str, text: str) -> None:
        """Set a field from text; "" returns it to its default."""
        try:
            if key == "weights":
                set_weights(self._session, text)
                self._memx.publish("job")
            else:
                self._put(key, parse_value(key, text))
        except MemxError as error:
            self._memx.say(str(error), warning=True)

    def _put(self, key: str, value: object) -> None:
        if value is None:
            self._session.job_overrides.pop(key, None)
        else:
            self._session.job_overrides[key] = value
        self._memx.publish("job")
