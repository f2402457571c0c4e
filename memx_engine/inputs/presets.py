"""Models known by name: their published ``config.json`` shapes, complete, so that nothing is assumed.

Shapes are those of the ``config.json`` in each model's Hugging Face repository (for GPT-3: table 2.1 of Brown et al.
2020, in GPT-2's layout; for Aquila2: the FlagScale example configuration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Preset:
    """A title for people and the configuration as Hugging Face writes it."""

    title: str
    config: Mapping[str, Any]


def _gated(model_type: str, shape: tuple[int, ...], *, tied: bool = False, **more: Any) -> dict[str, Any]:
    """A gated decoder; ``shape``: hidden, ffn, layers, heads, KV heads, vocabulary, positions."""
    hidden, ffn, layers, heads, kv_heads, vocab, positions = shape
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
    } | more


def _llama(*shape: int, tied: bool = False, **more: Any) -> dict[str, Any]:
    return _gated("llama", shape, tied=tied, attention_bias=False, mlp_bias=False, **more)


def _mistral(*shape: int, **more: Any) -> dict[str, Any]:
    return _gated("mistral", shape, **({"sliding_window": None} | more))


def _qwen2(*shape: int, tied: bool = False) -> dict[str, Any]:
    return _gated("qwen2", shape, tied=tied, use_sliding_window=False)


def _qwen3(*shape: int, tied: bool = False) -> dict[str, Any]:
    return _gated("qwen3", shape, tied=tied, head_dim=128, attention_bias=False, use_sliding_window=False)


def _gemma(model_type: str, *shape: int, head_dim: int, window: int, **more: Any) -> dict[str, Any]:
    common = {"head_dim": head_dim, "sliding_window": window, "attention_bias": False}
    return _gated(model_type, shape, tied=True, **common, **more)


def _gpt2(hidden: int, layers: int, heads: int, positions: int = 1024) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": None,
        "n_positions": positions,
        "vocab_size": 50257,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": True,
    }


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": hidden,
        "do_layer_norm_before": True,
        "enable_bias": True,
        "dropout": 0.1,
        "tie_word_embeddings": True,
    }


def _falcon(hidden: int, layers: int, heads: int, kv_heads: int, *, new: bool) -> dict[str, Any]:
    return {
        "model_type": "falcon",
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads,
        "multi_query": True,
        "new_decoder_architecture": new,
        "parallel_attn": True,
        "bias": False,
        "hidden_dropout": 0.0,
        "vocab_size": 65024,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }


_NEOX_20B: Final = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
    "attention_bias": True,
    "use_parallel_residual": True,
    "hidden_dropout": 0.0,
    "tie_word_embeddings": False,
}

_BLOOM_176B: Final = {
    "model_type": "bloom",
    "hidden_size": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "seq_length": 2048,
    "hidden_dropout": 0.0,
    "tie_word_embeddings": True,
}

# Shapes of gated decoders: hidden, ffn, layers, heads, KV heads, vocabulary, positions.
PRESETS: Final[Mapping[str, Preset]] = {
    "llama2-7b": Preset("Llama 2 7B", _llama(4096, 11008, 32, 32, 32, 32000, 4096)),
    "llama2-13b": Preset("Llama 2 13B", _llama(5120, 13824, 40, 40, 40, 32000, 4096)),
    "llama2-70b": Preset("Llama 2 70B", _llama(8192, 28672, 80, 64, 8, 32000, 4096)),
    "llama3-8b": Preset("Llama 3 8B", _llama(4096, 14336, 32, 32, 8, 128256, 8192)),
    "llama3-70b": Preset("Llama 3 70B", _llama(8192, 28672, 80, 64, 8, 128256, 8192)),
    "llama3.1-8b": Preset("Llama 3.1 8B", _llama(4096, 14336, 32, 32, 8, 128256, 131072)),
    "llama3.1-70b": Preset("Llama 3.1 70B", _llama(8192, 28672, 80, 64, 8, 128256, 131072)),
    "llama3.1-405b": Preset("Llama 3.1 405B", _llama(16384, 53248, 126, 128, 8, 128256, 131072)),
    "llama3.2-1b": Preset("Llama 3.2 1B", _llama(2048, 8192, 16, 32, 8, 128256, 131072, tied=True)),
    "llama3.2-3b": Preset("Llama 3.2 3B", _llama(3072, 8192, 28, 24, 8, 128256, 131072, tied=True)),
    "llama-7b": Preset("Llama 7B", _llama(4096, 11008, 32, 32, 32, 32000, 2048)),
    "llama-13b": Preset("Llama 13B", _llama(5120, 13824, 40, 40, 40, 32000, 2048)),
    "llama-30b": Preset("Llama 30B", _llama(6656, 17920, 60, 52, 52, 32000, 2048)),
    "llama-65b": Preset("Llama 65B", _llama(8192, 22016, 80, 64, 64, 32000, 2048)),
    "qwen2.5-1.5b": Preset("Qwen2.5 1.5B", _qwen2(1536, 8960, 28, 12, 2, 151936, 131072, tied=True)),
    "qwen2.5-7b": Preset("Qwen2.5 7B", _qwen2(3584, 18944, 28, 28, 4, 152064, 131072)),
    "qwen2.5-14b": Preset("Qwen2.5 14B", _qwen2(5120, 13824, 48, 40, 8, 152064, 131072)),
    "qwen2.5-32b": Preset("Qwen2.5 32B", _qwen2(5120, 27648, 64, 40, 8, 152064, 131072)),
    "qwen2.5-72b": Preset("Qwen2.5 72B", _qwen2(8192, 29568, 80, 64, 8, 152064, 131072)),
    "qwen3-4b": Preset("Qwen3 4B", _qwen3(2560, 9728, 36, 32, 8, 151936, 40960, tied=True)),
    "qwen3-8b": Preset("Qwen3 8B", _qwen3(4096, 12288, 36, 32, 8, 151936, 40960)),
    "qwen3-14b": Preset("Qwen3 14B", _qwen3(5120, 17408, 40, 40, 8, 151936, 40960)),
    "qwen3-32b": Preset("Qwen3 32B", _qwen3(5120, 25600, 64, 64, 8, 151936, 40960)),
    "mistral-7b": Preset("Mistral 7B v0.3", _mistral(4096, 14336, 32, 32, 8, 32768, 32768)),
    "mistral-nemo-12b": Preset("Mistral Nemo 12B", _mistral(5120, 14336, 40, 32, 8, 131072, 131072, head_dim=128)),
    "mistral-large": Preset("Mistral Large 2 123B", _mistral(12288, 28672, 88, 96, 8, 32768, 131072, head_dim=128)),
    "gemma2-9b": Preset(
        "Gemma 2 9B", _gemma("gemma2", 3584, 14336, 42, 16, 8, 256000, 8192, head_dim=256, window=4096)
    ),
    "gemma2-27b": Preset(
        "Gemma 2 27B", _gemma("gemma2", 4608, 36864, 46, 32, 16, 256000, 8192, head_dim=128, window=4096)
    ),
    "gemma3-12b": Preset(
        "Gemma 3 12B (text)", _gemma("gemma3_text", 3840, 15360, 48, 16, 8, 262208, 131072, head_dim=256, window=1024)
    ),
    "gemma3-27b": Preset(
        "Gemma 3 27B (text)", _gemma("gemma3_text", 5376, 21504, 62, 32, 16, 262208, 131072, head_dim=128, window=1024)
    ),
    "phi-3-mini": Preset(
        "Phi-3 mini 3.8B", _gated("phi3", (3072, 8192, 32, 32, 32, 32064, 4096), sliding_window=2047, resid_pdrop=0.0)
    ),
    "phi-4": Preset(
        "Phi-4 14B", _gated("phi3", (5120, 17920, 40, 40, 10, 100352, 16384), sliding_window=None, resid_pdrop=0.0)
    ),
    "olmo2-7b": Preset("OLMo 2 7B", _gated("olmo2", (4096, 11008, 32, 32, 32, 100352, 4096), attention_bias=False)),
    "olmo2-13b": Preset("OLMo 2 13B", _gated("olmo2", (5120, 13824, 40, 40, 40, 100352, 4096), attention_bias=False)),
    "internlm-7b": Preset("InternLM 7B", _gated("internlm2", (4096, 11008, 32, 32, 32, 103168, 2048), bias=True)),
    "internlm2-7b": Preset("InternLM2 7B", _gated("internlm2", (4096, 14336, 32, 32, 8, 92544, 32768), bias=False)),
    "internlm2-20b": Preset("InternLM2 20B", _gated("internlm2", (6144, 16384, 48, 48, 8, 92544, 32768), bias=False)),
    "aquila2-7b": Preset("Aquila2 7B", _llama(4096, 11008, 32, 32, 32, 100008, 2048)),
    "gpt2": Preset("GPT-2", _gpt2(768, 12, 12)),
    "gpt2-medium": Preset("GPT-2 medium", _gpt2(1024, 24, 16)),
    "gpt2-large": Preset("GPT-2 large", _gpt2(1280, 36, 20)),
    "gpt2-xl": Preset("GPT-2 XL", _gpt2(1600, 48, 25)),
    "gpt3-6.7b": Preset("GPT-3 6.7B", _gpt2(4096, 32, 32, positions=2048)),
    "gpt3-175b": Preset("GPT-3 175B", _gpt2(12288, 96, 96, positions=2048)),
    "opt-6.7b": Preset("OPT 6.7B", _opt(4096, 32, 32)),
    "opt-13b": Preset("OPT 13B", _opt(5120, 40, 40)),
    "opt-30b": Preset("OPT 30B", _opt(7168, 48, 56)),
    "opt-66b": Preset("OPT 66B", _opt(9216, 64, 72)),
    "gpt-neox-20b": Preset("GPT-NeoX 20B", _NEOX_20B),
    "bloom-176b": Preset("BLOOM 176B", _BLOOM_176B),
    "falcon-7b": Preset("Falcon 7B", _falcon(4544, 32, 71, 71, new=False)),
    "falcon-40b": Preset("Falcon 40B", _falcon(8192, 60, 128, 8, new=True)),
}
