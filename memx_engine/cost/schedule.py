"""In which order every pipeline stage runs its forwards and backwards, and on what each of them waits.

Orders follow Megatron-LM (``megatron/core/pipeline_parallel/schedules.py``): 1F1B warms up ``P - 1 - i`` micro-batches,
interleaved ``2 (P - 1 - i) + (v - 1) P`` chunk forwards in groups of P micro-batches. The *eager* 1F1B order warms up
``2 (P - 1 - i)`` micro-batches, so that transfers hide behind computing ("overlapping-friendly pipeline", Zhuang et
al., MLSys 2023); it is Megatron's interleaved order at v = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Program:
    """All operations of one iteration, sorted so that each comes after what it waits on; n operations.

    Operation k (0-based) waits on operations ``previous[k] - 1`` (same stage) and ``source[k] - 1`` (its input, which
    arrives over ``link[k]``); 0 stands for "nothing". ``link`` 0 is no transfer, 1 + i between stages i and i+1, P the
    wrap from the last stage to the first. ``cost`` indexes forward chunk times, then backward chunk times, both (P, v)
    flattened. ``last`` holds 1 + the final operation of every stage.
    """

    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: NDArray[np.bool_]
    cost: Ints
    link: Ints
    previous: tuple[int, ...]
    source: tuple[int, ...]
    last: tuple[int, ...]


def warm_up(stages: int, micro_batches: int, virtual_stages: int = 1, *, eager: bool = False) -> tuple[int, ...]:
    """Forwards (of chunks) that each stage runs before its first backward of the steady phase."""
    p, v = stages, virtual_stages
    if v == 1 and not eager:
        counts = [p - 1 - i for i in range(p)]
    else:
        counts = [2 * (p - 1 - i) + (v - 1) * p for i in range(p)]
    return tuple(min(count, micro_batches * v) for count in counts)


def chunk_order(stages: int, micro_batches: int, virtual_stages: int) -> tuple[Ints, Ints, Ints]:
    """(chunk of the k-th forward, chunk of the k-th backward, micro-batch of both), each of length G·v."""
    p, v = stages, virtual_stages
    if v > 1 and micro_batches % p:
        raise ValueError(f"interleaving needs micro-batches ({micro_batches}) in multiples of the stages ({p})")
    if v == 1:
        k = np.arange(micro_batches)
        return np.zeros_like(k), np.zeros_like(k), k
    group, within = np.divmod(np.arange(micro_batches * v), p * v)
    forward_chunk = within // p
    return forward_chunk, v - 1 - forward_chunk, group * p + within % p


@lru_cache(maxsize=32)
def program(
    stages: int,
    micro_batches: int,
    virtual_stages: int = 1,
    overlap: bool = False,
    limits: tuple[int, ...] | None = None,
) -> Program:
    """The operations of one iteration.

    Args:
        overlap: 1F1B takes the eager order. Interleaved sends a forward's output at once; without it Megatron sends
            after the backward that is paired with the forward.
        limits: 1F1B only; the most micro-batches that each stage may hold. A stage cannot hold more than the one
            before it sends, so a limit binds all later stages.

    Raises:
        ValueError: counts below 1, interleaving with G not a multiple of P, limits of the wrong length or with v > 1.
    """
    p, v, g = stages, virtual_stages, micro_batches
    if min(p, v, g) < 1:
        raise ValueError("stages, micro-batches and virtual stages are at least 1")
    forward_chunk, backward_chunk, micro = chunk_order(p, g, v)
    warm = np.array(warm_up(p, g, v, eager=overlap))
    stage_column = np.arange(p)[:, None]
    k = np.arange(g * v)[None, :]
    if limits is not None:
        if v > 1 or len(limits) != p or min(limits) < 1:
            raise ValueError("in-flight limits need one number >= 1 per stage, and 1F1B")
        warm = np.minimum(warm, np.minimum.accumulate(np.array(limits)) - 1)
        slots = _unit_slots(warm, g)
    elif v == 1 and not overlap:
        # Start times where a forward and a backward take one slot each: any increasing order will do.
        slots = np.stack([2 * k + stage_column, 2 * k + 2 * p - 1 - stage_column])
    else:
        free_warm = 2 * (p - 1 - stage_column) + (v - 1) * p
        slots = np.stack([2 * (stage_column + k), 2 * (stage_column + free_warm + k) + 1])

    n = p * v * g
    kind = np.repeat([0, 1], n)
    stage = np.tile(np.repeat(np.arange(p), g * v), 2)
    chunk = np.concatenate([np.tile(forward_chunk, p), np.tile(backward_chunk, p)])
    micro_batch = np.tile(micro, 2 * p)
    order = np.lexsort((stage, slots.reshape(-1)))
    rank = np.empty(2 * n, dtype=np.int64)
    rank[order] = np.arange(1, 2 * n + 1)

    by_stage = np.lexsort((rank, stage))
    previous = np.zeros(2 * n, dtype=np.int64)
    previous[by_stage[1:]] = np.where(np.diff(stage[by_stage]) == 0, rank[by_stage[:-1]], 0)
    last = rank[by_stage[2 * g * v - 1 :: 2 * g * v]]

    place = np.empty((2, p, v, g), dtype=np.int64)
    place[kind, stage, chunk, micro_batch] = rank
    sent = place.copy()
    if v > 1 and not overlap:
        # Without overlap a steady step's forward and backward are sent together, when both are done.
        for i in range(p):
            w = int(warm[i])
            paired = rank[n + i * g * v :][: g * v - w]
            sent[0, i, forward_chunk[w:], micro[w:]] = paired
    source = np.zeros((2, p, v, g), dtype=np.int64)
    link = np.zeros((2, p, v, g), dtype=np.int64)
    source[0, 1:], link[0, 1:] = sent[0, :-1], np.arange(1, p)[:, None, None]
    source[0, 0, 1:], link[0, 0, 1:] = sent[0, -1, :-1], p
    source[1, :-1], link[1, :-1] = sent[1, 1:], np.arange(1, p)[:, None, None]
    source[1, -1, :-1], link[1, -1, :-1] = sent[1, 0, 1:], p
    source[1, -1, -1] = place[0, -1, -1]
    if p == 1:
        link[:] = 0

    where = (kind[order], stage[order], chunk[order], micro_batch[order])
    return Program(
        stage=where[1],
        chunk=where[2],
        micro_batch=where[3],
        backward=where[0] == 1,
        cost=where[0] * p * v + where[1] * v + where[2],
        link=link[where],
        previous=tuple(previous[order].tolist()),
        source=tuple(source[where].tolist()),
        last=tuple(last.tolist()),
    )


def _unit_slots(warm: Ints, micro_batches: int) -> Ints:
    """(2, P, G) start slots of 1F1B with ``warm`` forwards first, every operation taking one slot."""
    p, g = len(warm), micro_batches
    slots = np.full((2, p, g), -1, dtype=np.int64)
    orders: list[Sequence[tuple[int, int]]] = []
    for w in warm.tolist():
        w = min(w, g)
        steady = [op for m in range(g - w) for op in ((0, w + m), (1, m))]
        orders.append([(0, m) for m in range(w)] + steady + [(1, m) for m in range(g - w, g)])
    at, free = [0] * p, [0] * p
    waiting = True
    while waiting:
        waiting = False
        for i in range(p):
            while at[i] < 2 * g:
                kind, m = orders[i][at[i]]
                if kind == 0:
                    ready = int(slots[0, i - 1, m]) if i else 0
                else:
                    ready = int(slots[1, i + 1, m] if i < p - 1 else slots[0, i, m])
                if ready < 0:
                    break
                free[i] = max(free[i], ready) + 1
                slots[kind, i, m] = free[i]
                at[i] += 1
                waiting = True
    return slots
