"""The list of plans: its order, and the words that stand in it when it is empty."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len

from memx_tui.columns import PlanColumns
from memx_tui.field_words import in_fields
from memx_tui.filter import Filter
from memx_tui.session import Session
from memx_tui.text import numbers
from memx_tui.text.search_view import limits_words

if TYPE_CHECKING:
    from memx_engine import Estimate, SearchResult

LARGE_FIRST = frozenset({"tokens"})
"""Columns whose first sort puts the largest on top."""


def sort_order(columns: PlanColumns, rows: np.ndarray, key: str, descending: bool) -> np.ndarray:
    """``rows`` sorted by a column; ties keep the ranking; values that are not finite come last."""
    if key == "rank":
        return rows[::-1] if descending else rows
    name = {"time": "time_s", "tokens": "tokens_per_s", "spread": "spread_bytes", "peak": "peak_bytes"}.get(key, key)
    values = np.asarray(getattr(columns, name), dtype=np.float64)[rows]
    finite = np.isfinite(values)
    ranked = np.where(finite, -values if descending else values, np.inf)
    return rows[np.argsort(ranked, kind="stable")]


def empty_words(session: Session, chosen: Filter) -> list[str]:
    """What stands in the table when no plan does, and what to do about it."""
    if session.columns is not None and len(session.columns):
        why = chosen.explain_empty(session.columns, frozenset(session.marks.values()))
        toggles = [name for name, on in (("f", session.view.fits_only), ("p", session.view.frontier_only)) if on]
        lines = [f"None of {len(session.columns):,} plans passes the filter."]
        lines += [why] if why else []
        lines += [f"{' and '.join(toggles)} also hide plans."] if toggles else []
        return [*lines, "esc clears the filter."]
    if session.searching:
        return ["Searching; the plans appear here when it ends.", "ctrl+c cancels and keeps the best so far."]
    if session.failure is not None:
        message = in_fields(getattr(session.failure, "message", "") or str(session.failure))
        hint = in_fields(getattr(session.failure, "hint", ""))
        return [
            "No plan to show.",
            *_lines(message),
            *_lines(hint),
            "m changes the model, l the limits, 1 cluster and job; r searches again.",
        ]
    if session.cluster is None:
        return ["No cluster yet.", "1 opens the Cluster screen: take a sample or open a file."]
    if session.model is None:
        return ["No model yet.", "m chooses one; batch, sequence and weights are on screen 1."]
    return ["Ready.", "r searches for plans."]


def within_words(session: Session, room: int) -> list[str]:
    """What the plans shown keep, for the title of the table: in full where ``room`` cells are enough, else how many."""
    limits = kept_words(session.result) if session.result is not None else []
    if not limits:
        return []
    full = f"within {'; '.join(limits)}"
    if cell_len(full) <= room:
        return [full]
    return [f"within {len(limits)} limit{'s' if len(limits) > 1 else ''} (l)"]


def kept_words(result: SearchResult) -> list[str]:
    """The limits that every plan of ``result`` keeps, in words, one for each kind."""
    words = limits_words(result.limits)
    spread = ["spread of memory / capacity"] if result.objective.variance_kind == "utilization" else []
    return [*(words.split("; ") if words else []), *spread]


def _lines(text: str, width: int = 74) -> list[str]:
    return wrap(text, width) if text else []


def fit_word(estimate: Estimate) -> str:
    """``fits``, ``tight`` or ``OOM``; by the probability of running out of memory where that is known."""
    from memx_engine import Verdict

    words = {Verdict.FITS: "fits", Verdict.TIGHT: "tight"}
    return words.get(estimate.verdict, "OOM")


def chosen_words(row: int, estimate: Estimate) -> list[str]:
    """``#1 fits, OOM risk <1%, simulated ±7.6 %`` and shorter versions, for the plan in table row ``row``."""
    head = f"#{row + 1} {fit_word(estimate)}"
    risk = "" if estimate.oom_risk is None else f", OOM risk {numbers.risk(estimate.oom_risk)}"
    tails = (f"{risk}, {estimate.basis}", f"{risk}, {estimate.certainty}", f", {estimate.certainty}", risk, "")
    return [head + tail for tail in dict.fromkeys(tails)]
