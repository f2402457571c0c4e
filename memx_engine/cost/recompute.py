"""What a recompute strategy does to a chunk of layers: what is kept, what is recomputed, which strategies exist.

A chunk is what one virtual stage holds (the whole stage under 1F1B); Megatron counts N and K within it. Everything is
linear in the counts of :class:`Counts`, so that a table over (layers, options) is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from memx_engine.inputs.job import Framework
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Layers of one chunk by what happens to them.

    Attributes:
        layers: All layers of the chunk.
        whole: Layers whose activations are all kept. light: kept without the attention core. inputs: kept inputs.
        working: Whole layers that exist for a moment while they are recomputed.
        working_core: Attention cores that exist for a moment.
        again: Layers whose forward is repeated. again_core: layers whose attention core alone is repeated.
    """

    layers: float
    whole: float = 0.0
    light: float = 0.0
    inputs: float = 0.0
    working: float = 0.0
    working_core: float = 0.0
    again: float = 0.0
    again_core: float = 0.0

    @property
    def vector(self) -> tuple[float, ...]:
        """The fields in order."""
        return (
            self.layers,
            self.whole,
            self.light,
            self.inputs,
            self.working,
            self.working_core,
            self.again,
            self.again_core,
        )


def counts(layers: int, recompute: Recompute) -> Counts | None:
    """The counts of a chunk of ``layers`` layers; None where the strategy does not exist there (K > layers)."""
    n = layers
    if recompute.kind == "none":
        return Counts(n, whole=n)
    if recompute.kind == "selective":
        return Counts(n, light=n, working_core=min(n, 1), again_core=n)
    if recompute.kind == "full":
        return Counts(n, inputs=n, working=min(n, 1), again=n)
    if recompute.kind == "uniform":
        return Counts(n, inputs=-(-n // recompute.n), working=min(n, recompute.n), again=n)
    if recompute.n > n:
        return None
    return Counts(n, whole=n - recompute.n, inputs=recompute.n, working=1, again=recompute.n)


def allowed(framework: Framework, recompute: Recompute) -> bool:
    """Whether the framework takes this strategy at all (FlagScale: off or full per stage, uniform or block)."""
    return framework is not Framework.FLAGSCALE or recompute.kind != "selective"


@lru_cache(maxsize=1024)
def strategies(layers: int, stages: int, virtual_stages: int, framework: Framework) -> tuple[Recompute, ...]:
    """Every strategy worth a column, lightest first; ``block:K`` up to what a stage can hold besides the others."""
    most = max((layers - (stages - 1) * virtual_stages) // virtual_stages, 1)
    uniform = [Recompute("uniform", n) for n in (2, 4, 8) if n <= most]
    block = [Recompute("block", k) for k in range(1, most)]
    options = [NONE, SELECTIVE, *block, FULL, *uniform]
    return tuple(option for option in options if allowed(framework, option))


@lru_cache(maxsize=32)
def basis(layers: int, options: tuple[Recompute, ...], virtual_stages: int) -> tuple[Array, NDArray[np.bool_]]:
    """Counts of one chunk for every (stage layers, option).

    Returns:
        (C, L+1, R) counts in the order of the fields of :class:`Counts`, zero where illegal, and the (L+1, R) mask of
        what is illegal: no layers, layers not a multiple of the virtual stages, K or N beyond the chunk. (Measured runs
        may have a group larger than their chunk, and :func:`counts` knows them; plans are not made so.)
    """
    table = np.zeros((len(fields(Counts)), layers + 1, len(options)))
    illegal = np.ones((layers + 1, len(options)), dtype=bool)
    stage = np.arange(virtual_stages, layers + 1, virtual_stages)
    n = stage // virtual_stages
    for r, option in enumerate(options):
        there = n >= max(option.n, 1)
        table[:, stage, r] = np.where(there, _columns(n, option), 0.0)
        illegal[stage, r] = ~there
    table.setflags(write=False)
    illegal.setflags(write=False)
    return table, illegal


def _columns(n: NDArray[np.int64], recompute: Recompute) -> Array:
    """(C, len(n)) what :func:`counts` says of chunks of ``n`` layers, where the strategy exists."""
    one, none = np.ones(len(n)), np.zeros(len(n))
    if recompute.kind == "none":
        rows = [n, n, none, none, none, none, none, none]
    elif recompute.kind == "selective":
        rows = [n, none, n, none, none, one, none, n]
    elif recompute.kind == "block":
        k = recompute.n * one
        rows = [n, n - k, none, k, one, none, k, none]
    else:
        group = max(recompute.n, 1)
        rows = [n, none, none, -(-n // group), np.minimum(n, group), none, n, none]
    return np.array(rows, dtype=np.float64)
