"""Activation bytes that the backward pass needs, derived tensor by tensor from the model's shape.

Source of the accounting: Korthikanti et al. 2022 (arXiv:2205.05198), section 4, extended to grouped queries, gated
feed-forwards, RMSNorm, missing dropout and fused attention. The fused kernel's row statistics (4 bytes per head and
token, about 0.1 %) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.inputs.job import Attention, Job, Precision
from memx_engine.inputs.model import TransformerSpec

"""fp32 logits, their 16-bit source, and an fp32 gradient: a framework whose loss does not work in place."""


@dataclass(frozen=True)
class Tensor:
    """One kept tensor: bytes on one rank for one micro-batch, and whether selective recompute drops it."""

    name: str
    size_bytes: float
    core: bool = False


@dataclass(frozen=True)
class Shape:
    """The sizes that one rank sees: TP degree, micro-batch, sequence length, and whether sequences are divided."""

    tp: int
    micro_batch: int
    seq_len: int
    sequence_parallel: bool

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.seq_len

    @property
    def sequence_split(self) -> int:
        """What norm inputs, residuals and dropout masks are divided by."""
        return self.tp if self.sequence_parallel else 1

    def kv_heads(self, model: TransformerSpec) -> float:
        """Key/value heads of one rank; a rank never holds a fraction of a head, so small counts are replicated."""
        return max(model.kv_heads / self.tp, 1.0)


def layer_tensors(model: TransformerSpec, job: Job, shape: Shape) -> tuple[Tensor, ...]:
    """What one layer keeps for its backward pass, on one rank and for one micro-batch."""
    element, tokens, tp = job.bytes_per_element, shape.tokens, shape.tp
    row = tokens * model.hidden * element / shape.sequence_split
    mask = tokens * model.hidden / shape.sequence_split
    head = tokens * model.head_dim * element
    heads, kv_heads = model.heads / tp, shape.kv_heads(model)
    up = 2 if model.gated else 1

    residuals = 1 if model.parallel_block else 2
    matrix_inputs = model.norms_per_layer if model.parallel_block else 2
    tensors = [
        Tensor("residual inputs of the norms", residuals * row),
        Tensor("norm outputs, inputs of the matrices", matrix_inputs * row),
        Tensor("queries", heads * head),
        Tensor("keys and values", 2 * kv_heads * head),
        Tensor("attention output, input of its projection", heads * head),
        Tensor("feed-forward, before the activation", up * tokens * model.ffn * element / tp),
        Tensor("feed-forward, after the activation", tokens * model.ffn * element / tp),
    ]
    post_norms = 0 if model.parallel_block else max(model.norms_per_layer - 2, 0)
    if post_norms:
        tensors.append(Tensor("inputs of the norms behind the blocks", post_norms * row))
    if model.qk_norm:
        tensors.append(Tensor("queries and keys before their norms", (heads + kv_heads) * head))
    if model.dropout:
        tensors.append(Tensor("dropout masks of the two blocks", 2 * mask))
    if job.attention is Attention.UNFUSED:
        scores = heads * shape.micro_batch * float(shape.seq_len) ** 2
        tensors.append(Tensor("softmax of the scores", scores * element, core=True))
        if model.dropout:
            tensors.append(Tensor("dropout of the scores: mask and output", scores * (1 + element), core=True))
    return tuple(tensors)


def layer_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """Activation bytes of one layer that is not recomputed."""
    return sum(tensor.size_bytes for tensor in layer_tensors(model, job, shape))


def core_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """The part of :func:`layer_bytes` that selective recompute drops: the attention scores; nothing when fused."""
    return sum(tensor.size_bytes for tensor in layer_tensors(model, job, shape) if tensor.core)


def input_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """The one tensor a recomputed layer keeps: its input."""
    return shape.tokens * model.hidden * job.bytes_per_element / shape.sequence_split


def transient_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """Work space of one layer's backward pass: the gradients of the feed-forward's inner tensors."""
    up = 2 if model.gated else 1
    return (up + 1) * shape.tokens * model.ffn * job.bytes_per_element / shape.tp


def embedding_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """What the embedding keeps beside its output (the first layer's input): token ids, dropout mask, a norm's input."""
    row = shape.tokens * model.hidden / shape.sequence_split
    mask = row if model.dropout else 0.0
    norm = row * job.bytes_per_element if model.embedding_norm else 0.0
    return 8.0 * shape.tokens + mask + norm


def head_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """What the last stage keeps besides logits: input and output of the final norm."""
    return (2 if model.final_norm else 1) * input_bytes(model, job, shape)


def logits_elements(model: TransformerSpec, shape: Shape) -> float:
    """Elements of one rank's logits, padded vocabulary; in fp32, 4 bytes each, this is the loss's largest tensor."""
    return shape.tokens * model.padded_vocab(shape.tp) / shape.tp


def logits_bytes(model: TransformerSpec, job: Job, shape: Shape) -> float:
    """Logits on one rank, the loss fused: fp32 plus their 16-bit source, 6 bytes an element."""
    return (8 if job.precision is Precision.FP32 else 6) * logits_elements(model, shape)
