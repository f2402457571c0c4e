"""Small tables and a log as people have them, written by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROW: dict[str, Any] = {
    "source": "a lab",
    "ref": "run 1",
    "model": "llama2-7b",
    "seq_len": 4096,
    "gpu_type": "a100-sxm-80g",
    "num_gpus": 8,
    "gpus_per_node": 8,
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "mbs": 1,
    "gbs": 64,
    "recompute": "full",
    "precision": "bf16",
    "framework": "Megatron-LM",
    "iter_time_s": 20.5,
    "peak_mem_gib": 41.25,
}
"""A plausible run: 64 x 4096 tokens x 6 x 6.7 B FLOP in 20.5 s are 21 % of the peak of eight A100."""

LAYER: dict[str, Any] = {
    "source": "a lab",
    "ref": "layer 1",
    "model": "llama2-7b",
    "layer_kind": "transformer layer",
    "layer_count": 32,
    "seq_len": 4096,
    "gpu_type": "a100-sxm-80g",
    "precision": "bf16",
    "tp": 1,
    "mbs": 1,
    "fwd_ms": 8.25,
    "bwd_ms": 17.5,
}


def table(path: Path, *rows: dict[str, Any], separator: str = ",", end: str = "\n") -> Path:
    """Write ``rows`` under the columns of the first one, cells as they are."""
    names = list(rows[0])
    lines = [separator.join(names), *(separator.join(str(row.get(name, "")) for name in names) for row in rows)]
    path.write_text(end.join(lines) + end, encoding="utf-8", newline="")
    return path


ARGUMENTS = {
    "bf16": "True",
    "context_parallel_size": "1",
    "data_parallel_size": "2",
    "ffn_hidden_size": "11008",
    "fp16": "False",
    "global_batch_size": "64",
    "group_query_attention": "False",
    "hidden_size": "4096",
    "max_position_embeddings": "4096",
    "micro_batch_size": "1",
    "num_attention_heads": "32",
    "num_experts": "None",
    "num_layers": "32",
    "padded_vocab_size": "32000",
    "pipeline_model_parallel_size": "2",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": "1",
    "seq_length": "4096",
    "swiglu": "True",
    "tensor_model_parallel_size": "2",
    "use_distributed_optimizer": "True",
    "virtual_pipeline_model_parallel_size": "None",
    "world_size": "8",
}


def megatron_log(times_ms: tuple[float, ...] = (31000.0, 20400.0, 20600.0), **changes: str) -> str:
    """A log as Megatron-LM prints it (megatron/training/arguments.py, training.py and utils.py)."""
    lines = [
        "using world size: 8, data-parallel size: 2",
        "------------------------ arguments ------------------------",
    ]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in (ARGUMENTS | changes).items()]
    lines.append("-------------------- end of arguments ---------------------")
    for number, time_ms in enumerate(times_ms, start=1):
        lines.append(
            f" [2026-01-05 10:00:{number:02}] iteration {number:8}/     500 | consumed samples: {64 * number:12} | "
            f"elapsed time per iteration (ms): {time_ms:.1f} | learning rate: 1.0E-05 | global batch size:    64 | "
            "lm loss: 1.0E+01 | loss scale: 1.0 |"
        )
    if times_ms:
        for rank, reserved in ((0, 42240.0), (4, 40000.0)):
            lines.append(
                f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 20000.0 | max allocated: 39000.0 | "
                f"reserved: {reserved} | max reserved: {reserved}"
            )
    return "\n".join(lines) + "\n"
