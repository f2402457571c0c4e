"""From a skeleton to its best plan: the inner solver under the framework's rules, and the plan it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memx_engine.cost.table import StageTable
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Plan, Recompute, Skeleton, Stage
from memx_engine.search.bounds import EvenPlan, weighted_variance
from memx_engine.search.objective import Objective
from memx_engine.search.solver import Limits, solve


@dataclass(frozen=True, eq=False)
class Assigned:
    """A skeleton's best plan. ``time_s`` by the additive form (by the interleaved estimate where v > 1).

    ``settled``: no better plan of the skeleton matters: it is the best, or the best is above the limit that was given.
    ``worst_fraction`` is the highest memory / capacity over the stages, ``worst_type`` the GPU type of that stage;
    ``spread_bytes2`` the variance in bytes, whatever the objective's kind. ``nodes``: What it took.
    """

    skeleton: Skeleton
    layers: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    ground: tuple[Cluster, TransformerSpec]
    time_s: float
    peak_bytes: float
    variance_bytes2: float
    phi: float
    lower_bound_phi: float
    settled: bool
    worst_fraction: float
    worst_type: str
    spread_bytes2: float
    nodes: int = 0

    @cached_property
    def plan(self) -> Plan:
        """The complete plan; made when it is first asked for, because large searches keep thousands."""
        return build_plan(*self.ground, self.skeleton, self.layers, self.recompute)

    def same_as(self, other: Assigned) -> bool:
        """Whether both stand for one plan."""
        return (self.layers, self.recompute) == (other.layers, other.recompute) and self.skeleton == other.skeleton

    @property
    def plain(self) -> bool:
        """1F1B: certified, where interleaved plans are only estimated."""
        return self.skeleton.virtual_stages == 1


def assign(
    cluster: Cluster,
    model: TransformerSpec,
    framework: Framework,
    skeleton: Skeleton,
    table: StageTable,
    objective: Objective,
    *,
    incumbent_phi: float = float("inf"),
    max_layer_difference: int | None = None,
    should_stop: Callable[[], bool] | None = None,
    most_nodes: int | None = None,
    most_peak: float = float("inf"),
) -> Assigned | None:
    """The best split and recompute of ``skeleton``, whose table is ``table``; None where nothing fits.

    ``most_nodes``: Give up then, with the best so far and its honest bound. ``most_peak``: Only plans up to this peak.
    """
    limits = Limits(max_layer_difference=max_layer_difference, same_recompute=framework is Framework.MEGATRON)
    solution = solve(
        table,
        objective,
        incumbent_phi=incumbent_phi,
        limits=limits,
        should_stop=should_stop,
        most_nodes=most_nodes,
        most_peak=most_peak,
    )
    if solution is None:
        return None
    memory = table.memory_bytes[np.arange(table.stages), solution.layers, solution.options]
    used = memory / table.whole_bytes
    return Assigned(
        skeleton,
        solution.layers,
        tuple(table.options[r] for r in solution.options),
        (cluster, model),
        solution.time_s,
        solution.peak_bytes,
        solution.variance,
        solution.phi,
        solution.lower_bound_phi,
        solution.optimal or solution.closed,
        float(used.max()),
        skeleton.placements[int(used.argmax())].gpu_type,
        weighted_variance(memory, table.gpus),
        solution.nodes,
    )


def assign_even(
    cluster: Cluster,
    model: TransformerSpec,
    skeleton: Skeleton,
    even: EvenPlan,
    phi: float,
    lower_bound_phi: float,
) -> Assigned:
    """The even split of a skeleton that cannot be among the best, ``phi`` its own: it fits, no more."""
    return Assigned(
        skeleton,
        even.layers,
        even.recompute,
        (cluster, model),
        even.time_s,
        even.peak_bytes,
        even.variance_bytes2,
        phi,
        lower_bound_phi,
        False,
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
