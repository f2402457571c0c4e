"""What each Hugging Face architecture makes of its ``config.json``.

Defaults are those of the configuration classes of transformers 4.57.1 (``models/*/configuration_*.py``); which matrices
carry a bias, how many norms a layer has and what is tied is from the modelling files beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from memx_engine.errors import UnsupportedModelError
from memx_engine.inputs.config_keys import ConfigKeys

Fields = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """One ``model_type``: the class whose defaults count, what it is called, and how its keys are read."""

    config_class: str
    title: str
    read: Callable[[ConfigKeys], Fields]


@dataclass(frozen=True)
class _Llama:
    """The decoder with gated feed-forward, RMSNorm and rotary positions; classes differ in defaults and biases.

    Attributes:
        kv_heads: Default of ``num_key_value_heads``; None means as many as heads.
        head_dim: Default of ``head_dim``; None means hidden / heads.
        attention_bias: Default of that key; None where the class has no such key.
        qkv_bias: The class's queries, keys and values always carry a bias.
        bias_key: What that key is called.
        window: Which layers have the window: ``all``; ``after``, those from ``max_window_layers`` on when
            ``use_sliding_window``; ``M``, all but every M-th; empty where the class knows no window.
        window_default: Default of ``sliding_window``.
    """

    hidden: int | None = None
    ffn: int | None = None
    layers: int | None = None
    heads: int | None = None
    vocab: int | None = None
    positions: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    qkv_bias: bool = False
    bias_key: str = "attention_bias"
    norms: int = 2
    qk_norm: bool = False
    qk_norm_full: bool = False
    window: str = ""
    window_default: int | None = None

    def __call__(self, keys: ConfigKeys) -> Fields:
        hidden, heads, layers = _shape(keys, self.hidden, self.heads, self.layers)
        kv_default, kv_shown = (heads, "as many as heads") if self.kv_heads is None else (self.kv_heads, None)
        bias = self.attention_bias is not None and keys.boolean(self.bias_key, default=self.attention_bias)
        window, windowed = self._window(keys, layers)
        return {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "ffn": keys.integer("intermediate_size", default=self.ffn, limit="ffn"),
            "kv_heads": keys.integer(
                "num_key_value_heads", default=kv_default, limit="heads", null=heads, shown=kv_shown
            ),
            "head_dim": self._head_dim(keys, hidden, heads),
            "vocab": keys.integer("vocab_size", default=self.vocab, limit="vocab"),
            "max_positions": keys.integer("max_position_embeddings", default=self.positions, limit="positions"),
            "norms_per_layer": self.norms,
            "qk_norm": self.qk_norm,
            "qk_norm_full": self.qk_norm_full,
            "qkv_bias": self.qkv_bias or bias,
            "attention_output_bias": bias,
            "mlp_bias": self.mlp_bias is not None and keys.boolean("mlp_bias", default=self.mlp_bias),
            "tied_embeddings": keys.boolean("tie_word_embeddings", default=self.tied),
            "sliding_window": window,
            "windowed_layers": windowed,
        }

    def _head_dim(self, keys: ConfigKeys, hidden: int, heads: int) -> int:
        if self.head_dim is not None:
            return keys.integer("head_dim", default=self.head_dim, limit="width")
        if not keys.is_set("head_dim"):
            return _whole_head(keys, hidden, heads)
        return keys.integer("head_dim", default=None, limit="width")

    def _window(self, keys: ConfigKeys, layers: int) -> tuple[int | None, int]:
        """The attention window and how many layers have it."""
        if not self.window or (self.window == "after" and not keys.boolean("use_sliding_window", default=False)):
            return None, 0
        window = keys.window("sliding_window", default=self.window_default)
        if window is None:
            return None, 0
        types = keys.layer_types(layers)
        if types is not None:
            windowed = types.count("sliding_attention")
        elif self.window == "all":
            windowed = layers
        elif self.window == "after":
            first = keys.integer("max_window_layers", default=28, limit="layers")
            windowed = max(0, layers - first)
        else:
            every = int(self.window)
            if keys.is_set("sliding_window_pattern", "_sliding_window_pattern"):
                every = keys.integer("sliding_window_pattern", "_sliding_window_pattern", default=None, limit="layers")
            windowed = layers - layers // every
        return (window, windowed) if windowed else (None, 0)


def _shape(keys: ConfigKeys, hidden: int | None, heads: int | None, layers: int | None) -> tuple[int, int, int]:
    """Width, heads and layers, under today's names or GPT-2's, BLOOM's and old Falcon's."""
    return (
        keys.integer("hidden_size", "n_embd", "n_embed", default=hidden, limit="width"),
        keys.integer("num_attention_heads", "n_head", default=heads, limit="heads"),
        keys.integer("num_hidden_layers", "n_layer", default=layers, limit="layers"),
    )


def _whole_head(keys: ConfigKeys, hidden: int, heads: int) -> int:
    """hidden / heads where the class has no head size of its own; InputError when it is not whole."""
    if hidden % heads:
        raise keys.fail(
            f"{heads} attention heads do not divide the hidden size {hidden}",
            "num_attention_heads",
            "n_head",
            hint="give a number of heads that divides the hidden size",
        )
    return hidden // heads


def _classic(keys: ConfigKeys, hidden: int, heads: int, layers: int) -> Fields:
    """What GPT-2, NeoX, OPT, BLOOM and Falcon share: LayerNorm, two feed-forward matrices, biases, KV heads = heads."""
    width, head_count, layer_count = _shape(keys, hidden, heads, layers)
    return {
        "layers": layer_count,
        "hidden": width,
        "heads": head_count,
        "kv_heads": head_count,
        "head_dim": _whole_head(keys, width, head_count),
        "gated": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


def _gpt2(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 768, 12, 12)
    positions = keys.integer("n_positions", "max_position_embeddings", default=1024, limit="positions")
    four = 4 * fields["hidden"]
    return fields | {
        "ffn": keys.integer("n_inner", default=four, limit="ffn", null=four, shown="four times the hidden size"),
        "vocab": keys.integer("vocab_size", default=50257, limit="vocab"),
        "max_positions": positions,
        "position_rows": positions,
        "dropout": keys.dropout("resid_pdrop", 0.1),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=True),
    }


def _gptj(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 4096, 16, 28)
    four = 4 * fields["hidden"]
    return fields | {
        "ffn": keys.integer("n_inner", default=four, limit="ffn", null=four, shown="four times the hidden size"),
        "vocab": keys.integer("vocab_size", default=50400, limit="vocab"),
        "max_positions": keys.integer("n_positions", "max_position_embeddings", default=2048, limit="positions"),
        "qkv_bias": False,
        "attention_output_bias": False,
        "norms_per_layer": 1,
        "parallel_block": True,
        "head_bias": True,
        "dropout": keys.dropout("resid_pdrop", 0.0),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=False),
    }


def _gpt_neox(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 6144, 64, 44)
    bias = keys.boolean("attention_bias", default=True)
    return fields | {
        "ffn": keys.integer("intermediate_size", default=24576, limit="ffn"),
        "vocab": keys.integer("vocab_size", default=50432, limit="vocab"),
        "max_positions": keys.integer("max_position_embeddings", default=2048, limit="positions"),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "parallel_block": keys.boolean("use_parallel_residual", default=True),
        "dropout": keys.dropout("hidden_dropout", 0.0),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=False),
    }


def _opt(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 768, 12, 12)
    if keys.is_set("layer_norm_elementwise_affine") and not keys.boolean("layer_norm_elementwise_affine", default=True):
        raise UnsupportedModelError(
            "norms without parameters (layer_norm_elementwise_affine: false) are not described by the cost model",
            where=keys.fail("", "layer_norm_elementwise_affine").where,
        )
    bias = keys.boolean("enable_bias", default=True)
    positions = keys.integer("max_position_embeddings", default=2048, limit="positions")
    hidden = fields["hidden"]
    width = keys.integer("word_embed_proj_dim", default=hidden, limit="width", null=hidden, shown="the hidden size")
    return fields | {
        "ffn": keys.integer("ffn_dim", default=3072, limit="ffn"),
        "vocab": keys.integer("vocab_size", default=50272, limit="vocab"),
        "max_positions": positions,
        "position_rows": positions + 2,  # OPTLearnedPositionalEmbedding keeps two rows before the first position
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "final_norm": keys.boolean("do_layer_norm_before", default=True)
        and not (keys.is_set("_remove_final_layer_norm") and keys.boolean("_remove_final_layer_norm", default=False)),
        "embedding_width": None if width == hidden else width,
        "dropout": keys.dropout("dropout", 0.1),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=True),
    }


def _bloom(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 64, 8, 2)
    return fields | {
        "ffn": 4 * fields["hidden"],
        "vocab": keys.integer("vocab_size", default=250880, limit="vocab"),
        "max_positions": keys.integer("seq_length", default=2048, limit="positions"),
        "embedding_norm": True,
        "dropout": keys.dropout("hidden_dropout", 0.0),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=True),
    }


def _falcon(keys: ConfigKeys) -> Fields:
    fields = _classic(keys, 4544, 71, 32)
    hidden, heads = fields["hidden"], fields["heads"]
    bias = keys.boolean("bias", default=False)
    parallel = keys.boolean("parallel_attn", default=True)
    new = keys.boolean("new_decoder_architecture", default=False)
    if new:
        kv_heads = keys.integer(
            "num_kv_heads", "n_head_kv", default=heads, limit="heads", null=heads, shown="as many as heads"
        )
    else:
        kv_heads = 1 if keys.boolean("multi_query", default=True) else heads
    norms = 2
    if parallel:
        norms = 2 if new else 1
        if keys.is_set("num_ln_in_parallel_attn"):
            norms = 2 if keys.integer("num_ln_in_parallel_attn", default=None, limit="layers") == 2 else 1
    four = 4 * hidden
    return fields | {
        "ffn": keys.integer(
            "ffn_hidden_size", default=four, limit="ffn", null=four, shown="four times the hidden size"
        ),
        "kv_heads": kv_heads,
        "vocab": keys.integer("vocab_size", default=65024, limit="vocab"),
        "max_positions": keys.integer("max_position_embeddings", default=2048, limit="positions"),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "norms_per_layer": norms,
        "parallel_block": parallel,
        "dropout": keys.dropout("hidden_dropout", 0.0),
        "tied_embeddings": keys.boolean("tie_word_embeddings", default=True),
    }


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(
        "LlamaConfig",
        "Llama",
        _Llama(4096, 11008, 32, 32, 32000, 2048, attention_bias=False, mlp_bias=False),
    ),
    "mistral": Architecture(
        "MistralConfig",
        "Mistral",
        _Llama(4096, 14336, 32, 32, 32000, 131072, kv_heads=8, window="all", window_default=4096),
    ),
    "qwen2": Architecture(
        "Qwen2Config",
        "Qwen2 / Qwen2.5",
        _Llama(4096, 22016, 32, 32, 151936, 32768, kv_heads=32, qkv_bias=True, window="after", window_default=4096),
    ),
    "qwen3": Architecture(
        "Qwen3Config",
        "Qwen3",
        _Llama(
            4096,
            22016,
            32,
            32,
            151936,
            32768,
            kv_heads=32,
            head_dim=128,
            attention_bias=False,
            qk_norm=True,
            window="after",
            window_default=4096,
        ),
    ),
    "gemma": Architecture(
        "GemmaConfig",
        "Gemma",
        _Llama(3072, 24576, 28, 16, 256000, 8192, kv_heads=16, head_dim=256, tied=True, attention_bias=False),
    ),
    "gemma2": Architecture(
        "Gemma2Config",
        "Gemma 2",
        _Llama(
            2304,
            9216,
            26,
            8,
            256000,
            8192,
            kv_heads=4,
            head_dim=256,
            tied=True,
            attention_bias=False,
            norms=4,
            window="2",
            window_default=4096,
        ),
    ),
    "gemma3_text": Architecture(
        "Gemma3TextConfig",
        "Gemma 3 (text)",
        _Llama(
            2304,
            9216,
            26,
            8,
            262208,
            131072,
            kv_heads=4,
            head_dim=256,
            tied=True,
            attention_bias=False,
            norms=4,
            qk_norm=True,
            window="6",
            window_default=4096,
        ),
    ),
    "phi3": Architecture(
        "Phi3Config", "Phi-3 / Phi-4", _Llama(3072, 8192, 32, 32, 32064, 4096, window="all", window_default=None)
    ),
    "granite": Architecture(
        "GraniteConfig", "Granite", _Llama(4096, 11008, 32, 32, 32000, 2048, attention_bias=False, mlp_bias=False)
    ),
    "olmo2": Architecture(
        "Olmo2Config",
        "OLMo 2",
        _Llama(4096, 11008, 32, 32, 50304, 2048, attention_bias=False, qk_norm=True, qk_norm_full=True),
    ),
    "internlm2": Architecture("InternLM2Config", "InternLM2", _Llama(attention_bias=True, bias_key="bias")),
    "gpt2": Architecture("GPT2Config", "GPT-2", _gpt2),
    "gptj": Architecture("GPTJConfig", "GPT-J", _gptj),
    "gpt_neox": Architecture("GPTNeoXConfig", "GPT-NeoX / Pythia", _gpt_neox),
    "opt": Architecture("OPTConfig", "OPT", _opt),
    "bloom": Architecture("BloomConfig", "BLOOM", _bloom),
    "falcon": Architecture("FalconConfig", "Falcon", _falcon),
}
"""Supported architectures by Hugging Face ``model_type``."""

ALIASES: Final[Mapping[str, str]] = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon", "gemma3": "gemma3_text"}
"""Older or enclosing names of the same architectures."""
