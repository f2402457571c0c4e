"""What the rows of a sketch are made of: one stage signature's terms, and what is held fixed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.network import PlacementNetwork, Rate
from memx_engine.cost.table import Array
from memx_engine.cost.tables import StageTerms, TableFactors, dense_memory, dense_times
from memx_engine.plan import SELECTIVE, Recompute, Skeleton

if TYPE_CHECKING:
    from memx_engine.cost.first_principles import FirstPrinciples

Ints = NDArray[np.int64]
Learn = Callable[[int, tuple[Recompute, ...]], TableFactors]


@dataclass(frozen=True)
class StageLimits:
    """What the operator holds fixed on one stage: its layers (both ends count), its recompute, memory left free."""

    fewest: int = 1
    most: int = 1 << 30
    recompute: Recompute | None = None
    reserve_bytes: float = 0.0


class Limits(Protocol):
    """Limits of every stage by the GPU types along the pipeline; equal limits are equal objects."""

    def __hash__(self) -> int: ...

    def of_stages(self, types: Sequence[str], layers: int) -> tuple[StageLimits, ...]: ...


@dataclass(frozen=True, eq=False)
class Origin:
    """What the rows of one stage signature are made of; they differ by what is in flight.

    Attributes:
        missing: (R,) strategies that the signature does not have, or is not allowed.
        capacity_bytes: Less the reserve. fewest, most: Layers that are allowed.
    """

    terms: StageTerms
    learned: TableFactors | None
    missing: NDArray[np.bool_]
    capacity_bytes: float
    reserve_bytes: float = 0.0
    fewest: int = 1
    most: int = 1 << 30

    def times(self, options: tuple[Recompute, ...], layers: int, v: int, units: int | None = None) -> Array:
        """(U+1, R) seconds of one micro-batch in the 1F1B form (over v); infinite where a strategy does not exist.

        ``units``: Only so many, instead of all.
        """
        columns = None if units is None else units * v + 1
        forward, backward = dense_times((self.terms,), options, layers, v, self.learned, columns)
        time_s: Array = (forward + backward)[0, ::v] / v
        self._close(time_s[None], v)
        return time_s

    def memory(
        self, held: tuple[int, ...], options: tuple[Recompute, ...], layers: int, v: int, units: int | None = None
    ) -> Array:
        """(H, U+1, R) bytes with so many micro-batches (chunks where v > 1) in flight; ``units`` as in ``times``."""
        columns = None if units is None else units * v + 1
        memory = dense_memory((self.terms,), held, options, layers, v, self.learned, columns)[:, ::v]
        self._close(memory, v)
        return memory

    def _close(self, values: Array, v: int) -> None:
        values[:, :, self.missing] = np.inf
        values[:, : max(-(-self.fewest // v), 0)] = np.inf
        values[:, self.most // v + 1 :] = np.inf


class Origins:
    """The origins of one skeleton's stages under every strategy of a book, made where they are asked for.

    Args:
        own: The skeleton's own strategies, of which ``grouped`` are N of those that are ``uniform:N``.
    """

    def __init__(
        self,
        estimator: FirstPrinciples,
        skeleton: Skeleton,
        network: PlacementNetwork,
        limits: tuple[StageLimits, ...] | None,
        every: tuple[Recompute, ...],
        own: tuple[Recompute, ...],
        grouped: tuple[int, ...],
        learn: Learn | None,
    ) -> None:
        self.skeleton = skeleton
        self._estimator, self._network, self._limits, self._learn = estimator, network, limits, learn
        self._every, self._own, self._grouped = every, own, grouped
        self._known: dict[int, Origin] = {}

    def key(self, stage: int, signature: int) -> tuple[object, ...]:
        """All that the origin of a stage of this signature depends on; virtual stages first."""
        s = self.skeleton
        return s.virtual_stages, s.tp, s.dp, s.micro_batch, self._grouped, signature, self._shut(stage)

    def _shut(self, stage: int) -> bool:
        """Whether the stage is held to a strategy that the skeleton does not have, or more layers than it can have."""
        if self._limits is None:
            return False
        limits, skeleton = self._limits[stage], self.skeleton
        left = self._estimator.model.layers - (skeleton.pp - 1) * skeleton.virtual_stages
        return limits.fewest > left or (limits.recompute is not None and limits.recompute not in self._own)

    def origin(self, stage: int) -> Origin:
        known = self._known.get(stage)
        if known is None:
            known = self._known[stage] = self._make(stage)
        return known

    def _make(self, stage: int) -> Origin:
        skeleton, estimator, options = self.skeleton, self._estimator, self._every
        ends = (stage == 0, stage == skeleton.pp - 1)
        links = (self._network.tp[stage], self._network.dp[stage])
        made = estimator.stage(skeleton, skeleton.placements[stage], ends, *links)
        missing = np.array([option.kind == "uniform" and option.n not in self._grouped for option in options])
        if SELECTIVE in options and estimator.saves_nothing(made.cost.memory):
            missing[options.index(SELECTIVE)] = True
        limits = StageLimits() if self._limits is None else self._limits[stage]
        if self._shut(stage):
            missing[:] = True
        elif limits.recompute is not None:
            missing |= np.array([option != limits.recompute for option in options])
        learned = self._learn(stage, options) if self._learn else None
        capacity = float(self._network.capacity_bytes[stage]) - limits.reserve_bytes
        return Origin(made.terms, learned, missing, capacity, limits.reserve_bytes, limits.fewest, limits.most)


class Signatures:
    """Numbers of what a stage's cost depends on beside TP, DP and micro-batch."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}
        # By identity first, since the network hands out the same rates again; kept here, so that no id is reused.
        self._met: dict[tuple[object, ...], tuple[int, Rate, Rate]] = {}

    def number(
        self,
        gpu_type: str,
        capacity_bytes: float,
        tp: Rate,
        dp: Rate,
        ends: tuple[bool, bool],
        limits: StageLimits | None,
    ) -> int:
        key = (gpu_type, capacity_bytes, id(tp), id(dp), ends, limits)
        met = self._met.get(key)
        if met is None:
            number = self._known.setdefault((gpu_type, capacity_bytes, tp, dp, ends, limits), len(self._known))
            met = self._met[key] = (number, tp, dp)
        return met[0]
