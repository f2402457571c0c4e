"""The export dialog: the exact file first, then a path; never over an existing file without ``o``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from memx_engine import OutputError
from memx_tui.files import write_text
from memx_tui.widgets.quiet import QuietInput

if TYPE_CHECKING:
    from memx_engine import RankedPlan, SearchResult
    from memx_tui.app import MemxApp


@dataclass(frozen=True)
class Format:
    """One kind of file that can be written.

    Attributes:
        name: What people call it: ``plan YAML``.
        default: The file name offered first.
        text: Makes the whole file; called once, when its preview is shown.
    """

    name: str
    default: str
    text: Callable[[], str]


class ExportDialog(ModalScreen[Path | None]):
    """Save what is previewed.

    Args:
        title: What is exported.
        formats: The kinds of file on offer; ``tab`` turns through them when there are several.
        folder: Where relative paths start; the working directory when None.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "save", "Save", id="export.save", tooltip="Write the file", show=False),
        Binding("ctrl+o", "overwrite", "Overwrite", id="export.overwrite.always", tooltip="Replace the existing file"),
        Binding("o", "overwrite", "Overwrite", id="export.overwrite", tooltip="Replace the existing file"),
        Binding("ctrl+y", "copy", "Copy instead", id="export.copy.always", tooltip="Copy to the terminal's clipboard"),
        Binding("y", "copy", "Copy instead", id="export.copy", tooltip="Copy to the terminal's clipboard"),
        Binding("ctrl+f", "next_format", "Format", id="export.format", tooltip="Another kind of file"),
        Binding("escape", "close", "Close", id="export.close", tooltip="Close without writing"),
    ]

    def __init__(self, title: str, formats: Sequence[Format], *, folder: Path | None = None) -> None:
        super().__init__()
        self._title = title
        self._formats = tuple(formats)
        self._folder = folder or Path.cwd()
        self._index = 0
        self._texts: dict[int, str] = {}
        self._confirming = False

    @property
    def format(self) -> Format:
        """The kind of file that is shown."""
        return self._formats[self._index]

    @property
    def text(self) -> str:
        """The file as it would be written, to the byte."""
        if self._index not in self._texts:
            self._texts[self._index] = self.format.text()
        return self._texts[self._index]

    @property
    def target(self) -> Path:
        """Where the file would go."""
        typed = Path(self.query_one(Input).value.strip()).expanduser()
        return typed if typed.is_absolute() else self._folder / typed

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog export-dialog") as box:
            box.border_title = Content(self._title)  # Content is kept literal
            yield Static(classes="export-format", markup=False)
            yield QuietInput(
                value=self.format.default, placeholder="path of the file", select_on_focus=False, classes="export-path"
            )
            yield Static(classes="export-status", markup=False)
            with VerticalScroll(classes="export-preview", can_focus=True) as preview:
                preview.border_title = Content("preview")  # Content is kept literal
                yield Static(classes="export-text", markup=False)
            yield Static(classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self._show_format()
        field = self.query_one(Input)
        field.focus()
        field.cursor_position = len(field.value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._confirming = False
        self._show_status()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_save()

    def action_save(self) -> None:
        self._write(overwrite=False)

    def action_overwrite(self) -> None:
        self._write(overwrite=True)

    def action_copy(self) -> None:
        cast("MemxApp", self.app).copy(self.text, f"the {self.format.name}")
        self.dismiss(None)

    def action_next_format(self) -> None:
        self._index = (self._index + 1) % len(self._formats)
        self.query_one(Input).value = self.format.default
        self._show_format()

    def action_close(self) -> None:
        if self._confirming:
            self._confirming = False
            self.query_one(Input).focus()
            self._show_status()
        else:
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "next_format":
            return len(self._formats) > 1
        return True

    def _write(self, *, overwrite: bool) -> None:
        target = self.target
        if target.is_file() and not overwrite:
            # The path keeps no focus, so that a plain o answers the question instead of being typed.
            self._confirming = True
            self.query_one(".export-preview").focus()
            self._show_status()
            return
        try:
            written = write_text(target, self.text, overwrite=overwrite)
        except OutputError as error:
            self._confirming = False
            self._show_status(error)
            return
        self.dismiss(written)
        cast("MemxApp", self.app).say(f"saved {written}")

    def _show_format(self) -> None:
        names = [(f" {kind.name} ", "bold $accent" if kind is self.format else "$secondary") for kind in self._formats]
        count = self.text.count("\n")
        size = f"  {count:,} lines, {len(self.text.encode()) / 1024:.1f} KiB"
        self.query_one(".export-format", Static).update(Content.assemble("format ", *names, (size, "$secondary")))
        self.query_one(".export-text", Static).update(Content(self.text))
        self._show_status()

    def _show_status(self, error: OutputError | None = None) -> None:
        target = self.target
        if error is not None:
            hint = f": {error.hint}" if error.hint else ""
            words = Content.assemble((f"{error.message}{hint}", "$error"))
        elif self._confirming:
            words = Content.assemble(
                ("a file is there already: ", "$warning bold"), "press o to replace it, esc to change the path"
            )
        elif target.is_file():
            words = Content.assemble(("exists ", "$warning bold"), (str(target), "$secondary"))
        else:
            words = Content.assemble(("writes ", "$secondary"), (str(target), "$secondary"))
        self.query_one(".export-status", Static).update(words)
        keys = "enter Save   ctrl+y Copy instead   tab Preview   esc Close"
        if self._confirming:
            keys = "o Overwrite   y Copy instead   esc Back"
        elif len(self._formats) > 1:
            keys = "enter Save   ctrl+f Format   ctrl+y Copy   tab Preview   esc Close"
        self.query_one(".dialog-keys", Static).update(Content(keys))


def plan_export(result: SearchResult, ranked: RankedPlan) -> ExportDialog:
    """The dialog that saves one plan of a result."""
    from memx_engine import plan_file, plan_text

    text = plan_text(plan_file(result, ranked))
    name = plan_file_name(result, ranked)
    return ExportDialog(f"Export plan {ranked.rank}", [Format("plan YAML", name, lambda: text)])


def plan_file_name(result: SearchResult, ranked: RankedPlan) -> str:
    """``llama2-7b-on-paper-20gpu-plan1.yaml``."""
    words = f"{result.model.name}-on-{result.cluster.name}-plan{ranked.rank}"
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', words).strip('-.')[:80] or 'plan'}.yaml"
