"""Editing the cluster's file by tree and node form: nodes come, go and change; all of it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memx_engine import MemxError
from memx_tui.choosers import gpu_dialog, link_dialog
from memx_tui.cluster_draft import ClusterDraft
from memx_tui.cluster_edit import ClusterText
from memx_tui.cluster_view import Target, path_of
from memx_tui.screens.base import ModeScreen
from memx_tui.screens.prompt import PromptDialog
from memx_tui.widgets.cluster_tree import ClusterTree
from memx_tui.widgets.fields import FieldList

if TYPE_CHECKING:
    from memx_engine import GpuType

_STEPPED = {"count": 1.0, "replicas": 1.0, "memory_used_gib": 0.0, "island_size": 1.0}
_PROMPTS = {
    "name": ("Name", "letters, digits, '.', '_', '-'; gpu[01-16] stands for sixteen nodes"),
    "replicas": ("Nodes alike", "how many nodes this entry stands for"),
    "count": ("GPUs", "how many of this type in one node"),
    "memory_used_gib": ("Memory in use, GiB", "on each of these GPUs, by others; 0 when they are free"),
    "site": ("Site", "a name; nodes of one site share a network"),
    "island_size": ("GPUs per island", "consecutive GPUs joined by the fastest link; empty: the default"),
}


class ClusterEditing(ModeScreen):
    """What of the Cluster screen changes the draft."""

    if TYPE_CHECKING:  # what it uses of the whole screen

        def show_all(self) -> None: ...

        def action_new(self) -> None: ...

    def __init__(self) -> None:
        super().__init__()
        self.draft = ClusterDraft()

    def _edit(self, change: Callable[[ClusterText], ClusterText], said: str = "") -> None:
        doc = self.draft.doc
        if doc is None:
            self.memx.say("the text is not YAML yet: v shows it", warning=True)
            return
        try:
            changed = change(doc)
        except MemxError as error:
            self.memx.say(f"{error.message}: {error.hint}" if error.hint else error.message, warning=True)
            return
        if self.draft.change(changed.text):
            self.show_all()
            if said:
                self.memx.say(f"{said}; u takes it back")

    @property
    def _index(self) -> int | None:
        index = self.query_one(ClusterTree).target.index
        doc = self.draft.doc
        return index if doc is not None and index is not None and index < len(doc.entries) else None

    def action_add(self) -> None:
        if self.draft.empty:
            self.action_new()
            return
        index = self._index
        dialog = gpu_dialog(self._own_types())

        def add(kind: str | None) -> None:
            if kind is not None:
                entries = self.draft.doc.entries if self.draft.doc else ()
                count = entries[index].gpus if index is not None and index < len(entries) else 8
                self._edit(lambda doc: doc.add_node(kind, count or 8, index))
                self.query_one(ClusterTree).go_to(Target(len(entries) if index is None else index + 1))

        self.app.push_screen(dialog, add)

    def action_duplicate(self) -> None:
        index = self._index
        if index is not None:
            self._edit(lambda doc: doc.duplicate_node(index))
            self.query_one(ClusterTree).go_to(Target(index + 1))

    def action_remove(self) -> None:
        index, doc = self._index, self.draft.doc
        if index is not None and doc is not None:
            self._edit(lambda d: d.remove_node(index), f"removed {doc.entries[index].name}")

    def action_gpu_type(self) -> None:
        self._edit_node("type")

    def action_undo(self) -> None:
        if self.draft.undo():
            self.show_all()
        else:
            self.memx.say("nothing to undo")

    def action_redo(self) -> None:
        if self.draft.redo():
            self.show_all()
        else:
            self.memx.say("nothing to redo")

    def _own_types(self) -> tuple[GpuType, ...]:
        return self.draft.cluster.gpu_types if self.draft.cluster is not None else ()

    # Steps and the node form

    def on_cluster_tree_stepped(self, event: ClusterTree.Stepped) -> None:
        self._step_node(event.target, "count", event.by)

    def _step_node(self, target: Target, key: str, by: int) -> None:
        path = path_of(self.draft, target, key)
        doc = self.draft.doc
        if doc is None or path is None or target.index is None or key not in _STEPPED:
            return
        entry = doc.entries[target.index]
        if key != "replicas" and target.group is None and len(entry.groups) != 1:
            self.memx.say("this node has several GPU types: go to one of them")
            return
        written = doc.value(path) or ("1" if key == "replicas" else "0")
        try:
            number = max(_STEPPED[key], float(written) + by)
        except ValueError:
            return
        self._edit(lambda d: d.set(path, f"{number:g}"))

    def on_field_list_chosen(self, event: FieldList.Chosen) -> None:
        event.stop()
        self._edit_node(event.key)

    def on_field_list_stepped(self, event: FieldList.Stepped) -> None:
        event.stop()
        self._step_node(self.query_one(ClusterTree).target, event.key, event.by)

    def on_field_list_cleared(self, event: FieldList.Cleared) -> None:
        event.stop()
        path = path_of(self.draft, self.query_one(ClusterTree).target, event.key)
        if path is not None:
            self._edit(lambda doc: doc.remove_key(path))

    def _edit_node(self, key: str) -> None:
        target = self.query_one(ClusterTree).target
        path, doc = path_of(self.draft, target, key), self.draft.doc
        if path is None or doc is None or not key:
            return
        written = doc.value(path) or ""
        if key == "groups":
            self.memx.say("this node has several GPU types: go to one of them in the tree")
        elif key == "type":
            self.app.push_screen(gpu_dialog(self._own_types(), written), lambda kind: self._put(target, key, kind))
        elif "links." in key:
            label = next((f.label for f in self.query_one("#node", FieldList).shown if f.key == key), "link")
            self.app.push_screen(
                link_dialog(f"Link: {label}", written), lambda source: self._put(target, key, source, source_text=True)
            )
        else:
            title, hint = _PROMPTS.get(key, (key, ""))
            dialog = PromptDialog(title, written, hint=hint, check=lambda text: self._tried(target, key, text))
            self.app.push_screen(dialog, lambda text: self._put(target, key, text))

    def _put(self, target: Target, key: str, value: str | None, *, source_text: bool = False) -> None:
        path = path_of(self.draft, target, key)
        if value is None or path is None:
            return
        if value == "":
            self._edit(lambda doc: doc.remove_key(path))
        elif source_text:
            self._edit(lambda doc: doc.set_source(path, value))
        else:
            self._edit(lambda doc: doc.set(path, value))

    def _tried(self, target: Target, key: str, value: str) -> None:
        """Raise the first problem that writing ``value`` would add."""
        from memx_engine import InputError, validate_cluster_text

        doc, path = self.draft.doc, path_of(self.draft, target, key)
        if doc is None or path is None:
            return
        text = (doc.set(path, value) if value else doc.remove_key(path)).text
        before = {(p.key, p.message) for p in self.draft.problems}
        for problem in validate_cluster_text(text):
            if (problem.key, problem.message) not in before:
                raise InputError(problem.message, hint=problem.hint)
