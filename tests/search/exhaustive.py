"""Every complete plan of a small instance, one after another: the judge of the whole search.

Written from the method's rules and sharing no code with ``memx_engine.search``: it lists skeletons, splits and
recompute assignments, measures each plan by the formulas as they are printed, and compares. Clusters have one site.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations, product

import numpy as np

from memx_engine.cost.table import Estimator, StageTable
from memx_engine.inputs.cluster import Cluster, GpuGroup
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Plan, Skeleton, StagePlacement
from memx_engine.search.objective import Objective


@dataclass(frozen=True)
class Pins:
    """What an operator holds fixed, as the judge understands it; a target is a stage, a GPU type, or every stage.

    Attributes:
        layers, recompute: (target, layers or word). forbidden: GPU types.
        keep_free: (GPU type or every type, bytes). most_difference: Between two stages' layers.
        order: GPU types along the pipeline. all_orders: Stages in every distinct order of their types.
    """

    layers: tuple[tuple[int | str, int], ...] = ()
    recompute: tuple[tuple[int | str | None, str], ...] = ()
    forbidden: tuple[str, ...] = ()
    keep_free: tuple[tuple[str | None, float], ...] = ()
    most_difference: int | None = None
    order: tuple[str, ...] | None = None
    all_orders: bool = False

    def reserve(self, gpu_type: str) -> float:
        """Bytes to keep free; what is said of a type goes before what is said of all."""
        of_all = [size for target, size in self.keep_free if target is None]
        return next((size for target, size in self.keep_free if target == gpu_type), (of_all or [0.0])[0])

    def wanted(self, pins: tuple, stage: int, gpu_type: str) -> set:  # type: ignore[type-arg]  # layers, or words
        """Every value that is asked of one stage."""
        return {value for target, value in pins if target is None or target in (stage, gpu_type)}

    def can_hold(self, types: list[str], layers: int) -> bool:
        """Whether stages of these types can keep the pins, memory and which recompute exists apart."""
        stages = [target for target, _ in (*self.layers, *self.recompute) if isinstance(target, int)]
        wanted = [self.wanted(self.layers, i, name) for i, name in enumerate(types)]
        words = [self.wanted(self.recompute, i, name) for i, name in enumerate(types)]
        if max(stages, default=0) >= len(types) or any(len(x) > 1 for x in (*wanted, *words)):
            return False
        free = sum(not x for x in wanted)
        left = layers - sum(n for x in wanted for n in x)
        return not self.layers or (left >= free if free else left == 0)


NO_PINS = Pins()


# --- skeletons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """``legal``: every skeleton that can be placed. ``refused``: how many combinations could not."""

    legal: tuple[Skeleton, ...]
    refused: int


def list_skeletons(cluster: Cluster, model: TransformerSpec, job: Job, pins: Pins = NO_PINS) -> Listing:
    """Cross TP, DP, micro-batch, ordered subsets of types, and schedule; each type gives all the stages it can."""
    types = [t.name for t in cluster.gpu_types if job.precision.value not in t.lacks and t.name not in pins.forbidden]
    per_node = {name: _by_node(cluster, name) for name in types}
    biggest_node = max((len(r) for nodes in per_node.values() for r in nodes), default=0)
    biggest_type = max((sum(map(len, nodes)) for nodes in per_node.values()), default=0)
    depths = [1]
    if job.framework is not Framework.FLAGSCALE:
        depths += sorted({v for v in job.virtual_stages if v >= 2})
    legal: list[Skeleton] = []
    refused = 0
    for tp in range(1, biggest_node + 1):
        if model.heads % tp or (model.kv_heads % tp and tp % model.kv_heads):
            continue
        if job.tp_sizes is not None and tp not in job.tp_sizes:
            continue
        for dp in range(1, biggest_type // tp + 1):
            if job.dp_sizes is not None and dp not in job.dp_sizes:
                continue
            sizes = [b for b in job.micro_batch_sizes or (1, 2, 4, 8, 16, 32) if job.global_batch % (dp * b) == 0]
            blocks = {name: _stages(cluster, per_node[name], tp, dp) for name in types}
            for order in _ordered_subsets(types, pins):
                for counts in _block_lengths([len(blocks[name]) for name in order], job.pp_sizes):
                    pp = sum(counts)
                    shapes = [
                        (b, v)
                        for b, v in product(sizes, depths)
                        if all(counts) and _schedule_works(model.layers, pp, job.global_batch // (dp * b), v)
                    ]
                    for along in _pipelines(order, counts, pins.all_orders and bool(shapes)):
                        if shapes and not pins.can_hold(along, model.layers):
                            continue
                        refused += len(sizes) * len(depths) - len(shapes)
                        if not shapes:
                            continue
                        left = {name: list(blocks[name]) for name in order}
                        placed = tuple(StagePlacement(name, tp, dp, left[name].pop(0)) for name in along)
                        legal += [Skeleton(tp, pp, dp, b, job.seq_len, job.global_batch, placed, v) for b, v in shapes]
    return Listing(tuple(legal), refused)


def _by_node(cluster: Cluster, name: str) -> list[list[int]]:
    nodes: dict[int, list[int]] = {}
    for gpu in cluster.gpus:
        if gpu.gpu_type.name == name:
            nodes.setdefault(gpu.node_index, []).append(gpu.rank)
    return list(nodes.values())


def _schedule_works(layers: int, pp: int, micro_batches: int, v: int) -> bool:
    if v == 1:
        return pp <= layers
    return pp > 1 and pp * v <= layers and layers % v == 0 and micro_batches % pp == 0


def _ordered_subsets(types: list[str], pins: Pins) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(types) + 1):
        if pins.order is not None:
            yield from combinations([name for name in pins.order if name in types], count)
        elif pins.all_orders:
            yield from combinations(types, count)
        else:
            yield from permutations(types, count)


def _pipelines(order: tuple[str, ...], counts: list[int], every: bool) -> list[list[str]]:
    """The types of the stages along the pipeline: block after block, or in every distinct order."""
    along = [name for name, n in zip(order, counts, strict=True) for _ in range(n)]
    return [list(types) for types in sorted(set(permutations(along)))] if every else [along]


def _block_lengths(most: list[int], wanted: tuple[int, ...] | None) -> list[list[int]]:
    """Stages of every block: all; or for each PP that is wanted, one less of the longest (the later of equals)."""
    if wanted is None:
        return [most]
    out = []
    for pp in sorted(set(wanted)):
        counts = list(most)
        while sum(counts) > pp and max(counts) > 1 and min(counts) > 0:
            i = max(range(len(counts)), key=lambda j: (counts[j], j))
            counts[i] -= 1
        if sum(counts) == pp:
            out.append(counts)
    return out


def _stages(cluster: Cluster, nodes: list[list[int]], tp: int, dp: int) -> list[tuple[int, ...]]:
    """Stages of tp x dp ranks: consecutive ranks, groups in islands and stages in nodes where that costs none."""
    groups: list[list[tuple[int, ...]]] = []
    for ranks in nodes:
        island_size = cluster.nodes[cluster.gpus[ranks[0]].node_index].island_size
        islands: dict[int, list[int]] = {}
        for rank in ranks:
            islands.setdefault(cluster.gpus[rank].local_index // island_size, []).append(rank)
        inside = [c for island in sorted(islands) for c in _chunks(islands[island], tp)]
        straight = _chunks(ranks, tp)
        groups.append(inside if len(inside) == len(straight) else straight)
    per_node = [stage for node in groups for stage in _chunks(node, dp)]
    across = _chunks([group for node in groups for group in node], dp)
    chosen = per_node if len(per_node) == len(across) else across
    return [tuple(rank for group in stage for rank in group) for stage in chosen]


def _chunks(items: list, size: int) -> list[tuple]:  # type: ignore[type-arg]  # ranks, or groups of ranks
    return [tuple(items[k : k + size]) for k in range(0, len(items) - size + 1, size)]


def assert_legal(cluster: Cluster, model: TransformerSpec, job: Job, plan: Plan, pins: Pins = NO_PINS) -> None:
    """The rules that hold for every plan, checked on one."""
    s = plan.skeleton
    ranks = [rank for stage in plan.stages for rank in stage.ranks]
    assert len(set(ranks)) == len(ranks) and len(plan.stages) == s.pp
    assert job.global_batch == s.micro_batches * s.dp * s.micro_batch
    assert model.heads % s.tp == 0
    for i, stage in enumerate(plan.stages):
        assert len(stage.ranks) == s.tp * s.dp
        assert {cluster.gpus[rank].gpu_type.name for rank in stage.ranks} == {stage.gpu_type}
        assert stage.gpu_type not in pins.forbidden
        for k in range(0, len(stage.ranks), s.tp):
            assert len({cluster.gpus[rank].node_index for rank in stage.ranks[k : k + s.tp]}) == 1
        assert len(stage.chunk_layers) == s.virtual_stages and min(stage.chunk_layers) >= 1
        assert pins.wanted(pins.layers, i, stage.gpu_type) <= {stage.layers}
        assert pins.wanted(pins.recompute, i, stage.gpu_type) <= {str(stage.recompute)}
    assert sum(plan.layers) == model.layers
    types = [stage.gpu_type for stage in plan.stages]
    used = [name for i, name in enumerate(types) if name not in types[:i]]
    assert pins.all_orders or types == [name for name in used for _ in range(types.count(name))]
    assert pins.order is None or used == [name for name in pins.order if name in used]
    if pins.most_difference is not None:
        assert max(plan.layers) - min(plan.layers) <= pins.most_difference
    if job.framework is Framework.MEGATRON:
        assert len(set(plan.recompute)) == 1
    if s.virtual_stages > 1:
        assert s.pp > 1 and s.micro_batches % s.pp == 0 and job.framework is not Framework.FLAGSCALE


# --- plans ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plans:
    """Every plan of one skeleton that exists; n plans of P stages.

    Attributes:
        layers, options: (n, P). time_s: (n,) additive, or the interleaved estimate. peak, variance: (n,), the variance
            of ``kind``. fits: (n,) within capacity, pins kept. allowed: (n,) pins other than memory kept.
        least_margin: (n,) the smallest free share over the GPUs.
    """

    skeleton: Skeleton
    table: StageTable
    layers: np.ndarray
    options: np.ndarray
    time_s: np.ndarray
    peak: np.ndarray
    variance: np.ndarray
    fits: np.ndarray
    allowed: np.ndarray
    least_margin: np.ndarray

    def phi(self, objective: Objective) -> np.ndarray:
        """(n,) Phi of every plan, infinite where it does not fit."""
        values = phi_of(objective, self.time_s, self.peak, self.variance)
        return np.where(self.fits, values, np.inf)


def phi_of(objective: Objective, time_s: np.ndarray, peak: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The weighted product as it is printed."""
    w, ref = objective.weights, objective.references
    return (
        (time_s / ref.time_s) ** w.time
        * (peak / ref.peak_bytes) ** w.peak
        * ((variance + ref.epsilon_bytes2) / (ref.variance_bytes2 + ref.epsilon_bytes2)) ** w.variance
    )


