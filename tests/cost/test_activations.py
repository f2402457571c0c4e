from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.cost.activations import (
    Shape,
    core_bytes,
    input_bytes,
    layer_bytes,
    layer_tensors,
    logits_bytes,
    logits_elements,
)
from memx_engine.inputs.job import Attention, Job, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.units import MIB
from tests.cost.shapes import GEMMA2_9B, GPT2_LARGE, LLAMA2_7B, LLAMA3_8B

BF16 = Job(8, 1024)
UNFUSED = Job(8, 1024, attention=Attention.UNFUSED)


def sbh(model: TransformerSpec, shape: Shape) -> float:
    return shape.tokens * model.hidden


@pytest.mark.parametrize("tp", [1, 2, 5])
def test_gpt_with_fused_attention_keeps_34_sbh(tp: int) -> None:
    # Korthikanti et al. 2022, table 2: tensor and sequence parallelism without the attention core.
    shape = Shape(tp, 4, 1024, True)
    assert layer_bytes(GPT2_LARGE, BF16, shape) == pytest.approx(34 * sbh(GPT2_LARGE, shape) / tp)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_unfused_attention_adds_5_a_s2_b(tp: int) -> None:
    shape = Shape(tp, 2, 1024, True)
    extra = layer_bytes(GPT2_LARGE, UNFUSED, shape) - layer_bytes(GPT2_LARGE, BF16, shape)
    assert extra == pytest.approx(5 * GPT2_LARGE.heads * 1024**2 * 2 / tp)
    assert core_bytes(GPT2_LARGE, UNFUSED, shape) == pytest.approx(extra)
    assert core_bytes(GPT2_LARGE, BF16, shape) == 0


@pytest.mark.parametrize(("model", "factor"), [(LLAMA3_8B, 34.0), (LLAMA2_7B, 32.125)])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_llama_keeps_12_plus_kv_plus_ffn(model: TransformerSpec, factor: float, tp: int) -> None:
    shape = Shape(tp, 1, 4096, True)
    formula = 12 + 4 * model.kv_heads / model.heads + 6 * model.ffn / model.hidden
    assert formula == pytest.approx(factor)
    assert layer_bytes(model, BF16, shape) == pytest.approx(formula * sbh(model, shape) / tp)


@pytest.mark.parametrize(("model", "undivided"), [(GPT2_LARGE, 10), (LLAMA3_8B, 8)])
def test_without_sequence_parallelism_norms_and_masks_are_whole(model: TransformerSpec, undivided: int) -> None:
    # Korthikanti et al. 2022, table 2, tensor parallel: sbh (10 + 24 / t).
    split = layer_bytes(model, BF16, Shape(4, 1, 1024, True))
    whole = layer_bytes(model, BF16, Shape(4, 1, 1024, False))
    assert whole - split == pytest.approx(undivided * sbh(model, Shape(4, 1, 1024, False)) * (1 - 1 / 4))


def test_a_rank_holds_whole_key_value_heads() -> None:
    few = replace(LLAMA3_8B, kv_heads=2)
    sizes = {tensor.name: tensor.size_bytes for tensor in layer_tensors(few, BF16, Shape(8, 1, 1024, True))}
    assert sizes["keys and values"] == 2 * 128 * 1024 * 2


def test_post_norms_and_parallel_blocks_change_what_is_kept() -> None:
    shape = Shape(1, 1, 1024, True)
    two_norms = replace(GEMMA2_9B, norms_per_layer=2)
    assert layer_bytes(GEMMA2_9B, BF16, shape) - layer_bytes(two_norms, BF16, shape) == 4 * sbh(GEMMA2_9B, shape)
    side_by_side = replace(LLAMA2_7B, parallel_block=True, norms_per_layer=1)
    assert layer_bytes(LLAMA2_7B, BF16, shape) - layer_bytes(side_by_side, BF16, shape) == 4 * sbh(LLAMA2_7B, shape)


def test_fp32_doubles_all_but_masks() -> None:
    shape = Shape(1, 1, 1024, True)
    assert layer_bytes(LLAMA2_7B, Job(8, 1024, precision=Precision.FP32), shape) == 2 * layer_bytes(
        LLAMA2_7B, BF16, shape
    )


def test_fp32_logits_of_gpt2_are_786_mib() -> None:
    # NVIDIA/Megatron-LM issue 525: the allocation that failed, MBS 4 x 1024 x 50,304 in fp32.
    elements = logits_elements(GPT2_LARGE, Shape(1, 4, 1024, False))
    assert 4 * elements == 786 * MIB
    assert logits_bytes(GPT2_LARGE, BF16, Shape(1, 4, 1024, False)) == 6 * elements


def test_a_recomputed_layer_keeps_its_input() -> None:
    assert input_bytes(LLAMA3_8B, BF16, Shape(4, 1, 8192, True)) == 2 * 8192 * 4096 / 4
    assert input_bytes(LLAMA3_8B, BF16, Shape(4, 1, 8192, False)) == 2 * 8192 * 4096
