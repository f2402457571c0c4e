"""Iteration times of many pipelines at once: what :func:`memx_engine.cost.events.simulate` gives, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.events import SAME, kept_for, simulate

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One plan's stages in time, as :func:`memx_engine.cost.events.simulate` takes them.

    Attributes:
        forward_s, backward_s: P·v chunk times, those of a stage together.
        p2p_s: P-1 one-way transfers; P, the wrap last, where interleaved.
        tails_s: P tails.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    p2p_s: Sequence[float]
    micro_batches: int
    tails_s: Sequence[float]
    fixed_s: float = 0.0
    virtual_stages: int = 1


_FEW = 4
"""Pipelines that are quicker one by one."""


def iteration_times(pipelines: Sequence[Pipeline]) -> Array:
    """(n,) iteration seconds; 1F1B all together, interleaved pipelines one by one.

    Raises ValueError as ``simulate`` does.
    """
    out = np.empty(len(pipelines))
    plain = [k for k, pipeline in enumerate(pipelines) if pipeline.virtual_stages == 1]
    together = plain if len(plain) > _FEW else []
    if together:
        out[together] = _Slots([pipelines[k] for k in together]).run()
    for k in sorted({*range(len(pipelines))}.difference(together)):
        out[k] = _alone(pipelines[k])
    return out


def _alone(pipeline: Pipeline) -> float:
    shape = (len(pipeline.tails_s), pipeline.virtual_stages)
    return simulate(
        np.reshape(pipeline.forward_s, shape),
        np.reshape(pipeline.backward_s, shape),
        pipeline.p2p_s,
        pipeline.micro_batches,
        tails_s=pipeline.tails_s,
        fixed_s=pipeline.fixed_s,
        virtual_stages=pipeline.virtual_stages,
    ).iteration_time_s


class _Slots:
    """1F1B pipelines slot by slot as ``simulate`` runs them, each at its own slot, all even or all odd.

    Arrays are (W, n): stages by pipelines, shorter pipelines padded with stages that never run.
    """

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        n = len(pipelines)
        counts = [len(p.tails_s) for p in pipelines]
        self._stages = np.array(counts)
        self._micro_batches = np.array([p.micro_batches for p in pipelines])
        width = int(self._stages.max())
        there = np.arange(width) < self._stages[:, None]
        fits = all(
            len(p.forward_s) == len(p.backward_s) == count == len(p.p2p_s) + 1
            for p, count in zip(pipelines, counts, strict=True)
        )
        if not fits or self._micro_batches.min() < 1:
            raise ValueError("a pipeline's times, transfers and tails do not match, or it has no micro-batch")
        forward, backward, self._tails = (np.zeros((n, width)) for _ in range(3))
        forward[there] = [t for p in pipelines for t in p.forward_s]
        backward[there] = [t for p in pipelines for t in p.backward_s]
        self._tails[there] = [t for p in pipelines for t in p.tails_s]
        links = np.zeros((n, width + 1))
        links[:, 1:-1][there[:, 1:]] = [t for p in pipelines for t in p.p2p_s]
        self._fixed = np.array([p.fixed_s for p in pipelines])
        given = (forward, backward, self._tails, links, self._fixed)
        if not all(np.isfinite(part).all() and part.min() >= 0 for part in given):
            raise ValueError("times must be finite and not negative")

        # By the parity of the slot: what every stage costs there, how long its input travels and from which row of
        # the padded ends, and from which of the pipeline's slots until which its operation exists. The last stage
        # waits for nobody when it turns a micro-batch around, however busy the padding beyond it.
        stage, there = np.arange(width)[:, None], there.T
        inward = links.T[1:].copy()
        inward[self._stages - 1, np.arange(n)] = -np.inf
        turn, total = 2 * self._stages - 1, 2 * self._micro_batches
        self._there = there
        self._parities: list[_Parity] = []
        for parity in (0, 1):
            goes = stage % 2 == parity
            first = np.where(there, np.where(goes, stage, turn - stage), 0)
            self._parities.append(
                _Parity(
                    np.where(goes, stage, stage + 2).ravel(),
                    np.where(goes, links.T[:-1], inward),
                    np.where(goes, forward.T, backward.T),
                    first,
                    np.where(there, first + total, 0),
                )
            )

    def run(self) -> Array:
        """(n,) iteration seconds."""
        most = int(self._stages.max())
        ends = np.zeros((most + 2, len(self._stages)))
        # Warm-ups end together, so that all pipelines go through their steady rounds together.
        slot = 2 * (self._stages - most)
        self._pass(ends, slot, 2 * most)
        slot = self._skip(ends)
        self._pass(ends, slot, int((2 * (self._micro_batches + self._stages) - 1 - slot).max()))
        finished = ends[1:-1] + self._tails.T
        finished[~self._there] = 0.0
        return np.asarray(finished.max(axis=0) + self._fixed)

    def _pass(self, ends: Array, slot: Ints, count: int) -> None:
        """``count`` slots from each pipeline's own on (all even); what does not exist there does not run."""
        fresh = np.empty_like(ends)
        for k in range(count):
            parity = self._parities[k % 2]
            parity.run(ends, fresh)
            at = slot + k
            np.copyto(ends[1:-1], fresh[1:-1], where=(parity.first <= at) & (at < parity.end))

    def _skip(self, ends: Array) -> Ints:
        """From the end of the warm-up to each pipeline's next slot (even), with whole repetitions skipped."""
        slot = 2 * self._stages
        left = self._micro_batches - self._stages
        live = np.flatnonzero(left > 1)
        going = np.ones(live.size, dtype=np.bool_)
        now, parities, padding = ends[:, live], [p.only(live) for p in self._parities], ~self._there[:, live]
        other, kept = np.zeros_like(now), now.copy()
        rounds, since, due = 0, 0, kept_for(0)
        while going.any():
            parities[0].run(now, other)
            parities[1].run(other, now)
            rounds += 1
            moved = now[1:-1] - kept[1:-1]
            shift = moved[0].copy()
            moved -= shift
            np.abs(moved, out=moved)
            same = going & ((moved <= SAME * now[1]) | padding).all(axis=0)
            stops = same | (going & (left[live] <= rounds + 1))
            if stops.any():
                which = live[stops]
                times = np.where(same, (left[live] - rounds) // (rounds - since), 0)[stops]
                ends[:, which] = now[:, stops]
                ends[1:-1, which] += times * shift[stops]
                slot[which] += 2 * rounds + 2 * (rounds - since) * times
                going &= ~stops
                if 4 * np.count_nonzero(going) < 3 * live.size:
                    live, now, kept, padding = live[going], now[:, going], kept[:, going], padding[:, going]
                    parities, other = [p.only(going) for p in parities], np.zeros_like(now)
                    going = going[going]
            if rounds == due:
                kept, since, due = now.copy(), rounds, rounds + kept_for(rounds)
        return slot


@dataclass(frozen=True, slots=True, eq=False)
class _Parity:
    """What all stages do in every second slot; arrays are (W, n).

    Attributes:
        source: (W,) row of the padded ends that a stage's input comes from. delay_s: How long it travels.
        cost_s: Of the operation. first, end: The pipeline's slots in which the operation exists.
    """

    source: Ints
    delay_s: Array
    cost_s: Array
    first: Ints
    end: Ints

    def run(self, ends: Array, fresh: Array) -> None:
        """One slot from ``ends`` to ``fresh``, (W + 2, n) both with a row of zeros before and after the stages."""
        inner = fresh[1:-1]
        ends.take(self.source, axis=0, out=inner, mode="clip")
        inner += self.delay_s
        np.maximum(inner, ends[1:-1], out=inner)
        inner += self.cost_s

    def only(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> _Parity:
        """The same for some of the pipelines."""
        return _Parity(
            self.source, self.delay_s[:, which], self.cost_s[:, which], self.first[:, which], self.end[:, which]
        )