def _splits(stages: int, layers: int, step: int) -> Iterator[tuple[int, ...]]:
    """Every way to give ``layers`` layers to the stages, each a positive multiple of ``step``."""
    if stages == 1:
        if layers >= step and layers % step == 0:
            yield (layers,)
        return
    for n in range(step, layers, step):
        for rest in _splits(stages - 1, layers - n, step):
            yield (n, *rest)


def count_plans(skeleton: Skeleton, layers: int, options: int) -> int:
    """How many plans a skeleton has where every option exists everywhere."""
    units = layers // skeleton.virtual_stages
    return math.comb(units - 1, skeleton.pp - 1) * options**skeleton.pp


@lru_cache(maxsize=512)
def _assignments(stages: int, layers: int, step: int, options: int, one_option: bool) -> tuple[np.ndarray, np.ndarray]:
    """All (layers, options) of ``stages`` stages, layers in multiples of ``step``."""
    splits = list(_splits(stages, layers, step))
    chosen = [(r,) * stages for r in range(options)] if one_option else list(product(range(options), repeat=stages))
    n = np.array(splits, dtype=np.int64).reshape(len(splits), stages)
    r = np.array(chosen, dtype=np.int64)
    return np.repeat(n, len(r), axis=0), np.tile(r, (len(n), 1))


