"""Parameters that one rank of a stage holds, and the bytes of weights, gradients and optimizer state they cost.

Megatron's placement: the embedding belongs to the first stage, final norm and output matrix to the last; tied
matrices stand at both ends once PP > 1. Matrices are divided by TP, norms and the biases of row-parallel matrices are
replicated, the vocabulary is padded to a multiple of ``128 * tp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter held by a rank: weights, gradients, and optimizer state (fp32 copy and Adam's moments)."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def gradient_bytes(job: Job) -> int:
    """Bytes of one gradient element as it is kept and reduced: 2 in fp16 (and bf16 without fp32 gradients), else 4."""
    return 4 if job.precision is Precision.FP32 or (job.precision is Precision.BF16 and job.fp32_gradients) else 2


def state_bytes(job: Job, dp: int) -> StateBytes:
    """State per parameter with Adam: bf16 18 (6 + 12/DP sharded), fp16 20 (4 + 16/DP), fp32 16 (8 + 8/DP).

    Source: Megatron-LM docs, "Distributed Optimizer", table of theoretical memory per parameter.
    """
    weight, gradient = job.bytes_per_element, gradient_bytes(job)
    if job.precision is Precision.FP32:
        optimizer = 8.0
    else:
        # 16-bit gradients are copied to fp32 for the step: 4 more.
        optimizer = 12.0 if gradient == 4 else 16.0
    return StateBytes(weight, gradient, optimizer / (dp if job.optimizer is Optimizer.SHARDED else 1))


def layer_parameters(model: TransformerSpec, tp: int) -> float:
    """Parameters of one layer on one of ``tp`` ranks."""
    q_width, kv_width = model.heads * model.head_dim, model.kv_heads * model.head_dim
    up = 2 if model.gated else 1
    divided = model.hidden * (q_width + 2 * kv_width) + q_width * model.hidden + (up + 1) * model.hidden * model.ffn
    replicated = model.layer.norms
    if model.qkv_bias:
        divided += q_width + 2 * kv_width
    if model.attention_output_bias:
        replicated += model.hidden
    if model.mlp_bias:
        divided += up * model.ffn
        replicated += model.hidden
    return divided / tp + replicated


def vocabulary_matrix(model: TransformerSpec, tp: int) -> float:
    """Parameters of one rank's share of the padded token table (or of the output matrix, which has the same shape)."""
    return model.padded_vocab(tp) * (model.embedding_width or model.hidden) / tp


def embedding_parameters(model: TransformerSpec, tp: int) -> float:
    """What a rank of the first stage holds beside its layers; learned positions, projection and norm are replicated."""
    replicated = model.embedding_parameters - model.vocab * (model.embedding_width or model.hidden)
    return vocabulary_matrix(model, tp) + replicated


def head_parameters(model: TransformerSpec, tp: int, *, own_matrix: bool) -> float:
    """What a rank of the last stage holds beside its layers.

    Args:
        own_matrix: False only where the output head shares the first stage's matrix in place (tied, PP = 1).
    """
    norm = model.norm_parameters if model.final_norm else 0
    matrix = vocabulary_matrix(model, tp) if own_matrix else 0.0
    bias = model.padded_vocab(tp) / tp if model.head_bias else 0.0
    return norm + model.projection_parameters + matrix + bias


def stage_parameters(
    model: TransformerSpec, layers: int, tp: int, *, first: bool, last: bool, untied: bool = False
) -> float:
    """Parameters on one rank of a stage with ``layers`` layers."""
    total = layers * layer_parameters(model, tp)
    if first:
        total += embedding_parameters(model, tp)
    if last:
        total += head_parameters(model, tp, own_matrix=not (first and model.tied_embeddings and not untied))
    return total
