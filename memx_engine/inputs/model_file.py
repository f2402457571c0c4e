"""Models from a Hugging Face ``config.json``, a preset name, or the model part of a plan file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, Final

from memx_engine.errors import InputError, UnsupportedModelError
from memx_engine.inputs.architectures import ALIASES, ARCHITECTURES
from memx_engine.inputs.config_keys import LIMITS, ConfigKeys
from memx_engine.inputs.documents import node_from_value, read_text
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.nodes import Node, Problems, brief, nearest
from memx_engine.inputs.presets import PRESETS
from memx_engine.inputs.scanning import scan_json

_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
_EXPERT_KEYS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_LATENT_KEYS: Final = ("kv_lora_rank", "q_lora_rank")
_STATE_KEYS: Final = ("ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "time_mix_extra_dim")

_MOE: Final = "mixture-of-experts models are not supported yet: expert parallelism is outside the cost model"
_MLA: Final = "multi-head latent attention is not supported yet: its compressed keys and values are not modelled"
_SEQ2SEQ: Final = "encoder-decoder models are not supported: plans describe decoder-only transformers"
_ENCODER: Final = "encoder-only models are not supported: plans describe decoder-only transformers"
_STATE: Final = "state-space, linear-attention and recurrent layers are not supported: only attention is modelled"

_UNSUPPORTED: Final[Mapping[str, str]] = {
    _MLA: "deepseek_v2 deepseek_v3 deepseek_v32 minicpm3 kimi_k2",
    _MOE: "mixtral qwen2_moe qwen3_moe gpt_oss glm4_moe dbrx olmoe phimoe granitemoe jetmoe llama4 llama4_text "
    "deepseek ernie4_5_moe minimax grok-1 hunyuan_v1_moe",
    _SEQ2SEQ: "t5 mt5 umt5 longt5 bart mbart pegasus marian m2m_100 led whisper blenderbot prophetnet "
    "switch_transformers",
    _ENCODER: "bert roberta xlm-roberta albert electra deberta deberta-v2 distilbert modernbert vit clip",
    _STATE: "mamba mamba2 falcon_mamba falcon_h1 jamba bamba zamba zamba2 rwkv rwkv5 recurrent_gemma nemotron_h "
    "granitemoehybrid qwen3_next lfm2",
}
"""Architectures known to be outside the cost model, by reason."""


def model_presets() -> Mapping[str, str]:
    """Preset names and their titles, in the order to show them."""
    return {name: preset.title for name, preset in PRESETS.items()}


def load_model(source: str) -> TransformerSpec:
    """The model called ``source``: a preset, a ``config.json``, a directory holding one, or ``-`` (standard input).

    A preset's name counts before a file of the same name; ``./name`` means the file.

    Raises:
        InputError: No such preset or file, or a file that cannot be used; names ``file:line: key``.
        UnsupportedModelError: An architecture that the cost model does not describe.
    """
    if not source.strip():
        raise InputError("no model is named", where="model", hint="give a preset such as llama3-8b, or a config.json")
    preset = _find_preset(source)
    if preset:
        node = node_from_value(dict(PRESETS[preset].config), f"preset {preset}")
        return _read(node, preset)
    path = Path(source)
    if source != "-" and path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError("no config.json in this directory", where=source)
    elif source != "-" and not path.exists():
        raise _unknown_source(source)
    text = read_text("-" if source == "-" else str(path))
    if source == "-":
        return parse_model(text, "<stdin>")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return parse_model(text, str(path), name)


def parse_model(text: str, where: str = "<text>", name: str = "") -> TransformerSpec:
    """The model that the text of a ``config.json`` describes; errors as in :func:`load_model`."""
    root = scan_json(text, Problems(where))
    assert root is not None  # without collecting, a missing root has raised
    return _read(root, name)


def _find_preset(source: str) -> str | None:
    """The preset meant by ``source``, in any case and with any of ``-``, ``_`` and ``.`` left out (llama-2-7b)."""
    if source in PRESETS:
        return source
    folded = re.sub(r"[-_.]", "", source.casefold())
    return next((name for name in PRESETS if re.sub(r"[-_.]", "", name) == folded), None)


def _unknown_source(source: str) -> InputError:
    if "/" in source or source.endswith(".json"):
        return InputError("no such file", where=source, hint="check the path, or give a preset such as llama3-8b")
    close = nearest(source, PRESETS, count=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"presets: {', '.join(PRESETS)}"
    return InputError(f"{source!r} is neither a preset nor a file", where="model", hint=hint)


def _read(root: Node, name: str) -> TransformerSpec:
    root.expect_mapping()
    node, assumed = _text_part(root)
    for place in (root, node):
        _refuse_unsupported_keys(place)
    model_type = _model_type(root, node)
    architecture = ARCHITECTURES[model_type]
    keys = ConfigKeys(node, architecture.config_class)
    if node is not root and not node.has("tie_word_embeddings") and root.child("tie_word_embeddings") is not None:
        # The enclosing model's setting decides where the text part is silent.
        assert node.fields is not None and root.fields is not None
        node.fields["tie_word_embeddings"] = root.fields["tie_word_embeddings"]
    values = architecture.read(keys)
    if node.child("quantization_config") is not None or root.child("quantization_config") is not None:
        assumed.append("quantization_config is ignored: weights are trained in the job's precision")
    spec = TransformerSpec(
        name=name or model_type, architecture=model_type, assumed=(*assumed, *keys.assumed), **values
    )
    if spec.heads % spec.kv_heads:
        raise keys.fail(
            f"{spec.kv_heads} key-value heads do not divide the {spec.heads} attention heads",
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            hint=f"use one of {', '.join(map(str, divisors(spec.heads)))}",
        )
    return spec


def _text_part(root: Node) -> tuple[Node, list[str]]:
    """The language model's own object, and what is said when it is nested in a larger model."""
    for key in _TEXT_PARTS:
        part = root.child(key)
        if part is not None:
            part.expect_mapping()
            return part, [f"only {key} is planned: the other parts of the model are left out"]
    return root, []


