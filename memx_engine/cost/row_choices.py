"""The choices that fit of one row of a sketch: what the solver reads of a stage signature, made when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.origins import Origin
from memx_engine.cost.table import Array
from memx_engine.plan import FULL, Recompute

TIME, MEMORY, TAIL, UNITS, OPTION = range(5)
"""Rows of :attr:`RowChoices.values`."""

Kind = Literal["all", "distinct", "fastest"]
"""``distinct``: of ``block:K`` over all K units and ``full``, which are the same, only ``full``. ``fastest``: the first
of the fastest of every count of units."""


@dataclass(frozen=True, eq=False)
class RowChoices:
    """The choices of a row that fit, by units of v layers, then option.

    Attributes:
        values: (5, K) seconds, bytes, tail, units, index of the option among the book's.
        starts: where those of n units begin, n from 0 to one above the most.
    """

    values: Array
    starts: NDArray[np.intp]


def row_choices(
    origin: Origin, held: int, options: tuple[Recompute, ...], layers: int, v: int, kind: Kind, most: int
) -> RowChoices:
    """The choices of one row of up to ``most`` units, with ``held`` micro-batches (chunks where v > 1) in flight."""
    time_s = origin.times(options, layers, v, most)
    memory = origin.memory((held,), options, layers, v, most)[0]
    fits = (memory <= origin.capacity_bytes) & np.isfinite(time_s)
    tail_s = origin.terms.tails[::v][: most + 1]
    fits &= np.isfinite(tail_s)[:, None]
    if kind != "all":
        _name_once(fits, time_s, memory, options)
    if kind == "fastest":
        first = np.where(fits, time_s, np.inf).argmin(axis=1)
        fits &= np.arange(len(options)) == first[:, None]
    units, option = np.nonzero(fits)
    values = np.array([time_s[fits], memory[fits], tail_s[units], units, option], dtype=np.float64)
    return RowChoices(values, np.searchsorted(values[UNITS], np.arange(len(fits) + 1)))


def _name_once(fits: NDArray[np.bool_], time_s: Array, memory: Array, options: tuple[Recompute, ...]) -> None:
    full = options.index(FULL)
    for r, option in enumerate(options):
        n = option.n
        if option.kind == "block" and n < len(fits) and fits[n, full]:
            fits[n, r] &= (time_s[n, r], memory[n, r]) != (time_s[n, full], memory[n, full])
