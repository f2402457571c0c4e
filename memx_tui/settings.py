"""Reading of the small YAML files that configure the interface, with file, line and key in every complaint.

Values are taken from YAML's node tree, never constructed, so a tag cannot build an object and an alias cannot grow.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from memx_engine import InputError

MAX_BYTES = 256 * 1024
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the known words closest to ``word``, or the first few when none is close."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=2, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(choices[:12])}{', ...' if len(choices) > 12 else ''}" if choices else ""


class Section:
    """One mapping of a settings file."""

    def __init__(self, node: yaml.MappingNode, file: Path, prefix: str = "") -> None:
        self._file = file
        self._prefix = prefix
        self._line = node.start_mark.line + 1
        self._entries: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError("a key must be one word", where=self._place(line, ""))
            if key_node.value in self._entries:
                raise InputError("this key is given twice", where=self._place(line, key_node.value))
            if value_node.tag not in _PLAIN_TAGS:
                tag = value_node.tag.removeprefix("tag:yaml.org,2002:")
                raise InputError(f"YAML tag {tag!r} is refused", where=self._place(line, key_node.value))
            self._entries[key_node.value] = (line, value_node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def _place(self, line: int, key: str) -> str:
        return f"{self._file}:{line}: {self._prefix}{key}" if key else f"{self._file}:{line}"

    def where(self, key: str) -> str:
        """``file:line: key``; the line of the whole section where the key is missing."""
        line = self._entries[key][0] if key in self._entries else self._line
        return self._place(line, key)

    def unknown_keys(self, known: Iterable[str]) -> list[InputError]:
        """One problem for each key outside ``known``."""
        allowed = set(known)
        return [
            InputError("unknown key", where=self.where(key), hint=nearest(key, allowed))
            for key in self._entries
            if key not in allowed
        ]

    def text(self, key: str) -> str:
        """The scalar under ``key`` as text; InputError when it is missing, empty or not a scalar."""
        if key not in self._entries:
            raise InputError("this key is missing", where=self.where(key))
        node = self._entries[key][1]
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            raise InputError("this must be one value", where=self.where(key))
        value: str = node.value.strip()
        return value

    def flag(self, key: str) -> bool:
        """The scalar under ``key`` as true or false."""
        word = self.text(key).lower()
        if word not in _WORDS:
            raise InputError(f"{word!r} is neither true nor false", where=self.where(key))
        return _WORDS[word]

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        """The scalar under ``key``, which must be one of ``allowed``."""
        word, words = self.text(key), tuple(allowed)
        if word not in words:
            raise InputError(
                f"{word!r} is not one of {', '.join(words)}", where=self.where(key), hint=nearest(word, words)
            )
        return word

    def section(self, key: str) -> Section:
        """The mapping under ``key``."""
        if key not in self._entries:
            raise InputError("this key is missing", where=self.where(key))
        node = self._entries[key][1]
        if not isinstance(node, yaml.MappingNode):
            raise InputError("this must hold keys and values", where=self.where(key))
        return Section(node, self._file, f"{self._prefix}{key}.")


def read_settings(file: Path) -> Section:
    """The top-level mapping of a settings file.

    Raises:
        InputError: The file cannot be read, is larger than 256 KiB, is not YAML, or is not a mapping.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(file)) from error
    if len(data) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 1024} KiB, so it is not read", where=str(file))
    try:
        node = yaml.compose(data.decode("utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", where=str(file)) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=str(file)) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"is not valid YAML: {error.problem or error.context}", where=f"{file}:{line}") from error
    except yaml.YAMLError as error:
        raise InputError("is not valid YAML", where=str(file), hint=str(error).splitlines()[0]) from error
    if not isinstance(node, yaml.MappingNode):
        raise InputError("must hold keys and values", where=f"{file}:1")
    return Section(node, file)
