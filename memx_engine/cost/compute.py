"""Time of one layer, the embedding and the head on one rank, for one micro-batch.

Matrix products run at ``peak x efficiency(type) x saturation(shape)``, never faster than their operands move; other
operations at memory bandwidth; every layer pays for its kernel launches. Tensor-parallel collectives are counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memx_engine.cost.activations import Shape
from memx_engine.cost.network import COLLECTIVE_BASE_S, Rate
from memx_engine.cost.parameters import gradient_bytes, layer_parameters
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import GpuType
from memx_engine.inputs.job import Attention, Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.units import TERA

HALF_ELEMENTS = 2.8e6
"""Output elements at which a product runs at half of its full speed on an A100: 0.8 of a wave of 108 tiles of
128 x 256, since on average half of the last wave is idle and every wave starts empty."""

HALF_DEPTH = 64
"""Inner dimension at which filling and draining a tile's pipeline takes as long as the products themselves."""

ATTENTION_EFFICIENCY = 0.85
"""Fused attention relative to large products: FlashAttention-2 reaches 175 to 225 of an A100's 312 TFLOP/s at head
width 128, forward and backward (Dao 2023, arXiv:2307.08691, section 4), where products in training reach about 230."""

MEMORY_EFFICIENCY = 0.8
"""Share of the memory bandwidth that elementwise kernels and the optimizer reach (STREAM-like kernels on HBM)."""

LAUNCH_S = 25e-6
"""Host time to issue one kernel from an eager framework. A pass takes no less than its kernels take to be issued; small
layers are bound by it (0.4 to 0.8 ms a layer's forward, measured with Megatron-DeepSpeed at hidden 1024)."""

GAP_S = 2e-6
"""Gap between two kernels that are issued in time."""

FLOP_PER_BYTE = 200.0
"""Peak 16-bit FLOP per byte of memory traffic, for devices whose memory bandwidth is not publicly known (A100 153,
V100 139, H100 295, MI300X 247)."""

_REFERENCE_FLOPS = 312 * TERA


@dataclass(frozen=True)
class Device:
    """A device type at the job's precision."""

    peak_flops: float
    efficiency: float
    memory_bytes_s: float

    @classmethod
    def of(cls, gpu_type: GpuType, job: Job) -> Device:
        """Raises InputError where the type lacks the precision or its peak is not publicly known."""
        precision = job.precision.value
        peak = gpu_type.peak_flops(precision)
        if not gpu_type.supports(precision):
            raise InputError(
                f"{gpu_type.name} has no {precision}",
                where="job: precision",
                hint="use fp16, or leave these devices out of the cluster",
            )
        if peak is None:
            raise InputError(
                f"the {precision} peak of {gpu_type.name} is not publicly known",
                where=f"gpu type {gpu_type.name}",
                hint=f"state it in the cluster file: {precision}_tflops under this type's overrides",
            )
        return cls(peak, gpu_type.efficiency, gpu_type.memory_bandwidth_bytes_s or assumed_bandwidth(gpu_type, job))

    @property
    def half_elements(self) -> float:
        """Output elements at which a product runs at half speed: larger devices need larger products."""
        return HALF_ELEMENTS * math.sqrt(self.peak_flops / _REFERENCE_FLOPS)

    def fill(self, elements: float) -> float:
        """Share of the processors that so many output elements keep busy."""
        return elements / (elements + self.half_elements)

    def saturation(self, m: float, n: float, k: float) -> float:
        """Share of the large-product speed that an ``m x k`` by ``k x n`` product reaches."""
        return self.fill(m * n) * k / (k + HALF_DEPTH)

    def product_s(self, m: float, n: float, k: float, element: int) -> float:
        """One matrix product, floored by the traffic of its operands and result."""
        compute = 2 * m * n * k / (self.peak_flops * self.efficiency * self.saturation(m, n, k))
        traffic = element * (m * k + k * n + m * n)
        return max(compute, traffic / self.memory_bytes_s)

    def traffic_s(self, size_bytes: float) -> float:
        """Elementwise work that reads and writes ``size_bytes`` in all."""
        return size_bytes / (self.memory_bytes_s * MEMORY_EFFICIENCY)


def assumed_bandwidth(gpu_type: GpuType, job: Job) -> float:
    """Memory bandwidth of a device that publishes none, from its peak."""
    peak = gpu_type.peak_flops("fp16") or gpu_type.peak_flops("bf16") or gpu_type.peak_flops(job.precision.value)
    return (peak or 0.0) / FLOP_PER_BYTE


