from __future__ import annotations

import pytest

from memx_engine.cost.parameters import stage_parameters, state_bytes
from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from tests.cost.shapes import GEMMA2_9B, GPT2_LARGE, LLAMA2_7B, LLAMA3_8B


@pytest.mark.parametrize(
    ("precision", "replicated", "sharded_rest", "sharded_divided"),
    [(Precision.BF16, 18, 6, 12), (Precision.FP16, 20, 4, 16), (Precision.FP32, 16, 8, 8)],
)
def test_state_bytes_per_parameter(
    precision: Precision, replicated: int, sharded_rest: int, sharded_divided: int
) -> None:
    # Megatron-LM docs, "Distributed Optimizer": theoretical memory per parameter.
    plain = Job(8, 1024, precision=precision, optimizer=Optimizer.REPLICATED)
    sharded = Job(8, 1024, precision=precision)
    assert state_bytes(plain, 4).total == replicated
    assert state_bytes(sharded, 1).total == replicated
    for dp in (2, 4, 8):
        assert state_bytes(sharded, dp).total == pytest.approx(sharded_rest + sharded_divided / dp)


def test_bf16_without_fp32_gradients_costs_a_copy_for_the_step() -> None:
    assert state_bytes(Job(8, 1024, fp32_gradients=False, optimizer=Optimizer.REPLICATED), 1).total == 20


@pytest.mark.parametrize("model", [LLAMA2_7B, LLAMA3_8B])
def test_one_stage_holds_every_parameter(model: TransformerSpec) -> None:
    # Vocabularies of 32,000 and 128,256 are multiples of 128: nothing is padded at TP 1.
    assert stage_parameters(model, model.layers, 1, first=True, last=True) == model.parameters


def test_stages_and_ranks_hold_every_parameter_once_but_norms_on_every_rank() -> None:
    # 128,256 is a multiple of 128 x 2: nothing is padded.
    tp, norms = 2, LLAMA3_8B.hidden * (2 * LLAMA3_8B.layers + 1)
    held = sum(
        stage_parameters(LLAMA3_8B, layers, tp, first=i == 0, last=i == 3) for i, layers in enumerate((9, 8, 8, 7))
    )
    assert held * tp == LLAMA3_8B.parameters + (tp - 1) * norms


def test_tied_matrix_is_at_both_ends_of_a_pipeline_and_once_on_one_stage() -> None:
    matrix = 256_000 * 3584
    one = stage_parameters(GEMMA2_9B, 42, 1, first=True, last=True)
    ends = stage_parameters(GEMMA2_9B, 21, 1, first=True, last=False)
    ends += stage_parameters(GEMMA2_9B, 21, 1, first=False, last=True)
    assert one == 9_241_705_984
    assert ends == one + matrix
    assert stage_parameters(GEMMA2_9B, 42, 1, first=True, last=True, untied=True) == one + matrix


def test_padded_vocabulary_is_held() -> None:
    # 50,257 is padded to 50,304 (TP 1): 47 more rows of 1,280.
    assert stage_parameters(GPT2_LARGE, 36, 1, first=True, last=True) == 774_030_080 + 47 * 1280
