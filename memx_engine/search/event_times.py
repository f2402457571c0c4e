"""What the event time of any plan of a skeleton cannot fall below, and its distance to the closed form.

**Words.** P stages, v chunks on each, G micro-batches, g = G·v. x_i = t_i / v is a stage's time for one micro-batch
over its chunks, c_i the transfer behind stage i, C their sum, F the time outside the pipeline, E the event time, A the
closed form that the solver minimises: ``A = (g-1)·max_i(x_i + a_i) + Σ x_i + K + F + max tail``, where under 1F1B
``a_i = c_{i-1} + c_i`` and ``K = 2C``, and in the interleaved estimate ``a_i = 0`` and ``K = 2vC + 2(v-1)·wrap``. The
chunks of a stage in a search have equal layers and one recompute, so that every chunk takes x_i, but for the token
table in the first stage's first chunk and the head in the last stage's last.

**Least event time.** The paths of :mod:`memx_engine.cost.paths`, with the stages before and after stage i at one unit,
give for every plan and every stage i

    E >= F + g·x_i + Σ_{k<i} (x_k + 2·c_k) + max(0, 2·Σ_{k>i} (x_k + 2·c_{k-1}) - m_i·x_i) + tail_0
    E >= F + g·x_i + Σ_{k<i} c_k + tail_i

with m_i = P-1-i under 1F1B and 2·(P-1-i) interleaved. The term with m_i is that of both turns, where the first
``w_i + 1`` forwards (P-i, or P·(v-1) + 2·(P-1-i) + 1 chunks) and as many backwards are taken off and both turns added;
of the first stage of an interleaved pipeline it is left out, as the token table makes its chunks unequal. It needs
``g >= w_i + 2``. Each line rises with x_i, so the least possible maximum over all splits is a partition, as for the
other bounds.

This can be raised. Where the time is at most some T, stage k has at most as many units as its line allows, so that
each stage has at least what the others leave of the model, and takes at least the time of so many. With these times in
place of those of one unit the lines give a T' that no such plan falls below: no plan at all takes less than the lesser
of T and T'. T is found by halving.

**From the closed form.** A bound on the closed form, such as the solver proves, is one on the event time, because A is
at most so much longer than E. Let ``E' = E - F - tail_0`` and s the stage with the largest x.

- Any schedule: with ``r_i = E' - Σ_{k<i} (x_k + 2·c_k) >= g·x_i`` follows ``r_{i+1} >= q·r_i - 2·c_i``, where
  ``q = 1 - 1/g``, so ``r_P = E' - Σ x - 2C >= q^P·E' - 2C`` and ``Σ x <= (1 - q^P)·E'``; and ``(g-1)·x_s <= q·E'``.
  Together ``(g-1)·x_s + Σ x <= (q + 1 - q^P)·E'``.
- 1F1B with G > P: the first line above, half without and half with the term of m_s, gives
  ``(G-1)·x_s + Σ x + 2C <= E' + (P-1-s)·x_s/2 <= (1 + (P-1)/(2G))·E'``.
- The longest tail, of stage m, is at most ``psi·g·x_m`` with ``psi = max tail_i(n) / (g·x_i(n))``, and
  ``g·x_m + tail_m <= E - F``: it is at most ``psi/(1+psi)·(E - F)``.

So ``E >= (A - less_s) / times`` with the two numbers of :func:`shrinking`. The additive time itself is no lower bound
of the event time; mostly it is an upper one (:func:`memx_engine.cost.pipeline.additive_time`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.schedule import warm_up
from memx_engine.cost.sketch import Sketch

Array = NDArray[np.float64]

STEPS = 5
"""Halvings that find the least event time within a few thousandths."""


@dataclass(frozen=True, eq=False)
class StageRows:
    """B skeletons of P stages and one depth of interleaving, counted in units of v layers.

    Attributes:
        time_s: (B, P, N+1) least time of one chunk over all choices of at least n units that fit; infinite where none.
        tail_s: (B, P, N+1) after the last backward, of exactly n units.
        p2p_s: (B, P-1). wrap_s, fixed_s, micro_batches: (B,). units: Of the model, U >= N.
    """

    time_s: Array
    tail_s: Array
    p2p_s: Array
    wrap_s: Array
    fixed_s: Array
    micro_batches: Array
    virtual_stages: int
    units: int

    @classmethod
    def of_sketches(cls, sketches: Sequence[Sketch]) -> StageRows:
        """Of skeletons with one book and one number of stages."""
        book, v = sketches[0].book, sketches[0].virtual_stages
        rows = np.stack([s.rows for s in sketches])
        columns = book.units - rows.shape[1] + 2
        factor = np.array([s.factor for s in sketches])[:, None, None]
        return cls(
            book.columns["time"][rows, :columns] * factor,
            book.columns["tail"][rows, :columns] * factor,
            np.stack([s.p2p_s for s in sketches]),
            np.array([s.wrap_s for s in sketches]),
            np.array([s.fixed_s for s in sketches]),
            np.array([float(s.micro_batches) for s in sketches]),
            v,
            book.units,
        )


def least_event_times(rows: StageRows, steps: int = 0) -> Array:
    """(B,) no plan of the skeleton that fits is faster by events; the first part of the module.

    Args:
        steps: Also bound the units of the other stages, with so many halvings; see the module.
    """
    most = rows.time_s.shape[2] - 1
    floors = rows.time_s[:, :, 1]
    values = _stage_values(rows, floors)
    low = least_maxima(values[:, :, 1:].copy(), values[:, :, 1], rows.units)
    if not steps:
        return low + rows.fixed_s

    def with_floors(at: Array) -> Array:
        """T' for T ``at``; infinite where nothing takes so little."""
        counts = (values[:, :, 1:] <= at[:, None, None] * (1.0 + 1e-12)).sum(axis=2)
        fewest = rows.units - (counts.sum(axis=1, keepdims=True) - counts)
        there = np.take_along_axis(rows.time_s, np.clip(fewest, 1, most)[:, :, None], axis=2)[:, :, 0]
        impossible = (fewest > counts).any(axis=1)
        raised = _stage_values(rows, np.where(impossible[:, None], floors, there))
        return np.where(impossible, np.inf, least_maxima(raised[:, :, 1:].copy(), raised[:, :, 1], rows.units))

    # Either the time is above what was assumed, or it is at least what follows: the lesser of the two holds.
    best, high = low, np.minimum(with_floors(low), 2.0 * low)
    for _ in range(steps):
        middle = (low + high) / 2.0
        follows = with_floors(middle)
        best = np.maximum(best, np.minimum(middle, follows))
        low, high = np.where(follows >= middle, middle, low), np.where(follows >= middle, high, middle)
    return best + rows.fixed_s


