"""The nouns that flow everywhere: what a plan is, and what is predicted of it.

A :class:`Skeleton` is a plan without its layer split and recompute; a :class:`Plan` fixes everything. A :class:`Stage`
carries its own tp and dp, so that unequal stages need no redesign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from memx_engine.errors import InputError

_RECOMPUTE = re.compile(r"(none|selective|full|uniform:(\d+)|block:(\d+))")


class Provenance(StrEnum):
    """What a number rests on."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    UNCALIBRATED = "uncalibrated"


class Verdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"
    INVALID = "invalid"


@dataclass(frozen=True)
class Recompute:
    """Recompute strategy of one stage, in Megatron's terms.

    ``full`` is ``uniform:1``. ``uniform:N`` keeps the input of every N-th layer; ``block:K`` recomputes K of the
    stage's layers (of each chunk under interleaving) and keeps the others whole.
    """

    kind: str = "none"
    n: int = 0

    @classmethod
    def parse(cls, word: str) -> Recompute:
        """Read ``none``, ``selective``, ``full``, ``uniform:N`` or ``block:K`` (N, K >= 1); InputError otherwise."""
        match = _RECOMPUTE.fullmatch(word.strip())
        if match is None:
            raise InputError(
                f"recompute {word!r} is not known",
                hint="use none, selective, full, uniform:N or block:K",
            )
        if word.strip() in ("full", "uniform:1"):
            return FULL
        n = int(match[2] or match[3] or 0)
        kind = word.strip().split(":")[0]
        if kind in ("uniform", "block") and n < 1:
            raise InputError(f"recompute {word!r} needs a count of at least 1")
        return cls(kind, n)

    def within(self, layers: int) -> Recompute:
        """The same where only ``layers`` (>= 1) are there: ``uniform:4`` on 3 layers is ``uniform:3``, on 1 ``full``.

        Uniform costs the same by either name: the last group holds what is left.
        """
        if self.n <= layers:
            return self
        return FULL if self.kind == "uniform" and layers == 1 else Recompute(self.kind, layers)

    def __str__(self) -> str:
        return f"{self.kind}:{self.n}" if self.kind in ("uniform", "block") else self.kind


NONE = Recompute("none")
SELECTIVE = Recompute("selective")
FULL = Recompute("full")


@dataclass(frozen=True)
class StagePlacement:
    """The GPUs of one pipeline stage: ``tp * dp`` ranks of one type, TP groups consecutive.

    ``ranks[d * tp + t]`` is tensor-parallel rank t of data-parallel replica d.
    """

    gpu_type: str
    tp: int
    dp: int
    ranks: tuple[int, ...]

    def __hash__(self) -> int:
        # Computed once: a search keys thousands of look-ups by placements of thousands of ranks.
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash((self.gpu_type, self.tp, self.dp, self.ranks))
            self.__dict__["_hash"] = known
        return known

    def __getstate__(self) -> dict[str, object]:
        # Hashes of words differ between processes.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}


@dataclass(frozen=True)
class Skeleton:
    """A plan without its layer split and its recompute."""

    tp: int
    pp: int
    dp: int
    micro_batch: int
    seq_len: int
    global_batch: int
    placements: tuple[StagePlacement, ...]
    virtual_stages: int = 1

    @property
    def schedule(self) -> str:
        """``1f1b`` or ``interleaved``."""
        return "interleaved" if self.virtual_stages > 1 else "1f1b"

    @property
    def micro_batches(self) -> int:
        """Micro-batches per iteration and replica, G."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def type_order(self) -> tuple[str, ...]:
        """GPU types along the pipeline, adjacent repeats folded."""
        order: list[str] = []
        for placement in self.placements:
            if not order or order[-1] != placement.gpu_type:
                order.append(placement.gpu_type)
        return tuple(order)


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of a finished plan.

    ``chunk_layers`` has one entry per virtual stage (one entry under 1F1B) and sums to ``layers``.
    """

    placement: StagePlacement
    chunk_layers: tuple[int, ...]
    recompute: Recompute

    @property
    def layers(self) -> int:
        return sum(self.chunk_layers)

    @property
    def gpu_type(self) -> str:
        return self.placement.gpu_type

    @property
    def tp(self) -> int:
        return self.placement.tp

    @property
    def dp(self) -> int:
        return self.placement.dp

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.placement.ranks


@dataclass(frozen=True)
class Plan:
    """Everything that is decided. ``untied`` is true where the plan unties tied embeddings (ends on two vendors)."""

    skeleton: Skeleton
    stages: tuple[Stage, ...]
    untied: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(stage.layers for stage in self.stages)

    @property
    def recompute(self) -> tuple[Recompute, ...]:
        return tuple(stage.recompute for stage in self.stages)


