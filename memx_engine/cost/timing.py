"""A stage's times and nothing else: what the iteration times of many plans are made of, each computed once."""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.cost.composition import stage_chunks
from memx_engine.cost.correction import UNCORRECTED, Correction, corrected
from memx_engine.cost.stage import StageCost
from memx_engine.plan import Recompute, Stage


@dataclass(frozen=True, slots=True)
class TimedStage:
    """Seconds of one micro-batch in every chunk of a stage, and of the stage's tail."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    tail_s: float


class StageTimes:
    """The times of one stage signature by its chunks, recompute and correction: those that an estimate composes."""

    def __init__(self, cost: StageCost) -> None:
        self._cost = cost
        self._known: dict[tuple[tuple[int, ...], Recompute, Correction], TimedStage] = {}

    def of(self, index: int, stage: Stage, correction: Correction = UNCORRECTED) -> TimedStage:
        """``correction`` leaves the tail as it is. Raises InputError where the recompute does not exist in a chunk."""
        key = (stage.chunk_layers, stage.recompute, correction)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._timed(index, stage, corrected(self._cost, correction))
        return known

    def _timed(self, index: int, stage: Stage, cost: StageCost) -> TimedStage:
        chunks = stage_chunks(index, stage)
        tail_s = self._cost.tail(stage.layers).total_s
        if len(chunks) == 1:
            whole = cost.time(chunks)
            return TimedStage((whole.forward_s,), (whole.backward_s,), tail_s)
        last = len(chunks) - 1
        pairs = [cost.chunk_time(c, embedding=k == 0, head=k == last) for k, c in enumerate(chunks)]
        return TimedStage(tuple(f for f, _ in pairs), tuple(b for _, b in pairs), tail_s)
