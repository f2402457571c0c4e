"""What each stage may choose (layers and recompute), reduced and scaled for the exact solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.table import StageTable
from memx_engine.errors import InputError
from memx_engine.plan import FULL
from memx_engine.search.bounds import transfer_s

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """What is held fixed or forbidden inside a skeleton beyond what its table already leaves out.

    Attributes:
        recompute: Per stage, the index of the recompute option it must take (None: free).
        max_layer_difference: Most that two stages' layer counts may differ.
        same_recompute: One recompute option for all stages (Megatron-LM's rule).
    """

    recompute: tuple[int | None, ...] | None = None
    max_layer_difference: int | None = None
    same_recompute: bool = False

    def check(self, table: StageTable) -> None:
        """InputError where the limits do not match the table's stages and options."""
        p, chosen = table.stages, self.recompute
        if chosen is not None and len(chosen) != p:
            raise InputError(f"{len(chosen)} values for {p} stages", where="recompute", hint="give one value per stage")
        for index in self.recompute or ():
            if index is not None and not 0 <= index < len(table.options):
                raise InputError(f"recompute option {index} is not one of {len(table.options)}", where="recompute")
        if self.max_layer_difference is not None and self.max_layer_difference < 0:
            raise InputError("the layer difference cannot be negative", where="max_layer_difference")


NO_LIMITS = Limits()


@dataclass(frozen=True)
class TimeForm:
    """Iteration time as ``period_factor · max_i period_i + sum_factor · Σ_i t_i + constant_s + max_i tail_i``.

    1F1B: the additive form, ``period_i = t_i + c_{i-1} + c_i``. Interleaved: the estimate, ``period_i = t_i``.
    """

    period_factor: float
    sum_factor: float
    constant_s: float
    transfers_s: Array

    @classmethod
    def of(cls, table: StageTable) -> TimeForm:
        sent_s, v, g = float(table.p2p_s.sum()), table.virtual_stages, table.micro_batches
        if v == 1:
            return cls(g - 1.0, 1.0, 2.0 * sent_s + table.fixed_s, transfer_s(table))
        constant = 2.0 * v * sent_s + 2.0 * (v - 1) * table.wrap_s + table.fixed_s
        return cls(g - 1.0 / v, 1.0 / v, constant, np.zeros(table.stages))


@dataclass(frozen=True, eq=False)
class Choices:
    """Feasible choices of every stage; P stages, N layer counts (n = 1..N), R recompute options kept.

    Attributes:
        period_s, time_s, memory: (P, N, R) period and time of one micro-batch, peak bytes; a missing choice has
            infinite period and memory and zero time.
        balance: (P, N, R) what the variance is of (bytes, or share of capacity), shifted and divided by ``scale``.
        option: (P, N, R) index of the recompute option in the table.
        valid: (P, N, R) whether the choice exists and fits.
        tail_s: (P, N).
        share: (P,) of all GPUs.
    """

    period_s: Array
    time_s: Array
    memory: Array
    balance: Array
    option: NDArray[np.int64]
    valid: NDArray[np.bool_]
    tail_s: Array
    share: Array
    scale: float
    layers: int
    form: TimeForm


def build_choices(table: StageTable, variance_kind: str, limits: Limits) -> Choices | None:
    """Choices that fit memory and limits, None when a stage has none."""
    p, layers = table.stages, table.layers
    most = layers - p + 1
    if most < 1:
        return None
    memory = table.memory_bytes[:, 1 : most + 1]
    valid = memory <= np.minimum(table.capacity_bytes, np.finfo(np.float64).max)[:, None, None]
    for i, chosen in enumerate(limits.recompute or ()):
        if chosen is not None:
            valid[i, :, np.arange(valid.shape[2]) != chosen] = False
    if not valid.any(axis=(1, 2)).all():
        return None
    if not limits.same_recompute:
        _name_once(table, valid)
    columns = int(np.flatnonzero(valid.any(axis=(0, 2)))[-1]) + 1
    kept = np.flatnonzero(valid.any(axis=(0, 1)))
    at = (slice(None), slice(1, columns + 1), kept if len(kept) < valid.shape[2] else slice(None))
    valid = valid[:, :columns, at[2]]
    tail = table.tail_s[:, 1 : columns + 1]
    valid &= np.isfinite(tail)[:, :, None]
    time = np.where(valid, table.forward_s[at] + table.backward_s[at], np.inf)
    memory = np.where(valid, table.memory_bytes[at], np.inf)
    option = np.broadcast_to(kept, time.shape)

    measure = np.where(valid, memory, 0.0)
    if variance_kind == "utilization":
        measure = measure / np.asarray(table.whole_bytes, dtype=np.float64)[:, None, None]
    low, high = float(np.where(valid, measure, np.inf).min()), float(measure.max())
    scale = (high - low) or max(abs(high), 1.0)
    form = TimeForm.of(table)
    gpus = np.asarray(table.gpus, dtype=np.float64)
    return Choices(
        period_s=time + form.transfers_s[:, None, None],
        time_s=np.where(valid, time, 0.0),
        memory=memory,
        balance=np.where(valid, (measure - low) * (1.0 / scale), 0.0),
        option=option,
        valid=valid,
        tail_s=np.where(np.isfinite(tail), tail, np.inf),
        share=gpus / gpus.sum(),
        scale=scale,
        layers=layers,
        form=form,
    )


def _name_once(table: StageTable, valid: NDArray[np.bool_]) -> None:
    """Of ``block:K`` over all K layers of a chunk and ``full``, which are the same, leave ``full``."""
    if FULL not in table.options:
        return
    full = table.options.index(FULL)
    for r, option in enumerate(table.options):
        n = option.n * table.virtual_stages
        if option.kind == "block" and n <= valid.shape[1]:
            same = valid[:, n - 1, full]
            for values in (table.memory_bytes, table.forward_s, table.backward_s):
                same = same & (values[:, n, r] == values[:, n, full])
            valid[:, n - 1, r] &= ~same
