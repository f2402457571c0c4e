"""Documents as trees that know their place: every node can name its line and key, and checks what is asked of it.

A loader asks for typed values (``node.integer("count", low=1, high=64)``). What is wrong goes to the document's
:class:`Problems`: by default the first problem is raised as an InputError; a collecting one gathers all of them, and
the readers then return an in-range stand-in so that the loader can go on.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memx_engine.errors import InputError

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_SHOWN = 40
_NONE: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a document. ``line`` counts from 1, 0 where there is none; ``key`` is a dotted path."""

    line: int
    key: str
    message: str
    hint: str = ""


class Problems:
    """Where the problems of one document go: raised at once, or gathered when ``collect`` is true."""

    def __init__(self, name: str, *, collect: bool = False) -> None:
        self.name = name
        self.collect = collect
        self.found: list[Problem] = []

    def where(self, line: int, key: str) -> str:
        """``file:line: key`` with the parts that are known."""
        place = f"{self.name}:{line}" if line else self.name
        return f"{place}: {key}" if key else place

    def add(self, problem: Problem) -> None:
        """Raise ``problem`` as InputError, or keep it when collecting."""
        if not self.collect:
            raise InputError(problem.message, where=self.where(problem.line, problem.key), hint=problem.hint)
        self.found.append(problem)


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The names of ``known`` closest to ``name``, best first; empty when nothing is close."""
    by_folded = {word.casefold(): word for word in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.6)
    return [by_folded[word] for word in close]


def unknown_name_hint(name: str, known: Sequence[str]) -> str:
    """``did you mean ...?`` with the nearest known name, else the list of what is known."""
    close = nearest(name, known)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _unknown_key_hint(key: str, known: Sequence[str], within: Mapping[str, Sequence[str]]) -> str:
    deeper = {name: parent for parent, names in within.items() for name in names}
    here, below = nearest(key, known), nearest(key, deeper)
    if below and (not here or _likeness(key, below[0]) > _likeness(key, here[0])):
        return f"did you mean {below[0]}, under {deeper[below[0]]}:?"
    return unknown_name_hint(key, known)


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.casefold(), b.casefold()).ratio()


def brief(text: str) -> str:
    """``text`` quoted for a message, cut when long."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


