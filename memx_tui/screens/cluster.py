"""The Cluster screen: what is trained, and on what. The file's text is the truth; tree and forms edit it in place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea, Tree

from memx_engine import MemxError, cluster_text
from memx_tui.choosers import cluster_dialog
from memx_tui.cluster_draft import ClusterDraft, open_source, reopen
from memx_tui.cluster_edit import NEW_TEXT
from memx_tui.cluster_view import Target, form_fields, summary
from memx_tui.keys import key_word
from memx_tui.screens.cluster_editing import ClusterEditing
from memx_tui.screens.export import ExportDialog, Format
from memx_tui.screens.prompt import ConfirmDialog
from memx_tui.screens.training import TrainingPane
from memx_tui.session import NEW_CLUSTER, Change
from memx_tui.widgets.chrome import Hint
from memx_tui.widgets.cluster_tree import ClusterTree
from memx_tui.widgets.fields import FieldList
from memx_tui.widgets.pane import Pane
from memx_tui.widgets.summary import Summary
from memx_tui.widgets.yaml_editor import YamlEditor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LABEL_WIDTH = 14
_MORE = ("tree.more", "field.more")
CHECK_AFTER_S = 0.15
"""Typed text is checked when the keyboard rests this long."""


class ClusterScreen(ClusterEditing):
    """Cluster, model and job."""

    MODE = "cluster"
    TITLE = "Cluster"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="cluster.back", tooltip="Leave zoom, then the text"),
        Binding("o", "open", "Open", id="cluster.open", tooltip="Open a sample or a cluster file"),
        Binding("a", "add", "Add", id="cluster.add", tooltip="Add a node after this one"),
        Binding("t", "gpu_type", "Type", id="cluster.type", tooltip="Change this node's GPU type"),
        Binding("r", "search", "Search", id="cluster.search", tooltip="Search for plans"),
        Binding("S", "save", "Save as", id="cluster.save", tooltip="Write the cluster file"),
        Binding("m", "model", "Model", id="cluster.model", tooltip="Choose what is trained"),
        Binding("v", "toggle_yaml", "YAML", id="cluster.yaml", tooltip="Show the file's text, or the forms"),
        Binding("d", "duplicate", "Duplicate", id="cluster.duplicate", show=False, tooltip="Copy this node"),
        Binding("x", "remove", "Remove", id="cluster.remove", show=False, tooltip="Remove this node"),
        Binding("n", "new", "New", id="cluster.new", show=False, tooltip="Start a cluster file from an example"),
        Binding("u", "undo", "Undo", id="cluster.undo", show=False, tooltip="Take the last change back"),
        Binding("ctrl+r", "redo", "Redo", id="cluster.redo", show=False, tooltip="Take the last undo back"),
        Binding("z", "zoom", "Zoom", id="cluster.zoom", show=False, tooltip="This pane alone, or all of them"),
        Binding("tab", "app.focus_next", "Next pane", id="cluster.next", show=False, tooltip="Go to the next pane"),
        Binding(
            "shift+tab",
            "app.focus_previous",
            "Previous pane",
            id="cluster.previous",
            show=False,
            tooltip="Go back a pane",
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._check: Timer | None = None

    # Building

    def compose_body(self) -> ComposeResult:
        yield Vertical(
            Pane("cluster", ClusterTree(id="tree"), id="tree-pane"),
            Pane("summary", Summary(id="summary"), id="summary-pane"),
            id="left",
            classes="column",
        )
        yield Vertical(
            Pane("node", FieldList(id="node", label_width=LABEL_WIDTH), id="node-pane"),
            TrainingPane(FieldList(id="job", label_width=LABEL_WIDTH), id="job-pane"),
            Pane("text", YamlEditor(id="yaml"), id="yaml-pane"),
            id="right",
            classes="column",
        )

    def on_mount(self) -> None:
        super().on_mount()
        session = self.session
        if session.draft:
            self.draft = reopen(session.draft, session.draft_source)
        elif session.cluster_source:
            try:
                self.draft = open_source(session.cluster_source)
            except MemxError as error:
                self.memx.show_error(error)
        if self.draft.empty and session.cluster is not None:
            self.draft = ClusterDraft(cluster_text(session.cluster))
        self.show_all()
        self.query_one(ClusterTree).focus()

    def session_changed(self, change: Change) -> None:
        if change in ("cluster", "model", "job", "result", "mode"):
            self._show_job()

    # What is shown

    def show_all(self) -> None:
        draft = self.draft
        doc = draft.doc
        tree = self.query_one(ClusterTree)
        if doc is not None:
            tree.show(doc.name, doc.entries)
        elif draft.empty:
            tree.show("no cluster yet", ())
        self.query_one(YamlEditor).show(draft.text, [problem.line for problem in draft.problems])
        star = " *" if draft.dirty else ""
        name = Path(draft.source).name if draft.file else draft.source
        self._title("tree-pane", f"cluster {name or ('new' if not draft.empty else '')}".rstrip() + star)
        self._title("yaml-pane", f"text of {name or 'new cluster'}{star}")
        self._keep(name)
        self.set_class(draft.empty, "-empty")
        self._publish()
        self._show_node()
        self._show_job()

    def _keep(self, name: str) -> None:
        """Hand changes that are not saved to the session, so that they survive it."""
        session, draft = self.session, self.draft
        session.unsaved = (name or NEW_CLUSTER) if draft.dirty else ""
        kept = (draft.text, draft.source) if draft.dirty else ("", "")
        if kept != (session.draft, session.draft_source):
            session.draft, session.draft_source = kept
            self.memx.publish("draft")

    def _publish(self) -> None:
        """Hand a valid cluster to the session when it differs from the one there."""
        draft, session = self.draft, self.session
        cluster = draft.cluster
        if draft.valid and cluster is not None:
            same = session.cluster is not None and session.cluster == cluster
            if not same or session.cluster_source != draft.source:
                self.memx.set_cluster(cluster, draft.source)

    def _show_node(self) -> None:
        draft = self.draft
        target = self.query_one(ClusterTree).target
        fields = self.query_one("#node", FieldList)
        fields.show([] if draft.empty else form_fields(draft, target))
        entries = draft.doc.entries if draft.doc else ()
        title = "cluster"
        if target.index is not None and target.index < len(entries):
            title = f"node {entries[target.index].name}"
            if target.group is not None:
                title += f", group {target.group + 1}"
        self._title("node-pane", title)

    def _show_job(self) -> None:
        problem = self.query_one(TrainingPane).show(self.session)
        draft = self.draft
        self.query_one(Summary).show(summary(draft, problem))
        count = len(draft.problems)
        words = f"{count} problem{'' if count == 1 else 's'}" if count else ("" if draft.empty else "valid")
        self._title("summary-pane", f"summary: {words}" if words else "summary")
        self.set_class(bool(count), "-bad")

    def _title(self, pane: str, words: str) -> None:
        self.query_one(f"#{pane}", Pane).title_bar.show(words)

    # Opening and saving

    def open_source(self, source: str) -> None:
        """Open a sample or a file; asks first when changes would be lost."""
        self._leave_draft(lambda: self._open(source))

    def _open(self, source: str) -> None:
        try:
            self.draft = open_source(source)
        except MemxError as error:
            self.memx.show_error(error)
            return
        self.show_all()
        tree = self.query_one(ClusterTree)
        tree.go_to(Target(0))
        if self.draft.problems:
            self.add_class("-yaml")

    def _leave_draft(self, go: Callable[[], None]) -> None:
        if not self.draft.dirty:
            go()
            return
        question = f"{self.session.unsaved} has changes that are not saved. Open another and lose them?"
        dialog = ConfirmDialog("Unsaved changes", question, yes="Lose the changes")
        self.app.push_screen(dialog, lambda yes: go() if yes else None)

    def action_open(self) -> None:
        dialog = cluster_dialog(self.session.recent, self.draft.source)
        self.app.push_screen(dialog, lambda source: self.open_source(source) if source else None)

    def action_new(self) -> None:
        def start() -> None:
            self.draft = ClusterDraft()
            self.draft.change(NEW_TEXT)
            self.show_all()
            self.query_one(ClusterTree).go_to(Target(0))

        self._leave_draft(start)

    def action_save(self) -> None:
        draft = self.draft
        if draft.empty:
            self.memx.say("nothing to save yet: o opens a cluster, n starts one", warning=True)
            return
        name = draft.doc.name if draft.doc else ""
        default = str(draft.file) if draft.file else f"{name or 'cluster'}.yaml".replace("/", "-")
        dialog = ExportDialog("Save the cluster", [Format("cluster YAML", default, lambda: draft.text)])
        self.app.push_screen(dialog, self._saved)

    def _saved(self, file: Path | None) -> None:
        if file is not None:
            self.draft.saved(file)
            self.show_all()

    def hints(self) -> Iterator[Hint]:
        """The footer, with the key that the focused pane has for one more or the next."""
        more = next((a.binding for a in self.active_bindings.values() if a.binding.id in _MORE), None)
        for hint in super().hints():
            yield hint
            if more is not None and hint.action == "add" and not self.draft.empty:
                yield Hint(key_word(more.key.split(",")[0]), more.description, "more")

    def action_more(self) -> None:
        """What a click on that hint does."""
        focused = self.focused
        if isinstance(focused, (ClusterTree, FieldList)):
            focused.action_step(1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return self.has_class("-zoom") or (self.is_mounted and self.query_one(YamlEditor).has_focus)
        if action in ("duplicate", "remove", "gpu_type"):
            return None if not self.is_mounted or self._index is None else True
        return True

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Target]) -> None:
        event.stop()
        self._show_node()
        target = self.query_one(ClusterTree).target
        doc = self.draft.doc
        editor = self.query_one(YamlEditor)
        if doc is not None and target.index is not None and target.index < len(doc.entries) and not editor.has_focus:
            entry = doc.entries[target.index]
            line = entry.line if target.group is None else entry.groups[target.group].line
            editor.go_to_line(line)
        self.refresh_bindings()

    def on_tree_node_selected(self, event: Tree.NodeSelected[Target]) -> None:
        event.stop()
        self.query_one(YamlEditor if self.has_class("-yaml") else "#node").focus()

    def action_model(self) -> None:
        self.query_one(TrainingPane).choose_model()

    # The text

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        if event.text_area.text != self.draft.text:
            if self._check is not None:
                self._check.stop()
            self._check = self.set_timer(CHECK_AFTER_S, self._take_text)

    def _take_text(self) -> None:
        self._check = None
        if self.draft.change(self.query_one(YamlEditor).text):
            self.show_all()

    def on_summary_line_chosen(self, event: Summary.LineChosen) -> None:
        self.add_class("-yaml")
        editor = self.query_one(YamlEditor)
        editor.go_to_line(event.line)
        editor.focus()

    def action_toggle_yaml(self) -> None:
        self.toggle_class("-yaml")
        self.query_one(YamlEditor if self.has_class("-yaml") else "#node").focus()

    def on_training_pane_search_wanted(self, event: TrainingPane.SearchWanted) -> None:
        event.stop()
        self.action_search()

    # Panes and leaving

    def action_zoom(self) -> None:
        focused = self.focused
        pane = next((w for w in focused.ancestors_with_self if isinstance(w, Pane)), None) if focused else None
        zoomed = not self.has_class("-zoom") and pane is not None
        for widget in self.query("Pane, .column").results(Widget):
            widget.set_class(zoomed and widget is pane, "-zoomed")
            widget.set_class(zoomed and pane is not None and widget is pane.parent, "-holds")
        self.set_class(zoomed, "-zoom")

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self.action_zoom()
        elif self.query_one(YamlEditor).has_focus:
            self.query_one(ClusterTree).focus()

    def action_search(self) -> None:
        if self._check is not None:
            self._check.stop()
            self._take_text()
        if self.draft.problems:
            self.memx.say(f"the cluster file has {len(self.draft.problems)} problems; see the summary", warning=True)
        elif self.draft.empty:
            self.action_open()
        elif self.session.model is None:
            self.action_model()
        else:
            self.memx.open_mode("plans")
            self.memx.start_search()
