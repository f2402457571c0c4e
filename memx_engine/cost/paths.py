"""A lower bound of the event time of one pipeline: the longest of a few paths through its operations.

An operation waits for the one before it on its stage and for the one whose output it reads, which comes a transfer
later (:mod:`memx_engine.cost.events`). So the iteration takes at least as long as any chain of operations in which each
waits for the one before it. The chains used here:

- **In**: stage i cannot start before micro-batch 0 has passed chunk 0 of all stages before it,
  ``in_i = Σ_{k<i} (f_k0 + c_k)``. **Out**: every stage's last operation is the backward of the last micro-batch in
  chunk 0, so stage j <= i ends at least ``out_ij = Σ_{j<=k<i} (b_k0 + c_k)`` after stage i; then comes its tail.
- **Own work** of stage i: ``G·t_i``, without a pause.
- **First turn**: the first backward of stage i is that of micro-batch 0 in the last chunk. It waits until micro-batch 0
  has passed the last chunk of stages j..P-1 and come back to i; on any stage j, ``P·(v-1)`` forwards come before that.
  Behind this backward, stage i still has all its work but for its first ``w_i + 1`` forwards.
- **Last turn**, the first one mirrored: after the last forward of stage i the last micro-batch passes the last chunk of
  stages i+1..P-1, comes back to some stage j, and ``P·(v-1)`` backwards follow there. Until that forward ends, stage i
  has done all its work but for its last ``w_i + 1`` backwards.
- **Both turns**, where the first backward of stage i comes before its last forward, ``G·v >= w_i + 2``.

Where every stage takes the same time and transfers none, the first of these is exact under both schedules (Narayanan
et al. 2021, section 2.2: ``G·t + (P-1)·t/v``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from memx_engine.cost.schedule import warm_up


def path_bound(
    forward_s: Sequence[Sequence[float]],
    backward_s: Sequence[Sequence[float]],
    micro_batches: int,
    *,
    p2p_s: Sequence[float],
    tails_s: Sequence[float] | None = None,
    fixed_s: float = 0.0,
) -> float:
    """No order of the events of 1F1B (v = 1) or of Megatron's interleaved schedule is faster; see the module.

    Plain numbers in lists, because pipelines are short and a search asks for hundreds of them.

    Args:
        forward_s, backward_s: (P, v) chunk times of one micro-batch, equal or not.
        p2p_s: (P-1,) one-way transfers between stages i and i+1. tails_s: (P,) after a stage's last backward.
        fixed_s: Time outside the pipeline.
    """
    stages, v, total = len(forward_s), len(forward_s[0]), micro_batches * len(forward_s[0])
    tails = [0.0] * stages if tails_s is None else tails_s
    if len(backward_s) != stages or len(p2p_s) != stages - 1 or len(tails) != stages:
        raise ValueError(f"{len(p2p_s)} transfers and {len(tails)} tails do not match {stages} stages")
    into, out = _before([f[0] for f in forward_s], p2p_s), _before([b[0] for b in backward_s], p2p_s)
    # The end of stage i to the end of the iteration: the best of stages j <= i to end with.
    ends = accumulate((tail - way for tail, way in zip(tails, out, strict=True)), max)
    after = [way + end for way, end in zip(out, ends, strict=True)]
    # From the start of the last chunk on stage i through stages i..P-1, one way.
    forth, back = _beyond([f[-1] for f in forward_s], p2p_s), _beyond([b[-1] for b in backward_s], p2p_s)
    turn_in = max(into[i] + stages * sum(f[:-1]) + forth[i] for i, f in enumerate(forward_s))
    turn_out = max(after[i] + stages * sum(b[:-1]) + back[i] for i, b in enumerate(backward_s))
    bound = 0.0
    for i, (f, b, warm) in enumerate(zip(forward_s, backward_s, warm_up(stages, micro_batches, v), strict=True)):
        ahead = min(warm + 1, total)
        # Seen from the end, the backwards come in the order of the forwards: chunk 0 last, chunk 1 before it.
        first, last = _first(f, ahead, stages), _first(b, ahead, stages)
        work = micro_batches * (sum(f) + sum(b))
        start, end = turn_in + back[i] - b[-1] - first, turn_out + forth[i] - f[-1] - last
        bound = max(bound, work + max(into[i], start) + after[i], work + into[i] + end)
        if warm + 2 <= total:
            bound = max(bound, work + start + end)
    return bound + fixed_s


def _before(time_s: Sequence[float], p2p_s: Sequence[float]) -> list[float]:
    """(P,) sums over the stages before each, with the transfer after each of them."""
    return list(accumulate((t + c for t, c in zip(time_s, p2p_s, strict=False)), initial=0.0))


def _beyond(time_s: Sequence[float], p2p_s: Sequence[float]) -> list[float]:
    """(P,) sums over each stage and those after it, with the transfers between them."""
    links = zip(time_s[-2::-1], p2p_s[::-1], strict=True)
    return list(accumulate((t + c for t, c in links), initial=time_s[-1]))[::-1]


def _first(chunk_s: Sequence[float], count: int, stages: int) -> float:
    """The first ``count`` operations of a stage: P micro-batches in one chunk, then in the next, and again."""
    if len(chunk_s) == 1:
        return count * chunk_s[0]
    groups, rest = divmod(count, stages * len(chunk_s))
    chunks, left = divmod(rest, stages)
    return groups * stages * sum(chunk_s) + stages * sum(chunk_s[:chunks]) + left * chunk_s[chunks]
