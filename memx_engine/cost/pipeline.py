"""Closed forms of the pipeline's iteration time, and what a stage holds in flight.

``time_s`` is t_i = f_i + b_i of one micro-batch on each of P stages, ``p2p_s`` the one-way transfer c_i between stages
i and i+1 (P-1 of them), ``tails_s`` what each stage does after its last backward (exposed data-parallel communication,
optimizer step), ``fixed_s`` time per iteration outside the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memx_engine.cost.schedule import chunk_order, warm_up

Array = NDArray[np.float64]


def _stages(time_s: ArrayLike, p2p_s: ArrayLike | None, tails_s: ArrayLike | None) -> tuple[Array, Array, Array]:
    t = np.asarray(time_s, dtype=np.float64)
    c = np.zeros(len(t) - 1) if p2p_s is None else np.asarray(p2p_s, dtype=np.float64)
    tail = np.zeros(len(t)) if tails_s is None else np.asarray(tails_s, dtype=np.float64)
    if t.ndim != 1 or len(c) != len(t) - 1 or len(tail) != len(t):
        raise ValueError(f"{t.shape} stages need {len(t) - 1} transfers and {len(t)} tails")
    return t, c, tail


def stage_period(time_s: ArrayLike, p2p_s: ArrayLike | None = None) -> Array:
    """(P,) ``t_i + c_{i-1} + c_i``: how often a stage that waits for its transfers can take a micro-batch."""
    t, c, _ = _stages(time_s, p2p_s, None)
    return t + np.concatenate(([0.0], c)) + np.concatenate((c, [0.0]))


def additive_time(
    time_s: ArrayLike,
    micro_batches: int,
    *,
    p2p_s: ArrayLike | None = None,
    tails_s: ArrayLike | None = None,
    fixed_s: float = 0.0,
) -> float:
    """``(G-1)·max_i(t_i + c_{i-1} + c_i) + Σ t_i + 2·Σ c_i + t_fix + max_i tail_i``, the form the solver optimises.

    Never below the events of 1F1B where every f_i/t_i is in [0.2, 0.5].
    """
    t, c, tail = _stages(time_s, p2p_s, tails_s)
    steady = (micro_batches - 1) * stage_period(t, c).max()
    return float(steady + t.sum() + 2 * c.sum() + fixed_s + tail.max())


def lower_bound(
    time_s: ArrayLike,
    micro_batches: int,
    *,
    p2p_s: ArrayLike | None = None,
    tails_s: ArrayLike | None = None,
    fixed_s: float = 0.0,
) -> float:
    """``max_i(Σ_{k<i} (t_k + 2·c_k) + G·t_i)``: no order of the events is faster.

    The first micro-batch must reach stage i and the last one must travel back. The first stage's tail follows that;
    every other stage's tail follows its own work at least.
    """
    t, c, tail = _stages(time_s, p2p_s, tails_s)
    before = np.concatenate(([0.0], np.cumsum(t[:-1] + 2 * c)))
    through = (before + micro_batches * t).max() + tail[0]
    return float(max(through, (micro_batches * t + tail).max()) + fixed_s)


def paper_eq3(
    time_s: ArrayLike,
    micro_batches: int,
    *,
    p2p_s: ArrayLike | None = None,
    dp_s: float = 0.0,
    fixed_s: float = 0.0,
) -> float:
    """The paper's equation 3, ``(G-1)·max t_i + Σ t_i + 2·Σ c_i + t_fix + t_dp``.

    Too low once transfers take time: a blocking send/receive lengthens the period itself. Kept for comparison.
    """
    t, c, _ = _stages(time_s, p2p_s, None)
    return float((micro_batches - 1) * t.max() + t.sum() + 2 * c.sum() + fixed_s + dp_s)


def paper_eq4(
    time_s: ArrayLike,
    micro_batches: int,
    virtual_stages: int,
    *,
    p2p_s: ArrayLike | None = None,
    dp_s: float = 0.0,
    fixed_s: float = 0.0,
) -> float:
    """The paper's equation 4 as printed, ``(G-1+1/v)·max(t_i/v) + Σ t_i/v + 2·Σ c_i + t_fix + t_dp``.

    It divides the steady state by v, so every interleaved pipeline would be v times faster. Kept for the paper's
    tables, never used to recommend.
    """
    t, c, _ = _stages(time_s, p2p_s, None)
    v = virtual_stages
    return float((micro_batches - 1 + 1 / v) * t.max() / v + t.sum() / v + 2 * c.sum() + fixed_s + dp_s)


def interleaved_estimate(
    time_s: ArrayLike,
    micro_batches: int,
    virtual_stages: int,
    *,
    p2p_s: ArrayLike | None = None,
    wrap_s: float = 0.0,
    tails_s: ArrayLike | None = None,
    fixed_s: float = 0.0,
) -> float:
    """``G·max t + (Σ t - max t)/v + 2·v·Σ c + 2·(v-1)·c_wrap + t_fix + max tail``; ``time_s`` sums a stage's chunks.

    Exact for equal chunks without transfers (Megatron's ``G·t + (P-1)·t/v``, Narayanan et al. 2021, section 2.2.2);
    with unequal chunks it can be a third too low: an estimate, never a bound.
    """
    t, c, tail = _stages(time_s, p2p_s, tails_s)
    v, slowest = virtual_stages, t.max()
    transfers = 2 * v * c.sum() + 2 * (v - 1) * wrap_s
    return float(micro_batches * slowest + (t.sum() - slowest) / v + transfers + fixed_s + tail.max())


def in_flight(
    stages: int, micro_batches: int, virtual_stages: int = 1, *, overlap_p2p: bool = False
) -> tuple[int, ...]:
    """The most micro-batches (1F1B) or chunks (interleaved) whose activations each stage holds at once.

    1F1B ``min(G, P - i)``; interleaved ``min(G·v, 2·(P-i-1) + (v-1)·P + 1)``. ``overlap_p2p``: the eager 1F1B order.
    """
    total = micro_batches * virtual_stages
    warm = warm_up(stages, micro_batches, virtual_stages, eager=overlap_p2p)
    return tuple(min(total, count + 1) for count in warm)


def held_bytes(chunk_bytes: Sequence[Sequence[float]] | Array, micro_batches: int) -> Array:
    """(P,) most activation bytes each stage holds under Megatron's interleaved order.

    Args:
        chunk_bytes: (P, v) bytes that one micro-batch keeps in each chunk; chunks may be unequal.

    Raises:
        ValueError: v > 1 and ``micro_batches`` not a multiple of P.
    """
    held = np.asarray(chunk_bytes, dtype=np.float64)
    p, v = held.shape
    total = micro_batches * v
    forward_chunk, backward_chunk, _ = chunk_order(p, micro_batches, v)
    peaks = np.empty(p)
    for i, warm in enumerate(warm_up(p, micro_batches, v)):
        added = np.cumsum(held[i, forward_chunk])
        freed = np.concatenate(([0.0], np.cumsum(held[i, backward_chunk])))
        # The k-th forward (0-based) starts once k - warm backwards have released theirs.
        peaks[i] = (added - freed[np.maximum(np.arange(total) - warm, 0)]).max()
    return peaks