@dataclass(frozen=True)
class LayerTime:
    """Seconds on one rank for one micro-batch; the collectives are not part of the computing times."""

    forward_s: float
    backward_s: float
    forward_comm_s: float
    backward_comm_s: float
    core_forward_s: float


def attention_pairs(model: TransformerSpec, job: Job, seq_len: int) -> float:
    """Query-key pairs per head and sequence that the kernel computes, averaged over the layers.

    A fused kernel skips what the causal mask or the window hides: ``s^2 / 2``, and ``w s - w^2 / 2`` with a window. An
    unfused one computes all ``s^2``.
    """
    if job.attention is Attention.UNFUSED:
        return float(seq_len) ** 2
    full = seq_len**2 / 2
    if model.sliding_window is None or model.sliding_window >= seq_len:
        return full
    window = model.sliding_window * seq_len - model.sliding_window**2 / 2
    share = model.windowed_layers / model.layers
    return share * window + (1 - share) * full


def layer_products(model: TransformerSpec, shape: Shape) -> tuple[tuple[float, float, float], ...]:
    """(m, n, k) of one layer's forward matrix products on one rank: QKV, attention output, up (and gate), down."""
    tokens, tp = shape.tokens, shape.tp
    q_width, kv_width = model.heads * model.head_dim / tp, model.kv_heads * model.head_dim / tp
    up = (2 if model.gated else 1) * model.ffn / tp
    return (
        (tokens, q_width + 2 * kv_width, model.hidden),
        (tokens, model.hidden, q_width),
        (tokens, up, model.hidden),
        (tokens, model.hidden, model.ffn / tp),
    )


def layer_time(model: TransformerSpec, job: Job, shape: Shape, device: Device, link: Rate) -> LayerTime:
    """One layer: products, attention core, elementwise work, launches, and its tensor-parallel collectives."""
    element, gradient = job.bytes_per_element, gradient_bytes(job)
    forward = backward = 0.0
    for m, n, k in layer_products(model, shape):
        forward += device.product_s(m, n, k, element)
        backward += device.product_s(m, k, n, element) + device.product_s(k, n, m, element)
    # Gradients of the weights are added to what earlier micro-batches left: read and written again.
    backward += device.traffic_s(2 * gradient * layer_parameters(model, shape.tp))
    core_forward, core_backward = _attention_core(model, job, shape, device)
    elementwise = device.traffic_s(_elementwise_bytes(model, job, shape))
    collective, count = _collectives(model, job, shape, link)
    comm, kernels = count * collective, _kernels(model, job, count)
    forward += core_forward + elementwise + kernels * GAP_S
    backward += core_backward + 2 * elementwise + 2 * kernels * GAP_S
    return LayerTime(
        forward_s=max(forward, kernels * LAUNCH_S - comm),
        backward_s=max(backward, 2 * kernels * LAUNCH_S - comm),
        forward_comm_s=comm,
        backward_comm_s=comm,
        core_forward_s=core_forward,
    )


def _kernels(model: TransformerSpec, job: Job, collectives: int) -> int:
    """Kernels of one layer's forward: products, norms, residuals, activation, rotary, layout changes, attention."""
    norms = model.norms_per_layer + (2 if model.qk_norm else 0)
    biases = sum((model.qkv_bias, model.attention_output_bias, model.mlp_bias))
    attention = 1 if job.attention is Attention.FUSED else (5 if model.dropout else 4)
    rotary = 0 if model.position_rows else 2
    return 4 + norms + 2 + 1 + rotary + 3 + biases + attention + 2 * collectives


def _attention_core(model: TransformerSpec, job: Job, shape: Shape, device: Device) -> tuple[float, float]:
    """Forward and backward seconds of scores, softmax and weighted sum."""
    heads = model.heads / shape.tp
    pairs = heads * shape.micro_batch * attention_pairs(model, job, shape.seq_len)
    flop = 4 * pairs * model.head_dim
    speed = device.peak_flops * device.efficiency
    if job.attention is Attention.FUSED:
        # Too few (head, query block) pairs leave processors idle, as with small products.
        filled = device.fill(heads * shape.tokens * model.head_dim)
        forward = flop / (speed * ATTENTION_EFFICIENCY * filled)
        return forward, 2.5 * forward
    element = job.bytes_per_element
    # Scores written, softmax read and written, (dropout read, written, mask), read by the weighted sum.
    passes = 4 * element + (2 * element + 1 if model.dropout else 0)
    half = device.saturation(shape.seq_len, shape.seq_len * heads * shape.micro_batch, model.head_dim)
    forward = flop / (speed * half) + device.traffic_s(passes * pairs)
    return forward, 2 * forward


