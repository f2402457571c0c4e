"""One stage's cost terms: everything about a stage but its number of layers, its recompute and what is in flight.

Times and memory are linear in the counts of :mod:`memx_engine.cost.recompute`, so the same terms serve a single plan
and the whole table over (layers, options).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memx_engine.cost.activations import Shape
from memx_engine.cost.compute import (
    Device,
    EndTime,
    LayerTime,
    embedding_time,
    head_time,
    layer_time,
    optimizer_time,
)
from memx_engine.cost.memory import StageMemory, stage_memory
from memx_engine.cost.network import Rate
from memx_engine.cost.parameters import gradient_bytes
from memx_engine.cost.recompute import Counts
from memx_engine.inputs.cluster import GpuType
from memx_engine.inputs.job import Job, Optimizer
from memx_engine.inputs.model import TransformerSpec

DP_OVERLAP = 0.5
"""Share of the last micro-batch's backward behind which gradients are reduced; weights are gathered in the open."""


@dataclass(frozen=True)
class StageTime:
    """Seconds of one micro-batch on a stage, by part; ``recompute_s`` and its collectives are part of backward."""

    forward_s: float
    backward_s: float
    recompute_s: float
    comm_s: float
    """Tensor-parallel collectives inside ``forward_s`` and ``backward_s``, those of recompute included."""

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Tail:
    """What a stage does after its last backward: data-parallel communication left exposed, and the optimizer step."""

    dp_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        return self.dp_s + self.optimizer_s


@dataclass(frozen=True)
class StageCost:
    """The terms of one stage signature."""

    layer: LayerTime
    embedding: EndTime
    head: EndTime
    memory: StageMemory
    device: Device
    dp: int
    dp_link: Rate
    job: Job

    @property
    def end_forward_s(self) -> float:
        e, h = self.embedding, self.head
        return e.forward_s + e.forward_comm_s + h.forward_s + h.forward_comm_s

    @property
    def end_backward_s(self) -> float:
        e, h = self.embedding, self.head
        return e.backward_s + e.backward_comm_s + h.backward_s + h.backward_comm_s

    def time(self, chunks: Sequence[Counts]) -> StageTime:
        """One micro-batch through all chunks of the stage, the ends included."""
        layers = sum(c.layers for c in chunks)
        again = sum(c.again for c in chunks)
        core = sum(c.again_core for c in chunks)
        t, e, h = self.layer, self.embedding, self.head
        recompute = again * t.forward_s + core * t.core_forward_s
        end_comm = e.forward_comm_s + e.backward_comm_s + h.forward_comm_s + h.backward_comm_s
        return StageTime(
            forward_s=layers * (t.forward_s + t.forward_comm_s) + self.end_forward_s,
            backward_s=layers * (t.backward_s + t.backward_comm_s)
            + recompute
            + again * t.forward_comm_s
            + self.end_backward_s,
            recompute_s=recompute,
            comm_s=layers * (t.forward_comm_s + t.backward_comm_s) + again * t.forward_comm_s + end_comm,
        )

    def chunk_time(self, c: Counts, *, embedding: bool, head: bool) -> tuple[float, float]:
        """Forward and backward of one chunk; the embedding runs in the stage's first chunk, the head in its last."""
        t = self.layer
        forward = c.layers * (t.forward_s + t.forward_comm_s)
        backward = c.layers * (t.backward_s + t.backward_comm_s)
        backward += c.again * (t.forward_s + t.forward_comm_s) + c.again_core * t.core_forward_s
        for end, here in ((self.embedding, embedding), (self.head, head)):
            if here:
                forward += end.forward_s + end.forward_comm_s
                backward += end.backward_s + end.backward_comm_s
        return forward, backward

    def tail(self, layers: int) -> Tail:
        """Exposed data-parallel communication and optimizer step with ``layers`` layers.

        Sharded optimizer: reduce-scatter of gradients, all-gather of weights; otherwise all-reduce of gradients. The
        reduction hides behind half of the last micro-batch's backward (without recompute, whose choice it must not
        depend on).
        """
        parameters = self.memory.parameters(layers)
        optimizer = optimizer_time(self.job, self.device, parameters, self.dp)
        if self.dp < 2:
            return Tail(0.0, optimizer)
        gradients = parameters * gradient_bytes(self.job)
        hidden = DP_OVERLAP * (layers * (self.layer.backward_s + self.layer.backward_comm_s) + self.end_backward_s)
        if self.job.optimizer is Optimizer.SHARDED:
            reduce = self.dp_link.scatter_s(gradients, self.dp)
            gather = self.dp_link.scatter_s(parameters * self.job.bytes_per_element, self.dp)
        else:
            reduce, gather = self.dp_link.all_reduce_s(gradients, self.dp), 0.0
        return Tail(max(reduce - hidden, 0.0) + gather, optimizer)


def stage_cost(
    model: TransformerSpec,
    job: Job,
    shape: Shape,
    gpu_type: GpuType,
    *,
    dp: int,
    tp_link: Rate,
    dp_link: Rate,
    first: bool,
    last: bool,
    untied: bool = False,
) -> StageCost:
    """The terms of one stage: ``shape`` on ``gpu_type``, with or without the embedding and the head."""
    device = Device.of(gpu_type, job)
    return StageCost(
        layer=layer_time(model, job, shape, device, tp_link),
        embedding=embedding_time(model, job, shape, device, tp_link) if first else EndTime(),
        head=head_time(model, job, shape, device, tp_link) if last else EndTime(),
        memory=stage_memory(model, job, shape, gpu_type, dp=dp, first=first, last=last, untied=untied),
        device=device,
        dp=dp,
        dp_link=dp_link,
        job=job,
    )
