"""Which tensor-parallel sizes a model allows."""

from __future__ import annotations

from memx_engine.inputs.model import TransformerSpec


def tp_by_heads(model: TransformerSpec) -> tuple[int, ...]:
    """TP sizes that divide the attention heads, ascending."""
    return tuple(tp for tp in range(1, model.heads + 1) if model.heads % tp == 0)


def legal_tp(model: TransformerSpec, kv_replication: bool) -> tuple[int, ...]:
    """TP sizes at which every rank holds whole heads and whole key-value heads, ascending.

    Args:
        model: The model.
        kv_replication: True where the framework lets several ranks hold the same key-value head (Megatron-LM's
            ``num_query_groups % tp == 0 or tp % num_query_groups == 0``); False where it only divides them.
    """
    kv = model.kv_heads
    return tuple(tp for tp in tp_by_heads(model) if kv % tp == 0 or (kv_replication and tp % kv == 0))


def tp_problem(model: TransformerSpec, tp: int, kv_replication: bool) -> str | None:
    """Why ``tp`` is not possible, with the sizes that are; None when it is."""
    legal = legal_tp(model, kv_replication)
    if tp in legal:
        return None
    allowed = f"TP can be {', '.join(map(str, legal))}"
    if tp < 1 or model.heads % tp:
        return f"TP {tp} does not divide the {model.heads} attention heads; {allowed}"
    how = (
        f"neither divides the {model.kv_heads} key-value heads nor is a multiple of them"
        if kv_replication
        else f"does not divide the {model.kv_heads} key-value heads, which the framework does not replicate"
    )
    return f"TP {tp} divides the {model.heads} attention heads but {how}; {allowed}"
