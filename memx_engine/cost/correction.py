"""Factors by which measurements of one device type move what first principles say of its stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memx_engine.cost.compute import EndTime, LayerTime
from memx_engine.cost.memory import StageMemory
from memx_engine.cost.stage import StageCost


@dataclass(frozen=True)
class Correction:
    """One factor per metric, 1 (of ``together`` 0) where nothing is known.

    Attributes:
        time: Forward and backward, their tensor-parallel collectives included.
        collectives, embedding, head, end_collectives: Of these, once more: collectives of layers; computing of each
            end; collectives of both.
        activations: Activations, logits, work space and buffers: all that the allocator holds beside the states.
        working, passing, logits: Of these, once more: layers that exist whole while they are recomputed; gradients that
            pass through and communication buffers; logits.
        together: Share of the smaller of logits and work space that is held beside the larger; a share, not a factor.
        fragmentation: Reserved over allocated memory (``1 + FRAGMENTATION``).
        context: What the device holds outside the allocator.
    """

    time: float = 1.0
    activations: float = 1.0
    fragmentation: float = 1.0
    context: float = 1.0
    working: float = 1.0
    passing: float = 1.0
    logits: float = 1.0
    together: float = 0.0
    collectives: float = 1.0
    embedding: float = 1.0
    head: float = 1.0
    end_collectives: float = 1.0


UNCORRECTED = Correction()


def corrected(cost: StageCost, correction: Correction) -> StageCost:
    """``cost`` with its terms scaled; tables and plans made from it agree with each other as before."""
    if correction == UNCORRECTED:
        return cost
    return replace(
        cost,
        layer=_layer(cost.layer, correction),
        embedding=_end(cost.embedding, correction, correction.embedding),
        head=_end(cost.head, correction, correction.head),
        memory=_memory(cost.memory, correction),
    )


def _layer(layer: LayerTime, c: Correction) -> LayerTime:
    return LayerTime(
        forward_s=layer.forward_s * c.time,
        backward_s=layer.backward_s * c.time,
        forward_comm_s=layer.forward_comm_s * c.time * c.collectives,
        backward_comm_s=layer.backward_comm_s * c.time * c.collectives,
        core_forward_s=layer.core_forward_s * c.time,
    )


def _end(end: EndTime, c: Correction, factor: float) -> EndTime:
    return EndTime(
        forward_s=end.forward_s * c.time * factor,
        backward_s=end.backward_s * c.time * factor,
        forward_comm_s=end.forward_comm_s * c.time * c.end_collectives,
        backward_comm_s=end.backward_comm_s * c.time * c.end_collectives,
    )


def _memory(memory: StageMemory, c: Correction) -> StageMemory:
    return replace(
        memory,
        whole_bytes=memory.whole_bytes * c.activations,
        core_bytes=memory.core_bytes * c.activations,
        input_bytes=memory.input_bytes * c.activations,
        per_flight_bytes=memory.per_flight_bytes * c.activations,
        head_bytes=memory.head_bytes * c.activations,
        logits_bytes=memory.logits_bytes * c.activations * c.logits,
        transient_bytes=memory.transient_bytes * c.activations * c.passing,
        buffers_bytes=memory.buffers_bytes * c.activations * c.passing,
        working_factor=memory.working_factor * c.working,
        together=min(memory.together + c.together, 1.0),
        fragmentation=max((1 + memory.fragmentation) * c.fragmentation - 1, 0.0),
        context_bytes=memory.context_bytes * c.context,
    )
