"""What the search found: a plan for every skeleton that is left, as columns; a plan is made whole when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import overload

import numpy as np
from numpy.typing import NDArray

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.assign import Assigned
from memx_engine.search.fitting import Fitting, Split

Array = NDArray[np.float64]


class Found(Sequence[Assigned]):
    """One plan for each of n skeletons, in the order of enumeration: one that was made, else the even split.

    Attributes:
        numbers: (n,) of the skeletons among those that fit. time_s, peak_bytes, variance_bytes2, spread_bytes2, phi,
            lower_bound_phi, worst_fraction: (n,) as in :class:`~memx_engine.search.assign.Assigned`.
        closed_form_phi: (n,) ``lower_bound_phi``, and what is proven of the estimates of interleaved plans.
        plain: (n,) 1F1B or not.
    """

    def __init__(
        self,
        fitting: Fitting,
        ground: tuple[Cluster, TransformerSpec],
        numbers: NDArray[np.intp],
        made: Mapping[int, Assigned],
        even_phi: Array,
        lower_bound_phi: Array,
        plain: NDArray[np.bool_],
    ) -> None:
        """``made``: By number of the skeleton. ``even_phi``, ``lower_bound_phi``, ``plain``: Of all that fit."""
        self.numbers, self.plain = numbers, plain[numbers]
        self._fitting, self._ground, self._made, self._even_phi = fitting, ground, dict(made), even_phi
        self.time_s = fitting.even_time_s[numbers]
        self.peak_bytes = fitting.even_peak_bytes[numbers]
        self.variance_bytes2 = fitting.even_variance[numbers]
        self.spread_bytes2 = fitting.even_spread_bytes2[numbers]
        self.phi = even_phi[numbers]
        self.worst_fraction = fitting.even_worst_fraction[numbers]
        rows = np.searchsorted(numbers, np.fromiter(self._made, dtype=np.intp, count=len(self._made)))
        for row, plan in zip(rows.tolist(), self._made.values(), strict=True):
            self.time_s[row], self.peak_bytes[row] = plan.time_s, plan.peak_bytes
            self.variance_bytes2[row], self.spread_bytes2[row] = plan.variance_bytes2, plan.spread_bytes2
            self.phi[row], self.worst_fraction[row] = plan.phi, plan.worst_fraction
        self.closed_form_phi = np.minimum(lower_bound_phi[numbers], self.phi)
        # Interleaved plans are only estimated: nothing is proven of them.
        self.lower_bound_phi = np.where(self.plain, self.closed_form_phi, 0.0)

    @classmethod
    def nothing(cls, fitting: Fitting, ground: tuple[Cluster, TransformerSpec]) -> Found:
        none = np.zeros(len(fitting))
        return cls(fitting, ground, np.zeros(0, np.intp), {}, none, none, none.astype(np.bool_))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, row: int) -> Assigned: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Assigned]: ...

    def __getitem__(self, row: int | slice) -> Assigned | Sequence[Assigned]:
        if isinstance(row, slice):
            return [self[k] for k in range(len(self))[row]]
        i = int(self.numbers[row])
        if i not in self._made:
            self._made[i] = self._even(i)
        return self._made[i]

    def of_skeleton(self, i: int) -> Assigned | None:
        """The plan of the skeleton of this number."""
        row = int(np.searchsorted(self.numbers, i))
        return self[row] if row < len(self) and self.numbers[row] == i else None

    def even(self, i: int) -> Assigned | None:
        """The even split of the skeleton of this number, where it fits, whatever else was made."""
        return self._even(i) if np.isfinite(self._fitting.even_time_s[i]) else None

    @cached_property
    def marks(self) -> NDArray[np.int64]:
        """(n,) equal where two plans of one search are of the same skeleton."""
        skeletons = self._fitting.skeletons
        return np.array([id(skeletons[i]) for i in self.numbers.tolist()], dtype=np.int64)

    def worst_types(self) -> list[str]:
        """Per row the GPU type of the stage with the highest memory / capacity."""
        fitting, made = self._fitting, self._made
        skeletons, stages = fitting.skeletons, fitting.even_worst_stage.tolist()
        return [
            made[i].worst_type if i in made else skeletons[i].placements[stages[i]].gpu_type
            for i in self.numbers.tolist()
        ]

    def _even(self, i: int) -> Assigned:
        fitting = self._fitting
        skeleton = fitting.skeletons[i]
        return Assigned(
            skeleton,
            partial(_split_of, fitting, i),
            self._ground,
            float(fitting.even_time_s[i]),
            float(fitting.even_peak_bytes[i]),
            float(fitting.even_variance[i]),
            float(self._even_phi[i]),
            float(fitting.even_worst_fraction[i]),
            skeleton.placements[int(fitting.even_worst_stage[i])].gpu_type,
            float(fitting.even_spread_bytes2[i]),
        )


def _split_of(fitting: Fitting, i: int) -> Split:
    plan = fitting.even(i)
    assert plan is not None
    return plan.layers, plan.recompute
