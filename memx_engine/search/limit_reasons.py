"""Which of the operator's limits a finished plan breaks, and by how much."""

from __future__ import annotations

from collections.abc import Iterator

from memx_engine.plan import Estimate, Plan
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.rules import Reason
from memx_engine.units import GIB


def broken_limits(limits: OperatorLimits, plan: Plan, estimate: Estimate) -> Iterator[Reason]:
    """One reason (rule ``limit``) for every limit and stage that ``plan`` breaks; none where it keeps them all."""
    types = [stage.gpu_type for stage in plan.stages]
    for target, wanted in limits.layers:
        if isinstance(target, int) and target >= len(types):
            yield Reason(
                "limit",
                f"stage {target} is pinned to {wanted} layers, and there are {len(types)} stages",
                remedy=f"use PP {target + 1} or more, or drop --pin-layers {target}:{wanted}",
            )
        for i, stage in enumerate(plan.stages):
            if target in (i, stage.gpu_type) and stage.layers != wanted:
                yield Reason(
                    "limit",
                    f"stage {i} has {stage.layers} layers, pinned are {wanted}",
                    i,
                    remedy=f"give it {_more(wanted - stage.layers)}, or drop --pin-layers {target}:{wanted}",
                )
    for goal, option in limits.recompute:
        if isinstance(goal, int) and goal >= len(types):
            yield Reason(
                "limit",
                f"stage {goal} is pinned to recompute {option}, and there are {len(types)} stages",
                remedy=f"use PP {goal + 1} or more, or drop --pin-recompute {goal}:{option}",
            )
        for i, stage in enumerate(plan.stages):
            if goal in (None, i, stage.gpu_type) and stage.recompute != option:
                if option.kind == "uniform" and stage.recompute == option.within(min(stage.chunk_layers)):
                    continue
                yield Reason(
                    "limit",
                    f"stage {i} has recompute {stage.recompute}, pinned is {option}",
                    i,
                    remedy=f"give it {option}, or drop the pin",
                )
    for name in limits.forbidden:
        if name in types:
            count = types.count(name)
            yield Reason(
                "limit",
                f"{name} is forbidden, and {count} stage{'s are' if count > 1 else ' is'} on it",
                types.index(name),
                remedy=f"use other types, or drop --forbid {name}",
            )
    most = limits.max_layer_difference
    difference = max(plan.layers) - min(plan.layers)
    if most is not None and difference > most:
        yield Reason(
            "limit",
            f"the layers of its stages differ by {difference}, at most {most} are allowed",
            remedy=f"move layers between stages {plan.layers.index(max(plan.layers))} and "
            f"{plan.layers.index(min(plan.layers))}, or allow --max-layer-difference {difference}",
        )
    yield from _order(limits, types)
    yield from _free(limits, estimate)


def _more(layers: int) -> str:
    return f"{abs(layers)} layer{'s' if abs(layers) > 1 else ''} {'more' if layers > 0 else 'fewer'}"


def _order(limits: OperatorLimits, types: list[str]) -> Iterator[Reason]:
    if limits.type_order is None:
        return
    # Coming back to a type breaks a fixed order too.
    used = [name for i, name in enumerate(types) if i == 0 or types[i - 1] != name]
    wanted = [name for name in limits.type_order if name in used]
    if used != wanted:
        yield Reason(
            "limit",
            f"its GPU types come in the order {' > '.join(used)}, fixed is {' > '.join(wanted)}",
            remedy=f"place the stages in the fixed order, or drop --type-order {','.join(limits.type_order)}",
        )


def _free(limits: OperatorLimits, estimate: Estimate) -> Iterator[Reason]:
    """The fullest GPU of every stage that leaves too little free."""
    lacking: dict[int, tuple[float, Reason]] = {}
    for gpu in estimate.gpus:
        keep = limits.reserve_bytes(gpu.gpu_type)
        free = gpu.capacity_bytes - gpu.peak_bytes
        lack = keep - free
        if keep > 0 and lack > 0 and lack > lacking.get(gpu.stage, (0.0, None))[0]:
            words = (
                f"rank {gpu.rank} ({gpu.gpu_type}) leaves {max(free, 0.0) / GIB:.1f} GiB free, "
                f"{keep / GIB:.1f} GiB are to be kept"
            )
            name = "" if gpu.gpu_type not in dict(limits.keep_free_bytes) else f"{gpu.gpu_type}:"
            least = max(free, 0.0) // (GIB / 10) / 10
            remedy = f"more recompute or fewer layers on the stage, or --keep-free {name}{least:g}"
            lacking[gpu.stage] = (lack, Reason("limit", words, gpu.stage, lack, remedy))
    yield from (reason for _, reason in lacking.values())
