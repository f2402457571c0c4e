"""Parameter counts, exact to the parameter, against published totals and counts worked out part by part."""

from __future__ import annotations

import pytest

from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model, model_presets, parse_model

# Totals as their publishers give them: the safetensors metadata of each Hugging Face repository (num_parameters), the
# model cards of GPT-NeoX-20B and BLOOM-176B, and for models not published as such (gpt3-175b, aquila2-7b) the count of
# that shape.
TOTALS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-large": 122_610_069_504,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "internlm2-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "aquila2-7b": 7_295_537_152,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "gpt-neox-20b": 20_554_567_680,
    "bloom-176b": 176_247_271_424,
    "falcon-7b": 6_921_720_704,
}


@pytest.mark.parametrize(("preset", "total"), TOTALS.items())
def test_published_totals(preset: str, total: int) -> None:
    assert load_model(preset).parameters == total


@pytest.mark.parametrize("preset", model_presets())
def test_presets_are_complete_and_consistent(preset: str) -> None:
    model = load_model(preset)
    assert model.name == preset
    assert model.assumed == ()
    assert model.heads % model.kv_heads == 0
    assert model_presets()[preset]
    parts = model.embedding_parameters + model.layers * model.layer.total + model.head_parameters
    assert parts == model.parameters


def test_the_papers_five_come_first() -> None:
    assert list(model_presets())[:5] == ["llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b"]


def test_llama2_7b_part_by_part() -> None:
    model = load_model("llama2-7b")
    assert model.layer.qkv == 3 * 4096 * 4096
    assert model.layer.attention_output == 4096 * 4096
    assert model.layer.mlp == 3 * 4096 * 11008
    assert model.layer.norms == 2 * 4096
    assert model.embedding_parameters == 32000 * 4096
    assert model.head_parameters == 32000 * 4096 + 4096


def test_gemma2_9b_ends_and_norms() -> None:
    # One layer is 198.2M and the tied embedding 917.5M parameters, 4.63 layers.
    model = load_model("gemma2-9b")
    assert model.layer.norms == 4 * 3584
    assert round(model.layer.total / 1e6, 1) == 198.2
    assert model.embedding_parameters == 256_000 * 3584
    assert model.head_parameters == 3584
    assert round(model.embedding_parameters / model.layer.total, 2) == 4.63
    assert (model.sliding_window, model.windowed_layers) == (4096, 21)


def test_gemma3_windows_five_of_six_layers() -> None:
    # google/gemma-3-27b: every sixth of 62 layers attends to everything.
    model = load_model("gemma3-27b")
    assert (model.sliding_window, model.windowed_layers) == (1024, 52)


def test_gpt2_biases_positions_and_tied_head() -> None:
    model = load_model("gpt2-xl")
    h = 1600
    assert model.layer.qkv == 3 * h * h + 3 * h
    assert model.layer.attention_output == h * h + h
    assert model.layer.mlp == 8 * h * h + 5 * h
    assert model.layer.norms == 4 * h
    assert model.embedding_parameters == 50257 * h + 1024 * h
    assert model.head_parameters == 2 * h
    assert model.dropout


def test_qwen_biases_and_norms() -> None:
    qwen2, qwen3 = load_model("qwen2.5-7b"), load_model("qwen3-8b")
    assert qwen2.layer.qkv == (3584 + 1) * (28 + 2 * 4) * 128
    assert qwen2.layer.attention_output == 3584 * 3584
    assert qwen3.layer.norms == 2 * 4096 + 2 * 128


def test_opt_350m_projections_and_missing_final_norm() -> None:
    # facebook/opt-350m: 512-wide table, two projections to and from 1024, norms behind the blocks, no final norm.
    text = """{"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
      "num_attention_heads": 16, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
      "do_layer_norm_before": false, "enable_bias": true}"""
    model = parse_model(text)
    assert model.parameters == 331_196_416
    assert model.embedding_parameters == 50272 * 512 + 512 * 1024 + 2050 * 1024
    assert model.head_parameters == 512 * 1024


def test_falcon_decoders() -> None:
    # tiiuae/falcon-7b: one KV head, one norm; falcon-40b: 8 KV heads, two norms beside each other.
    small, large = load_model("falcon-7b"), load_model("falcon-40b")
    assert (small.kv_heads, small.norms_per_layer, small.parallel_block) == (1, 1, True)
    assert small.layer.qkv == 4544 * (4544 + 2 * 64)
    assert (large.kv_heads, large.norms_per_layer, large.parallel_block) == (8, 2, True)
    assert large.layer.qkv == 8192 * (8192 + 2 * 8 * 64)
    # tiiuae/falcon-rw-1b: biases, as many KV heads as heads, two norms in sequence; 1,311,625,216 parameters.
    text = """{"model_type": "falcon", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
      "vocab_size": 50304, "alibi": true, "bias": true, "multi_query": false, "parallel_attn": false,
      "new_decoder_architecture": false}"""
    old = parse_model(text)
    assert old.parameters == 1_311_625_216
    assert (old.kv_heads, old.norms_per_layer, old.parallel_block) == (32, 2, False)


@pytest.mark.parametrize(("vocab", "tp", "padded"), [(50257, 1, 50304), (50257, 2, 50432), (152064, 8, 152576)])
def test_padded_vocabulary(vocab: int, tp: int, padded: int) -> None:
    # Megatron-LM's --make-vocab-size-divisible-by 128, times TP.
    model = TransformerSpec("m", "llama", 1, 64, 64, 8, 8, 8, vocab, 128)
    assert model.padded_vocab(tp) == padded


def test_qwen_vocabulary_needs_no_padding_up_to_tp4() -> None:
    model = load_model("qwen2.5-7b")
    assert [model.padded_vocab(tp) for tp in (1, 2, 4)] == [152_064] * 3
