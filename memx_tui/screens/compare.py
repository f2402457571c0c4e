"""The Compare screen: two to four marked plans side by side, differences in words."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from memx_engine import RankedPlan
from memx_tui.comparing import compare_rows, near_tie
from memx_tui.screens.base import ModeScreen
from memx_tui.session import Change
from memx_tui.widgets.compare_table import CompareTable
from memx_tui.widgets.pane import Pane


class CompareScreen(ModeScreen):
    """Marked plans in columns, the base first."""

    MODE = "compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "base", "Base", id="compare.base", tooltip="Make the current column the base of all differences"),
        Binding("l,right,right_square_bracket", "column(1)", "Next", id="compare.next", tooltip="Next column"),
        Binding(
            "h,left,left_square_bracket",
            "column(-1)",
            "Previous",
            id="compare.previous",
            show=False,
            tooltip="Previous column",
        ),
        Binding("d", "differences", "Differences", id="compare.differences", tooltip="Only rows that differ, or all"),
        Binding("u", "unmark", "Unmark", id="compare.unmark", tooltip="Take the current plan out of the comparison"),
        Binding("e", "export", "Export", id="compare.export", tooltip="Save the current plan as YAML"),
        Binding("y", "copy", "Copy", id="compare.copy", tooltip="Copy the table as text to the terminal's clipboard"),
        Binding("Y", "write", "Write", id="compare.write", show=False, tooltip="Write the table to a new file here"),
        Binding("escape", "plans", "Plans", id="compare.plans", tooltip="Back to the Plans screen"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.differences_only = True
        self._base = ""
        self._current = ""

    def compose_body(self) -> ComposeResult:
        self.table = CompareTable(self.memx.glyphs, id="compare-table")
        yield Pane("Compare", self.table, rule=self.memx.glyphs.horizontal, id="compare-pane")

    def on_mount(self) -> None:
        super().on_mount()
        self.table.focus()
        self.show_plans()

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.show_plans()

    def session_changed(self, change: Change) -> None:
        if change in ("marks", "result", "theme"):
            self.show_plans()

    def letters(self) -> list[str]:
        """Letters of the marked plans, in order."""
        return sorted(self.session.marks)

    def plans(self) -> list[RankedPlan]:
        """The marked plans with everything predicted; an engine error is shown and gives none."""
        try:
            return [self.session.detail(self.session.marks[letter]) for letter in self.letters()]
        except Exception as error:  # the edge between engine and screen: the dialog says it, the log has it
            self.memx.report_failure(error, "estimating a plan")
            return []

    def show_plans(self) -> None:
        """Bring the table to the marks."""
        if not self.is_mounted:
            return
        letters = self.letters()
        title = self.query_one("#compare-pane", Pane).title_bar
        plans = self.plans() if len(letters) >= 2 else []
        if len(plans) < 2:
            self.table.show((), (), 0, 0)
            marked = f"{len(letters)} plan is marked." if len(letters) == 1 else "No plan is marked."
            self.table.show_note(marked, "Mark two to four on the Plans screen (3) with space.")
            title.show("Compare")
            return
        if self._base not in letters:
            self._base = letters[0]
        others = [letter for letter in letters if letter != self._base]
        if self._current not in letters:
            self._current = others[0]
        base = letters.index(self._base)
        rows = compare_rows(plans, base)
        hidden = sum(not row.differs for row in rows)
        if self.differences_only:
            rows = [row for row in rows if row.differs]
        titles = [f"{letter}  #{plan.rank}" for letter, plan in zip(letters, plans, strict=True)]
        self.table.show(titles, rows, base, letters.index(self._current))
        which = f"only what differs, {hidden} rows same" if self.differences_only else "all rows"
        caution = near_tie(plans, base)
        title.show(f"Compare {len(plans)} plans  {which}", [Text(words) for words in caution])

    def status(self) -> list[str]:
        marks = len(self.session.marks)
        return [f"comparing {marks} of 4 marks", ""] if marks >= 2 else [""]

    # Actions

    def action_base(self) -> None:
        if self._current in self.session.marks:
            self._base = self._current
            self.show_plans()

    def action_column(self, by: int) -> None:
        letters = self.letters()
        if len(letters) < 2 or self._base not in letters:
            return
        order = [self._base, *(letter for letter in letters if letter != self._base)]
        at = order.index(self._current) if self._current in order else 0
        self._current = order[(at + by) % len(order)]
        self.show_plans()

    def action_differences(self) -> None:
        self.differences_only = not self.differences_only
        self.show_plans()

    def action_unmark(self) -> None:
        if self._current in self.session.marks:
            del self.session.marks[self._current]
            self.memx.publish("marks")

    def _current_plan(self) -> RankedPlan | None:
        letters, plans = self.letters(), self.plans()
        return plans[letters.index(self._current)] if plans and self._current in letters else None

    def action_export(self) -> None:
        self.memx.export(self._current_plan())

    def action_copy(self) -> None:
        if self.table.titles:
            self.memx.copy(self.table.text(), "the comparison")

    def action_write(self) -> None:
        if self.table.titles:
            self.memx.write(self.table.text() + "\n", "memx-comparison.txt")

    def action_plans(self) -> None:
        self.memx.open_mode("plans")