def _stage_values(rows: StageRows, floors: Array) -> Array:
    """(B, P, N+1) the event time, less F, by stage i with n units and the others at ``floors`` (B, P) seconds."""
    count, stages, _ = rows.time_s.shape
    v, groups = rows.virtual_stages, rows.micro_batches
    g = (groups * v)[:, None, None]
    tail = rows.tail_s[:, :, 1:].min(axis=2)
    p2p = np.concatenate([rows.p2p_s, np.zeros((count, 1))], axis=1)
    passed = floors + 2.0 * p2p
    before = np.cumsum(passed, axis=1) - passed
    way_in = np.cumsum(p2p, axis=1) - p2p
    # Stages after each, with the transfer before each of them.
    beyond = np.cumsum(passed[:, ::-1], axis=1)[:, ::-1] - floors
    turns = _turns(stages, groups, v)[:, :, None]
    with np.errstate(invalid="ignore"):
        gain = np.where(turns >= 0, 2.0 * beyond[:, :, None] - turns * rows.time_s, 0.0)
    through = before + tail[:, :1]
    added = np.maximum(np.nan_to_num(gain, nan=0.0), 0.0) + through[:, :, None]
    return np.asarray(g * rows.time_s + np.maximum(added, (way_in + tail)[:, :, None]))


