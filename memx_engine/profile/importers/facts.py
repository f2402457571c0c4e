"""What an iteration row states, checked and completed: enough to rebuild the run, or the reason why not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import find_gpu_type
from memx_engine.inputs.cluster import GpuType
from memx_engine.inputs.job import Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import NONE, Recompute
from memx_engine.profile.importers.columns import Columns
from memx_engine.profile.importers.models import NotJudgeableError, row_model
from memx_engine.units import GIB

_NO_TYPES: Mapping[str, GpuType] = MappingProxyType({})
_OOM = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
_STRATEGIES = ("none", "selective", "full", "uniform", "block")

FASTEST, SLOWEST = 4.0, 1e-3
"""Share of the 16-bit peak that a run reaches: beyond four times it (no precision is so much faster) or below a
thousandth of it, the time is in another unit than its column says."""


@dataclass(frozen=True)
class StageFacts:
    """One pipeline stage as the row tells it."""

    gpu_type: str
    layers: int
    recompute: Recompute


@dataclass(frozen=True)
class RowFacts:
    """A run that can be rebuilt.

    Attributes:
        node_size: GPUs per node.
        time_s: Seconds per iteration; None where only memory is known.
        assumed: What the row leaves open and what was taken for it.
    """

    model: TransformerSpec
    tp: int
    dp: int
    virtual_stages: int
    micro_batch: int
    global_batch: int
    seq_len: int
    stages: tuple[StageFacts, ...]
    precision: Precision
    sharded: bool
    node_size: int
    time_s: float | None
    assumed: tuple[str, ...]

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Distinct types along the pipeline."""
        return tuple(dict.fromkeys(stage.gpu_type for stage in self.stages))


@dataclass(frozen=True)
class _Limits:
    """FLOP of one iteration, the devices' 16-bit peak together (not a number where unknown), and the largest memory."""

    flop: float
    peak_flops: float
    memory_bytes: int


_LAYOUT_COLUMNS = (
    "model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "max_position", "seq_len", "gpu_type", "num_gpus",
    "gpus_per_node", "tp", "pp", "dp", "cp", "ep", "vp", "zero_stage", "mbs", "gbs", "recompute", "precision", "stages",
)  # fmt: skip
"""All that a layout follows from; the other columns are results and remarks."""


def is_out_of_memory(columns: Columns) -> bool:
    """Whether the row says that the run did not fit: no time, no memory, and the word for it."""
    return not any(name in columns for name in ("iter_time_s", "peak_mem_gib")) and bool(
        _OOM.search(str(columns.get("notes", "")))
    )


def row_facts(columns: Columns, own: Mapping[str, GpuType] = _NO_TYPES) -> RowFacts:
    """The run of an iteration row; NotJudgeableError with the reason where the cost model cannot be asked about it.

    Assumed where not stated, and said in ``assumed``: bf16 (fp16 where a device lacks it), no recompute, a sharded
    optimizer, eight GPUs per node, an even split; types of a mixed row share the pipeline equally.

    Args:
        own: Device types by name that count before the catalogue's.
    """
    facts, limits = _laid_out(columns, own)
    time_s = _time_s(columns, facts)
    _check_units(columns, time_s, limits)
    return replace(facts, time_s=time_s)


def check_row(columns: Columns) -> None:
    """As :func:`row_facts` for a row of a large table, whose layouts repeat: each is looked at once."""
    if "gbs" not in columns:
        row_facts(columns)
        return
    found = _known_layout(tuple(map(columns.get, _LAYOUT_COLUMNS)))
    if isinstance(found, str):
        raise NotJudgeableError(found)
    facts, limits = found
    _check_units(columns, _time_s(columns, facts), limits)


@lru_cache(maxsize=4096)
def _known_layout(values: tuple[Any, ...]) -> tuple[RowFacts, _Limits] | str:
    stated = {name: value for name, value in zip(_LAYOUT_COLUMNS, values, strict=True) if value is not None}
    try:
        return _laid_out(stated, _NO_TYPES)
    except NotJudgeableError as error:
        return str(error)


