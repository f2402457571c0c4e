"""Edits of a cluster file's text that change only what they must: comments, order and layout stay as written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from memx_engine import InputError

MAX_CHARS = 1 << 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RANGE = re.compile(r"([\w.\-]*)\[(\d{1,6})-(\d{1,6})\]([\w.\-]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./ \-]*(\[\d+-\d+\])?[A-Za-z0-9_./\-]*")
_NUMBER = re.compile(r"\d{1,6}")

Path = tuple[str | int, ...]

NEW_TEXT = """\
schema: memx/cluster/v1
name: my-cluster
nodes:
  - name: n0
    gpus: [{type: a100-sxm-80g, count: 8}]
"""


@dataclass(frozen=True)
class GroupEntry:
    """GPUs of one type in one entry, as the text gives them; ``count`` is None where it is no whole number."""

    gpu_type: str
    count: int | None
    memory_used_gib: str
    path: Path
    line: int


@dataclass(frozen=True)
class NodeEntry:
    """One entry under ``nodes:``; ``replicas`` counts the nodes it stands for."""

    index: int
    name: str
    replicas: int
    site: str
    groups: tuple[GroupEntry, ...]
    line: int

    @property
    def path(self) -> Path:
        return ("nodes", self.index)

    @property
    def gpus(self) -> int:
        """GPUs in one of its nodes."""
        return sum(group.count or 0 for group in self.groups)


class ClusterText:
    """The text of a cluster file with the places of what it says.

    Raises:
        InputError: The text is not YAML with keys and values at its top, so nothing in it has a place.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise InputError("the file is too long for the form", hint="edit the text instead")
        self.text = text
        try:
            root = yaml.compose(text, Loader=_LOADER)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}" if mark else ""
            raise InputError("the text is not valid YAML yet", where=where, hint="correct it in the editor") from error
        if not isinstance(root, yaml.MappingNode):
            raise InputError("the text has no keys and values yet", hint="correct it in the editor")
        self._root = root

    # What the text says

    @property
    def name(self) -> str:
        return self._scalar(("name",))

    @property
    def entries(self) -> tuple[NodeEntry, ...]:
        """The entries under ``nodes:``; what cannot be understood is left empty."""
        nodes = self._find(("nodes",))
        if not isinstance(nodes, yaml.SequenceNode):
            return ()
        return tuple(self._entry(index, node) for index, node in enumerate(nodes.value))

    def _entry(self, index: int, node: yaml.Node) -> NodeEntry:
        path: Path = ("nodes", index)
        name = self._scalar((*path, "name"))
        replicas = _whole(self._scalar((*path, "replicas"))) or 1
        if match := _RANGE.fullmatch(name):
            replicas = max(1, int(match[3]) - int(match[2]) + 1)
        gpus = self._find((*path, "gpus"))
        groups: list[GroupEntry] = []
        if isinstance(gpus, yaml.MappingNode):
            groups.append(self._group((*path, "gpus"), gpus))
        elif isinstance(gpus, yaml.SequenceNode):
            groups += [self._group((*path, "gpus", i), item) for i, item in enumerate(gpus.value)]
        site = self._scalar((*path, "site"))
        return NodeEntry(index, name, replicas, site, tuple(groups), node.start_mark.line + 1)

    def _group(self, path: Path, node: yaml.Node) -> GroupEntry:
        return GroupEntry(
            gpu_type=self._scalar((*path, "type")),
            count=_whole(self._scalar((*path, "count"))),
            memory_used_gib=self._scalar((*path, "memory_used_gib")),
            path=path,
            line=node.start_mark.line + 1,
        )

    def value(self, path: Path) -> str | None:
        """What is written at ``path``: a scalar's text, a short source text for the rest, None where nothing is."""
        node = self._find(path)
        if node is None:
            return None
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        return " ".join(self.text[node.start_mark.index : self._end(node)].split())

    # Edits: each returns a new text

    def set(self, path: Path, value: str) -> ClusterText:
        """Write a scalar at ``path``, adding the key where it is missing; parents that are missing are added too."""
        return self.set_source(path, _written(value))

    def set_source(self, path: Path, source: str) -> ClusterText:
        """Like :meth:`set` with YAML source on one line, such as ``{bandwidth_gb_s: 25}``."""
        node = self._find(path)
        if node is not None:
            start, end = node.start_mark.index, self._end(node)
            return ClusterText(self.text[:start] + source + self.text[end:])
        parent = self._find(path[:-1])
        if parent is None:
            return self.set_source(path[:-1], f"{{{path[-1]}: {source}}}")
        return self._add_key(parent, str(path[-1]), source)

    def _add_key(self, parent: yaml.Node, key: str, source: str) -> ClusterText:
        if not isinstance(parent, yaml.MappingNode):
            raise InputError(f"{key} has no place here", hint="edit the text instead")
        if parent.flow_style:
            at = parent.end_mark.index - 1
            head = self.text[:at].rstrip()
            comma = ", " if parent.value else ""
            return ClusterText(f"{head}{comma}{key}: {source}{self.text[at:]}")
        indent = " " * parent.value[0][0].start_mark.column
        return self._insert_line(self._line_end(self._end(parent)), f"{indent}{key}: {source}")

    def remove_key(self, path: Path) -> ClusterText:
        """Remove a key and its value; nothing happens where it is not written."""
        parent = self._find(path[:-1])
        if not isinstance(parent, yaml.MappingNode):
            return self
        for place, (key, node) in enumerate(parent.value):
            if key.value == path[-1]:
                if parent.flow_style:
                    return self._cut_flow([k for k, _ in parent.value], [v for _, v in parent.value], place)
                if len(parent.value) == 1 or place == 0:
                    raise InputError(f"{key.value} cannot be left out", hint="edit the text instead")
                start = self._line_start(key.start_mark.index)
                return ClusterText(self.text[:start] + self.text[self._line_end(self._end(node)) :])
        return self

    def add_node(self, gpu_type: str, count: int, after: int | None = None) -> ClusterText:
        """A new entry of one GPU group, after entry ``after`` or at the end; its name is free."""
        entries = self.entries
        at = len(entries) - 1 if after is None else after
        name = free_name(entries[at].name if entries else "n0", entries)
        gpus = f"[{{type: {_written(gpu_type)}, count: {count}}}]"
        nodes = self._find(("nodes",))
        if not isinstance(nodes, yaml.SequenceNode) or not nodes.value:
            if nodes is not None:
                start, end = nodes.start_mark.index, self._end(nodes)
                return ClusterText(f"{self.text[:start].rstrip()} [{{name: {name}, gpus: {gpus}}}]{self.text[end:]}")
            return self._add_key(self._root, "nodes", f"[{{name: {name}, gpus: {gpus}}}]")
        if nodes.flow_style:
            return self._insert_flow(nodes, at, f"{{name: {_written(name)}, gpus: {gpus}}}")
        dash = self._dash(nodes.value[at])
        indent = " " * (dash - self._line_start(dash))
        new = f"{indent}- name: {_written(name)}\n{indent}  gpus: {gpus}"
        return self._insert_line(self._region(nodes, at)[1], new)

    def duplicate_node(self, index: int) -> ClusterText:
        """A copy of entry ``index`` below it, under a free name."""
        nodes = self._find(("nodes",))
        if not isinstance(nodes, yaml.SequenceNode):
            return self
        name = free_name(self.entries[index].name, self.entries)
        if nodes.flow_style:
            node = nodes.value[index]
            copy = self._insert_flow(nodes, index, self.text[node.start_mark.index : self._end(node)])
        else:
            start, end = self._region(nodes, index)
            copy = self._insert_line(end, self.text[start:end].rstrip("\n"))
        return copy.set(("nodes", index + 1, "name"), name)

    def remove_node(self, index: int) -> ClusterText:
        """The text without entry ``index``; the last one cannot be removed."""
        nodes = self._find(("nodes",))
        if not isinstance(nodes, yaml.SequenceNode) or len(nodes.value) < 2:
            raise InputError("a cluster needs at least one node", hint="change this one instead")
        if nodes.flow_style:
            return self._cut_flow(nodes.value, nodes.value, index)
        start, end = self._region(nodes, index)
        return ClusterText(self.text[:start] + self.text[end:])

    # Places

    def _find(self, path: Sequence[str | int]) -> yaml.Node | None:
        node: yaml.Node | None = self._root
        for step in path:
            if isinstance(step, int):
                items = node.value if isinstance(node, yaml.SequenceNode) else []
                node = items[step] if step < len(items) else None
            else:
                pairs = node.value if isinstance(node, yaml.MappingNode) else []
                node = next((value for key, value in pairs if key.value == step), None)
            if node is None:
                return None
        return node

    def _scalar(self, path: Path) -> str:
        node = self._find(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def _end(self, node: yaml.Node) -> int:
        """Where a value really ends; a block collection's own mark stands at the next token."""
        if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        return self._end(last[1] if isinstance(node, yaml.MappingNode) else last)

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """After the line break of the line that holds ``at`` (or that ends just before it)."""
        if at and self.text[at - 1] == "\n":
            return at
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1

    def _dash(self, item: yaml.Node) -> int:
        return self.text.rfind("-", 0, item.start_mark.index)

    def _region(self, nodes: yaml.SequenceNode, index: int) -> tuple[int, int]:
        """The lines of one entry, with the comments that follow it up to the next entry."""
        start = self._line_start(self._dash(nodes.value[index]))
        if index + 1 < len(nodes.value):
            return start, self._line_start(self._dash(nodes.value[index + 1]))
        return start, self._line_end(self._end(nodes.value[index]))

    def _insert_line(self, at: int, line: str) -> ClusterText:
        head = self.text[:at]
        if head and not head.endswith("\n"):
            head += "\n"
        return ClusterText(f"{head}{line}\n{self.text[at:]}")

    def _insert_flow(self, nodes: yaml.SequenceNode, index: int, source: str) -> ClusterText:
        end = self._end(nodes.value[index])
        return ClusterText(f"{self.text[:end]}, {source}{self.text[end:]}")

    def _cut_flow(self, starts: list[yaml.Node], ends: list[yaml.Node], index: int) -> ClusterText:
        if index:
            start, end = self._end(ends[index - 1]), self._end(ends[index])
        else:
            start = starts[0].start_mark.index
            end = starts[1].start_mark.index if len(starts) > 1 else self._end(ends[0])
        return ClusterText(self.text[:start] + self.text[end:])


def free_name(like: str, entries: Sequence[NodeEntry]) -> str:
    """A node name in the manner of ``like`` that no entry uses: n0 -> n1, gpu[00-07] -> gpu[08-15], x -> x-2."""
    taken = {name for entry in entries for name in _expanded(entry.name)}
    for candidate in _candidates(like or "n0"):
        if not taken & set(_expanded(candidate)):
            return candidate
    return "node"


def _candidates(like: str) -> Iterator[str]:
    if match := _RANGE.fullmatch(like):
        head, low, high, tail = match.groups()
        length = max(1, int(high) - int(low) + 1)
        for step in range(1, 10_000):
            first = int(low) + step * length
            yield f"{head}[{first:0{len(low)}d}-{first + length - 1:0{len(high)}d}]{tail}"
    match = re.fullmatch(r"(.*?)(\d{1,6})", like)
    if match and not match[1].endswith("."):
        for number in range(int(match[2]) + 1, int(match[2]) + 10_000):
            yield f"{match[1]}{number:0{len(match[2])}d}"
    for number in range(2, 10_000):
        yield f"{like}-{number}"


def _expanded(name: str) -> Iterator[str]:
    match = _RANGE.fullmatch(name)
    if match is None:
        yield name
        return
    head, low, high, tail = match.groups()
    for number in range(int(low), min(int(high), int(low) + 100_000) + 1):
        yield f"{head}{number:0{len(low)}d}{tail}"


def _whole(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _written(value: str) -> str:
    """A scalar as YAML source: plain where that is safe, quoted otherwise."""
    if _NUMBER.fullmatch(value) or re.fullmatch(r"\d+\.\d+", value):
        return value
    safe = _PLAIN.fullmatch(value) and "[" not in value and value.strip() == value
    if safe and value.lower() not in ("null", "true", "false", "yes", "no", "on", "off", "~"):
        return value
    return json.dumps(value, ensure_ascii=False)
