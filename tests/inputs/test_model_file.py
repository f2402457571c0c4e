"""Reading config.json: old names, nested text parts, defaults that are reported, and everything that can be wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.errors import InputError, MemxError, UnsupportedModelError
from memx_engine.inputs.model_file import load_model, model_from_document, model_presets, model_to_document, parse_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def parse(config: dict[str, Any]) -> Any:
    return parse_model(json.dumps(config, indent=1), "c.json")


def error_of(config: dict[str, Any]) -> MemxError:
    with pytest.raises(InputError) as caught:
        parse(config)
    return caught.value


def test_defaults_are_filled_and_reported() -> None:
    model = parse(LLAMA)
    assert model.parameters == 6_738_415_616
    assert (
        "num_key_value_heads is not given: as many as heads, the default of LlamaConfig (transformers 4.57.1)"
        in model.assumed
    )
    named = {sentence.split()[0] for sentence in model.assumed}
    assert named == {
        "num_key_value_heads",
        "attention_bias",
        "mlp_bias",
        "max_position_embeddings",
        "tie_word_embeddings",
    }


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        # What the configuration classes of transformers 4.57.1 take when the key is left out.
        ("mistral", "kv_heads", 8),
        ("mistral", "sliding_window", 4096),
        ("qwen2", "kv_heads", 32),
        ("qwen2", "sliding_window", None),
        ("qwen3", "head_dim", 128),
        ("gemma", "tied_embeddings", True),
        ("gemma2", "tied_embeddings", True),
        ("gemma2", "head_dim", 256),
        ("gemma2", "kv_heads", 4),
        ("phi3", "kv_heads", 32),
        ("gpt2", "ffn", 3072),
        ("gpt2", "tied_embeddings", True),
        ("gpt_neox", "tied_embeddings", False),
        ("gpt_neox", "qkv_bias", True),
        ("opt", "position_rows", 2050),
        ("opt", "tied_embeddings", True),
        ("bloom", "tied_embeddings", True),
        ("falcon", "kv_heads", 1),
        ("falcon", "tied_embeddings", True),
        ("olmo2", "tied_embeddings", False),
        ("granite", "tied_embeddings", False),
    ],
)
def test_class_defaults(model_type: str, key: str, value: object) -> None:
    model = parse({"model_type": model_type})
    assert getattr(model, key) == value
    assert all("transformers 4.57.1" in sentence for sentence in model.assumed)


def test_explicit_null_is_not_an_absent_key() -> None:
    # Qwen2Config: absent is 32 KV heads, null is as many as heads.
    base = {"model_type": "qwen2", "hidden_size": 1024, "num_attention_heads": 64}
    assert parse(base).kv_heads == 32
    assert parse(base | {"num_key_value_heads": None}).kv_heads == 64


def test_gpt2_names() -> None:
    config = {"model_type": "gpt2", "n_embd": 1280, "n_head": 20, "n_layer": 36, "n_positions": 1024, "n_inner": None}
    model = parse(config | {"vocab_size": 50257, "resid_pdrop": 0.0, "tie_word_embeddings": True})
    assert (model.hidden, model.heads, model.layers, model.ffn) == (1280, 20, 36, 5120)
    assert not model.dropout
    assert model.assumed == ()


def test_architecture_from_the_class_name() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert parse(config).architecture == "llama"
    assert parse({"architectures": ["GPT2LMHeadModel"]}).architecture == "gpt2"
    assert parse({"architectures": ["Gemma2ForCausalLM"]}).architecture == "gemma2"
    assert parse({"architectures": ["Qwen3ForCausalLM"]}).architecture == "qwen3"


def test_nested_text_config() -> None:
    text = LLAMA | {"vocab_size": 32064}
    model = parse({"model_type": "llava", "vision_config": {"hidden_size": 1024}, "text_config": text})
    assert model.hidden == 4096
    assert model.vocab == 32064
    assert model.assumed[0] == "only text_config is planned: the other parts of the model are left out"


def test_nested_text_config_takes_the_enclosing_tie() -> None:
    config = {"model_type": "llava", "text_config": LLAMA}
    assert not parse(config).tied_embeddings
    assert parse(config | {"tie_word_embeddings": True}).tied_embeddings


def test_windowed_layers() -> None:
    qwen = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 28}
    assert parse(qwen).windowed_layers == 4  # layers 28 to 31 of 32
    types = ["sliding_attention"] * 3 + ["full_attention"]
    model = parse({"model_type": "gemma2", "num_hidden_layers": 4, "layer_types": types})
    assert (model.windowed_layers, model.sliding_window) == (3, 4096)
    assert parse({"model_type": "mistral", "sliding_window": None}).windowed_layers == 0


def test_quantization_is_said_to_be_ignored() -> None:
    model = parse(LLAMA | {"quantization_config": {"bits": 4}})
    assert any("quantization_config is ignored" in sentence for sentence in model.assumed)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mixtral"}, "mixture-of-experts"),
        (LLAMA | {"num_experts": 8}, "mixture-of-experts"),
        (LLAMA | {"num_local_experts": 8}, "mixture-of-experts"),
        (LLAMA | {"n_routed_experts": 64}, "mixture-of-experts"),
        (LLAMA | {"kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "deepseek_v3"}, "latent attention"),
        ({"model_type": "t5"}, "encoder-decoder"),
        (LLAMA | {"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert"}, "encoder-only"),
        ({"model_type": "mamba2"}, "state-space"),
        (LLAMA | {"layer_types": ["linear_attention"] * 32}, "layers of type 'linear_attention'"),
    ],
)
def test_unsupported_models_are_refused_with_the_reason(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        parse(config)
    assert caught.value.where.startswith("c.json:")
    assert caught.value.exit_code == 2


def test_one_expert_is_a_dense_model() -> None:
    assert parse(LLAMA | {"num_local_experts": 1, "num_experts": 0, "kv_lora_rank": None}).layers == 32


def test_unknown_architecture_names_the_supported_ones() -> None:
    for config in ({"model_type": "llamax"}, {"architectures": ["FooForCausalLM"]}):
        error = error_of(config)
        assert isinstance(error, UnsupportedModelError)
        assert "is not known" in error.message
        assert "Llama" in error.hint
        assert "GPT-NeoX" in error.hint


@pytest.mark.parametrize("value", [None, -3, 0, 4096.5, "4096", True, 10**30, [1], {}])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_bad_numbers_name_file_line_and_key(key: str, value: object) -> None:
    config = LLAMA | {key: value}
    line = 2 + list(config).index(key) + 2  # indented one key per line, the architectures list takes three
    error = error_of(config)
    assert error.where == f"c.json:{line}: {key}"
    assert error.hint


def test_bad_flag() -> None:
    error = error_of(LLAMA | {"tie_word_embeddings": "yes"})
    assert error.where.endswith("tie_word_embeddings")
    assert "true or false" in error.message


def test_nested_errors_name_the_nested_key() -> None:
    error = error_of({"model_type": "llava", "text_config": LLAMA | {"hidden_size": None}})
    assert error.where.endswith("text_config.hidden_size")


def test_heads_must_divide() -> None:
    error = error_of(LLAMA | {"num_attention_heads": 30})
    assert "30 attention heads do not divide the hidden size 4096" in error.message
    error = error_of(LLAMA | {"num_key_value_heads": 5})
    assert "5 key-value heads do not divide the 32 attention heads" in error.message
    assert "1, 2, 4, 8, 16, 32" in error.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("[1]", "mapping"),
        ('{"model_type": "llama",\n "hidden_si', "JSON"),
        ('{"model_type": "llama"', "too early"),
        ("hello", "JSON"),
        ("[" * 100_000, "nested"),
        ('{"model_type": "llama", "hidden_size": NaN}', "number"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "twice"),
        ("{}", "model_type is missing"),
        ('{"dim": 4096, "n_layers": 32}', "params.json"),
    ],
)
def test_unreadable_text(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_model(text, "c.json")
    assert caught.value.where.startswith("c.json")


@given(
    st.dictionaries(
        st.sampled_from(list(LLAMA)),
        st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "1"]) | st.floats(),
    )
)
def test_any_values_give_a_model_or_one_error(changes: dict[str, Any]) -> None:
    try:
        model = parse_model(json.dumps(LLAMA | changes), "c.json")
    except MemxError as error:
        assert error.where.startswith("c.json")
    else:
        assert model.parameters > 0


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for source in (folder, folder / "config.json"):
        model = load_model(str(source))
        assert model.name == "my-llama"
        assert model.parameters == 6_738_415_616
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    assert load_model(str(tmp_path / "tiny.json")).name == "tiny"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LLAMA).encode())))
    assert load_model("-").layers == 32


def test_preset_names_are_read_loosely() -> None:
    assert load_model("Llama-2-7B") == load_model("llama2-7b")
    assert load_model("llama_3.1_8b").max_positions == 131_072


def test_missing_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a preset nor a file") as caught:
        load_model("lama2-7b")
    assert "llama2-7b" in caught.value.hint
    with pytest.raises(InputError, match="no such file"):
        load_model(str(tmp_path / "no" / "config.json"))
    with pytest.raises(InputError, match="no config.json in this directory"):
        load_model(str(tmp_path))
    with pytest.raises(InputError, match="no model is named"):
        load_model(" ")


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(50 << 20)
    with pytest.raises(InputError, match="larger than") as caught:
        load_model(str(path))
    assert str(path) in caught.value.where


@pytest.mark.parametrize("preset", model_presets())
def test_documents_round_trip(preset: str) -> None:
    model = load_model(preset)
    document = json.loads(json.dumps(model_to_document(model)))
    back = model_from_document(document)
    assert back == model
    assert back.name == model.name
    assert back.fingerprint == model.fingerprint


def test_document_keeps_assumptions() -> None:
    model = parse(LLAMA)
    assert model_from_document(model_to_document(model)).assumed == model.assumed


def test_document_errors() -> None:
    document = model_to_document(load_model("llama2-7b"))
    with pytest.raises(InputError, match="unknown key 'hiden'") as caught:
        model_from_document(document | {"hiden": 1}, "plan.yaml: model")
    assert "hidden" in caught.value.hint
    missing = {key: value for key, value in document.items() if key != "layers"}
    with pytest.raises(InputError, match="layers is missing"):
        model_from_document(missing)
    with pytest.raises(InputError, match="do not divide"):
        model_from_document(document | {"kv_heads": 7})
    with pytest.raises(InputError, match="out of bounds"):
        model_from_document(document | {"layers": 0})
    with pytest.raises(InputError, match="windowed layers"):
        model_from_document(document | {"windowed_layers": 99})