def _laid_out(columns: Columns, own: Mapping[str, GpuType]) -> tuple[RowFacts, _Limits]:
    """Everything but the time, and what the devices can do."""
    get = columns.get
    assumed: list[str] = []
    for name, words in (("cp", "context"), ("ep", "expert")):
        if (get(name) or 1) > 1:
            raise NotJudgeableError(f"{words} parallelism is outside the cost model")
    zero = str(get("zero_stage", ""))
    if zero not in ("", "0", "1"):
        raise NotJudgeableError(f"ZeRO-{zero} shards gradients or weights too, which is outside the cost model")
    model, guessed = row_model(columns)
    assumed += guessed
    tp, pp, dp = get("tp"), get("pp"), get("dp")
    parts = str(columns["stages"]).split("|") if "stages" in columns else None
    if pp is None and parts is not None:
        pp = len(parts)
    if tp is None or pp is None:
        raise NotJudgeableError("tp or pp is not stated")
    gpus = get("num_gpus")
    if dp is None:
        if gpus is None or gpus % (tp * pp):
            raise NotJudgeableError("dp is not stated and does not follow from num_gpus")
        dp = gpus // (tp * pp)
    elif gpus is not None and gpus != tp * pp * dp:
        raise NotJudgeableError(f"tp x pp x dp is {tp * pp * dp}, but num_gpus is {gpus}")
    mbs, seq_len = get("mbs"), get("seq_len")
    batch = get("gbs") or _implied_batch(columns, gpus or tp * pp * dp)
    missing = [name for name, value in (("mbs", mbs), ("gbs", batch), ("seq_len", seq_len)) if value is None]
    if missing or mbs is None or batch is None or seq_len is None:
        raise NotJudgeableError(f"{', '.join(missing)} not stated")
    if batch % (dp * mbs):
        raise NotJudgeableError(f"the global batch {batch} is no multiple of dp x mbs = {dp * mbs}")
    if "recompute" not in columns and parts is None:
        assumed.append("no recompute")
    stages = _listed(parts, pp, model.layers, own) if parts else _even(columns, pp, model.layers, own, assumed)
    v = get("vp") or 1
    if v > 1 and (pp == 1 or (batch // (dp * mbs)) % pp or any(stage.layers % v for stage in stages)):
        raise NotJudgeableError(f"{v} virtual stages do not divide the layers, or pp not the micro-batches")
    for stage in stages:
        if stage.recompute.kind == "block" and stage.recompute.n > stage.layers // v:
            raise NotJudgeableError(
                f"{stage.recompute} recomputes more than the {stage.layers // v} layers that are there"
            )
    devices = {s.gpu_type: own.get(s.gpu_type) or find_gpu_type(s.gpu_type) for s in stages}
    precision = _precision(str(get("precision", "")), devices, assumed)
    if "gpus_per_node" not in columns:
        assumed.append("8 GPUs per node")
    if zero == "":
        assumed.append("sharded optimizer")
    facts = RowFacts(
        model, tp, dp, v, mbs, batch, seq_len, stages, precision, zero != "0", get("gpus_per_node") or 8, None,
        tuple(assumed),
    )  # fmt: skip
    return facts, _limits(facts, devices)


def _implied_batch(columns: Columns, gpus: int) -> int | None:
    """Sequences per iteration from time, tokens per second and sequence length, where they give a whole number."""
    seconds, rate, seq_len = (columns.get(name) for name in ("iter_time_s", "tokens_per_s_per_gpu", "seq_len"))
    if not seconds or not rate or not seq_len:
        return None
    sequences = seconds * rate * gpus / seq_len
    return round(sequences) if sequences > 0.5 and abs(sequences - round(sequences)) < 0.01 * sequences else None


def _time_s(columns: Columns, facts: RowFacts) -> float | None:
    if "iter_time_s" in columns:
        return float(columns["iter_time_s"])
    if "tokens_per_s_per_gpu" in columns:
        gpus = facts.tp * facts.dp * len(facts.stages)
        return float(facts.global_batch * facts.seq_len / (columns["tokens_per_s_per_gpu"] * gpus))
    if "samples_per_s" in columns:
        return float(facts.global_batch / columns["samples_per_s"])
    if "peak_mem_gib" not in columns and not is_out_of_memory(columns):
        raise NotJudgeableError("only TFLOP/s or MFU are given, whose counting differs from source to source")
    return None


def known_type(name: str, own: Mapping[str, GpuType] = _NO_TYPES) -> str:
    """The id of ``name`` in ``own`` or in the catalogue; NotJudgeableError where there is none."""
    return name.strip() if name.strip() in own else _catalogue_id(name.strip())


@lru_cache(maxsize=1024)
def _catalogue_id(name: str) -> str:
    try:
        return find_gpu_type(name).name
    except InputError as error:
        raise NotJudgeableError(error.message) from error


@lru_cache(maxsize=1024)
def _strategy(word: str) -> Recompute:
    try:
        return Recompute.parse(word) if word.strip() else NONE
    except InputError as error:
        raise NotJudgeableError(error.message) from error


def _listed(parts: list[str], pp: int, layers: int, own: Mapping[str, GpuType]) -> tuple[StageFacts, ...]:
    """``TYPE:layers[:recompute]`` of every stage."""
    stages = []
    for part in parts:
        fields = part.strip().split(":", 2)
        if len(fields) < 2 or not fields[1].isdecimal():
            raise NotJudgeableError(f"the stage {part.strip()[:60]!r} is not TYPE:layers[:recompute]")
        recompute = _strategy(fields[2]) if len(fields) > 2 else NONE
        stages.append(StageFacts(known_type(fields[0], own), int(fields[1]), recompute))
    placed = sum(stage.layers for stage in stages)
    if len(stages) != pp or placed != layers or min(stage.layers for stage in stages) < 1:
        raise NotJudgeableError(
            f"the column stages places {placed} layers on {len(stages)} stages; the row says {layers} layers, pp {pp}"
        )
    return tuple(stages)


def _even(
    columns: Columns, pp: int, layers: int, own: Mapping[str, GpuType], assumed: list[str]
) -> tuple[StageFacts, ...]:
    if layers < pp:
        raise NotJudgeableError(f"{layers} layers cannot be spread over {pp} stages")
    if "gpu_type" not in columns:
        raise NotJudgeableError("gpu_type is not stated")
    names = [known_type(name, own) for name in str(columns["gpu_type"]).split("+")]
    if len(names) > pp:
        raise NotJudgeableError(f"{len(names)} GPU types cannot share {pp} stages")
    if len(names) > 1:
        assumed.append("an even split, and stages shared equally among the GPU types")
    share, over = divmod(pp, len(names))
    order = [name for k, name in enumerate(names) for _ in range(share + (k >= len(names) - over))]
    recompute = _by_type(str(columns.get("recompute", "")), own)
    even, more = divmod(layers, pp)
    return tuple(
        StageFacts(name, even + (i < more), recompute.get(name, recompute.get("", NONE)))
        for i, name in enumerate(order)
    )


def _by_type(text: str, own: Mapping[str, GpuType]) -> dict[str, Recompute]:
    """``TYPE:strategy|TYPE:strategy`` by type, or one strategy for all under the empty name."""
    if "|" not in text and (":" not in text or text.split(":")[0] in _STRATEGIES):
        return {"": _strategy(text)}
    parts = [part.strip().partition(":") for part in text.split("|")]
    return {known_type(name, own): _strategy(word) for name, _, word in parts}


def _precision(stated: str, devices: Mapping[str, GpuType], assumed: list[str]) -> Precision:
    word = stated.casefold()
    for precision in Precision:
        if word.startswith(precision.value):
            return precision
    if word:
        raise NotJudgeableError(f"the precision {stated} is outside the cost model")
    chosen = Precision.BF16 if all(device.supports("bf16") for device in devices.values()) else Precision.FP16
    assumed.append(f"precision {chosen.value}")
    return chosen


def _limits(facts: RowFacts, devices: Mapping[str, GpuType]) -> _Limits:
    peaks = [
        facts.tp * facts.dp * (device.bf16_flops or device.fp16_flops or device.fp32_flops or math.nan)
        for device in (devices[stage.gpu_type] for stage in facts.stages)
    ]
    flop = 6.0 * facts.model.parameters * facts.global_batch * facts.seq_len
    return _Limits(flop, sum(peaks), max(device.memory_bytes for device in devices.values()))


def _check_units(columns: Columns, time_s: float | None, limits: _Limits) -> None:
    """Times that no device reaches and memory that no device has are in another unit than their column."""
    peak_gib, largest = columns.get("peak_mem_gib"), limits.memory_bytes
    if peak_gib is not None and largest and peak_gib * GIB > 1.1 * largest:
        raise NotJudgeableError(
            f"peak_mem_gib {peak_gib:g} is more than the device's {largest / GIB:.0f} GiB: in another unit?"
        )
    if time_s is None:
        return
    share = limits.flop / time_s / limits.peak_flops
    # Of a device whose peak nobody published the share is not a number, and nothing is refused.
    if share <= SLOWEST or share >= FASTEST:
        raise NotJudgeableError(f"iter_time_s {time_s:g} means {share:.2g} of the devices' peak: in another unit?")
