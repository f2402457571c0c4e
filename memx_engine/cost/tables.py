"""Dense tables over (stage, layers, recompute option), as matrix products of stage terms and recompute counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.recompute import Counts, basis
from memx_engine.cost.stage import StageCost
from memx_engine.cost.table import Array
from memx_engine.plan import Recompute

_C = len(fields(Counts))


@dataclass(frozen=True, eq=False)
class StageTerms:
    """One stage signature as numbers: what every count costs, what is there anyway, and the tails.

    Attributes:
        factors: (4 C,) per count of :class:`Counts`: forward seconds, backward seconds, kept bytes, working bytes.
        constants: (11,) forward and backward of the ends, state bytes per layer, of the ends, fixed bytes, bytes per
            micro-batch in flight, logits, transient work space, context, share lost to fragmentation, share of logits
            and work space that exist together.
        tails: (L+1,) exposed data-parallel communication and optimizer step.
    """

    factors: Array
    constants: Array
    tails: Array


def stage_terms(cost: StageCost, layers: int) -> StageTerms:
    """The terms of ``cost`` for a model of ``layers`` layers."""
    t, m = cost.layer, cost.memory
    full = t.forward_s + t.forward_comm_s
    rows = (
        Counts(layers=full),
        Counts(layers=t.backward_s + t.backward_comm_s, again=full, again_core=t.core_forward_s),
        Counts(0.0, whole=m.whole_bytes, light=m.whole_bytes - m.core_bytes, inputs=m.input_bytes),
        Counts(0.0, working=m.working_factor * m.whole_bytes, working_core=m.working_factor * m.core_bytes),
    )
    constants = (
        cost.end_forward_s,
        cost.end_backward_s,
        m.layer_parameters * m.state.total,
        m.end_parameters * m.state.total,
        m.head_bytes + m.buffers_bytes,
        m.per_flight_bytes,
        m.logits_bytes,
        m.transient_bytes,
        m.context_bytes,
        m.fragmentation,
        m.together,
    )
    tails = [cost.tail(n).total_s for n in range(layers + 1)]
    return StageTerms(np.array([row.vector for row in rows]).ravel(), np.array(constants), np.array(tails))


@dataclass(frozen=True, eq=False)
class TableFactors:
    """What is learned of stages: (P, R) factors on time, and on memory beside the states; (P,) bytes added to it."""

    time: Array
    memory: Array
    extra_bytes: Array


def dense(
    terms: tuple[StageTerms, ...],
    flights: tuple[int, ...],
    options: tuple[Recompute, ...],
    layers: int,
    v: int,
    learned: TableFactors | None = None,
) -> tuple[Array, Array, Array]:
    """Forward seconds, backward seconds and peak bytes, each (P, L+1, R); infinite where illegal.

    Args:
        flights: Micro-batches (chunks when ``v`` > 1) that each stage holds. v: Equal chunks per stage.
    """
    # No stage can have more layers than the others leave it, one chunk each: the rest of the columns stays infinite.
    columns = max(layers - (len(terms) - 1) * v, 0) + 1
    forward, backward = dense_times(terms, options, layers, v, learned, columns)
    memory = dense_memory(terms, flights, options, layers, v, learned, columns)
    whole = np.full((3, len(terms), layers + 1, len(options)), np.inf)
    for out, part in zip(whole, (forward, backward, memory), strict=True):
        out[:, :columns] = part
    return whole[0], whole[1], whole[2]


def _basis(layers: int, options: tuple[Recompute, ...], v: int, columns: int | None) -> tuple[Array, NDArray[np.bool_]]:
    counts, illegal = basis(layers, options, v)
    return counts[:, :columns], illegal[:columns]


def dense_times(
    terms: tuple[StageTerms, ...],
    options: tuple[Recompute, ...],
    layers: int,
    v: int,
    learned: TableFactors | None = None,
    columns: int | None = None,
) -> tuple[Array, Array]:
    """Forward and backward seconds of :func:`dense`; what is in flight does not matter to them.

    ``columns``: Only so many layer counts, from none on.
    """
    counts, illegal = _basis(layers, options, v, columns)
    flat = counts.reshape(_C, -1)
    factors, constants = np.stack([t.factors for t in terms]), np.stack([t.constants for t in terms])
    out = []
    for part in (0, 1):
        table = (factors[:, part * _C : (part + 1) * _C] @ flat).reshape(len(terms), *illegal.shape)
        table *= v
        table += constants[:, part, None, None]
        if learned is not None:
            table *= learned.time[:, None, :]
        table[:, illegal] = np.inf
        out.append(table)
    return out[0], out[1]


def dense_memory(
    terms: tuple[StageTerms, ...],
    flights: tuple[int, ...],
    options: tuple[Recompute, ...],
    layers: int,
    v: int,
    learned: TableFactors | None = None,
    columns: int | None = None,
) -> Array:
    """Peak bytes of :func:`dense`; ``columns`` as in :func:`dense_times`.

    The terms of one stage serve any number of ``flights``, of which the first axis then is.
    """
    counts, illegal = _basis(layers, options, v, columns)
    flat = counts.reshape(_C, -1)
    factors = np.stack([t.factors for t in terms])
    shape = (len(terms), *illegal.shape)
    memory, working = ((factors[:, part * _C : (part + 1) * _C] @ flat).reshape(shape) for part in (2, 3))
    constants = np.stack([t.constants for t in terms])[:, :, None, None]
    _, _, state, end_state, fixed, per_flight, logits, transient, context, lost, together = constants.swapaxes(0, 1)
    held = np.array(flights, dtype=np.float64)[:, None, None]
    working += transient
    if together.any():
        working = np.maximum(working, logits) + together * np.minimum(working, logits)
    else:
        np.maximum(working, logits, out=working)
    memory = memory * held
    memory += working
    memory += fixed + np.ceil(held / v) * per_flight
    if learned is not None:
        memory *= learned.memory[:, None, :]
    memory += state * np.arange(len(illegal))[:, None] + end_state
    memory *= 1 + lost
    memory += context
    if learned is not None:
        memory += learned.extra_bytes[:, None, None]
    memory[:, illegal] = np.inf
    return memory
