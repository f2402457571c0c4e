"""A second event simulator, written without the first: it plays Megatron-LM's schedules one operation after another.

Every stage holds a list of what it does, in the order of ``forward_backward_pipelining_without_interleaving`` and
``..._with_interleaving`` of ``megatron/core/pipeline_parallel/schedules.py``. Whichever stage can go on, goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

Operation = tuple[str, int, int]  # "F" or "B", chunk, micro-batch


def program_1f1b(stage: int, stages: int, micro_batches: int) -> list[Operation]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm = min(stages - stage - 1, micro_batches)
    order = [("F", 0, m) for m in range(warm)]
    for m in range(micro_batches - warm):
        order += [("F", 0, warm + m), ("B", 0, m)]
    return order + [("B", 0, m) for m in range(micro_batches - warm, micro_batches)]


def program_interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Operation]:
    """Chunks in turn, each for a group of ``stages`` micro-batches; backwards visit the chunks the other way round."""
    total = micro_batches * chunks

    def chunk(k: int, forward: bool) -> int:
        within = k % (stages * chunks) // stages
        return within if forward else chunks - 1 - within

    def micro_batch(k: int) -> int:
        return k // (stages * chunks) * stages + k % stages

    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [("F", chunk(k, True), micro_batch(k)) for k in range(warm)]
    for k in range(total - warm):
        order.append(("F", chunk(k + warm, True), micro_batch(k + warm)))
        order.append(("B", chunk(k, False), micro_batch(k)))
    return order + [("B", chunk(k, False), micro_batch(k)) for k in range(total - warm, total)]


def naive_iteration_time(
    forward_s: Sequence[Sequence[float]],
    backward_s: Sequence[Sequence[float]],
    p2p_s: Sequence[float],
    micro_batches: int,
    *,
    wrap_s: float = 0.0,
    tails_s: Sequence[float] | None = None,
    fixed_s: float = 0.0,
    send_at_once: bool = False,
) -> float:
    """Iteration time of (P, v) chunk times.

    An output arrives ``p2p_s`` (``wrap_s`` from the last stage to the first) after it is sent; the sender does not
    wait. 1F1B sends at once. Interleaved sends the output of a steady forward with that of the backward that follows
    it, unless ``send_at_once``.
    """
    stages, chunks = len(forward_s), len(forward_s[0])
    if chunks == 1:
        programs = [program_1f1b(i, stages, micro_batches) for i in range(stages)]
    else:
        programs = [program_interleaved(i, stages, micro_batches, chunks) for i in range(stages)]
    warm = [min((stages - i - 1) * 2 + (chunks - 1) * stages, micro_batches * chunks) for i in range(stages)]
    sent: dict[tuple[int, Operation], float] = {}
    done: dict[tuple[int, Operation], float] = {}
    clock, at = [0.0] * stages, [0] * stages

    def arrival(stage: int, operation: Operation) -> float | None:
        """When the input is there; None while it has not been sent."""
        kind, chunk, m = operation
        if kind == "F":
            if stage == 0 and chunk == 0:
                return 0.0
            source, link = ((stage - 1, ("F", chunk, m)), p2p_s[stage - 1]) if stage else (
                (stages - 1, ("F", chunk - 1, m)), wrap_s
            )  # fmt: skip
        else:
            if stage == stages - 1 and chunk == chunks - 1:
                return done.get((stage, ("F", chunk, m)))
            source, link = ((stage + 1, ("B", chunk, m)), p2p_s[stage]) if stage < stages - 1 else (
                (0, ("B", chunk + 1, m)), wrap_s
            )  # fmt: skip
        if source not in sent:
            return None
        return sent[source] + (link if stages > 1 else 0.0)

    while any(at[i] < len(programs[i]) for i in range(stages)):
        moved = False
        for i in range(stages):
            while at[i] < len(programs[i]):
                operation = programs[i][at[i]]
                ready = arrival(i, operation)
                if ready is None:
                    break
                kind, chunk, _ = operation
                duration = (forward_s if kind == "F" else backward_s)[i][chunk]
                clock[i] = max(clock[i], ready) + duration
                done[i, operation] = clock[i]
                steady = chunks > 1 and not send_at_once and kind == "F" and at[i] >= warm[i]
                if not steady:
                    sent[i, operation] = clock[i]
                before = programs[i][at[i] - 1] if at[i] else None
                if kind == "B" and before is not None and (i, before) not in sent:
                    sent[i, before] = clock[i]
                at[i] += 1
                moved = True
        assert moved, "the schedule is stuck"
    tails = tails_s or [0.0] * stages
    return max(end + tail for end, tail in zip(clock, tails, strict=True)) + fixed_s
