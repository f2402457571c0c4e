"""Legal tensor-parallel sizes, on the shapes that people got wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model
from memx_engine.inputs.parallelism import legal_tp, tp_by_heads, tp_problem


def test_28_heads_with_4_kv_heads() -> None:
    # Qwen2.5-7B; Megatron-LM accepts kv % tp == 0 or tp % kv == 0.
    model = load_model("qwen2.5-7b")
    assert tp_by_heads(model) == (1, 2, 4, 7, 14, 28)
    assert legal_tp(model, kv_replication=True) == (1, 2, 4, 28)
    assert legal_tp(model, kv_replication=False) == (1, 2, 4)


def test_25_heads() -> None:
    assert legal_tp(load_model("gpt2-xl"), kv_replication=True) == (1, 5, 25)


def test_messages_list_what_is_legal() -> None:
    model = load_model("qwen2.5-7b")
    assert tp_problem(model, 4, True) is None
    assert tp_problem(model, 8, True) == "TP 8 does not divide the 28 attention heads; TP can be 1, 2, 4, 28"
    assert tp_problem(model, 7, True) == (
        "TP 7 divides the 28 attention heads but neither divides the 4 key-value heads nor is a multiple of them; "
        "TP can be 1, 2, 4, 28"
    )
    assert tp_problem(model, 28, False) == (
        "TP 28 divides the 28 attention heads but does not divide the 4 key-value heads, which the framework does not "
        "replicate; TP can be 1, 2, 4"
    )
    assert "does not divide" in (tp_problem(model, 0, True) or "")


@given(st.integers(1, 64), st.integers(1, 8), st.booleans())
def test_every_rank_holds_whole_heads(kv_heads: int, group: int, replication: bool) -> None:
    model = TransformerSpec("m", "llama", 1, 64, 64, kv_heads * group, kv_heads, 8, 1000, 128)
    legal = legal_tp(model, replication)
    assert legal[0] == 1
    assert set(legal) <= set(tp_by_heads(model))
    for tp in range(1, model.heads + 2):
        assert (tp in legal) == (tp_problem(model, tp, replication) is None)
