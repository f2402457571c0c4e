"""Event simulation of one training iteration: the reference for time, ranking and the timeline.

Every stage runs its operations strictly in the schedule's order. An operation starts when its stage is free and its
input has arrived, a transfer time after it was sent; the sender goes on meanwhile. With blocking sends and receives the
order leaves no spare micro-batch to hide that wait, so each boundary's transfer lengthens the period itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from memx_engine.cost.schedule import program


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of the timeline; ``kind`` is ``forward`` or ``backward``."""

    stage: int
    chunk: int
    micro_batch: int
    kind: str
    start_s: float
    end_s: float


Timeline = tuple[Span, ...]

SAME = 1e-14
"""Rounding of sums of times: rounds that differ by less end equally far apart."""


@dataclass(frozen=True)
class Simulation:
    """One simulated iteration.

    Attributes:
        iteration_time_s: Until the last stage's tail has ended, plus the fixed time.
        busy_s: (P) computing time of each stage, tails not counted.
        end_s: (P) when each stage has finished its last backward.
        timeline: Every operation by start time then stage; None unless it was asked for.
    """

    iteration_time_s: float
    busy_s: tuple[float, ...]
    end_s: tuple[float, ...]
    timeline: Timeline | None = None


def simulate(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    p2p_s: ArrayLike,
    micro_batches: int,
    *,
    tails_s: ArrayLike | None = None,
    fixed_s: float = 0.0,
    virtual_stages: int = 1,
    overlap_p2p: bool = False,
    in_flight: Sequence[int] | None = None,
    record: bool = False,
) -> Simulation:
    """Simulate 1F1B (``virtual_stages`` 1) or Megatron's interleaved schedule.

    Args:
        forward_s, backward_s: (P,) or (P, 1) for 1F1B, (P, v) chunk times when interleaved; one micro-batch.
        p2p_s: P-1 one-way transfer times, or P with the wrap from the last stage to the first at the end (interleaved
            only; without it the wrap takes no time).
        tails_s: (P,) what each stage does after its last backward.
        overlap_p2p: Transfers hide behind computing. 1F1B then takes the eager order, which holds up to
            ``2 (P - i) - 1`` micro-batches; interleaved sends every output at once instead of once per
            forward-backward pair.
        in_flight: 1F1B only; the most micro-batches that each stage may hold, where memory allows fewer than the
            schedule wants.
        record: Also return the timeline.

    Raises:
        ValueError: shapes or counts that do not fit together, negative or non-finite times, interleaving with G not a
            multiple of P.
    """
    forward = np.asarray(forward_s, dtype=np.float64)
    backward = np.asarray(backward_s, dtype=np.float64)
    p2p = np.asarray(p2p_s, dtype=np.float64).reshape(-1)
    stages = len(forward)
    tails = np.zeros(stages) if tails_s is None else np.asarray(tails_s, dtype=np.float64)
    if forward.size != stages * virtual_stages or backward.shape != forward.shape or tails.shape != (stages,):
        raise ValueError(f"times {forward.shape}, {backward.shape} and tails {tails.shape} do not match the stages")
    if len(p2p) not in (stages - 1, stages):
        raise ValueError(f"{stages} stages need {stages - 1} transfer times, or {stages} with the wrap; got {len(p2p)}")
    costs = np.concatenate((forward.reshape(-1), backward.reshape(-1)))
    links = np.zeros(stages + 1)
    links[1 : len(p2p) + 1] = p2p
    given = np.concatenate((costs, links, tails, [fixed_s]))
    if not np.isfinite(given).all() or given.min() < 0:
        raise ValueError("times must be finite and not negative")

    limits = None if in_flight is None else tuple(in_flight)
    plain = virtual_stages == 1 and not overlap_p2p and limits is None
    if plain and not record and micro_batches > 0:
        ends_s = _one_forward_one_backward(
            forward.reshape(-1).tolist(), backward.reshape(-1).tolist(), p2p[: stages - 1].tolist(), micro_batches
        )
        total = max(end + tail for end, tail in zip(ends_s, tails.tolist(), strict=True)) + fixed_s
        working = micro_batches * (forward + backward).reshape(-1)
        return Simulation(total, tuple(working.tolist()), tuple(ends_s))
    plan = program(stages, micro_batches, virtual_stages, overlap_p2p, limits)
    durations = costs[plan.cost]
    ends = [0.0]
    push = ends.append
    for previous, source, duration, delay in zip(
        plan.previous, plan.source, durations.tolist(), links[plan.link].tolist(), strict=True
    ):
        free, ready = ends[previous], ends[source] + delay
        push((free if free > ready else ready) + duration)

    finish = tuple(ends[k] for k in plan.last)
    iteration = max(end + tail for end, tail in zip(finish, tails.tolist(), strict=True)) + fixed_s
    busy = micro_batches * (forward.reshape(stages, -1) + backward.reshape(stages, -1)).sum(axis=1)
    timeline: Timeline | None = None
    if record:
        stop = np.array(ends[1:])
        start = stop - durations
        spans = zip(
            plan.stage.tolist(),
            plan.chunk.tolist(),
            plan.micro_batch.tolist(),
            np.where(plan.backward, "backward", "forward").tolist(),
            start.tolist(),
            stop.tolist(),
            strict=True,
        )
        timeline = tuple(sorted((Span(*span) for span in spans), key=lambda span: (span.start_s, span.stage)))
    return Simulation(iteration, tuple(busy.tolist()), finish, timeline)