class Node:
    """One value of a document: a mapping (``fields``), a list (``elements``) or a scalar (``scalar``).

    ``plain`` scalars stand unquoted, so they may be null, a flag or a number; quoted ones are text only.
    """

    __slots__ = ("elements", "fields", "line", "path", "plain", "problems", "scalar")

    def __init__(
        self,
        problems: Problems,
        path: str,
        line: int,
        *,
        fields: dict[str, Node] | None = None,
        elements: list[Node] | None = None,
        scalar: str | None = None,
        plain: bool = False,
    ) -> None:
        self.problems = problems
        self.path = path
        self.line = line
        self.fields = fields
        self.elements = elements
        self.scalar = scalar
        self.plain = plain

    # -- shape

    @property
    def where(self) -> str:
        return self.problems.where(self.line, self.path)

    @property
    def is_null(self) -> bool:
        return self.plain and self.scalar in _NULLS

    def fail(self, message: str, hint: str = "", key: str = "") -> None:
        """Report a problem of this node, or of its ``key``, on the line of the key where it is written."""
        written = (self.fields or {}).get(key)
        line = self.line if written is None else written.line
        self.problems.add(Problem(line, self.path_of(key) if key else self.path, message, hint))

    def path_of(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def child(self, key: str) -> Node | None:
        """The value under ``key``; None when it is absent or null, or when this is no mapping."""
        node = (self.fields or {}).get(key)
        return None if node is None or node.is_null else node

    def has(self, key: str) -> bool:
        """True when ``key`` is written, be it null."""
        return key in (self.fields or {})

    def expect_mapping(
        self, known: Sequence[str] | None = None, *, within: Mapping[str, Sequence[str]] = _NONE
    ) -> bool:
        """True when this is a mapping; each key outside ``known`` (None: any) is a problem naming the nearest.

        ``within``: what may stand one level deeper, under which key, for a key that was put one level too high.
        """
        if self.fields is None:
            known_text = f"with the keys {', '.join(known)}" if known else ""
            self.fail(f"expected a mapping of keys to values, found {self._kind()}", f"write a mapping {known_text}")
            return False
        if known is not None:
            for key, node in self.fields.items():
                if key not in known:
                    node.fail(f"unknown key {brief(key)}", _unknown_key_hint(key, known, within))
        return True

    def items(self) -> list[Node]:
        """The elements of a list; a problem, and none, when this is no list."""
        if self.elements is None:
            self.fail(f"expected a list, found {self._kind()}", "write [a, b] or lines that start with '- '")
            return []
        return self.elements

    def to_value(self) -> object:
        """The plain Python value: dict, list, str, int, float, bool or None."""
        if self.fields is not None:
            return {key: node.to_value() for key, node in self.fields.items()}
        if self.elements is not None:
            return [node.to_value() for node in self.elements]
        text = self.scalar or ""
        if not self.plain:
            return text
        if text in _NULLS:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _NUMBER.fullmatch(text):
            return float(text) if re.search(r"[.eE]", text) else int(text)
        return text

    def _kind(self) -> str:
        if self.fields is not None:
            return "a mapping"
        if self.elements is not None:
            return "a list"
        return "nothing" if self.is_null else brief(self.scalar or "")

    # -- what this node is

    def as_text(self, stand_in: str = "") -> str:
        """The text of a scalar, not empty."""
        if self.scalar is None or self.is_null or not self.scalar.strip():
            self.fail(f"expected text, found {self._kind()}")
            return stand_in
        return self.scalar

    def as_choice(self, allowed: Sequence[str]) -> str:
        """A scalar that is one of ``allowed``."""
        text = self.scalar
        if text is None or text not in allowed:
            close = nearest(text or "", allowed)
            hint = f"did you mean {close[0]}? " if close else ""
            self.fail(f"expected one of {', '.join(allowed)}; found {self._kind()}", hint.strip())
            return allowed[0]
        return text

    def as_flag(self) -> bool:
        """true or false."""
        if not self.plain or self.scalar not in _TRUE + _FALSE:
            self.fail(f"expected true or false, found {self._kind()}")
            return False
        return self.scalar in _TRUE

    def as_number(self, low: float, high: float, unit: str = "", *, above: bool = False) -> float:
        """A number in [low, high], or (low, high] when ``above``; ``unit`` is named in the messages."""
        text = self.scalar
        named = f" {unit}" if unit else ""
        stand_in = high if above else low
        if text is None or not self.plain or not _NUMBER.fullmatch(text):
            hint = f"give a bare number of {unit}; the unit is part of the key" if unit else "give a bare number"
            if not self.plain and text is not None and _NUMBER.fullmatch(text):
                hint = "remove the quotes"
            self.fail(f"expected a number, found {self._kind()}", hint)
            return stand_in
        value = float(text)
        if not math.isfinite(value) or value < low or value > high or (above and value == low):
            bounds = f"above {low:,g} and at most {high:,.0f}" if above else f"between {low:,g} and {high:,.0f}"
            self.fail(f"{brief(text)} is out of bounds", f"allowed: {bounds}{named}")
            return stand_in
        return value

    def as_integer(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        value = self.as_number(low, high)
        if value != int(value):
            self.fail(f"expected a whole number, found {self._kind()}", f"allowed: {low} to {high}")
            return low
        return int(value)

    # -- what stands under a key; ``default`` None makes the key required

    def _required(self, key: str, what: str) -> None:
        if self.fields is not None:
            self.fail(f"{what} is missing", f"add the key {key}", key)

    def text(self, key: str, default: str | None = None) -> str:
        node = self.child(key)
        if node is None:
            if default is None:
                self._required(key, key)
            return default or ""
        return node.as_text()

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        node = self.child(key)
        if node is None:
            if default is None:
                self._required(key, key)
            return default if default is not None else allowed[0]
        return node.as_choice(allowed)

    def flag(self, key: str, default: bool) -> bool:
        node = self.child(key)
        return default if node is None else node.as_flag()

    def integer(self, key: str, *, low: int, high: int, default: int | None = None) -> int:
        node = self.child(key)
        if node is None:
            if default is None:
                self._required(key, key)
            return low if default is None else default
        return node.as_integer(low, high)

    def number(
        self,
        key: str,
        *,
        low: float,
        high: float,
        unit: str = "",
        above: bool = False,
        default: float | None = None,
    ) -> float:
        node = self.child(key)
        if node is None:
            if default is None:
                self._required(key, key)
            return (high if above else low) if default is None else default
        return node.as_number(low, high, unit, above=above)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single text counts as a list of one; empty when absent."""
        node = self.child(key)
        if node is None:
            return ()
        if node.scalar is not None:
            return (node.as_text(),)
        return tuple(item.as_text() for item in node.items())

    def integers(self, key: str, *, low: int, high: int) -> tuple[int, ...] | None:
        """A list of whole numbers, or a single one; None when absent."""
        node = self.child(key)
        if node is None:
            return None
        if node.scalar is not None:
            return (node.as_integer(low, high),)
        return tuple(item.as_integer(low, high) for item in node.items())
