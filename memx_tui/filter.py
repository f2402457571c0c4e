"""The filter line: ``tp<=4 pp>=2 worst<90 feasible``. Terms are joined by "and"; each bad token says why it is bad."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from memx_tui.columns import RECOMPUTE_CLASSES, PlanColumns

Mask = NDArray[np.bool_]

MAX_TERMS = 64
TIGHT_FRACTION = 0.9
"""Above this share of a GPU's capacity an uncalibrated plan is tight."""

_GIB = float(1 << 30)
_TOKEN = re.compile(r"([^\s<>=!]+)(<=|>=|!=|==|=|<|>)([^\s<>=!]\S*)")
_NUMBERS: Mapping[str, tuple[Callable[[PlanColumns], NDArray[np.float64]], str]] = {
    "tp": (lambda c: c.tp.astype(float), "tensor-parallel size"),
    "pp": (lambda c: c.pp.astype(float), "pipeline stages"),
    "dp": (lambda c: c.dp.astype(float), "data-parallel size"),
    "mb": (lambda c: c.mb.astype(float), "micro-batch size"),
    "v": (lambda c: c.vpp.astype(float), "virtual stages"),
    "rank": (lambda c: np.arange(1.0, len(c) + 1), "place in the ranking"),
    "phi": (lambda c: c.phi, "the objective"),
    "time": (lambda c: c.time_s, "iteration time in seconds"),
    "tok": (lambda c: c.tokens_per_s, "tokens per second"),
    "worst": (lambda c: c.worst * 100.0, "fullest GPU in percent"),
    "peak": (lambda c: c.peak_bytes / _GIB, "highest peak in GiB"),
    "spread": (lambda c: c.spread_bytes / _GIB, "memory spread in GiB"),
}
_ALIASES = {"mbs": "mb", "tokens": "tok", "step": "time", "rc": "recompute", "gpu": "type", "vpp": "v"}
_WORDS: Mapping[str, Callable[[PlanColumns], Mask]] = {
    "feasible": lambda c: c.worst <= 1.0,
    "fits": lambda c: c.worst <= TIGHT_FRACTION,
    "tight": lambda c: (c.worst > TIGHT_FRACTION) & (c.worst <= 1.0),
    "frontier": lambda c: c.pareto,
    "events": lambda c: c.by_events,
}
_TEXTS = ("recompute", "type")
FIELDS = (*_NUMBERS, *_TEXTS)
WORDS = (*_WORDS, "marked")
_COMPARE: Mapping[str, Callable[[NDArray[np.float64], float], Mask]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: np.isclose(a, b, rtol=1e-9),
    "!=": lambda a, b: ~np.isclose(a, b, rtol=1e-9),
}


@dataclass(frozen=True)
class Term:
    """One condition as it was typed, and what it keeps."""

    text: str
    keep: Callable[[PlanColumns, frozenset[int]], Mask] = field(compare=False)


@dataclass(frozen=True)
class BadToken:
    """A token that cannot be used; ``start`` and ``end`` are its place in the line."""

    text: str
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Filter:
    """A parsed filter line. Bad tokens are left out of the filter and reported."""

    terms: tuple[Term, ...] = ()
    bad: tuple[BadToken, ...] = ()

    def mask(self, columns: PlanColumns, marked: frozenset[int] = frozenset()) -> Mask:
        """Rows that every term keeps. ``marked``: rows that carry a mark."""
        keep = np.ones(len(columns), dtype=bool)
        for term in self.terms:
            keep &= term.keep(columns, marked)
        return keep

    def explain_empty(self, columns: PlanColumns, marked: frozenset[int] = frozenset()) -> str:
        """Why nothing is left: which term removes the most, and whether dropping it alone would help."""
        if not self.terms or len(columns) == 0:
            return ""
        masks = [term.keep(columns, marked) for term in self.terms]
        most = min(range(len(masks)), key=lambda i: int(masks[i].sum()))
        removed = len(columns) - int(masks[most].sum())
        others = np.ones(len(columns), dtype=bool)
        for i, mask in enumerate(masks):
            if i != most:
                others &= mask
        without = int(others.sum())
        text = f"{self.terms[most].text} removes {removed:,} of {len(columns):,}"
        return f"{text}; without it {without:,} would be left" if len(masks) > 1 else text


def parse_filter(line: str) -> Filter:
    """Read a filter line; never raises. Unknown fields, words and values are returned as bad tokens with a reason."""
    terms: list[Term] = []
    bad: list[BadToken] = []
    for match in re.finditer(r"\S+", line):
        token = match[0]
        if len(terms) + len(bad) >= MAX_TERMS:
            bad.append(BadToken(token, match.start(), len(line), f"more than {MAX_TERMS} terms"))
            break
        parsed = _parse_token(token)
        if isinstance(parsed, Term):
            terms.append(parsed)
        else:
            bad.append(BadToken(token, match.start(), match.end(), parsed))
    return Filter(tuple(terms), tuple(bad))


def _parse_token(token: str) -> Term | str:
    shown = token if len(token) <= 24 else token[:23] + "…"
    lowered = token.lower()
    if lowered == "marked":
        return Term(token, _keep_marked)
    if lowered in _WORDS:
        word = _WORDS[lowered]
        return Term(token, lambda columns, marked: word(columns))
    match = _TOKEN.fullmatch(token)
    if match is None:
        stem = re.split(r"[<>=!]", lowered, maxsplit=1)[0]
        if _ALIASES.get(stem, stem) in FIELDS:
            return f"{shown}: compare it with a value, for example {stem}<=4"
        return f"{shown}: not a word of the filter{_nearest(lowered, (*WORDS, *FIELDS))}"
    name, operator, value = match[1].lower(), match[2].replace("==", "="), match[3]
    name = _ALIASES.get(name, name)
    if name in _TEXTS:
        return _text_term(token, shown, name, operator, value.lower())
    if name not in _NUMBERS:
        return f"{shown}: no field {match[1][:16]}{_nearest(name, FIELDS)}"
    number = _number(value)
    if number is None:
        return f"{shown}: {value[:16]} is not a number"
    column, compare = _NUMBERS[name][0], _COMPARE[operator]
    return Term(token, lambda columns, marked: compare(column(columns), number))


def _text_term(token: str, shown: str, name: str, operator: str, value: str) -> Term | str:
    if operator not in ("=", "!="):
        return f"{shown}: {name} takes = or !="
    negate = operator == "!="
    if name == "recompute":
        matching = [i for i, word in enumerate(RECOMPUTE_CLASSES) if word.startswith(value)]
        if not matching:
            return f"{shown}: recompute is one of {', '.join(RECOMPUTE_CLASSES)}"
        return Term(token, lambda columns, marked: np.isin(columns.recompute, matching) ^ negate)
    return Term(
        token,
        lambda columns, marked: np.array([value in t.lower() for t in columns.worst_type], dtype=bool) ^ negate,
    )


def _keep_marked(columns: PlanColumns, marked: frozenset[int]) -> Mask:
    keep = np.zeros(len(columns), dtype=bool)
    keep[[row for row in marked if row < len(columns)]] = True
    return keep


def _number(text: str) -> float | None:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(s|%|gib|k|m)?", text, re.IGNORECASE)
    if match is None:
        return None
    return float(match[1]) * {"k": 1e3, "m": 1e6}.get((match[2] or "").lower(), 1.0)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word[:40], known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else f"; known: {', '.join(known)}"
