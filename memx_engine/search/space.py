"""The skeletons a search looks at: every legal TP, PP, DP, micro-batch, order of GPU types, and schedule.

A stage is ``tp * dp`` GPUs of one type; TP and DP are the same on every stage of a skeleton. A type gives as many
stages as it has GPUs for; what is left over stays idle. Some types, or some sites, may be left out altogether.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, groupby, permutations
from math import factorial, prod

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import legal_tp
from memx_engine.plan import Skeleton, StagePlacement
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Micro-batch sizes that are considered where the job names none."""
# Every permutation of this many GPU types is tried; of more, only the orders by compute and by memory.
_ALL_ORDERS_UP_TO = 4
# Every subset of this many types is tried; of more: all, all but one, pairs and single types.
_ALL_SUBSETS_UP_TO = 5
_ALL_SITE_ROUTES_UP_TO = 3
_MOST_ORDERS = 50_000


@dataclass(frozen=True)
class Layout:
    """A skeleton without micro-batch and schedule: which GPUs form which stage."""

    tp: int
    dp: int
    placements: tuple[StagePlacement, ...]

    @property
    def pp(self) -> int:
        return len(self.placements)


class Placer:
    """Cuts the GPUs of each type into TP groups and stages.

    TP groups never leave a node and stay inside an island where they fit into one. A stage's DP replicas are
    consecutive TP groups, inside one node where that costs no stage, inside one site unless the type would give none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sites = tuple(dict.fromkeys(node.site for node in cluster.nodes))
        self._by_node: dict[str, dict[int, list[int]]] = {}
        for gpu in cluster.gpus:
            self._by_node.setdefault(gpu.gpu_type.name, {}).setdefault(gpu.node_index, []).append(gpu.rank)
        self._groups = lru_cache(maxsize=None)(self._cut_groups)
        self._stages = lru_cache(maxsize=None)(self._cut_stages)
        self._placed: dict[tuple[int, int, int], StagePlacement] = {}

    def largest_group(self, gpu_type: str) -> int:
        """The most GPUs of a type in one node: no TP can be larger."""
        return max(len(ranks) for ranks in self._by_node[gpu_type].values())

    def groups(self, gpu_type: str, tp: int) -> tuple[tuple[int, ...], ...]:
        """The TP groups of a type, per node: one tuple of ranks in the order of the pipeline for each node."""
        return self._groups(gpu_type, tp)

    def stages(self, gpu_type: str, tp: int, dp: int, sites: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Rank lists of the stages that a type's GPUs on ``sites`` give; empty when they give none."""
        return self._stages(gpu_type, tp, dp, sites)

    def placement(self, gpu_type: str, tp: int, dp: int, ranks: tuple[int, ...]) -> StagePlacement:
        """The stage on ``ranks``, one of :meth:`stages`; the same object each time, so that look-ups by it are fast."""
        key = (id(ranks), tp, dp)
        known = self._placed.get(key)
        if known is None or known.ranks is not ranks:
            known = self._placed[key] = StagePlacement(gpu_type, tp, dp, ranks)
        return known

    def _cut_groups(self, gpu_type: str, tp: int) -> tuple[tuple[int, ...], ...]:
        out = []
        for node_index, ranks in self._by_node[gpu_type].items():
            island = self.cluster.nodes[node_index].island_size
            in_islands: list[int] = []
            for _, members in sorted(self._islands(ranks, island).items()):
                in_islands += members[: len(members) // tp * tp]
            count = len(ranks) // tp
            # Islands first; where whole islands give fewer groups than the node, consecutive ranks do.
            chosen = in_islands if len(in_islands) // tp == count else ranks[: count * tp]
            out.append(tuple(chosen))
        return tuple(out)

    def _islands(self, ranks: list[int], island: int) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for rank in ranks:
            out.setdefault(self.cluster.gpus[rank].local_index // island, []).append(rank)
        return out

    def _cut_stages(self, gpu_type: str, tp: int, dp: int, sites: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        size = tp * dp
        nodes = dict(zip(self._by_node[gpu_type], self.groups(gpu_type, tp), strict=True))
        per_site = [[nodes[i] for i in nodes if self.cluster.nodes[i].site == site] for site in sites]
        inside = [stage for members in per_site for stage in _pack(members, size)]
        return tuple(inside or _pack([ranks for members in per_site for ranks in members], size))


def _pack(nodes: list[tuple[int, ...]], size: int) -> list[tuple[int, ...]]:
    """Stages of ``size`` ranks from nodes in order; each inside one node where that gives as many stages."""
    aligned = [ranks[i : i + size] for ranks in nodes for i in range(0, len(ranks) - size + 1, size)]
    flat = tuple(rank for ranks in nodes for rank in ranks)
    if len(aligned) == len(flat) // size:
        return aligned
    return [flat[i : i + size] for i in range(0, len(flat) - size + 1, size)]


@dataclass(frozen=True)
class Space:
    """Every layout that can be placed, and the dimensions to cross them with.

    Attributes:
        layouts: In search order. placement_pruned: Skeletons that the placement rule removed.
        micro_batches: Sizes considered. virtual_stages: Depths considered, 1 first.
        excluded_types: GPU types left out of every layout, with the reason.
        limits: What the operator excluded; it is neither in ``layouts`` nor counted.
    """

    cluster: Cluster
    job: Job
    model: TransformerSpec
    layouts: tuple[Layout, ...]
    placement_pruned: int
    micro_batches: tuple[int, ...]
    virtual_stages: tuple[int, ...]
    excluded_types: Mapping[str, str]
    tp_sizes: tuple[int, ...]
    dp_sizes: tuple[int, ...]
    limits: OperatorLimits = NO_OPERATOR_LIMITS

    def skeletons(self) -> Iterator[Skeleton]:
        """Every legal skeleton, lazily, in a fixed order."""
        layers, batch = self.model.layers, self.job.global_batch
        for layout in self.layouts:
            sizes = _legal_sizes(layers, batch, layout.pp, layout.dp, self.micro_batches, self.virtual_stages)
            for micro_batch, depth in sizes:
                yield make_skeleton(layout, self.job, micro_batch, depth)

    def dimensions(self) -> dict[str, tuple[object, ...]]:
        """Every searched dimension with its values, for the result."""
        orders = dict.fromkeys(
            " > ".join(self._order(placement.gpu_type for placement in layout.placements)) for layout in self.layouts
        )
        return {
            "tp": self.tp_sizes,
            "pp": tuple(sorted({layout.pp for layout in self.layouts})),
            "dp": self.dp_sizes,
            "micro_batch": self.micro_batches,
            "seq_len": (self.job.seq_len,),
            "global_batch": (self.job.global_batch,),
            "type_order": tuple(orders),
            "schedule": tuple("1f1b" if v == 1 else f"interleaved:{v}" for v in self.virtual_stages),
            **self.limits.described(),
        }

    def _order(self, types: Iterable[str]) -> list[str]:
        """Types along the pipeline, each once; under all orders adjacent repeats are folded."""
        if not self.limits.all_orders:
            return list(dict.fromkeys(types))
        return [name for name, _ in groupby(types)]


def make_skeleton(layout: Layout, job: Job, micro_batch: int, virtual_stages: int) -> Skeleton:
    return Skeleton(
        layout.tp,
        layout.pp,
        layout.dp,
        micro_batch,
        job.seq_len,
        job.global_batch,
        layout.placements,
        virtual_stages,
    )


def schedule_problem(layers: int, pp: int, micro_batches: int, virtual_stages: int) -> str | None:
    """Why this many virtual stages cannot run, or None."""
    if pp * virtual_stages > layers:
        chunks = "stages" if virtual_stages == 1 else f"chunks ({pp} stages x {virtual_stages})"
        return f"{layers} layers cannot fill {pp * virtual_stages} {chunks}"
    if virtual_stages == 1:
        return None
    if pp == 1:
        return "interleaving needs at least 2 pipeline stages"
    if micro_batches % pp:
        return f"interleaving needs the {micro_batches} micro-batches to be a multiple of PP {pp}"
    if layers % virtual_stages:
        return f"{layers} layers do not divide into {virtual_stages} equal chunks per stage"
    return None


@lru_cache(maxsize=4096)
def _legal_sizes(
    layers: int, global_batch: int, pp: int, dp: int, micro_batches: tuple[int, ...], depths: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """(micro-batch, virtual stages) that a pipeline can run, in search order."""
    return tuple(
        (size, depth)
        for size in micro_batches
        if global_batch % (dp * size) == 0
        for depth in depths
        if schedule_problem(layers, pp, global_batch // (dp * size), depth) is None
    )


def even_split(layers: int, pp: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """The framework's even split: the first stages take one more (30 on 4 = 8,8,7,7); multiples of the chunks."""
    units = layers // virtual_stages
    base, extra = divmod(units, pp)
    return tuple((base + (i < extra)) * virtual_stages for i in range(pp))


def idle_gpus(cluster: Cluster, skeleton: Skeleton) -> dict[str, int]:
    """GPUs per type that a plan leaves unused; types without any are left out."""
    used: dict[str, int] = {}
    for placement in skeleton.placements:
        used[placement.gpu_type] = used.get(placement.gpu_type, 0) + len(placement.ranks)
    left = {name: len(ranks) - used.get(name, 0) for name, ranks in cluster.ranks_by_type.items()}
    return {name: count for name, count in left.items() if count}


def excluded_types(cluster: Cluster, job: Job, limits: OperatorLimits = NO_OPERATOR_LIMITS) -> dict[str, str]:
    """Types that cannot take part, each with its reason."""
    precision = str(job.precision.value)
    lacking = {t.name: f"{t.name} lacks {precision}" for t in cluster.gpu_types if not t.supports(precision)}
    return lacking | {name: f"{name} is forbidden" for name in limits.forbidden}


def enumerate_space(
    cluster: Cluster, model: TransformerSpec, job: Job, limits: OperatorLimits = NO_OPERATOR_LIMITS
) -> Space:
    """Lay out every combination; what cannot be placed is counted, not kept.

    Raises:
        InputError: All orders are asked for, and there are too many of them.
    """
    placer = Placer(cluster)
    excluded = excluded_types(cluster, job, limits)
    types = tuple(t.name for t in cluster.gpu_types if t.name not in excluded)
    largest = max((placer.largest_group(t) for t in types), default=0)
    tp_sizes = tuple(t for t in legal_tp(model, kv_replication=True) if t <= largest)
    if job.tp_sizes is not None:
        tp_sizes = tuple(t for t in tp_sizes if t in job.tp_sizes)
    most = max((len(cluster.ranks_by_type[t]) for t in types), default=0)
    dp_sizes = tuple(d for d in range(1, most + 1) if job.global_batch % d == 0)
    if job.dp_sizes is not None:
        dp_sizes = tuple(d for d in dp_sizes if d in job.dp_sizes)
    micro_batches = tuple(b for b in (job.micro_batch_sizes or MICRO_BATCHES) if _fitting_micro_batches(job, 1, (b,)))
    depths: tuple[int, ...] = (1,)
    if job.framework is not Framework.FLAGSCALE:
        depths += tuple(sorted({v for v in job.virtual_stages if v > 1}))

    layouts: list[Layout] = []
    pruned = orders = 0
    one_site = len(placer.sites) == 1 and not limits.all_orders
    for tp in tp_sizes:
        for dp in dp_sizes:
            sizes = _fitting_micro_batches(job, dp, micro_batches)
            if tp * dp > most or not sizes:
                continue
            seen: set[tuple[tuple[int, ...], ...]] = set()
            for arrangement in _arrangements(cluster, types, placer.sites, limits):
                blocks = [(name, placer.stages(name, tp, dp, sites)) for name, sites in arrangement]
                for counts in _stage_counts([len(stages) for _, stages in blocks], job.pp_sizes):
                    legal = 0
                    if all(counts):
                        legal = len(_legal_sizes(model.layers, job.global_batch, sum(counts), dp, sizes, depths))
                    if limits.all_orders and legal:
                        orders += _orders_of(counts)
                        _refuse_too_many(orders, tp, dp, counts)
                    block = tuple((id(stages), n) for (_, stages), n in zip(blocks, counts, strict=True) if n)
                    if one_site and not legal:
                        if block not in seen:
                            pruned += len(sizes) * len(depths)
                            if all(counts):
                                seen.add(block)
                        continue
                    for chosen in _along(blocks, counts, limits.all_orders and legal > 0):
                        # On one site a block's stages are known by their list, which the placer hands out each time.
                        key = block if one_site else tuple(ranks for _, ranks in chosen)
                        if key in seen or (legal and not limits.allows([name for name, _ in chosen], model.layers)):
                            continue
                        if all(counts):
                            seen.add(key)
                        pruned += len(sizes) * len(depths) - legal
                        if legal:
                            placed = tuple(placer.placement(name, tp, dp, r) for name, r in chosen)
                            layouts.append(Layout(tp, dp, placed))
    return Space(
        cluster, job, model, tuple(layouts), pruned, micro_batches, depths, excluded, tp_sizes, dp_sizes, limits
    )


def _along(
    blocks: Sequence[tuple[str, tuple[tuple[int, ...], ...]]], counts: tuple[int, ...], every_order: bool
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """(GPU type, ranks) of the stages along the pipeline: block after block, or in every distinct order of them."""
    if not every_order:
        yield [(name, r) for (name, stages), n in zip(blocks, counts, strict=True) for r in stages[:n]]
        return

    def fill(left: tuple[int, ...]) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
        if not any(left):
            yield []
        for b, n in enumerate(left):
            if n:
                name, stages = blocks[b]
                for rest in fill((*left[:b], n - 1, *left[b + 1 :])):
                    yield [(name, stages[counts[b] - n]), *rest]

    yield from fill(counts)


def _orders_of(counts: tuple[int, ...]) -> int:
    """Distinct orders of stages of which ``counts[b]`` are alike."""
    return factorial(sum(counts)) // prod(factorial(n) for n in counts)


def _refuse_too_many(orders: int, tp: int, dp: int, counts: tuple[int, ...]) -> None:
    if orders > _MOST_ORDERS:
        raise InputError(
            f"there are more than {_MOST_ORDERS:,} distinct orders (TP {tp} x DP {dp} alone has "
            f"{_orders_of(counts):,} of its {sum(counts)} stages)",
            where="--all-orders",
            hint="narrow the search with --tp, --dp, --pp or --forbid, or give one order with --type-order",
        )


def _fitting_micro_batches(job: Job, dp: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if job.global_batch % (dp * size) == 0)


def _stage_counts(available: list[int], pp_sizes: tuple[int, ...] | None) -> Iterator[tuple[int, ...]]:
    """How many stages each block gives: all it has; or, where the job names PP sizes, trimmed to each of them.

    Trimming takes from the block with most stages, the later one of equals, and leaves every block at least one.
    """
    if pp_sizes is None or sum(available) in pp_sizes:
        yield tuple(available)
    if not pp_sizes or not all(available):
        return
    counts, trimmed = list(available), []
    # Trimming to a smaller size goes on where that to a larger one ends.
    for pp in sorted(set(pp_sizes), reverse=True):
        if len(available) <= pp < sum(available):
            for _ in range(sum(counts) - pp):
                counts[len(counts) - 1 - counts[::-1].index(max(counts))] -= 1
            trimmed.append(tuple(counts))
    yield from reversed(trimmed)


def _arrangements(
    cluster: Cluster, types: tuple[str, ...], sites: tuple[str, ...], limits: OperatorLimits
) -> Iterator[tuple[tuple[str, tuple[str, ...]], ...]]:
    """Orders of (GPU type, sites) blocks along the pipeline.

    With several sites the pipeline goes through one site after the other, so that each boundary between sites is
    crossed once; every second site takes the types in reverse order, so that like meets like there. An order that the
    operator fixed comes first: the pipeline then goes through a type's sites before it goes to the next type.
    """
    homes = {
        name: tuple(dict.fromkeys(cluster.nodes[cluster.gpus[rank].node_index].site for rank in ranks))
        for name, ranks in cluster.ranks_by_type.items()
    }
    for order in _type_orders(cluster, types, limits):
        for route in _site_routes(sites):
            blocks = []
            if limits.type_order is not None:
                blocks = [(name, (site,)) for name in order for site in route if site in homes[name]]
            for turn, site in enumerate(route if limits.type_order is None else ()):
                along = order if turn % 2 == 0 else order[::-1]
                blocks += [(name, (site,)) for name in along if site in homes[name]]
            if {name for name, _ in blocks} == set(order):
                yield tuple(blocks)
        if len(sites) > 1:
            # Replicas of one stage on both sides, for degrees of parallelism that no site can hold alone.
            yield tuple((name, homes[name]) for name in order)


def _site_routes(sites: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if len(sites) > _ALL_SITE_ROUTES_UP_TO:
        yield sites
        yield from ((site,) for site in sites)
        return
    for count in range(len(sites), 0, -1):
        yield from permutations(sites, count)


def _type_orders(cluster: Cluster, types: tuple[str, ...], limits: OperatorLimits) -> Iterator[tuple[str, ...]]:
    """Ordered subsets of the types, the largest subsets first; one order of each where stages are permuted later."""
    if limits.type_order is not None:
        types = tuple(name for name in limits.type_order if name in types)
    known = {t.name: t for t in cluster.gpu_types}
    for count in range(len(types), 0, -1):
        few_types = len(types) <= _ALL_SUBSETS_UP_TO or count <= 2 or count >= len(types) - 1
        if not few_types:
            continue
        for subset in combinations(types, count):
            if limits.type_order is not None or limits.all_orders:
                yield subset
                continue
            if count <= _ALL_ORDERS_UP_TO:
                yield from permutations(subset)
                continue
            by_memory = tuple(sorted(subset, key=lambda name: known[name].memory_bytes))
            by_compute = tuple(sorted(subset, key=lambda name: known[name].bf16_flops or known[name].fp16_flops or 0.0))
            yield from dict.fromkeys((by_memory, by_memory[::-1], by_compute, by_compute[::-1]))
