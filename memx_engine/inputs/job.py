"""The training job: batch, sequence, precision, optimizer, attention, framework, and which dimensions are free."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Precision(StrEnum):
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Optimizer(StrEnum):
    SHARDED = "sharded"
    REPLICATED = "replicated"


class Attention(StrEnum):
    FUSED = "fused"
    UNFUSED = "unfused"


class Framework(StrEnum):
    """Whose rules limit the plan: one recompute for all (megatron), off/full per stage (flagscale), or everything."""

    ANY = "any"
    MEGATRON = "megatron"
    FLAGSCALE = "flagscale"


@dataclass(frozen=True)
class Job:
    """What is trained and how. Build it with :func:`memx_engine.inputs.job_file.resolve_job`, which fills defaults.

    Attributes:
        global_batch: Sequences per iteration.
        seq_len: Tokens per sequence.
        micro_batch_sizes: Micro-batch sizes to consider; None lets the search take powers of two.
        tp_sizes, pp_sizes, dp_sizes: Values to consider; None leaves the dimension free.
        virtual_stages: Interleaving depths to consider besides 1.
        assumed: What was not stated by the operator and how it was filled, one sentence each.
    """

    global_batch: int
    seq_len: int
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.SHARDED
    attention: Attention = Attention.FUSED
    framework: Framework = Framework.ANY
    sequence_parallel: bool = True
    fp32_gradients: bool = True
    micro_batch_sizes: tuple[int, ...] | None = None
    tp_sizes: tuple[int, ...] | None = None
    pp_sizes: tuple[int, ...] | None = None
    dp_sizes: tuple[int, ...] | None = None
    virtual_stages: tuple[int, ...] = (2,)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one weight or activation element."""
        return 4 if self.precision is Precision.FP32 else 2