def all_plans(skeleton: Skeleton, table: StageTable, job: Job, *, kind: str = "bytes", pins: Pins = NO_PINS) -> Plans:
    """Measure every plan of a skeleton."""
    p, v, g = table.stages, table.virtual_stages, table.micro_batches
    layers, options = _assignments(p, table.layers, v, len(table.options), job.framework is Framework.MEGATRON)
    stage = np.arange(p)[None, :]
    memory = table.memory_bytes[stage, layers, options]
    exists = np.isfinite(memory).all(axis=1)
    layers, options, memory = layers[exists], options[exists], memory[exists]
    time = table.forward_s[stage, layers, options] + table.backward_s[stage, layers, options]
    tail = table.tail_s[stage, layers].max(axis=1, initial=0.0)
    c = table.p2p_s
    if v == 1:
        around = np.array([(c[i - 1] if i else 0.0) + (c[i] if i < p - 1 else 0.0) for i in range(p)])
        total = (g - 1) * (time + around).max(axis=1) + time.sum(axis=1) + 2 * c.sum()
    else:
        slowest = time.max(axis=1)
        total = g * slowest + (time.sum(axis=1) - slowest) / v + 2 * v * c.sum() + 2 * (v - 1) * table.wrap_s
    capacity = table.capacity_bytes
    per_gpu = memory / capacity if kind == "utilization" else memory
    gpus = np.repeat(np.arange(p), table.gpus.astype(int))
    words = np.array([str(option) for option in table.options])
    allowed = np.ones(len(layers), dtype=bool)
    for i, placement in enumerate(skeleton.placements):
        for n in pins.wanted(pins.layers, i, placement.gpu_type):
            allowed &= layers[:, i] == n
        for word in pins.wanted(pins.recompute, i, placement.gpu_type):
            allowed &= words[options[:, i]] == word
    if pins.most_difference is not None:
        allowed &= layers.max(axis=1) - layers.min(axis=1) <= pins.most_difference
    room = capacity - np.array([pins.reserve(placement.gpu_type) for placement in skeleton.placements])
    return Plans(
        skeleton,
        table,
        layers,
        options,
        total + table.fixed_s + tail,
        memory.max(axis=1, initial=0.0),
        per_gpu[:, gpus].var(axis=1) if len(layers) else np.zeros(0),
        (memory <= room).all(axis=1) & allowed,
        allowed,
        1.0 - (memory / capacity).max(axis=1, initial=0.0),
    )


