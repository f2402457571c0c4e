"""Peak memory of one rank of a stage, always as a breakdown.

``memory = (state + activations + logits and work space + buffers) x 1.08 + context``: 8 % of everything but the
context is lost to fragmentation (allocator rounding), before anything is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.cost.activations import (
    Shape,
    core_bytes,
    embedding_bytes,
    head_bytes,
    input_bytes,
    layer_bytes,
    logits_bytes,
    transient_bytes,
)
from memx_engine.cost.parameters import StateBytes, layer_parameters, stage_parameters, state_bytes
from memx_engine.cost.recompute import Counts
from memx_engine.inputs.cluster import GpuType
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import MemoryBreakdown

FRAGMENTATION = 0.08


@dataclass(frozen=True)
class StageMemory:
    """Everything but the number of layers, their recompute and the micro-batches in flight.

    ``whole_bytes`` to ``input_bytes`` are per layer and micro-batch, ``per_flight_bytes`` per micro-batch in flight.
    ``fragmentation`` is the share of everything but the context that is lost to it. ``working_factor`` scales the
    layers that exist whole while they are recomputed, and ``together`` is the share of the smaller of logits and work
    space that is held beside the larger: 0 where each reuses what the other freed.
    """

    state: StateBytes
    layer_parameters: float
    end_parameters: float
    whole_bytes: float
    core_bytes: float
    input_bytes: float
    per_flight_bytes: float
    head_bytes: float
    logits_bytes: float
    transient_bytes: float
    buffers_bytes: float
    context_bytes: float
    fragmentation: float = FRAGMENTATION
    working_factor: float = 1.0
    together: float = 0.0

    def parameters(self, layers: int) -> float:
        """Parameters on one rank of a stage with ``layers`` layers."""
        return self.end_parameters + layers * self.layer_parameters

    def chunk_bytes(self, c: Counts) -> float:
        """What one micro-batch keeps of one chunk."""
        light = self.whole_bytes - self.core_bytes
        return c.whole * self.whole_bytes + c.light * light + c.inputs * self.input_bytes

    def working_bytes(self, c: Counts) -> float:
        """Work space of the backward pass: recomputed layers exist whole, one layer's gradients pass through."""
        layers = c.working * self.whole_bytes + c.working_core * self.core_bytes
        return self.working_factor * layers + self.transient_bytes

    def peak_work_bytes(self, working_bytes: float) -> float:
        """Logits and work space at the moment when they need most."""
        larger, smaller = max(self.logits_bytes, working_bytes), min(self.logits_bytes, working_bytes)
        return larger + self.together * smaller

    def breakdown(self, layers: int, held_bytes: float, flights: float, working_bytes: float) -> MemoryBreakdown:
        """The peak of one rank.

        Args:
            held_bytes: Kept activations of all chunks in flight. flights: Micro-batches that the embedding keeps.
            working_bytes: See :meth:`working_bytes`.
        """
        parameters = self.parameters(layers)
        weights = parameters * self.state.weights
        gradients = parameters * self.state.gradients
        optimizer = parameters * self.state.optimizer
        activations = held_bytes + flights * self.per_flight_bytes + self.head_bytes
        logits = self.peak_work_bytes(working_bytes)
        everything = weights + gradients + optimizer + activations + logits + self.buffers_bytes
        return MemoryBreakdown(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=activations,
            logits=logits,
            buffers=self.buffers_bytes,
            context=self.context_bytes,
            fragmentation=self.fragmentation * everything,
        )


def stage_memory(
    model: TransformerSpec,
    job: Job,
    shape: Shape,
    gpu_type: GpuType,
    *,
    dp: int,
    first: bool,
    last: bool,
    untied: bool = False,
) -> StageMemory:
    """The memory terms of one rank of a stage."""
    message = input_bytes(model, job, shape)
    # A receive and a send buffer for every neighbour's direction; sequence-parallel ranks gather whole sequences.
    buffers = (0 if first else 2) * message + (0 if last else 2) * message
    if shape.tp > 1 and shape.sequence_parallel:
        buffers += shape.tokens * model.hidden * job.bytes_per_element
    return StageMemory(
        state=state_bytes(job, dp),
        layer_parameters=layer_parameters(model, shape.tp),
        end_parameters=stage_parameters(model, 0, shape.tp, first=first, last=last, untied=untied),
        whole_bytes=layer_bytes(model, job, shape),
        core_bytes=core_bytes(model, job, shape),
        input_bytes=message,
        per_flight_bytes=embedding_bytes(model, job, shape) if first else 0.0,
        head_bytes=head_bytes(model, job, shape) if last else 0.0,
        logits_bytes=logits_bytes(model, job, shape) if last else 0.0,
        transient_bytes=transient_bytes(model, job, shape),
        buffers_bytes=buffers,
        context_bytes=float(gpu_type.context_bytes),
    )
