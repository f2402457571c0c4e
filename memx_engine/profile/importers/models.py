"""The model of a table's row: a preset of that name, what the row states, and what is assumed of the rest."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model, model_presets
from memx_engine.profile.importers.columns import Columns

GATED_VOCAB, PLAIN_VOCAB = 32_000, 50_257
"""Llama 2's and GPT-2's vocabulary, where a row states none."""

_SHAPE = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "max_position")
_GATED_NAMES = re.compile(r"llama|qwen|mistral|internlm|baichuan|aquila|yi-|gemma|phi-?3|phi-?4|olmo", re.IGNORECASE)
_EXPERTS = re.compile(r"moe|mixtral|deepseek|_a\d+b|gpt.?oss|kimi|glm-?4\.5|\d+x\d+b", re.IGNORECASE)
_PARTIAL = re.compile(r"lora|qlora|adapter", re.IGNORECASE)
_SUFFIXES = re.compile(r"\(.*?\)|finetune|pretrain|instruct|chat|\bsft\b|\bhf\b|\bbase\b|megatron|flagscale")


class NotJudgeableError(Exception):
    """A row that is kept but that the cost model cannot be held against; the message is the reason."""


def row_model(columns: Columns, *, default_layers: int | None = None) -> tuple[TransformerSpec, tuple[str, ...]]:
    """The transformer that the row is about, and what was assumed of it.

    A feed-forward width that is not four times the hidden size means a gated block (Llama), one that is, a plain one
    (GPT with LayerNorm, biases, dropout and tied embeddings).

    Args:
        default_layers: Where neither the row nor a preset tells: a row about one layer need not say.

    Raises:
        NotJudgeableError: The shape is neither stated nor known by the model's name, or is outside the cost model.
    """
    shape = tuple(columns.get(name) for name in _SHAPE)
    return _model(str(columns.get("model", "")), shape, columns.get("seq_len"), default_layers)


@lru_cache(maxsize=4096)
def _model(
    name: str, shape: tuple[int | None, ...], seq_len: int | None, default_layers: int | None
) -> tuple[TransformerSpec, tuple[str, ...]]:
    layers, hidden, ffn, heads, kv_heads, vocab, max_position = shape
    layers = layers or default_layers
    if _EXPERTS.search(name):
        raise NotJudgeableError("mixtures of experts are outside the cost model")
    if _PARTIAL.search(name):
        raise NotJudgeableError("only a part of the parameters is trained (LoRA)")
    preset = find_preset(name)
    if preset is not None and _agrees(preset, shape):
        return replace(preset, vocab=vocab or preset.vocab), ()
    missing = [word for word, value in (("layers", layers), ("hidden", hidden), ("heads", heads)) if value is None]
    if missing or hidden is None or heads is None or layers is None:
        raise NotJudgeableError(f"{', '.join(missing)} not stated, and no preset is called {name or 'nothing'!r}")
    if hidden % heads:
        raise NotJudgeableError(f"the hidden size {hidden} is not a multiple of the {heads} heads")
    gated_name = _GATED_NAMES.search(name) is not None
    if ffn is None and gated_name:
        raise NotJudgeableError("ffn is not stated, and a gated block's width does not follow from the hidden size")
    assumed = []
    if ffn is None:
        ffn = 4 * hidden
        assumed.append(f"ffn {ffn}")
    gated = ffn != 4 * hidden or gated_name
    if vocab is None:
        vocab = GATED_VOCAB if gated else PLAIN_VOCAB
        assumed.append(f"vocabulary {vocab}")
    positions = max_position or seq_len or 2048
    spec = TransformerSpec(
        name=name or "model",
        architecture="llama" if gated else "gpt2",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=hidden // heads,
        vocab=vocab,
        max_positions=positions,
        gated=gated,
        norm="rmsnorm" if gated else "layernorm",
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        position_rows=0 if gated else positions,
        dropout=not gated,
        tied_embeddings=not gated,
    )
    return spec, tuple(assumed)


def _agrees(preset: TransformerSpec, shape: tuple[int | None, ...]) -> bool:
    layers, hidden, ffn, heads, kv_heads, _, _ = shape
    pairs = (
        (layers, preset.layers), (hidden, preset.hidden), (ffn, preset.ffn), (heads, preset.heads),
        (kv_heads, preset.kv_heads),
    )  # fmt: skip
    return all(stated is None or stated == own for stated, own in pairs)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


@lru_cache(maxsize=1)
def _by_folded_name() -> dict[str, str]:
    return {_folded(name): name for name in model_presets()}


@lru_cache(maxsize=1024)
def find_preset(name: str) -> TransformerSpec | None:
    """The preset that a table means by ``name``, spelling, ``(SFT)`` and the like aside; ``LLAMA-3-8`` is one."""
    plain = _folded(_SUFFIXES.sub(" ", name.casefold()))
    plain = re.sub(r"^llama1", "llama", plain)
    known = _by_folded_name()
    for spelling in (plain, plain + "b", plain + "m"):
        if spelling in known:
            return load_model(known[spelling])
    return None