def _refuse_unsupported_keys(node: Node) -> None:
    for key in ("is_encoder_decoder", "add_cross_attention"):
        value = node.child(key)
        if value is not None and value.as_flag():
            raise UnsupportedModelError(_SEQ2SEQ, where=value.where)
    for reason, names in ((_MLA, _LATENT_KEYS), (_STATE, _STATE_KEYS)):
        for key in names:
            value = node.child(key)
            if value is not None:
                raise UnsupportedModelError(reason, where=value.where)
    for key in _EXPERT_KEYS:
        value = node.child(key)
        if value is not None and value.as_integer(0, LIMITS["width"]) > 1:
            raise UnsupportedModelError(_MOE, where=value.where)
    types = node.child("layer_types")
    for word in types.items() if types is not None else ():
        if word.as_text() not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"layers of type {brief(word.as_text())} are not supported: only full and sliding-window attention are "
                "modelled",
                where=word.where,
            )


def _model_type(root: Node, node: Node) -> str:
    """The supported ``model_type``, from that key or else from ``architectures``."""
    for place in (node, root):
        given = place.child("model_type")
        if given is not None:
            word = given.as_text()
            known = ALIASES.get(word, word)
            if known in ARCHITECTURES:
                return known
            for reason, types in _UNSUPPORTED.items():
                if word in types.split():
                    raise UnsupportedModelError(f"{word}: {reason}", where=given.where)
            raise _unknown_architecture(f"model_type {word!r}", given)
    classes = node.child("architectures") or root.child("architectures")
    for item in classes.items() if classes is not None else ():
        word = item.as_text()
        matches = [t for t, a in ARCHITECTURES.items() if word.startswith(a.config_class.removesuffix("Config"))]
        if matches:
            return max(matches, key=lambda t: len(ARCHITECTURES[t].config_class))
        raise _unknown_architecture(f"architecture {word!r}", item)
    if node.has("dim") and node.has("n_layers"):
        raise InputError(
            "this looks like a params.json of the original release", where=node.where, hint="give the config.json"
        )
    raise InputError(
        "model_type is missing: is this a model's config.json?",
        where=root.problems.where(root.line, "model_type"),
        hint=f"supported: {_supported()}",
    )


def _unknown_architecture(what: str, node: Node) -> UnsupportedModelError:
    return UnsupportedModelError(f"{what} is not known", where=node.where, hint=f"supported: {_supported()}")


def _supported() -> str:
    return ", ".join(architecture.title for architecture in ARCHITECTURES.values())


def divisors(n: int) -> tuple[int, ...]:
    """Divisors of ``n``, ascending."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def model_to_document(model: TransformerSpec) -> dict[str, Any]:
    """The model as plain values, complete: :func:`model_from_document` gives it back equal."""
    document = asdict(model)
    document["assumed"] = list(model.assumed)
    return document


_COUNTS: Final[Mapping[str, str]] = {
    "layers": "layers",
    "hidden": "width",
    "ffn": "ffn",
    "heads": "heads",
    "kv_heads": "heads",
    "head_dim": "width",
    "vocab": "vocab",
    "max_positions": "positions",
    "norms_per_layer": "layers",
    "position_rows": "positions",
    "sliding_window": "positions",
    "windowed_layers": "layers",
    "embedding_width": "width",
}


def model_from_document(document: Mapping[str, Any] | Node, where: str = "model") -> TransformerSpec:
    """The model of :func:`model_to_document`.

    Args:
        document: Its plain values, or the node of a file, whose errors then name the line.
        where: Starts the errors of plain values.

    Raises:
        InputError: A key that is unknown, missing or out of bounds, or shapes that do not go together.
    """
    node = document if isinstance(document, Node) else node_from_value(document, where)
    known = fields(TransformerSpec)
    node.expect_mapping([f.name for f in known])
    values: dict[str, Any] = {}
    for f in known:
        child = node.child(f.name)
        if child is None:
            if f.default is MISSING and f.default_factory is MISSING:
                node.fail(f"{f.name} is missing", f"add the key {f.name}", f.name)
        elif f.name in _COUNTS:
            low = 0 if f.name in ("position_rows", "windowed_layers") else 1
            values[f.name] = child.as_integer(low, LIMITS[_COUNTS[f.name]])
        elif f.name == "assumed":
            values["assumed"] = node.texts("assumed")
        elif f.name == "norm":
            values["norm"] = child.as_choice(("rmsnorm", "layernorm"))
        elif f.name in ("name", "architecture"):
            values[f.name] = child.as_text()
        else:
            values[f.name] = child.as_flag()
    spec = TransformerSpec(**values)
    if spec.heads % spec.kv_heads:
        node.fail(f"{spec.kv_heads} key-value heads do not divide the {spec.heads} attention heads", key="kv_heads")
    if spec.windowed_layers > spec.layers:
        node.fail(f"{spec.windowed_layers} windowed layers of {spec.layers} layers", key="windowed_layers")
    return spec
