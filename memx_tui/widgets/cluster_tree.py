"""The tree of a cluster file's entries and their GPU groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from memx_tui.cluster_view import Target, entry_words, group_words
from memx_tui.widgets.fields import MOTION

if TYPE_CHECKING:
    from memx_tui.cluster_edit import NodeEntry

FOLD_SITES_FROM = 2


class ClusterTree(Tree[Target]):
    """Entries under the cluster, by site where there are several; groups under entries that hold several types."""

    DEFAULT_CSS = """
    ClusterTree { background: transparent; padding: 0; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    ClusterTree > .tree--guides, ClusterTree > .tree--guides-hover, ClusterTree > .tree--guides-selected {
        color: $border-blurred;
    }
    ClusterTree > .tree--cursor { background: $block-cursor-blurred-background; color: $foreground; text-style: none; }
    ClusterTree:focus > .tree--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground;
        text-style: $block-cursor-text-style;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOTION,
        Binding("enter", "select_cursor", "Edit", id="tree.edit", show=False, tooltip="Go to this node's form"),
        Binding("plus,equals_sign", "step(1)", "More GPUs", id="tree.more", show=False, tooltip="One GPU more"),
        Binding("minus", "step(-1)", "Fewer GPUs", id="tree.less", show=False, tooltip="One GPU less"),
    ]

    @dataclass
    class Stepped(Message):
        """``+`` (1) or ``-`` (-1) on what the cursor is on."""

        target: Target
        by: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own parameter name
        super().__init__("", data=Target(), id=id)
        self.auto_expand = False
        self.show_root = True
        self.guide_depth = 2
        self._signature: tuple[object, ...] = ()

    @property
    def target(self) -> Target:
        """What the cursor is on."""
        node = self.cursor_node
        return node.data if node is not None and node.data is not None else Target()

    def show(self, name: str, entries: tuple[NodeEntry, ...]) -> None:
        """Set the content; the cursor stays where it was, as far as that still exists."""
        signature = (name, entries)
        if signature == self._signature:
            return
        self._signature = signature
        target = self.target
        self.clear()
        self.root.set_label(Text(name or "no name"))
        self.root.expand()
        width = max((len(entry.name) for entry in entries), default=0)
        sites = list(dict.fromkeys(entry.site for entry in entries))
        for site in sites:
            parent = self.root
            inside = [entry for entry in entries if entry.site == site]
            if len(sites) >= FOLD_SITES_FROM:
                gpus = sum(entry.gpus * entry.replicas for entry in inside)
                parent = self.root.add(Text(f"{site or 'site-0'}  {gpus:,} GPUs", "dim"), data=Target(), expand=True)
            for entry in inside:
                self._add_entry(parent, entry, width)
        self.go_to(target)

    def go_to(self, target: Target) -> None:
        """Put the cursor on an entry or group; on its entry when the group is gone, else on the last entry."""
        found = self._find(self.root, target) or self._find(self.root, Target(target.index))
        if found is None and target.index:
            found = self._find(self.root, Target(target.index - 1))
        self.call_after_refresh(self.move_cursor, found or self.root)

    def action_step(self, by: int) -> None:
        self.post_message(self.Stepped(self.target, by))

    def _add_entry(self, parent: TreeNode[Target], entry: NodeEntry, width: int) -> None:
        label = Text(f"{(entry.name or '?').ljust(width)} {entry_words(entry)}")
        if len(entry.groups) < 2:
            parent.add_leaf(label, data=Target(entry.index))
            return
        node = parent.add(label, data=Target(entry.index), expand=True)
        for at, group in enumerate(entry.groups):
            node.add_leaf(Text(group_words(group)), data=Target(entry.index, at))

    def _find(self, node: TreeNode[Target], target: Target) -> TreeNode[Target] | None:
        if node.data == target and (node is self.root or target.index is not None):
            return node
        for child in node.children:
            found = self._find(child, target)
            if found is not None:
                return found
        return None
