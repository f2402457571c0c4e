"""Megatron-LM training logs as iteration rows: the arguments it prints at the start, its times and its memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from memx_engine.profile.megatron_log import MegatronLog, read_megatron_log
from memx_engine.units import GIB

_ARGUMENT = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*|\d+:\s*)?([a-z][a-z0-9_]+) \.{2,} (.*?)\s*$")
"""``tensor_model_parallel_size ...................... 2``, as ``_print_args`` of Megatron's arguments.py writes it."""

_COUNTS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn",
    "num_attention_heads": "heads",
    "seq_length": "seq_len",
    "max_position_embeddings": "max_position",
    "world_size": "num_gpus",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "vocab_size": "vocab",
    "padded_vocab_size": "vocab",
}
_LONGEST_LINE = 4096


def read_log(lines: Iterable[str], *, gpu_type: str | None = None) -> tuple[dict[str, Any], MegatronLog]:
    """The one iteration row of a log (without source), and the log as read.

    Args:
        gpu_type: What it ran on; a log does not say.
    """
    arguments: dict[str, str] = {}
    log = read_megatron_log(_collecting(lines, arguments))
    columns = _layout(arguments)
    if log.global_batch is not None:
        columns["gbs"] = log.global_batch
    if gpu_type is not None:
        columns["gpu_type"] = gpu_type
    columns["framework"] = "Megatron-LM"
    if log.iteration_time_s is not None:
        columns["iter_time_s"] = log.iteration_time_s
    memory = log.reserved_bytes or log.allocated_bytes
    if memory:
        columns["peak_mem_gib"] = max(memory.values()) / GIB
        columns["mem_kind"] = "torch max reserved, highest rank" if log.reserved_bytes else "torch max allocated"
    count = len(log.iterations_s)
    notes = [f"median of {count} logged iterations" if count else "no iteration logged"]
    if log.out_of_memory:
        notes.insert(0, "OOM")
    columns["notes"] = "; ".join(notes)
    return columns, log


def _collecting(lines: Iterable[str], arguments: dict[str, str]) -> Iterator[str]:
    for line in lines:
        if len(line) <= _LONGEST_LINE and " .." in line:
            match = _ARGUMENT.match(line)
            if match:
                arguments[match[1]] = match[2]
        yield line


def _count(arguments: dict[str, str], name: str) -> int:
    """A whole number among the arguments; 0 where it is absent, no number, or larger than any size there is."""
    text = arguments.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 12 else 0


def _layout(arguments: dict[str, str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for argument, column in _COUNTS.items():
        count = _count(arguments, argument)
        if count:
            columns[column] = count
    groups = _count(arguments, "num_query_groups")
    if arguments.get("group_query_attention") == "True" and groups:
        columns["kv_heads"] = groups
    virtual = _count(arguments, "virtual_pipeline_model_parallel_size")
    if virtual > 1:
        columns["vp"] = virtual
    for precision in ("bf16", "fp16"):
        if arguments.get(precision) == "True":
            columns["precision"] = precision
    if arguments and "precision" not in columns:
        columns["precision"] = "fp32"
    if "use_distributed_optimizer" in arguments:
        columns["zero_stage"] = 1 if arguments["use_distributed_optimizer"] == "True" else 0
    if "num_experts" in arguments and arguments["num_experts"].isdecimal():
        columns["model"] = "moe"
    elif arguments.get("swiglu") == "True":
        columns["model"] = "LLaMA-like"
    elif arguments:
        columns["model"] = "GPT"
    recompute = _recompute(arguments)
    if recompute:
        columns["recompute"] = recompute
    return columns


def _recompute(arguments: dict[str, str]) -> str:
    granularity, method = arguments.get("recompute_granularity", ""), arguments.get("recompute_method", "")
    if granularity == "selective" or (granularity == "None" and "recompute_granularity" in arguments):
        return "none" if granularity == "None" else "selective"
    if granularity != "full":
        return ""
    count = _count(arguments, "recompute_num_layers") or 1
    return f"{method}:{count}" if method in ("uniform", "block") else "full"
