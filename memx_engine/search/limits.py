"""What the operator holds fixed or forbids in every plan of a search.

Pins, forbidden types, kept-free memory and orders narrow the space itself: what they exclude is not part of it, is not
counted, and the certificate speaks of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.origins import StageLimits
from memx_engine.cost.table import Estimator, StageTable, iteration_times
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, Plan, Provenance, Recompute, Skeleton
from memx_engine.units import GIB

if TYPE_CHECKING:
    from memx_engine.search.bounds import Bounds

T = TypeVar("T")
Target = int | str | None
"""A stage (0-based), a GPU type, or every stage (None)."""


@dataclass(frozen=True)
class OperatorLimits:
    """The operator's limits. Every one of them holds in every plan; two that cannot both hold exclude the plan.

    Attributes:
        layers: Pinned layer counts by stage or GPU type.
        recompute: Pinned recompute by stage, GPU type, or for all stages.
        forbidden: GPU types that no plan uses.
        keep_free_bytes: Memory to leave free on every GPU of a type, or of all types that are not named.
        max_layer_difference: Most that the layer counts of any two stages differ, whatever their types.
        type_order: GPU types along the pipeline: those that a plan uses come in this order.
        all_orders: Every distinct order of stages along the pipeline, not only one block for each GPU type.
    """

    layers: tuple[tuple[int | str, int], ...] = ()
    recompute: tuple[tuple[Target, Recompute], ...] = ()
    forbidden: tuple[str, ...] = ()
    keep_free_bytes: tuple[tuple[str | None, float], ...] = ()
    max_layer_difference: int | None = None
    type_order: tuple[str, ...] | None = None
    all_orders: bool = False

    def __bool__(self) -> bool:
        return self != NO_OPERATOR_LIMITS

    def described(self) -> dict[str, tuple[object, ...]]:
        """The limits that are set, by the names of their flags, as they are written there."""
        free = tuple(_spelt(name, _gib(size)) for name, size in self.keep_free_bytes)
        difference = () if self.max_layer_difference is None else (self.max_layer_difference,)
        out: dict[str, tuple[object, ...]] = {
            "pin_layers": tuple(_spelt(target, str(n)) for target, n in self.layers),
            "pin_recompute": tuple(_spelt(target, str(option)) for target, option in self.recompute),
            "forbid": self.forbidden,
            "keep_free": free,
            "max_layer_difference": difference,
            "fixed_type_order": () if self.type_order is None else (",".join(self.type_order),),
            "all_orders": (True,) if self.all_orders else (),
        }
        return {name: values for name, values in out.items() if values}

    def relaxed(self) -> Iterator[tuple[str, OperatorLimits]]:
        """The limits with one of them dropped, each with the words of what was dropped."""
        without = {
            "pin_layers": replace(self, layers=()),
            "pin_recompute": replace(self, recompute=()),
            "forbid": replace(self, forbidden=()),
            "keep_free": replace(self, keep_free_bytes=()),
            "max_layer_difference": replace(self, max_layer_difference=None),
            "fixed_type_order": replace(self, type_order=None),
            "all_orders": replace(self, all_orders=False),
        }
        for name, values in self.described().items():
            flag = "--" + name.removeprefix("fixed_").replace("_", "-")
            yield flag if values == (True,) else f"{flag} {','.join(map(str, values))}", without[name]

    def stage_layers(self, types: Sequence[str]) -> tuple[int | None, ...] | None:
        """The pinned layers of stages on these types; None where no plan of such stages keeps every pin."""
        return self._of_stages(self.layers, types)

    def stage_recompute(self, types: Sequence[str]) -> tuple[Recompute | None, ...] | None:
        """The pinned recompute of stages on these types; None where no plan of such stages keeps every pin."""
        return self._of_stages(self.recompute, types)

    @staticmethod
    def _of_stages(pins: Sequence[tuple[Target, T]], types: Sequence[str]) -> tuple[T | None, ...] | None:
        if any(isinstance(target, int) and target >= len(types) for target, _ in pins):
            return None
        out: list[T | None] = []
        for i, name in enumerate(types):
            values = list(dict.fromkeys(value for target, value in pins if target in (None, i, name)))
            if len(values) > 1:
                return None
            out.append(values[0] if values else None)
        return tuple(out)

    def of_stages(self, types: Sequence[str], layers: int) -> tuple[StageLimits, ...]:
        """What is held fixed on stages on these types, among which any plan of ``layers`` layers keeps the pins."""
        few, many = 1, layers
        if self.max_layer_difference is not None:
            few = -(-layers // len(types)) - self.max_layer_difference
            many = layers // len(types) + self.max_layer_difference
        free = (None,) * len(types)
        pinned_layers, pinned_recompute = self.stage_layers(types) or free, self.stage_recompute(types) or free
        out = []
        for name, n, option in zip(types, pinned_layers, pinned_recompute, strict=True):
            fewest, most = (few, many) if n is None else (max(few, n), min(many, n))
            out.append(StageLimits(fewest, most, option, self.reserve_bytes(name)))
        return tuple(out)

    @property
    def holds_stages(self) -> bool:
        """Whether anything is held fixed on single stages, beside which GPUs form them."""
        return bool(self.layers or self.recompute or self.keep_free_bytes) or self.max_layer_difference is not None

    def allows(self, types: Sequence[str], layers: int) -> bool:
        """Whether any plan of ``layers`` layers on stages of these types keeps the pins."""
        if not self.layers and not self.recompute:
            return True
        pinned = self.stage_layers(types)
        if pinned is None or self.stage_recompute(types) is None:
            return False
        fixed, free = sum(n for n in pinned if n is not None), pinned.count(None)
        return fixed + free <= layers if free else fixed == layers

    def among(self, types: Sequence[str]) -> OperatorLimits:
        """The limits without those that name GPU types that are not among ``types``."""

        def there(target: Target) -> bool:
            return not isinstance(target, str) or target in types

        return replace(
            self,
            layers=tuple(pin for pin in self.layers if there(pin[0])),
            recompute=tuple(pin for pin in self.recompute if there(pin[0])),
            forbidden=tuple(filter(there, self.forbidden)),
            keep_free_bytes=tuple(free for free in self.keep_free_bytes if there(free[0])),
            type_order=self.type_order and tuple(filter(there, self.type_order)),
        )

    def reserve_bytes(self, gpu_type: str) -> float:
        """Memory to keep free on a GPU of this type."""
        by_type = dict(self.keep_free_bytes)
        return by_type.get(gpu_type, by_type.get(None, 0.0))

    def within(self, table: StageTable, skeleton: Skeleton) -> StageTable:
        """``table`` without the choices that the limits exclude, and without the memory that is kept free."""
        stages = self.of_stages([placement.gpu_type for placement in skeleton.placements], table.layers)
        allowed = np.ones(table.memory_bytes.shape, dtype=np.bool_)
        n = np.arange(table.layers + 1)
        for i, stage in enumerate(stages):
            allowed[i, (n < stage.fewest) | (n > stage.most)] = False
            if stage.recompute is not None:
                allowed[i, :, [other != stage.recompute for other in table.options]] = False
        reserve = np.array([stage.reserve_bytes for stage in stages])
        if not allowed.all():
            table = replace(
                table,
                forward_s=np.where(allowed, table.forward_s, np.inf),
                backward_s=np.where(allowed, table.backward_s, np.inf),
                memory_bytes=np.where(allowed, table.memory_bytes, np.inf),
            )
        return replace(table, capacity_bytes=table.capacity_bytes - reserve, reserve_bytes=reserve)

    def bounds_within(self, bounds: Bounds) -> Bounds:
        """``bounds`` without an even split whose chunks make its stages differ by too much."""
        even, most = bounds.even, self.max_layer_difference
        if most is None or even is None or max(even.layers) - min(even.layers) <= most:
            return bounds
        return replace(bounds, even=None)


NO_OPERATOR_LIMITS = OperatorLimits()


def _gib(size: float) -> str:
    """GiB as a word that reads back as exactly ``size``."""
    short = f"{size / GIB:g}"
    return short if float(short) == size / GIB else repr(size / GIB)


def _spelt(target: Target, value: str) -> str:
    return value if target is None else f"{target}:{value}"


class LimitedEstimator:
    """An estimator whose tables leave out what the operator's limits exclude; what it predicts is unchanged."""

    def __init__(self, estimator: Estimator, limits: OperatorLimits) -> None:
        self.base, self.limits = estimator, limits

    @property
    def provenance(self) -> Provenance:
        return self.base.provenance

    @property
    def fingerprint(self) -> str:
        return self.base.fingerprint

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        return self.limits.within(self.base.stage_table(skeleton), skeleton)

    def estimate(self, plan: Plan) -> Estimate:
        return self.base.estimate(plan)

    def iteration_times(self, plans: Sequence[Plan]) -> NDArray[np.float64]:
        return iteration_times(self.base, plans)

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> LimitedEstimator:
        return LimitedEstimator(self.base.derive(cluster, model, job), self.limits)


def limited(estimator: Estimator, limits: OperatorLimits) -> Estimator:
    """``estimator`` within ``limits``; itself where there are none."""
    return LimitedEstimator(estimator, limits) if limits else estimator