def _elementwise_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """Bytes that one layer's forward norms, residual additions, rotary embedding and activation move on one rank."""
    element, tokens, tp = job.bytes_per_element, shape.tokens, shape.tp
    row = tokens * model.hidden / shape.sequence_split
    norms = 2 * element * row * model.norms_per_layer
    additions = (1 if model.parallel_block else 2) * (3 * element + (1 if model.dropout else 0)) * row
    qk = (model.heads / tp + shape.kv_heads(model)) * model.head_dim * tokens
    rotary = 0.0 if model.position_rows else 2 * element * qk
    qk_norm = 2 * element * qk if model.qk_norm else 0.0
    activation = (3 if model.gated else 2) * element * tokens * model.ffn / tp
    return norms + additions + rotary + qk_norm + activation


def _collectives(model: TransformerSpec, job: Job, shape: Shape, link: Rate) -> tuple[float, int]:
    """Seconds of one collective pair, and how many of them each pass of a layer needs.

    One all-reduce behind attention and one behind the feed-forward (one for both where they run side by side). With
    sequence parallelism each is a reduce-scatter and an all-gather of the same volume.
    """
    if shape.tp < 2:
        return 0.0, 0
    size = shape.tokens * model.hidden * job.bytes_per_element
    single = link.all_reduce_s(size, shape.tp)
    if shape.sequence_parallel:
        single += COLLECTIVE_BASE_S
    return single, 1 if model.parallel_block else 2


@dataclass(frozen=True)
class EndTime:
    """Embedding or head: forward and backward seconds of one micro-batch, and their collectives (all passes)."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_comm_s: float = 0.0
    backward_comm_s: float = 0.0


def embedding_time(model: TransformerSpec, job: Job, shape: Shape, device: Device, link: Rate) -> EndTime:
    """Token look-up: rows read and written; backward adds them to the gradient. TP sums the shares of the table."""
    row = shape.tokens * model.hidden * job.bytes_per_element
    comm = 0.0
    if shape.tp > 1:
        comm = link.scatter_s(row, shape.tp) if shape.sequence_parallel else link.all_reduce_s(row, shape.tp)
    backward_comm = comm if shape.sequence_parallel else 0.0
    return EndTime(device.traffic_s(3 * row) + 3 * LAUNCH_S, device.traffic_s(4 * row) + LAUNCH_S, comm, backward_comm)


def head_time(model: TransformerSpec, job: Job, shape: Shape, device: Device, link: Rate) -> EndTime:
    """Final norm, output matrix and loss: fp32 logits are written, read for maximum and sum, and turned in place."""
    element, tokens, tp = job.bytes_per_element, shape.tokens, shape.tp
    width, vocab = model.embedding_width or model.hidden, model.padded_vocab(tp) / tp
    norm = device.traffic_s(2 * element * tokens * model.hidden / shape.sequence_split)
    loss = device.traffic_s((element + 4 + 4 + 4) * tokens * vocab)
    forward = device.product_s(tokens, vocab, width, element) + norm + loss + 8 * LAUNCH_S
    backward = device.product_s(tokens, width, vocab, element) + device.product_s(width, vocab, tokens, element)
    backward += device.traffic_s(2 * gradient_bytes(job) * vocab * width)
    backward += 2 * norm + device.traffic_s((4 + element) * tokens * vocab) + 6 * LAUNCH_S
    comm = backward_comm = 0.0
    if tp > 1:
        row = tokens * model.hidden * element
        gather = link.scatter_s(row, tp) if shape.sequence_parallel else 0.0
        # Maximum, sum and the target's logit cross the group: small messages.
        comm = gather + 3 * link.all_reduce_s(4 * tokens, tp)
        backward_comm = gather if shape.sequence_parallel else link.all_reduce_s(row, tp)
    return EndTime(forward, backward, comm, backward_comm)


def optimizer_time(job: Job, device: Device, parameters: float, dp: int) -> float:
    """Adam's step: the gradient norm, reading and writing the fp32 copy and both moments, writing the weights."""
    share = parameters / (dp if job.optimizer is Optimizer.SHARDED else 1)
    gradient = gradient_bytes(job)
    step = gradient + gradient + 2 * 12 + job.bytes_per_element
    # Clearing the gradient buffer touches all of it, sharded or not.
    return device.traffic_s(step * share + gradient * parameters)
