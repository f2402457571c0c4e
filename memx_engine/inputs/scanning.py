"""Text to :class:`~memx_engine.inputs.nodes.Node` trees: a safe subset of YAML, and JSON.

No tags, anchors or aliases (neither code nor alias bombs), no duplicate keys, bounded depth and size. YAML is read from
the parser's events, so nothing is ever constructed from a tag; scalars keep their text, so ``on`` stays text and
numbers keep every digit.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder

import yaml

from memx_engine.inputs.nodes import Node, Problem, Problems, brief

MAX_DEPTH = 40
MAX_NODES = 500_000

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_JSON = JSONDecoder()
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_JSON_BARE = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?|true|false|null|NaN|-?Infinity")


class _Stop(Exception):
    """The text cannot be read further; carries the problem."""

    def __init__(self, line: int, key: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(line, key, message, hint)


def scan_yaml(text: str, problems: Problems) -> Node | None:
    """The root node of the one YAML document in ``text``; None after a problem that leaves nothing to read."""
    try:
        return _YamlBuilder(text, problems).document()
    except _Stop as stop:
        problems.add(stop.problem)
    except yaml.MarkedYAMLError as error:
        problems.add(_yaml_problem(error, text))
    except yaml.YAMLError as error:
        problems.add(Problem(0, "", f"this is not readable YAML: {str(error).splitlines()[0]}"))
    return None


def _yaml_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = min(mark.line + 1, max(len(text.splitlines()), 1)) if mark else 0
    what = error.problem or error.context or "syntax error"
    if "\t" in text and "cannot start any token" in what:
        return Problem(line, "", "a tab is used for indentation", "indent with spaces")
    if mark and not "".join(text.splitlines()[mark.line : mark.line + 1])[mark.column :].strip():
        rest = "".join(text.splitlines()[mark.line + 1 :])
        if not rest.strip():
            return Problem(line, "", f"the text ends too early: {what}", "is the file complete?")
    return Problem(line, "", f"this is not readable YAML: {what}", "check brackets, quotes and indentation")


class _YamlBuilder:
    def __init__(self, text: str, problems: Problems) -> None:
        self.loader = _PARSER(text)
        self.problems = problems
        self.count = 0

    def document(self) -> Node:
        try:
            self.loader.get_event()  # stream start
            event = self.loader.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                raise _Stop(0, "", "the document is empty")
            root = self.node(self.loader.get_event(), "", 0)
            self.loader.get_event()  # document end
            event = self.loader.get_event()
            if not isinstance(event, yaml.StreamEndEvent):
                raise _Stop(_line(event), "", "a second document begins here", "keep one document per file")
            return root
        finally:
            self.loader.dispose()

    def node(self, event: yaml.Event, path: str, depth: int) -> Node:
        line = _line(event)
        self.check(event, path, line, depth)
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.problems, path, line, scalar=event.value, plain=event.style in (None, ""))
        if isinstance(event, yaml.SequenceStartEvent):
            elements: list[Node] = []
            while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
                elements.append(self.node(event, f"{path}[{len(elements)}]", depth + 1))
            return Node(self.problems, path, line, elements=elements)
        fields: dict[str, Node] = {}
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            key_line = _line(event)
            self.check(event, path, key_line, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise _Stop(key_line, path, "a key must be plain text", "check brackets and indentation")
            key = event.value
            child = self.node(self.loader.get_event(), f"{path}.{key}" if path else key, depth + 1)
            _add_field(fields, key, child, key_line)
        return Node(self.problems, path, line, fields=fields)

    def check(self, event: yaml.Event, path: str, line: int, depth: int) -> None:
        self.count += 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Stop(line, path, "YAML anchors and aliases are not accepted", "write the value out")
        tag = getattr(event, "tag", None)
        if tag:
            raise _Stop(line, path, f"YAML tags such as {brief(tag)} are not accepted", "remove the tag")
        _check_size(depth, self.count, path, line)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def scan_json(text: str, problems: Problems) -> Node | None:
    """The root node of the JSON ``text``; None after a problem that leaves nothing to read."""
    try:
        return _JsonBuilder(text, problems).document()
    except _Stop as stop:
        problems.add(stop.problem)
    return None


class _JsonBuilder:
    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.problems = problems
        self.at = 0
        self.line = 1
        self.count = 0

    def document(self) -> Node:
        self.space()
        if self.at == len(self.text):
            raise _Stop(0, "", "the document is empty")
        root = self.node("", 0)
        self.space()
        if self.at < len(self.text):
            raise self.stop("", "text after the end of the document")
        return root

    def space(self) -> None:
        match = _JSON_SPACE.match(self.text, self.at)
        if match:
            self.line += self.text.count("\n", self.at, match.end())
            self.at = match.end()

    def stop(self, path: str, message: str) -> _Stop:
        if not self.text[self.at :].strip():
            return _Stop(self.line, path, "the text ends too early", "is the file complete?")
        return _Stop(self.line, path, f"this is not readable JSON: {message}, at {brief(self.text[self.at :][:12])}")

    def take(self, symbol: str) -> bool:
        self.space()
        found = self.text.startswith(symbol, self.at)
        self.at += len(symbol) if found else 0
        self.space()
        return found

    def string(self, path: str) -> str:
        if not self.text.startswith('"', self.at):
            raise self.stop(path, "expected a quoted key")
        try:
            value, self.at = _JSON.raw_decode(self.text, self.at)
        except JSONDecodeError as error:
            raise _Stop(self.line, path, f"this is not readable JSON: {error.msg[0].lower()}{error.msg[1:]}") from error
        return str(value)

    def node(self, path: str, depth: int) -> Node:
        self.count += 1
        line = self.line
        _check_size(depth, self.count, path, line)
        if self.text.startswith('"', self.at):
            return Node(self.problems, path, line, scalar=self.string(path))
        if self.take("["):
            elements: list[Node] = []
            while not self.take("]"):
                if elements and not self.take(","):
                    raise self.stop(path, "expected ',' or ']'")
                elements.append(self.node(f"{path}[{len(elements)}]", depth + 1))
            return Node(self.problems, path, line, elements=elements)
        if self.take("{"):
            fields: dict[str, Node] = {}
            while not self.take("}"):
                if fields and not self.take(","):
                    raise self.stop(path, "expected ',' or '}'")
                key_line, key = self.line, self.string(path)
                if not self.take(":"):
                    raise self.stop(path, "expected ':'")
                child = self.node(f"{path}.{key}" if path else key, depth + 1)
                _add_field(fields, key, child, key_line)
            return Node(self.problems, path, line, fields=fields)
        match = _JSON_BARE.match(self.text, self.at)
        if match is None:
            raise self.stop(path, "expected a value")
        self.at = match.end()
        return Node(self.problems, path, line, scalar=match[0], plain=True)


def _add_field(fields: dict[str, Node], key: str, child: Node, key_line: int) -> None:
    if key in fields:
        first = fields[key].line
        message = f"the key {brief(key)} is given twice (first on line {first})"
        child.problems.add(Problem(key_line, child.path, message, "keep one of them"))
        return
    child.line = key_line
    fields[key] = child


def _check_size(depth: int, count: int, path: str, line: int) -> None:
    if depth > MAX_DEPTH:
        raise _Stop(line, path[:80], f"values are nested more than {MAX_DEPTH} deep")
    if count > MAX_NODES:
        raise _Stop(line, path[:80], f"the document holds more than {MAX_NODES} values")