def kept_for(rounds: int) -> int:
    """How many rounds the state after ``rounds`` of them serves as the one that later ones are compared with."""
    return max(4, rounds // 4)


def _one_forward_one_backward(
    forward_s: list[float], backward_s: list[float], p2p_s: list[float], micro_batches: int
) -> list[float]:
    """End of every stage's last backward under 1F1B, as the operations one by one give it.

    In slot t every stage i runs at most one operation: its forward ``(t - i) / 2`` or its backward
    ``(t + i + 1) / 2 - P``, whichever is whole. What it waits on, a neighbour's, was that neighbour's operation in the
    slot before. Two slots are a round. Between the warm-up and the first stage's last forward, a state that is an
    earlier one but for the same time later in every stage repeats for good: maxima and sums commute with a common
    shift. As many whole repetitions as fit are skipped.
    """
    stages, last = len(forward_s), len(forward_s) - 1
    ends = kept = [0.0] * stages
    t, warm, full, stop = 0, 2 * stages - 1, 2 * micro_batches - 1, 2 * (micro_batches + stages) - 1
    since, due, searching = 0, 0, True
    while t < stop:
        old, ends = ends, ends.copy()
        least = max(0, t - full + 1)
        for i in range(least + (t - least) % 2, min(last, t) + 1, 2):
            free, ready = old[i], old[i - 1] + p2p_s[i - 1] if i else 0.0
            ends[i] = (free if free > ready else ready) + forward_s[i]
        least = max(0, warm - t)
        for i in range(least + (t + 1 - least) % 2, min(last, stop - 1 - t) + 1, 2):
            free, ready = old[i], old[i + 1] + p2p_s[i] if i < last else 0.0
            ends[i] = (free if free > ready else ready) + backward_s[i]
        if searching and t % 2 and warm <= t < full:
            rounds = (t - warm) // 2
            shift, slack = ends[0] - kept[0], SAME * ends[0]
            if rounds and all(abs(end - was - shift) <= slack for end, was in zip(ends, kept, strict=True)):
                period = rounds - since
                times = (full - t) // 2 // period
                ends = [end + times * shift for end in ends]
                t += 2 * period * times
                searching = False
            elif rounds == due:
                kept, since, due = ends, rounds, rounds + kept_for(rounds)
        t += 1
    return ends
