"""Time and memory of one stage on one simulated device, kernel by kernel and tensor by tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from memx_engine.inputs.cluster import Link
from memx_engine.inputs.job import Attention, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Point
from memx_engine.testbed.hidden import HiddenDevice

_TILE = 128


@dataclass(frozen=True)
class StageTruth:
    """What one stage really costs on one device, before noise.

    Attributes:
        forward_s, backward_s: One micro-batch. optimizer_s: One call without communication.
        allocated_bytes, reserved_bytes: Allocator's peaks.
        state_parameters: Parameters held by one rank.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    allocated_bytes: int
    reserved_bytes: int
    state_parameters: int


class _Layer:
    """Kernel times of one transformer layer (and of the head) on one TP rank."""

    def __init__(self, point: Point, device: HiddenDevice, link: Link | None) -> None:
        self.p, self.d, self.link = point, device, link
        self.m = point.model
        self.tokens = point.micro_batch * point.seq_len
        self.element = 4 if point.precision.value == "fp32" else 2
        self.cliff = device.cliff if device.cliff_micro_batch == point.micro_batch else 1.0

    def matmul(self, rows: int, inner: int, columns: int) -> float:
        d = self.d
        tiles = math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
        rounds = math.ceil(tiles / d.processors)
        filled = tiles / (rounds * d.processors)
        reach = d.matmul_flops * filled * inner / (inner + d.depth_half)
        traffic = self.element * (rows * inner + inner * columns + rows * columns) / d.bandwidth_bytes_s
        return max(2.0 * rows * inner * columns / reach * self.cliff, traffic)

    def both_gradients(self, rows: int, inner: int, columns: int) -> float:
        return self.matmul(rows, columns, inner) + self.matmul(inner, rows, columns)

    def elementwise(self, size_bytes: float) -> float:
        return size_bytes / self.d.bandwidth_bytes_s

    def collective(self) -> float:
        """One all-reduce (or gather and scatter) of the layer's activations over the TP group."""
        t = self.p.tp
        if t == 1 or self.link is None:
            return 0.0
        size = self.tokens * self.m.hidden * self.element
        share = self.d.collective_share * size / (size + self.d.collective_half_bytes)
        steps = 2 * (t - 1) * (self.link.latency_s + self.d.collective_step_s)
        bandwidth = self.link.bandwidth_bytes_s / (t if self.link.shared else 1)
        return steps + 2.0 * (t - 1) / t * size / (bandwidth * share)

    def attention_core(self) -> tuple[float, float]:
        """Forward and backward seconds of scores, softmax and weighted sum."""
        p, m, d = self.p, self.m, self.d
        heads = m.heads / p.tp
        area = p.micro_batch * heads * float(p.seq_len) ** 2
        flops = 4.0 * area * m.head_dim
        if p.attention is Attention.FUSED:
            seen = 0.5 if d.skips_masked else 1.0
            reach = d.matmul_flops * d.attention_share * p.seq_len / (p.seq_len + 256.0)
            forward = flops * seen / reach
            return forward, 2.6 * forward
        forward = flops / (d.matmul_flops * 0.7) + self.elementwise(area * 24.0)
        return forward, flops * 2 / (d.matmul_flops * 0.7) + self.elementwise(area * 40.0)

    def forward(self) -> float:
        p, m = self.p, self.m
        q, kv = m.heads * m.head_dim, max(m.kv_heads // p.tp, 1) * m.head_dim * p.tp
        up = 2 if m.gated else 1
        products = (
            self.matmul(self.tokens, m.hidden, (q + 2 * kv) // p.tp)
            + self.matmul(self.tokens, q // p.tp, m.hidden)
            + self.matmul(self.tokens, m.hidden, up * m.ffn // p.tp)
            + self.matmul(self.tokens, m.ffn // p.tp, m.hidden)
        )
        share = p.tp if p.sequence_parallel else 1
        traffic = self.element * self.tokens * (8 * m.hidden / share + (up + 2) * m.ffn / p.tp + 3 * q / p.tp)
        busy = products + self.attention_core()[0] + self.elementwise(traffic)
        kernels = 14 + (0 if p.attention is Attention.FUSED else 5)
        return max(busy, kernels * self.d.launch_s) + 2 * self.collective()

    def backward(self) -> float:
        p, m = self.p, self.m
        q, kv = m.heads * m.head_dim, max(m.kv_heads // p.tp, 1) * m.head_dim * p.tp
        up = 2 if m.gated else 1
        products = (
            self.both_gradients(self.tokens, m.hidden, (q + 2 * kv) // p.tp)
            + self.both_gradients(self.tokens, q // p.tp, m.hidden)
            + self.both_gradients(self.tokens, m.hidden, up * m.ffn // p.tp)
            + self.both_gradients(self.tokens, m.ffn // p.tp, m.hidden)
        )
        share = p.tp if p.sequence_parallel else 1
        traffic = self.element * self.tokens * (14 * m.hidden / share + 2 * (up + 2) * m.ffn / p.tp + 5 * q / p.tp)
        # Gradients are added into an fp32 buffer that is read and written once per micro-batch.
        weights = m.layer.total / p.tp * 8
        busy = products + self.attention_core()[1] + self.elementwise(traffic + weights)
        return max(busy, 30 * self.d.launch_s) + 2 * self.collective()

    def head(self) -> tuple[float, float]:
        p, m = self.p, self.m
        columns = m.padded_vocab(p.tp) // p.tp
        logits = self.tokens * columns
        forward = self.matmul(self.tokens, m.hidden, columns) + self.elementwise(logits * 14.0)
        backward = self.both_gradients(self.tokens, m.hidden, columns) + self.elementwise(logits * 8.0)
        return forward + self.collective(), backward + self.collective()


_REFERENCE = TransformerSpec("reference", "llama", 1, 4096, 11008, 32, 32, 128, 32000, 4096)


def fit_to_power(device: HiddenDevice, precision: Precision) -> HiddenDevice:
    """``device`` with the product speed at which a Llama-7B layer (2 x 2048 tokens) reaches ``power_flops``."""
    point = Point("", _REFERENCE, tp=1, micro_batch=2, seq_len=2048, layers=1, precision=precision)
    target_s = 6.0 * _REFERENCE.layer.total * 4096 / device.power_flops
    device = replace(device, cliff_micro_batch=0)
    for _ in range(40):
        layer = _Layer(point, device, None)
        ratio = (layer.forward() + layer.backward()) / target_s
        device = replace(device, matmul_flops=device.matmul_flops * ratio**0.8)
    return device


def layer_parameters_per_rank(point: Point) -> int:
    """Parameters of one layer on one TP rank; norms and output biases are replicated."""
    layer = point.model.layer
    return math.ceil((layer.qkv + layer.attention_output + layer.mlp) / point.tp) + layer.norms


def state_parameters(point: Point) -> int:
    """Parameters one rank holds for the stage, padding included."""
    m = point.model
    total = point.layers * layer_parameters_per_rank(point)
    table = m.padded_vocab(point.tp) // point.tp * (m.embedding_width or m.hidden)
    if point.embedding:
        total += table + m.position_rows * m.hidden
    if point.head:
        total += m.norm_parameters + (0 if m.tied_embeddings and point.embedding else table)
    return total


def _saved_per_layer(point: Point, element: int) -> list[float]:
    """Sizes in bytes of the tensors that one layer keeps for its backward pass, on one rank."""
    m, t = point.model, point.tp
    tokens = point.micro_batch * point.seq_len
    wide = tokens * m.hidden * element / (t if point.sequence_parallel else 1)
    gathered = tokens * m.hidden * element / t
    q = tokens * m.heads * m.head_dim * element / t
    kv = tokens * max(m.kv_heads / t, 1) * m.head_dim * element
    ffn = tokens * m.ffn * element / t
    tensors = [wide, wide, gathered, gathered, q, kv, kv, q, tokens * m.heads / t * 4]
    tensors += [ffn, ffn, ffn] if m.gated else [ffn, ffn]
    if m.dropout:
        tensors += [wide / 2, wide / 2]
    if point.attention is Attention.UNFUSED:
        area = point.micro_batch * m.heads / t * float(point.seq_len) ** 2
        tensors += [area * element, area * element, area]
    return tensors


def stage_truth(
    point: Point,
    device: HiddenDevice,
    link: Link | None,
    *,
    state_bytes: float,
    capacity_bytes: int,
    chunks: tuple[int, ...] = (),
    flights: float | None = None,
) -> StageTruth:
    """Time and memory of ``point`` on ``device``.

    Args:
        link: The TP group's link; None for one rank.
        state_bytes: Bytes per held parameter for weights, gradients and optimizer state.
        capacity_bytes: Device memory the allocator may fill; close to it, everything slows down.
        chunks: Layers of each virtual stage, within which K and N of a recompute count; one chunk when left out.
        flights: Micro-batches held in units of the whole stage, where chunks make it no whole number; else the point's.
    """
    layer = _Layer(point, device, link)
    kind, n, count = point.recompute.kind, point.recompute.n, point.layers
    chunks = chunks or (count,)
    in_blocks = sum(min(n, layers) for layers in chunks)
    recomputed = {"full": count, "uniform": count, "block": in_blocks}.get(kind, 0)
    forward_layer, backward_layer = layer.forward(), layer.backward()
    forward = count * forward_layer
    backward = count * backward_layer + recomputed * (forward_layer * 0.97 + device.checkpoint_s)
    if kind == "selective":
        backward += count * (layer.attention_core()[0] + device.checkpoint_s / 2)
    tokens, element = layer.tokens, layer.element
    m, t = point.model, point.tp
    if point.embedding:
        rows = tokens * m.hidden * element
        forward += layer.elementwise(3.0 * rows) + (layer.collective() / 2)
        backward += layer.elementwise(6.0 * rows)
    if point.head:
        head_forward, head_backward = layer.head()
        forward, backward = forward + head_forward, backward + head_backward

    def blocks(sizes: list[float]) -> float:
        unit = device.block_bytes
        return float(sum(math.ceil(s / unit) * unit if s > unit / 2 else math.ceil(s / 512) * 512 for s in sizes))

    saved = blocks(_saved_per_layer(point, element))
    boundary = blocks([tokens * m.hidden * element / (t if point.sequence_parallel else 1)])
    if kind == "selective" and point.attention is Attention.UNFUSED:
        saved = blocks(_saved_per_layer(point, element)[:-3])
    if kind in ("full", "uniform"):
        group = max(n, 1)
        kept = sum(math.ceil(layers / group) for layers in chunks)
        held, working = kept * boundary, min(group, max(chunks)) * saved
    else:
        held = (count - recomputed) * saved + recomputed * boundary
        working = saved if recomputed else 0.0
    in_flight = point.in_flight if flights is None else flights
    activations = held * in_flight + working + 2 * boundary
    if point.embedding:
        activations += boundary * in_flight * 0.5
    logits = 0.0
    if point.head:
        logits = blocks([tokens * m.padded_vocab(t) / t * 4, tokens * m.padded_vocab(t) / t * element, boundary])
    parameters = state_parameters(point)
    allocated = parameters * state_bytes + activations + logits
    churn = device.churn * (1.0 if recomputed or kind == "selective" else 0.0)
    odd = 0.01 if point.micro_batch & (point.micro_batch - 1) else 0.0
    reserved = allocated + (activations + logits) * (device.fragmentation + churn + odd) + 0.01 * allocated
    slow = 1.0 + (device.pressure if reserved > 0.92 * capacity_bytes else 0.0)
    # Adam reads and writes weight, gradient and both moments.
    optimizer = parameters * min(state_bytes, 18.0) * 1.6 / device.bandwidth_bytes_s + 40 * device.launch_s
    return StageTruth(forward * slow, backward * slow, optimizer, int(allocated), int(reserved), parameters)