def least_maxima(values: Array, one_unit: Array, units: int) -> Array:
    """(B,) the least possible maximum over stages of (B, P, N) values of 1 to N units, which never fall with the units.

    Each stage can take as many units as it has values up to the maximum, so it must cover U values in all; and it is no
    less than the (B, P) values of ``one_unit``, which every stage has. The order of ``values`` is spoilt.
    """
    flat = values.reshape(len(values), -1)
    flat.partition(units - 1, axis=1)
    return np.asarray(np.maximum(flat[:, units - 1], one_unit.max(axis=1)))


def _turns(stages: int, groups: Array, v: int) -> Array:
    """(B, P) m_i of the module, -1 where the term does not hold."""
    stage = np.arange(stages)
    taken = (stages - 1.0 - stage) * (1.0 if v == 1 else 2.0)
    ahead = np.array(warm_up(stages, stages * 4, v), dtype=np.float64) + 2.0
    holds = groups[:, None] * v >= ahead[None, :]
    if v > 1:
        holds &= stage > 0
    return np.where(holds, taken[None, :], -1.0)


@dataclass(frozen=True, eq=False)
class Ends:
    """What :func:`shrinking` reads of B skeletons of P stages.

    Attributes:
        tail_share: (B,) most of tail / chunk time of any choice. tail_s: (B,) least tail of the first stage.
        p2p_s: (B, P-1). wrap_s, fixed_s, micro_batches: (B,).
    """

    tail_share: Array
    tail_s: Array
    p2p_s: Array
    wrap_s: Array
    fixed_s: Array
    micro_batches: Array
    virtual_stages: int

    @classmethod
    def of(cls, rows: StageRows) -> Ends:
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = rows.tail_s[:, :, 1:] / rows.time_s[:, :, 1:]
        share = np.nan_to_num(shares, nan=0.0, posinf=np.inf).reshape(len(shares), -1).max(axis=1)
        least = rows.tail_s[:, 0, 1:].min(axis=1)
        return cls(share, least, rows.p2p_s, rows.wrap_s, rows.fixed_s, rows.micro_batches, rows.virtual_stages)


def shrinking(ends: Ends) -> tuple[Array, Array]:
    """(B,) ``times`` and ``less_s``: every plan's event time is at least (closed form - less_s) / times."""
    stages, v, groups = ends.p2p_s.shape[1] + 1, ends.virtual_stages, ends.micro_batches
    g = groups * v
    q = 1.0 - 1.0 / g
    total = ends.p2p_s.sum(axis=1)
    times = q + 1.0 - q**stages
    share = ends.tail_share / g
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(share), share / (1.0 + share), 1.0)
    if v == 1:
        padded = np.pad(ends.p2p_s, ((0, 0), (1, 1)))
        around = (groups - 1.0) * (padded[:, 1:] + padded[:, :-1]).max(axis=1)
        # Where both hold, 2 C is in E' already; else it counts once.
        turned = 1.0 + (stages - 1.0) / (2.0 * groups)
        better = (groups > stages) & (turned <= times)
        times = np.where(better, turned, times)
        extra = around + np.where(better, 0.0, 2.0 * total)
    else:
        extra = 2.0 * v * total + 2.0 * (v - 1) * ends.wrap_s
    whole = times + share
    # A - F <= times (E - F - tail_0) + share (E - F) + extra
    return whole, extra - ends.fixed_s * (whole - 1.0) - times * ends.tail_s


@dataclass(frozen=True)
class EventTimes:
    """What :func:`least_event_times` and :func:`shrinking` say of one skeleton."""

    least_s: float
    times: float
    less_s: float

    @classmethod
    def of(cls, rows: StageRows) -> EventTimes:
        times, less = shrinking(Ends.of(rows))
        return cls(float(least_event_times(rows, STEPS)[0]), float(times[0]), float(less[0]))