@dataclass(frozen=True)
class MemoryBreakdown:
    """Peak memory of one rank in bytes, by part; never shown as one number only."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0
    context: float = 0.0
    fragmentation: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


MOST_RISK = 0.05
"""A plan fits when no GPU runs out of memory with a higher probability."""

UNCALIBRATED_SHARE = 0.9
"""Without probabilities a plan that fills more of a GPU is tight."""


@dataclass(frozen=True)
class GpuEstimate:
    """What is predicted for one GPU. ``oom_probability`` is None while nothing is calibrated."""

    rank: int
    node: str
    gpu_type: str
    stage: int
    peak_bytes: float
    capacity_bytes: int
    breakdown: MemoryBreakdown
    oom_probability: float | None = None

    @property
    def used_fraction(self) -> float:
        return self.peak_bytes / self.capacity_bytes if self.capacity_bytes > 0 else float("inf")


@dataclass(frozen=True)
class Estimate:
    """What is predicted of a plan.

    Attributes:
        iteration_time_s: By event simulation.
        additive_time_s: By the additive closed form that the solver optimises.
        lower_bound_s: Proven: events cannot take less.
        interval_s: 95 % interval of the iteration time; None while nothing is calibrated.
        time_breakdown_s: ``compute``, ``recompute``, ``tp_comm``, ``pp_comm``, ``bubble``, ``dp_comm``, ``optimizer``,
            ``fixed``; sums to ``iteration_time_s``, seen from ``slowest_stage``.
        stage_forward_s, stage_backward_s: One micro-batch on each stage.
        peak_bytes: The highest per-GPU peak. memory_variance_bytes2: Variance of the peaks over the plan's GPUs.
        extrapolated: Sizes of the plan outside the range of what was measured, such as ``micro_batch``.
    """

    iteration_time_s: float
    additive_time_s: float
    lower_bound_s: float
    tokens_per_s: float
    time_breakdown_s: Mapping[str, float]
    stage_forward_s: tuple[float, ...]
    stage_backward_s: tuple[float, ...]
    p2p_s: tuple[float, ...]
    tail_s: tuple[float, ...]
    gpus: tuple[GpuEstimate, ...]
    peak_bytes: float
    memory_variance_bytes2: float
    interval_s: tuple[float, float] | None = None
    provenance: Provenance = Provenance.UNCALIBRATED
    extrapolated: tuple[str, ...] = ()

    @property
    def slowest_stage(self) -> int:
        """The stage that takes longest for one micro-batch and so sets the pace: the time breakdown is its own."""
        times = [f + b for f, b in zip(self.stage_forward_s, self.stage_backward_s, strict=True)]
        return max(range(len(times)), key=times.__getitem__)

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval over the iteration time; None while nothing is calibrated."""
        if self.interval_s is None or self.iteration_time_s <= 0:
            return None
        return (self.interval_s[1] - self.interval_s[0]) / 2 / self.iteration_time_s

    @property
    def certainty(self) -> str:
        """What the numbers rest on, and half of the time's 95 % interval: ``simulated ±6.1 %``, ``uncalibrated``."""
        width = self.half_width
        return self.provenance.value + ("" if width is None else f" ±{100 * width:.{0 if width >= 0.1 else 1}f} %")

    @property
    def basis(self) -> str:
        """As ``certainty``, with the sizes that are extrapolated."""
        names = ", ".join(name.replace("_", " ") for name in self.extrapolated)
        return f"{self.certainty}, extrapolated in {names}" if names else self.certainty

    @property
    def worst_gpu(self) -> GpuEstimate:
        """The GPU closest to its capacity."""
        return max(self.gpus, key=lambda gpu: gpu.used_fraction)

    @property
    def oom_risk(self) -> float | None:
        """The highest probability with which a GPU runs out of memory; None where none is known."""
        known = [gpu.oom_probability for gpu in self.gpus if gpu.oom_probability is not None]
        return max(known, default=None)

    @property
    def verdict(self) -> Verdict:
        """Fits with 95 % certainty on every GPU (uncalibrated: 10 % below capacity), tight, or does not fit."""
        worst = self.worst_gpu
        if worst.used_fraction > 1.0:
            return Verdict.DOES_NOT_FIT
        risk = self.oom_risk
        if risk is not None and risk > MOST_RISK:
            return Verdict.TIGHT
        # GPUs of types that nobody measured have no probability.
        unknown = [g for g in self.gpus if g.oom_probability is None]
        return Verdict.TIGHT if any(g.used_fraction > UNCALIBRATED_SHARE for g in unknown) else Verdict.FITS
