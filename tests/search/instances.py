"""Random stage tables and a brute-force solver for the exact solver's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from memx_engine.cost.pipeline import additive_time, interleaved_estimate
from memx_engine.cost.table import StageTable
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute
from memx_engine.search.objective import PROFILES, Objective, References, Weights
from memx_engine.search.solver import Limits

PURE = {"time": (1.0, 0.0, 0.0), "peak": (0.0, 1.0, 0.0), "variance": (0.0, 0.0, 1.0)}
ALL_WEIGHTS = {**PROFILES, **PURE, "no-variance": (0.6, 0.4, 0.0), "no-time": (0.0, 0.5, 0.5)}


@dataclass(frozen=True)
class Held(Limits):
    """What brute force holds fixed: the solver's limits, and what its tables leave out for the operator.

    Attributes:
        layers: Per stage, the layer count it must have (None: free). reserve_bytes: (P,) memory to keep free.
    """

    layers: tuple[int | None, ...] = ()
    reserve_bytes: tuple[float, ...] = ()


FREE = Held()


def random_table(
    rng: np.random.Generator,
    stages: int,
    layers: int,
    *,
    options: int = 3,
    tightness: float = 0.5,
    blocks: bool = False,
    virtual_stages: int = 1,
    types: int = 3,
) -> StageTable:
    """A table shaped like a real one: linear in layers with constants at the ends, recompute trading time for memory.

    ``tightness`` 0 leaves all choices feasible; near 1 few fit.
    """
    micro_batches = int(rng.integers(1, 40))
    kind = np.sort(rng.integers(0, types, stages))
    speed, room = rng.uniform(0.3, 2.0, types)[kind], rng.uniform(0.5, 1.5, types)[kind]
    words = [NONE, SELECTIVE, FULL][:options] + ([Recompute("block", k) for k in range(1, 3)] if blocks else [])
    n = np.arange(layers + 1, dtype=np.float64)
    forward = np.zeros((stages, layers + 1, len(words)))
    backward, memory = np.zeros_like(forward), np.zeros_like(forward)
    held = np.minimum(micro_batches, stages - np.arange(stages))
    ends = np.zeros(stages)
    ends[0], ends[-1] = rng.uniform(0, 1, 2)
    for r, word in enumerate(words):
        lighter, slower = {"none": (1.0, 0.0), "selective": (0.6, 0.06), "full": (0.1, 1.0)}.get(word.kind, (0.0, 0.0))
        recomputed = np.minimum(word.n, n) if word.kind == "block" else np.zeros_like(n)
        for i in range(stages):
            kept = n * lighter if word.kind != "block" else (n - recomputed) + 0.1 * recomputed
            extra = slower * n if word.kind != "block" else recomputed
            forward[i, :, r] = (n + 0.3 * ends[i]) / speed[i]
            backward[i, :, r] = (2 * n + 0.6 * ends[i] + extra) / speed[i]
            memory[i, :, r] = 2e9 + 4e8 * n + 1e9 * ends[i] + 5e8 * kept * held[i] / 2
            if word.kind == "block":
                memory[i, n < word.n, r] = np.inf
    missing = (n == 0) | (n % virtual_stages != 0)
    for array in (forward, backward, memory):
        array[:, missing] = np.inf
    forward[~np.isfinite(memory)] = np.inf
    backward[~np.isfinite(memory)] = np.inf
    even = max(1, layers // stages)
    needed = memory[:, min(even + 1, layers)].min(axis=1) if virtual_stages == 1 else memory[:, even].min(axis=1)
    needed = np.where(np.isfinite(needed), needed, 1e10)
    capacity = needed.mean() * room * (4.0 - 3.3 * tightness)
    tail = np.outer(rng.uniform(0.1, 2.0, stages), n) * float(rng.integers(0, 2))
    p2p = rng.uniform(0, 0.5, stages - 1) * float(rng.integers(0, 2))
    return StageTable(
        forward_s=forward * 1e-3,
        backward_s=backward * 1e-3,
        memory_bytes=memory,
        tail_s=tail * 1e-3,
        capacity_bytes=capacity,
        p2p_s=p2p * 1e-3,
        gpus=rng.integers(1, 5, stages).astype(np.float64) * 2,
        options=tuple(words),
        micro_batches=micro_batches,
        layers=layers,
        virtual_stages=virtual_stages,
        fixed_s=float(rng.uniform(0, 0.01)),
        wrap_s=2e-4,
    )


def make_objective(table: StageTable, weights: tuple[float, float, float], variance_kind: str = "bytes") -> Objective:
    """References from the capacity and the micro-batches; epsilon as the method defines it."""
    peak = float(table.capacity_bytes.mean())
    variance = (0.2 * peak) ** 2 if variance_kind == "bytes" else 0.04
    floor = (0.1 * peak) ** 2 if variance_kind == "bytes" else 0.01
    references = References(0.01 * table.micro_batches, peak, variance, max(0.01 * variance, floor))
    return Objective(Weights("test", *weights), references, variance_kind)


def evaluate_split(
    table: StageTable, layers: Sequence[int], options: Sequence[int], variance_kind: str = "bytes"
) -> tuple[float, float, float]:
    """(time_s, peak_bytes, variance) of one complete plan, by the closed forms of the cost room."""
    stage, n, r = np.arange(table.stages), np.array(layers), np.array(options)
    time = table.time_s[stage, n, r]
    tails, g, v = table.tail_s[stage, n], table.micro_batches, table.virtual_stages
    if v == 1:
        time_s = additive_time(time, g, p2p_s=table.p2p_s, tails_s=tails, fixed_s=table.fixed_s)
    else:
        time_s = interleaved_estimate(
            time, g, v, p2p_s=table.p2p_s, wrap_s=table.wrap_s, tails_s=tails, fixed_s=table.fixed_s
        )
    memory = table.memory_bytes[stage, n, r]
    per_gpu = np.repeat(
        memory / table.capacity_bytes if variance_kind == "utilization" else memory, table.gpus.astype(int)
    )
    return time_s, float(memory.max()), float(per_gpu.var())


def brute_force(
    table: StageTable, objective: Objective, limits: Limits = FREE
) -> tuple[float, list[tuple[float, float, float]]]:
    """(least phi, all feasible plans' (time, peak, variance)); phi is infinite when nothing fits."""
    held = limits if isinstance(limits, Held) else FREE
    stages, layers = table.stages, table.layers
    room = table.capacity_bytes - np.array(held.reserve_bytes or np.zeros(stages))
    plans = []
    for split in product(range(1, layers - stages + 2), repeat=stages):
        if sum(split) != layers:
            continue
        if held.layers and any(want not in (None, n) for want, n in zip(held.layers, split, strict=True)):
            continue
        if limits.max_layer_difference is not None and max(split) - min(split) > limits.max_layer_difference:
            continue
        fitting = [
            [
                r
                for r in range(len(table.options))
                if table.memory_bytes[i, n, r] <= room[i] and (not limits.recompute or limits.recompute[i] in (None, r))
            ]
            for i, n in enumerate(split)
        ]
        for chosen in product(*fitting):
            if limits.same_recompute and len(set(chosen)) > 1:
                continue
            plans.append(evaluate_split(table, split, chosen, objective.variance_kind))
    best = min((objective.phi(*plan) for plan in plans), default=float("inf"))
    return best, plans
