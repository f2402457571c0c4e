"""One plan put together from its stages' costs: chunks, memory, iteration time and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from memx_engine.cost.events import simulate
from memx_engine.cost.paths import path_bound
from memx_engine.cost.pipeline import additive_time, held_bytes, in_flight, interleaved_estimate
from memx_engine.cost.recompute import Counts, counts
from memx_engine.cost.stage import StageCost, StageTime, Tail
from memx_engine.errors import InputError
from memx_engine.plan import FULL, MemoryBreakdown, Plan, Stage


@dataclass(frozen=True)
class Transfers:
    """One-way transfer of every boundary and of the wrap (last stage to first), and time outside the pipeline."""

    p2p_s: tuple[float, ...]
    wrap_s: float
    fixed_s: float


@dataclass(frozen=True)
class Composition:
    """A plan's stages in time."""

    times: tuple[StageTime, ...]
    tails: tuple[Tail, ...]
    iteration_s: float
    additive_s: float
    lower_bound_s: float
    breakdown_s: dict[str, float]


def stage_chunks(index: int, stage: Stage) -> list[Counts]:
    """The counts of every chunk. Raises InputError where the recompute does not exist in one of them."""
    out: list[Counts] = []
    for layers in stage.chunk_layers:
        found = counts(layers, stage.recompute)
        if found is None:
            raise InputError(
                f"{stage.recompute} recomputes more layers than the {layers} that are there",
                where=f"stage {index}",
                hint=f"use at most block:{layers}, or {FULL}" if layers else f"use {FULL} or none",
            )
        out.append(found)
    return out


def compose(
    plan: Plan,
    costs: Sequence[StageCost],
    chunks: Sequence[Sequence[Counts]],
    transfers: Transfers,
    *,
    tails: Sequence[Tail] | None = None,
) -> Composition:
    """Simulate ``plan`` and bound it; ``tails`` replaces what follows from ``costs``."""
    v, micro_batches = plan.skeleton.virtual_stages, plan.skeleton.micro_batches
    times = tuple(cost.time(row) for cost, row in zip(costs, chunks, strict=True))
    if tails is None:
        tails = [cost.tail(stage.layers) for cost, stage in zip(costs, plan.stages, strict=True)]
    stage_s, tail_s = [t.total_s for t in times], [t.total_s for t in tails]
    p2p, fixed = transfers.p2p_s, transfers.fixed_s
    links = list(p2p)
    if v == 1:
        forward, backward = [[t.forward_s] for t in times], [[t.backward_s] for t in times]
        additive = additive_time(stage_s, micro_batches, p2p_s=p2p, tails_s=tail_s, fixed_s=fixed)
    else:
        # The ends take no time on stages that do not hold them, so every stage may be asked alike.
        pairs = [
            [cost.chunk_time(c, embedding=k == 0, head=k == v - 1) for k, c in enumerate(row)]
            for cost, row in zip(costs, chunks, strict=True)
        ]
        forward, backward = [[f for f, _ in row] for row in pairs], [[b for _, b in row] for row in pairs]
        links.append(transfers.wrap_s)
        additive = interleaved_estimate(
            stage_s, micro_batches, v, p2p_s=p2p, wrap_s=transfers.wrap_s, tails_s=tail_s, fixed_s=fixed
        )
    lowest = path_bound(forward, backward, micro_batches, p2p_s=p2p, tails_s=tail_s, fixed_s=fixed)
    timed = partial(simulate, forward, backward, micro_batches=micro_batches, fixed_s=fixed, virtual_stages=v)
    iteration = timed(p2p_s=links, tails_s=tail_s).iteration_time_s
    at_once = timed(p2p_s=[0.0] * len(links), tails_s=tail_s).iteration_time_s if any(links) else iteration
    breakdown = _breakdown(iteration, min(at_once, iteration), micro_batches, times, tails, fixed)
    # Sums in another order can put the bound a rounding error above the simulation that attains it.
    lowest = min(lowest, iteration)
    return Composition(times, tuple(tails), iteration, additive, lowest, breakdown)


def stage_breakdowns(
    plan: Plan, costs: Sequence[StageCost], chunks: Sequence[Sequence[Counts]]
) -> list[MemoryBreakdown]:
    """Peak memory of one rank of every stage; unequal chunks are walked in Megatron's order."""
    skeleton = plan.skeleton
    v = skeleton.virtual_stages
    flights = in_flight(skeleton.pp, skeleton.micro_batches, v)
    per_chunk = [[cost.memory.chunk_bytes(c) for c in row] for cost, row in zip(costs, chunks, strict=True)]
    if v == 1:
        held = [count * row[0] for count, row in zip(flights, per_chunk, strict=True)]
    else:
        held = held_bytes(per_chunk, skeleton.micro_batches).tolist()
    out: list[MemoryBreakdown] = []
    for i, (cost, row) in enumerate(zip(costs, chunks, strict=True)):
        working = max(cost.memory.working_bytes(c) for c in row)
        out.append(cost.memory.breakdown(plan.stages[i].layers, held[i], -(-flights[i] // v), working))
    return out


def _breakdown(
    iteration: float,
    at_once: float,
    micro_batches: int,
    times: Sequence[StageTime],
    tails: Sequence[Tail],
    fixed: float,
) -> dict[str, float]:
    """Where the slowest stage's iteration goes, which takes ``at_once`` where transfers between stages take no time.

    ``pp_comm`` is what these transfers add to the iteration, ``bubble`` what is left: the stage waits for others to
    fill, drain, and finish their tails.
    """
    i = max(range(len(times)), key=lambda k: times[k].total_s)
    slowest, tail = times[i], tails[i]
    parts = {
        "compute": micro_batches * (slowest.total_s - slowest.recompute_s - slowest.comm_s),
        "recompute": micro_batches * slowest.recompute_s,
        "tp_comm": micro_batches * slowest.comm_s,
        "pp_comm": iteration - at_once,
        "bubble": 0.0,
        "dp_comm": tail.dp_s,
        "optimizer": tail.optimizer_s,
        "fixed": fixed,
    }
    parts["bubble"] = max(iteration - sum(parts.values()), 0.0)
    # Rounding of the sum above must not make the parts miss the whole.
    parts["compute"] += iteration - sum(parts.values())
    return parts