@dataclass(frozen=True, eq=False)
class Everything:
    """All plans of an instance."""

    listing: Listing
    plans: tuple[Plans, ...]

    @property
    def covered(self) -> int:
        return sum(int(p.allowed.sum()) for p in self.plans)

    @property
    def feasible(self) -> int:
        """Skeletons with a plan that fits."""
        return sum(bool(p.fits.any()) for p in self.plans)

    def best(self, objective: Objective, *, plain: bool = True) -> float:
        """Least additive Phi over 1F1B plans (``plain``), or over interleaved ones by their estimate."""
        values = [p.phi(objective).min(initial=np.inf) for p in self.plans if (p.table.virtual_stages == 1) == plain]
        return float(min(values, default=np.inf))

    def points(self) -> np.ndarray:
        """(n, 3) time, peak and variance of every plan that fits, 1F1B only."""
        return np.concatenate(
            [np.zeros((0, 3))]
            + [
                np.column_stack([p.time_s, p.peak, p.variance])[p.fits]
                for p in self.plans
                if p.table.virtual_stages == 1
            ]
        )


def exhaust(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    estimator: Estimator,
    *,
    kind: str = "bytes",
    pins: Pins = NO_PINS,
) -> Everything:
    listing = list_skeletons(cluster, model, job, pins)
    plans = tuple(all_plans(s, estimator.stage_table(s), job, kind=kind, pins=pins) for s in listing.legal)
    return Everything(listing, plans)


