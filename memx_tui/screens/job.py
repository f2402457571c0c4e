"""The job dialog: model, batch, sequence, precision, framework and weights, checked before they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from memx_engine import InputError, MemxError
from memx_tui.screens.pick import Item, PickDialog

if TYPE_CHECKING:
    from memx_engine import TransformerSpec
    from memx_tui.app import MemxApp

_CHOICES = {
    "precision": ("bf16", "fp16", "fp32"),
    "optimizer": ("sharded", "replicated"),
    "attention": ("fused", "unfused"),
    "framework": ("any", "megatron", "flagscale"),
}
_FIELDS = (
    ("model", "model", "preset name, or path of a config.json; ctrl+l lists the presets"),
    ("global_batch", "global batch", "sequences per iteration; empty: 512"),
    ("seq_len", "sequence", "tokens per sequence; empty: what the model allows, at most 4096"),
    ("micro_batch_sizes", "micro-batch", "sizes to consider, such as 1,2,4; empty: powers of two"),
    ("precision", "precision", "bf16, fp16 or fp32; empty: bf16, fp16 where a device lacks it"),
    ("optimizer", "optimizer", "sharded or replicated; empty: sharded"),
    ("attention", "attention", "fused or unfused; empty: fused"),
    ("framework", "framework", "whose rules limit the plans: any, megatron, flagscale"),
    ("weights", "weights", "auto, heterogeneous, safety, throughput, or time,peak,variance"),
)


class JobDialog(ModalScreen[bool]):
    """Returns True when the session was changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="job.close", tooltip="Close and change nothing"),
        Binding("ctrl+l", "list_models", "Presets", id="job.presets", tooltip="List the model presets"),
        Binding("down", "app.focus_next", "Next", id="job.next", show=False, tooltip="Next field"),
        Binding("up", "app.focus_previous", "Previous", id="job.previous", show=False, tooltip="Previous field"),
    ]

    @property
    def memx(self) -> MemxApp:
        return cast("MemxApp", self.app)

    def compose(self) -> ComposeResult:
        values = self._values()
        with Vertical(classes="dialog job-dialog") as box:
            box.border_title = Content("Model and job")  # Content is kept literal
            for name, label, _ in _FIELDS:
                with Horizontal(classes="form-row"):
                    yield Label(label, classes="form-label", markup=False)
                    yield Input(values[name], id=f"job-{name}", classes="form-field")
            yield Static(classes="form-note", markup=False)
            yield Static(
                Text("enter Take and search   ctrl+l Presets   esc Close"), classes="dialog-keys", markup=False
            )

    def on_mount(self) -> None:
        self.query_one("#job-model", Input).focus()

    def _values(self) -> dict[str, str]:
        session = self.memx.session
        values = {name: _shown(session.job_overrides.get(name)) for name, _, _ in _FIELDS}
        values["model"] = session.model_source
        weights = session.options.weights if session.options else None
        if weights is None:
            values["weights"] = "auto"
        elif weights.profile in ("heterogeneous", "safety", "throughput"):
            values["weights"] = weights.profile
        else:
            values["weights"] = f"{weights.time:g},{weights.peak:g},{weights.variance:g}"
        return values

    def on_descendant_focus(self) -> None:
        focused = self.focused
        note = next((text for name, _, text in _FIELDS if focused is not None and focused.id == f"job-{name}"), "")
        self._note(note)

    def _note(self, text: str, *, bad: bool = False) -> None:
        note = self.query_one(".form-note", Static)
        note.set_class(bad, "-bad")
        note.update(Text(text))

    def action_list_models(self) -> None:
        from memx_engine import model_presets

        items = [Item(name, (name, title)) for name, title in model_presets().items()]
        chosen = self.query_one("#job-model", Input).value
        self.app.push_screen(PickDialog("Model", items, selected=chosen), self._model_chosen)

    def _model_chosen(self, name: str | None) -> None:
        if name is not None:
            self.query_one("#job-model", Input).value = name

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            self._take()
        except MemxError as error:
            self._note("\n".join(text for text in (error.message, error.hint) if text), bad=True)
        except Exception as error:  # the edge between engine and screen: the dialog says it, the log has it
            self.memx.report_failure(error, "reading model and job")

    def _take(self) -> None:
        """Read every field, then change the session; raises MemxError and changes nothing when one is wrong."""
        from memx_engine import SearchOptions, load_model, parse_weights, resolve_job

        values = {name: self.query_one(f"#job-{name}", Input).value.strip() for name, _, _ in _FIELDS}
        session = self.memx.session
        if not values["model"]:
            raise InputError("a model is needed", hint="ctrl+l lists the presets; a path of a config.json also works")
        model: TransformerSpec = load_model(values["model"])
        overrides: dict[str, Any] = dict(session.job_overrides)
        for name in ("global_batch", "seq_len"):
            overrides[name] = _whole(values[name], name)
        sizes = values["micro_batch_sizes"]
        overrides["micro_batch_sizes"] = (
            tuple(_required(part, "micro-batch") for part in sizes.split(",")) if sizes else None
        )
        for name, known in _CHOICES.items():
            if values[name] and values[name] not in known:
                raise InputError(f"{name} {values[name]!r} is not known", hint=f"use {', '.join(known)}")
            overrides[name] = values[name] or None
        overrides = {name: value for name, value in overrides.items() if value is not None}
        weights = parse_weights(values["weights"] or "auto")
        if session.cluster is not None:
            resolve_job(session.cluster, model, file=session.job_file, **overrides)
        session.job_overrides = overrides
        session.options = replace(session.options or SearchOptions(), weights=weights)
        self.memx.set_model(model, values["model"])
        self.memx.publish("job")
        self.dismiss(True)

    def action_close(self) -> None:
        self.dismiss(False)


def _shown(value: object) -> str:
    if value is None:
        return ""
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _whole(text: str, name: str) -> int | None:
    return _required(text, name.replace("_", " ")) if text else None


def _required(text: str, name: str) -> int:
    text = text.strip()
    if not text.isdecimal() or not 1 <= int(text[:12]) <= 10**9:
        raise InputError(f"{name} {text[:20]!r} is not a whole number of at least 1")
    return int(text)
