"""The transformer an operator trains: shapes, and parameter counts exact to the parameter, per part.

Values only: reading ``config.json`` and presets is :mod:`memx_engine.inputs.model_file`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one transformer layer, by part; ``qkv`` and ``mlp`` matrices are divided by TP, norms are not."""

    qkv: int
    attention_output: int
    mlp: int
    norms: int

    @property
    def total(self) -> int:
        return self.qkv + self.attention_output + self.mlp + self.norms


@dataclass(frozen=True)
class TransformerSpec:
    """A decoder-only transformer.

    Attributes:
        name: What the operator calls it; not part of the fingerprint.
        architecture: The Hugging Face ``model_type``.
        heads, kv_heads, head_dim: ``head_dim`` may differ from hidden / heads (Gemma).
        ffn: Inner width of the feed-forward block.
        gated: True for SwiGLU / GeGLU (three matrices), False for two.
        norm: ``rmsnorm`` (weight only) or ``layernorm`` (weight and bias).
        norms_per_layer: 2 for Llama and GPT-2, 4 for Gemma 2, 1 for Falcon-7B's parallel block.
        qk_norm: True where queries and keys pass a norm of size head_dim (Qwen3).
        qk_norm_full: True where those norms span the whole projection instead of one head (OLMo 2).
        qkv_bias, attention_output_bias, mlp_bias: Whether those matrices carry a bias.
        position_rows: Rows of a learned position table; 0 for rotary or ALiBi.
        dropout: True where the class applies dropout, whose masks are kept for the backward pass.
        parallel_block: True where attention and feed-forward run side by side on one residual (NeoX, Falcon).
        tied_embeddings: The output head shares the embedding matrix.
        head_bias: The output head carries a bias.
        max_positions: Longest sequence the configuration declares.
        sliding_window: Attention window of the windowed layers, None for full attention.
        windowed_layers: How many layers are windowed (Gemma 2: every other one); 0 without a window.
        embedding_width: Width of the token table where it differs from hidden (OPT-350M): one projection behind the
            table, one before the head.
        assumed: What the file left out and how it was filled, one sentence each.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    gated: bool = True
    norm: str = "rmsnorm"
    norms_per_layer: int = 2
    qk_norm: bool = False
    qk_norm_full: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    position_rows: int = 0
    dropout: bool = False
    parallel_block: bool = False
    tied_embeddings: bool = False
    head_bias: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    sliding_window: int | None = None
    windowed_layers: int = 0
    embedding_width: int | None = None
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden width."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @cached_property
    def layer(self) -> LayerParameters:
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        qkv = self.hidden * (q_width + 2 * kv_width) + (q_width + 2 * kv_width if self.qkv_bias else 0)
        output = q_width * self.hidden + (self.hidden if self.attention_output_bias else 0)
        up = 2 if self.gated else 1
        mlp = (up + 1) * self.hidden * self.ffn + (up * self.ffn + self.hidden if self.mlp_bias else 0)
        norms = self.norms_per_layer * self.norm_parameters
        if self.qk_norm:
            norms += q_width + kv_width if self.qk_norm_full else 2 * self.head_dim
        return LayerParameters(qkv, output, mlp, norms)

    @property
    def projection_parameters(self) -> int:
        """One projection between the width of the token table and hidden; 0 where they are equal."""
        return self.embedding_width * self.hidden if self.embedding_width else 0

    @property
    def embedding_parameters(self) -> int:
        """Token table, projection, learned positions, embedding norm: held by the first stage beside its layers."""
        width = self.embedding_width or self.hidden
        norm = self.norm_parameters if self.embedding_norm else 0
        return self.vocab * width + self.projection_parameters + self.position_rows * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Final norm, projection and, when not tied, the output matrix: what the last stage holds beside its layers."""
        norm = self.norm_parameters if self.final_norm else 0
        matrix = 0 if self.tied_embeddings else self.vocab * (self.embedding_width or self.hidden)
        return norm + self.projection_parameters + matrix + (self.vocab if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters, exact."""
        return self.embedding_parameters + self.layers * self.layer.total + self.head_parameters

    def padded_vocab(self, tp: int) -> int:
        """Vocabulary padded to a multiple of ``128 * tp``, as Megatron does by default."""
        unit = 128 * tp
        return -(-self.vocab // unit) * unit

    @cached_property
    def fingerprint(self) -> str:
        """Hash of every field that can change a number."""
        document = asdict(self)
        document.pop("name")
        document.pop("assumed")
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
