"""A skeleton's plan as the search keeps it: thousands of them, each made whole only when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Plan, Recompute, Skeleton, Stage
from memx_engine.search.bounds import EvenPlan, weighted_variance
from memx_engine.search.branch_and_bound import Candidate
from memx_engine.search.fitting import Split
from memx_engine.search.sources import Meaning


@dataclass(eq=False, slots=True)
class Assigned:
    """A skeleton's best plan. ``time_s`` by the additive form (by the interleaved estimate where v > 1).

    ``worst_fraction`` is the highest memory / capacity over the stages, ``worst_type`` the GPU type of that stage;
    ``spread_bytes2`` the variance in bytes, whatever the objective's kind. ``split``: Layers and recompute per stage,
    or what gives them when they are asked for.
    """

    skeleton: Skeleton
    split: Split | Callable[[], Split]
    ground: tuple[Cluster, TransformerSpec]
    time_s: float
    peak_bytes: float
    variance_bytes2: float
    phi: float
    worst_fraction: float
    worst_type: str
    spread_bytes2: float
    _plan: Plan | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        return self._split()[0]

    @property
    def recompute(self) -> tuple[Recompute, ...]:
        return self._split()[1]

    def _split(self) -> Split:
        if not isinstance(self.split, tuple):
            self.split = self.split()
        return self.split

    @property
    def plan(self) -> Plan:
        """The complete plan; made when it is first asked for, because large searches keep thousands."""
        if self._plan is None:
            self._plan = build_plan(*self.ground, self.skeleton, *self._split())
        return self._plan

    def same_as(self, other: Assigned) -> bool:
        """Whether both stand for one plan."""
        return self.skeleton == other.skeleton and self._split() == other._split()

    @property
    def plain(self) -> bool:
        """1F1B: certified, where interleaved plans are only estimated."""
        return self.skeleton.virtual_stages == 1


def assigned(
    cluster: Cluster,
    model: TransformerSpec,
    skeleton: Skeleton,
    meaning: Meaning,
    found: Candidate,
) -> Assigned:
    """What the branch and bound found in the choices of ``skeleton``."""
    memory = np.array(found.memory)
    used = memory / meaning.whole_bytes
    return Assigned(
        skeleton,
        (tuple(n * meaning.unit for n in found.layers), tuple(meaning.options[r] for r in found.options)),
        (cluster, model),
        found.time_s,
        found.peak,
        found.variance,
        math.exp(found.log_phi),
        float(used.max()),
        skeleton.placements[int(used.argmax())].gpu_type,
        weighted_variance(memory, meaning.gpus),
    )


def assign_split(
    cluster: Cluster,
    model: TransformerSpec,
    skeleton: Skeleton,
    even: EvenPlan,
    phi: float,
) -> Assigned:
    """A split that was not searched for, ``phi`` its own."""
    return Assigned(
        skeleton,
        (even.layers, even.recompute),
        (cluster, model),
        even.time_s,
        even.peak_bytes,
        even.variance_bytes2,
        phi,
        even.worst_fraction,
        skeleton.placements[even.worst_stage].gpu_type,
        even.spread_bytes2,
    )


def build_plan(
    cluster: Cluster,
    model: TransformerSpec,
    skeleton: Skeleton,
    layers: Sequence[int],
    recompute: Sequence[Recompute],
) -> Plan:
    """The plan of a skeleton with its layers and recompute; chunks are equal, the first ones larger where not.

    No stage's recompute counts more layers than its smallest chunk has.
    """
    stages = []
    for placement, n, option in zip(skeleton.placements, layers, recompute, strict=True):
        base, extra = divmod(n, skeleton.virtual_stages)
        chunks = tuple(base + (v < extra) for v in range(skeleton.virtual_stages))
        stages.append(Stage(placement, chunks, option.within(min(chunks))))
    first, last = (cluster.gpu_type(skeleton.placements[i].gpu_type).vendor for i in (0, -1))
    untied = model.tied_embeddings and skeleton.pp > 1 and first != last
    return Plan(skeleton, tuple(stages), untied)
