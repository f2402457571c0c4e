"""The Plans screen: ranked table, memory, Pareto plot and reasons; one selection moves them all."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.events import Resize
from textual.timer import Timer
from textual.widgets import Input

from memx_engine import RankedPlan
from memx_tui.filter import TIGHT_FRACTION, Filter, parse_filter
from memx_tui.palette import SORT_WORDS
from memx_tui.plan_list import LARGE_FIRST, chosen_words, empty_words, fit_word, sort_order, within_words
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.screens.plans_asking import PlansAsking
from memx_tui.screens.plans_keys import PLANS_BINDINGS
from memx_tui.session import AXES, SORT_KEYS, Change
from memx_tui.status import new_measurements_words
from memx_tui.text.price import short_price
from memx_tui.widgets.filter_line import FilterLine
from memx_tui.widgets.memory_bars import MemoryBars
from memx_tui.widgets.pane import Pane
from memx_tui.widgets.pareto_plot import AXIS_WORDS, ParetoPlot
from memx_tui.widgets.plan_table import PlanTable
from memx_tui.widgets.why_pane import WhyPane

DEBOUNCE_S = 0.05
"""The panes follow the cursor after it has rested this long."""
LOWER_PANES = ("memory-pane", "pareto-pane", "why-pane")


class PlansScreen(PlansAsking):
    """Every feasible skeleton's best plan."""

    MODE = "plans"
    BINDINGS: ClassVar[list[BindingType]] = PLANS_BINDINGS

    def __init__(self) -> None:
        super().__init__()
        self._timer: Timer | None = None
        self._filter = Filter()
        self._rows = np.zeros(0, dtype=np.int64)
        self._lower = LOWER_PANES[0]
        self._zoomed = ""
        self._shown_row: int | None = None
        self.updates = 0
        """How often the panes followed the cursor; kept small by the debounce."""

    def compose_body(self) -> ComposeResult:
        glyphs, rule = self.memx.glyphs, self.memx.glyphs.horizontal
        self.table = PlanTable(glyphs, id="plan-table")
        self.table.fit_word = self._fit_word
        self.plot = ParetoPlot(glyphs, id="pareto")
        self.bars = MemoryBars(glyphs, id="memory")
        self.why = WhyPane(glyphs, id="why")
        yield Pane("Plans", self.table, rule=rule, id="table-pane")
        yield Pane("Pareto", self.plot, rule=rule, id="pareto-pane")
        yield Pane("Memory", self.bars, rule=rule, id="memory-pane")
        yield Pane("Why", self.why, rule=rule, id="why-pane")

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield FilterLine()

    def on_mount(self) -> None:
        super().on_mount()
        self._filter = parse_filter(self.session.view.filter_text)
        self._arrange()
        self._refill(self.session.selected_row)
        self.table.focus()

    # Session

    def status(self) -> list[str]:
        if self.session.unused_measurements and not self.session.searching:
            return new_measurements_words("r")
        return self._price() or super().status()

    def _price(self) -> list[str]:
        """What the best plan costs in time beside the fastest, where that is much; else nothing."""
        result = self.session.result
        if result is None or not result.plans or result.cancelled or self.session.searching:
            return []
        return list(short_price(result, result.plans[0]))

    def session_changed(self, change: Change) -> None:
        if change == "result":
            self._refill(self.session.selected_row)
        elif change == "marks":
            self.table.show_marks(self.session.marks)
            self.plot.show_selection(self.table.selected, self.session.marks)
        elif change in ("search", "cluster", "model", "job"):
            self._say_empty()
        elif change == "view":
            view = self.session.view
            if (view.sort, view.descending) != (self.table.sort_key, self.table.descending):
                self._refill(self.table.selected)
        elif change == "theme":
            # The new colours are known once the stylesheet has been applied.
            self.call_after_refresh(self.show_selection)

    def _refill(self, selected: int | None) -> None:
        """Filter and sort anew; the cursor stays on its plan when that is still listed."""
        session, view = self.session, self.session.view
        columns = session.columns
        if columns is None:
            self._rows = np.zeros(0, dtype=np.int64)
        else:
            keep = self._filter.mask(columns, frozenset(session.marks.values()))
            if view.fits_only:
                keep &= columns.worst <= TIGHT_FRACTION
            if view.frontier_only:
                keep &= columns.pareto
            rows = np.flatnonzero(keep)
            self._rows = sort_order(columns, rows, view.sort, view.descending)
        self.table.show_rows(columns, self._rows, sort_key=view.sort, descending=view.descending, selected=selected)
        self.table.show_marks(session.marks)
        self._plot()
        self._say_empty()
        self.show_selection()
        self.refresh_chrome()

    def _plot(self) -> None:
        columns = self.session.columns
        # Where rows are hidden, what stands beside them is too.
        beside = columns.beside if columns is not None and len(self._rows) == len(columns) else None
        self.plot.show_plans(columns, self._rows, self.session.view.axes, beside)

    def _say_empty(self) -> None:
        """What stands in the table when no plan does, and what to do about it."""
        if len(self._rows) == 0:
            self.table.show_empty(*empty_words(self.session, self._filter))

    # Selection

    def on_plan_table_moved(self, event: PlanTable.Moved) -> None:
        event.stop()
        self.session.selected_row = event.row
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(DEBOUNCE_S, self.show_selection)

    def show_selection(self) -> None:
        """Bring memory, plot and reasons to the plan under the cursor."""
        row = self.table.selected
        self._shown_row = row
        self.updates += 1
        self.plot.show_selection(row, self.session.marks)
        ranked = self.current()
        self.bars.show(ranked.estimate.gpus if ranked else (), "" if ranked else "No plan selected.")
        self.why.show(ranked, self.session.result)
        self._update_titles()
        if self._has_full_layout:
            self._arrange()

    def current(self) -> RankedPlan | None:
        """The plan under the cursor with everything predicted of it; an engine error is shown and gives None."""
        row = self.table.selected
        if row is None or self.session.result is None:
            return None
        try:
            return self.session.detail(row)
        except Exception as error:  # the edge between engine and screen: the dialog says it, the log has it
            self.memx.report_failure(error, "estimating a plan")
            return None

    def _fit_word(self, row: int) -> str:
        try:
            return fit_word(self.session.detail(row).estimate)
        except Exception:  # the edge between engine and screen: the dialog comes when the plan is selected
            return "-"

    def _update_titles(self) -> None:
        session, view = self.session, self.session.view
        row = self.table.selected
        plan = f"plan #{row + 1}" if row is not None else "no plan"
        total = len(session.columns) if session.columns is not None else 0
        shown = f"{len(self._rows):,} of {total:,}" if len(self._rows) != total else f"{total:,}"
        arrow = self.memx.glyphs.descending if view.descending else self.memx.glyphs.ascending
        words = [f"Plans {shown}", f"sort {SORT_WORDS[view.sort]} {arrow}"]
        words += [f"/{view.filter_text}"] if view.filter_text else []
        words += ["f fits only"] if view.fits_only else []
        words += ["p frontier only"] if view.frontier_only else []
        if session.result_without:
            words.append(f"without {', '.join(session.result_without)}")
        if session.free_search is not None:
            best = "best" if session.result is session.free_search.result else "one"
            words.append(f"{best} of {len(session.free_search.searched)} (v)")
        chosen = self._chosen_words(row)
        room = self.size.width - cell_len("  ".join(words)) - min((text.cell_len for text in chosen), default=0) - 12
        words += within_words(session, room)
        try:
            self.query_one("#table-pane", Pane).title_bar.show("  ".join(words), chosen)
            self.query_one("#memory-pane", Pane).title_bar.show(f"Memory GiB, {plan}", self.bars.legend())
            self.query_one("#pareto-pane", Pane).title_bar.show(f"Pareto, {AXIS_WORDS[view.axes]}")
            self.query_one("#why-pane", Pane).title_bar.show(f"Why {plan}")
        except NoMatches:
            return

    def _chosen_words(self, row: int | None) -> list[Text]:
        """Whether the plan under the cursor fits and what that rests on, longest version first."""
        if row is None or self._fit_word(row) == "-":
            return []
        return [Text(words) for words in chosen_words(row, self.session.detail(row).estimate)]

    # Layout

    @property
    def _has_full_layout(self) -> bool:
        return self.size.width >= 100 and self.size.height >= 30

    def on_resize(self, event: Resize) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """Decide which panes are there: all on a large screen, table and one below on a small one."""
        body = self.query_one("#body")
        full = self._has_full_layout
        panes = {pane.id or "": pane for pane in self.query(Pane)}
        visible = {"table-pane", *LOWER_PANES} if full else {"table-pane", self._lower}
        if not full and self.size.height < 20:
            visible = {"table-pane"}
        if self._zoomed:
            visible = {self._zoomed}
        for name, pane in panes.items():
            pane.display = name in visible
        body.set_class(full and not self._zoomed, "-full")
        body.set_class(bool(self._zoomed), "-zoomed")
        height = self.size.height - 3
        if full:
            memory = min(len(self.bars.rows) + 1, max(5, height // 3))
            body.styles.grid_rows = f"1fr {max(3, memory)} 7"
        else:
            body.styles.grid_rows = "1fr" if len(visible) == 1 else f"1fr {max(6, min(height // 2, 9))}"

    def action_next_pane(self, by: int) -> None:
        """Focus the next pane; where only one lower pane fits, turn it and keep the table's cursor keys."""
        if self._zoomed or self._has_full_layout:
            order = ["table-pane", "pareto-pane", "memory-pane", "why-pane"]
            focused = self._focused_pane()
            name = order[(order.index(focused) + by) % len(order)]
            if self._zoomed:
                self._zoomed = name
                self._lower = name if name in LOWER_PANES else self._lower
                self._arrange()
            self.query_one(f"#{name}", Pane).content.focus()
            return
        self._lower = LOWER_PANES[(LOWER_PANES.index(self._lower) + by) % len(LOWER_PANES)]
        self._arrange()

    def _focused_pane(self) -> str:
        for pane in self.query(Pane):
            if self.focused is not None and pane in self.focused.ancestors:
                return pane.id or "table-pane"
        return "table-pane"

    def action_zoom(self) -> None:
        """Zoom the focused pane; on a small screen the lower one, which has no focus of its own there."""
        if self._zoomed:
            self._zoomed = ""
            self._arrange()
            if not self._has_full_layout:
                self.table.focus()
            return
        self._zoomed = self._focused_pane() if self._has_full_layout else self._lower
        self._arrange()
        self.query_one(f"#{self._zoomed}", Pane).content.focus()

    # Sort and filter

    def set_sort(self, key: str, descending: bool | None = None) -> None:
        """Sort by a column; the same column again inverts the order."""
        view = self.session.view
        if descending is None:
            descending = not view.descending if key == view.sort else key in LARGE_FIRST
        view.sort, view.descending = key, descending
        self._refill(self.table.selected)
        self.memx.publish("view")

    def on_plan_table_header_clicked(self, event: PlanTable.HeaderClicked) -> None:
        event.stop()
        self.set_sort(event.key)

    def on_plan_table_row_clicked(self, event: PlanTable.RowClicked) -> None:
        event.stop()
        self.action_detail()

    def action_sort_menu(self) -> None:
        items = [Item(key, (SORT_WORDS[key],)) for key in SORT_KEYS]
        self.app.push_screen(PickDialog("Sort plans by", items, selected=self.session.view.sort), self._sort_chosen)

    def _sort_chosen(self, key: str | None) -> None:
        if key is not None:
            self.set_sort(key)

    def action_sort_column(self, by: int) -> None:
        key = SORT_KEYS[(SORT_KEYS.index(self.session.view.sort) + by) % len(SORT_KEYS)]
        self.set_sort(key, key in LARGE_FIRST)

    def action_invert(self) -> None:
        self.set_sort(self.session.view.sort)

    def action_filter(self) -> None:
        self.query_one(FilterLine).open(self.session.view.filter_text)

    def on_filter_line_changed(self, event: FilterLine.Changed) -> None:
        event.stop()
        self.session.view.filter_text = event.text
        self._filter = event.parsed
        self._refill(self.table.selected)
        self.memx.publish("view")

    def on_filter_line_closed(self, event: FilterLine.Closed) -> None:
        event.stop()
        self.table.focus()

    def action_fits(self) -> None:
        self.session.view.fits_only = not self.session.view.fits_only
        self._refill(self.table.selected)
        self.memx.publish("view")

    def action_frontier(self) -> None:
        self.session.view.frontier_only = not self.session.view.frontier_only
        self._refill(self.table.selected)
        self.memx.publish("view")

    def action_axes(self) -> None:
        view = self.session.view
        view.axes = AXES[(AXES.index(view.axes) + 1) % len(AXES)]
        self._plot()
        self._update_titles()
        self.memx.publish("view")

    def action_back(self) -> None:
        """Undo the last thing opened: zoom, detail, filter."""
        view = self.session.view
        if self._zoomed:
            self.action_zoom()
        elif self.bars.unfolded:
            self.action_detail()
        elif view.filter_text or view.fits_only or view.frontier_only:
            view.filter_text, view.fits_only, view.frontier_only = "", False, False
            self._filter = Filter()
            self._refill(self.table.selected)
            self.memx.publish("view")

    # Actions on the plan

    def action_detail(self) -> None:
        self.bars.toggle_fold()
        if not self._has_full_layout and not self._zoomed:
            self._lower = "memory-pane"
        self._arrange()

    def action_mark(self) -> None:
        row = self.table.selected
        if row is None:
            return
        if self.session.toggle_mark(row) is None:
            self.memx.say("four plans are marked; space on one of them unmarks it")
            return
        self.memx.publish("marks")

    def action_compare(self) -> None:
        if len(self.session.marks) < 2:
            self.memx.say("mark two to four plans with space, then compare")
            return
        self.memx.open_mode("compare")

    def action_export(self) -> None:
        self.memx.export(self.current())

    def action_copy(self) -> None:
        self.memx.copy_plan(self.current())

    def action_write(self) -> None:
        self.memx.write_plan(self.current())

    def action_move_plan(self, by: int) -> None:
        self.table.move_to(self.table.cursor + by)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