def even_plan(plans: Plans) -> int | None:
    """Index of the even split (the first stages take one more) with the lightest recompute that fits."""
    p, v = plans.table.stages, plans.table.virtual_stages
    units = plans.table.layers // v
    layers = tuple(v * (units // p + (i < units % p)) for i in range(p))
    candidates = np.flatnonzero((plans.layers == layers).all(axis=1) & plans.fits)
    # Options are independent per stage, so the lightest on every stage fits if any does; under one option for all
    # stages the lightest is the first that fits everywhere.
    return min(candidates.tolist(), key=lambda k: tuple(plans.options[k].tolist()), default=None)


def median_references(
    everything: Everything, kind: str = "bytes", rule: str = "memx"
) -> tuple[float, float, float, float] | None:
    """Medians of time, peak and variance over the even plans and the variance's floor; None without an even plan."""
    found = [(p, even_plan(p)) for p in everything.plans]
    rows = [(p.time_s[k], p.peak[k], p.variance[k], 1.0 - p.least_margin[k]) for p, k in found if k is not None]
    if not rows:
        return None
    time_s, peak, variance, share = (float(np.median(column)) for column in zip(*rows, strict=True))
    floor = 0.01 * variance
    if rule == "memx":
        floor = max(floor, (0.1 * (share if kind == "utilization" else peak)) ** 2)
    return time_s, peak, variance, max(floor, 1e-12 if kind == "utilization" else 1.0)


def measure(everything: Everything, plan: Plan) -> tuple[float, float, float, bool]:
    """(time, peak, variance, fits) of one plan, looked up among all."""
    plans = next(p for p in everything.plans if p.skeleton == plan.skeleton)
    options = tuple(plans.table.options.index(option) for option in plan.recompute)
    same = (plans.layers == plan.layers).all(axis=1) & (plans.options == options).all(axis=1)
    (k,) = np.flatnonzero(same).tolist()
    return float(plans.time_s[k]), float(plans.peak[k]), float(plans.variance[k]), bool(plans.fits[k])


def dominated(points: np.ndarray, by: np.ndarray, kind: str = "bytes") -> np.ndarray:
    """(n,) whether some row of ``by`` is no worse in all three and, beyond rounding, better in one."""
    if not len(points):
        return np.zeros(0, dtype=bool)
    scale = np.maximum(np.abs(points).max(axis=0, initial=0.0), 1e-300)
    scale[2] = scale[1] ** 2 if kind == "bytes" else 1.0
    a, b = points[:, None] / scale, by[None] / scale
    return ((b <= a + 1e-12).all(axis=2) & (b < a - 1e-9).any(axis=2)).any(axis=1)


def close(a: float, b: float, rel: float = 1e-9) -> bool:
    return (math.isinf(a) and a == b) or abs(a - b) <= rel * max(abs(a), abs(b))


def with_memory(cluster: Cluster, extra_bytes: dict[str, int], *, scale: float = 1.0) -> Cluster:
    """The cluster with more memory on some types, all memory times ``scale``."""

    def changed(group: GpuGroup) -> GpuGroup:
        size = round(scale * group.gpu_type.memory_bytes) + extra_bytes.get(group.gpu_type.name, 0)
        used = round(scale * group.memory_used_bytes)
        return GpuGroup(replace(group.gpu_type, memory_bytes=size), group.count, used)

    nodes = tuple(replace(node, groups=tuple(map(changed, node.groups))) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)
