"""Event-driven run of one replica's pipeline: every operation starts when its inputs and its device are free."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Operation = tuple[bool, int, int]
"""(is forward, chunk, micro-batch)."""


def stage_order(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Operation]:
    """Megatron's order of work on one stage: 1F1B for one chunk, interleaved 1F1B for several."""
    total = chunks * micro_batches
    warm = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    warm = min(warm, total)

    def forward(k: int) -> Operation:
        if chunks == 1:
            return True, 0, k
        return True, k % (stages * chunks) // stages, k // (stages * chunks) * stages + k % stages

    def backward(k: int) -> Operation:
        _, chunk, micro_batch = forward(k)
        return False, chunks - 1 - chunk, micro_batch

    order = [forward(k) for k in range(warm)]
    for k in range(total - warm):
        order += [forward(warm + k), backward(k)]
    return order + [backward(k) for k in range(total - warm, total)]


def peak_held(order: list[Operation], weights: list[float]) -> float:
    """Largest sum of ``weights[chunk]`` over micro-batches whose forward is done and whose backward is not."""
    held = peak = 0.0
    for is_forward, chunk, _ in order:
        held += weights[chunk] if is_forward else -weights[chunk]
        peak = max(peak, held)
    return peak


def run_pipeline(
    duration: Callable[[int, bool, int, int], float],
    transfer_s: list[float],
    blocking: list[bool],
    chunks: int,
    micro_batches: int,
    wrap_s: float,
) -> NDArray[np.float64]:
    """Run one iteration of one replica.

    Args:
        duration: Seconds of (stage, is forward, chunk, micro-batch), noise included.
        transfer_s: (P-1,) one-way transfer over each boundary. wrap_s: From the last stage to the first.
        blocking: (P-1,) whether a transfer over the boundary holds the sender.

    Returns:
        (P,) when each stage finished its last operation.
    """
    stages = len(transfer_s) + 1
    orders = [stage_order(i, stages, chunks, micro_batches) for i in range(stages)]
    position, clock = [0] * stages, [0.0] * stages
    arrived: dict[tuple[int, bool, int, int], float] = {(0, True, 0, m): 0.0 for m in range(micro_batches)}
    waiting = list(range(stages))
    while waiting:
        stage = waiting.pop()
        while position[stage] < len(orders[stage]):
            is_forward, chunk, micro_batch = orders[stage][position[stage]]
            ready = arrived.get((stage, is_forward, chunk, micro_batch))
            if ready is None:
                break
            end = max(clock[stage], ready) + duration(stage, is_forward, chunk, micro_batch)
            clock[stage] = end
            position[stage] += 1
            target, target_chunk = stage + (1 if is_forward else -1), chunk
            if is_forward and stage == stages - 1:
                if chunk == chunks - 1:
                    arrived[stage, False, chunk, micro_batch] = end
                    continue
                target, target_chunk = 0, chunk + 1
            elif not is_forward and stage == 0:
                if chunk == 0:
                    continue
                target, target_chunk = stages - 1, chunk - 1
            adjacent = abs(target - stage) == 1
            boundary = min(stage, target)
            cost = transfer_s[boundary] if adjacent else wrap_s
            if adjacent and blocking[boundary]:
                clock[stage] += cost
            arrived[target, is_forward, target_chunk, micro_batch] = end + cost
            waiting.append(target)
    return np.array(clock)
