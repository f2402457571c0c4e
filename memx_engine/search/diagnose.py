"""When nothing fits: what binds, and the smallest change that would fit, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from memx_engine.cost.parameters import state_bytes
from memx_engine.cost.sketch import Sketch
from memx_engine.cost.table import Estimator
from memx_engine.errors import CancelledError, NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Attention, Framework, Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import tp_problem
from memx_engine.plan import Skeleton
from memx_engine.search.bounds import Bounds, compute_bounds
from memx_engine.search.limits import NO_OPERATOR_LIMITS, OperatorLimits, limited
from memx_engine.search.objective import PEAK_ALONE
from memx_engine.search.sketch_bounds import sketched_bounds
from memx_engine.search.solver import Limits, solve
from memx_engine.search.space import MICRO_BATCHES, Space, enumerate_space
from memx_engine.units import GIB

Stop = Callable[[], bool]
MakeEstimator = Callable[[Cluster, TransformerSpec, Job], Estimator]

SHORTEST_SEQ_LEN = 64
_AT_ONCE = 64


@dataclass(frozen=True)
class Change:
    """One change of the job, in words."""

    words: str
    job: Job


def first_principles(cluster: Cluster, model: TransformerSpec, job: Job) -> Estimator:
    from memx_engine.cost.first_principles import FirstPrinciples

    return FirstPrinciples(cluster, model, job)


def no_feasible_plan(
    space: Space,
    nearest: tuple[Skeleton, Bounds] | None,
    *,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
) -> NoFeasiblePlanError:
    """The error that names the binding constraint and the smallest change that would fit.

    Args:
        space: What was searched.
        nearest: The skeleton that misses its capacity by least; None where no skeleton is legal, or none was looked at
            because the model's states alone exceed all memory.
        make_estimator: Predicts the changed jobs.
    """
    if nearest is None and space.layouts:
        states = _states_words(space.model, space.job, space.cluster)
        return NoFeasiblePlanError(
            f"no plan of {space.model.name} fits {space.cluster.name}: {states}",
            hint=remedy(space.cluster, space.model, space.job, make_estimator, should_stop, space.limits),
        )
    if nearest is None:
        return NoFeasiblePlanError(f"no plan of {space.model.name} can be placed", hint=_placement_hint(space))
    skeleton, bounds = nearest
    placement = skeleton.placements[bounds.binding_stage]
    missing = bounds.excess_bytes / GIB
    within = f" within {_flags(space.limits)}" if space.limits else ""
    if 0.0 < missing < float("inf"):
        nearly = (
            f": the nearest (TP {skeleton.tp}, PP {skeleton.pp}, DP {skeleton.dp}, micro-batch {skeleton.micro_batch}) "
            f"is {missing:.1f} GiB short on stage {bounds.binding_stage} ({placement.gpu_type}) even with the best "
            "layer split and recompute"
        )
    else:
        nearly = ": no layer split and recompute keep all of these" if within else ""
    return NoFeasiblePlanError(
        f"no plan of {space.model.name} fits {space.cluster.name}{within}{nearly}",
        hint=remedy(space.cluster, space.model, space.job, make_estimator, should_stop, space.limits),
    )


def _flags(limits: OperatorLimits) -> str:
    return " ".join(flag for flag, _ in limits.relaxed())


def remedy(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
    limits: OperatorLimits = NO_OPERATOR_LIMITS,
) -> str:
    """The smallest change of the job, or the limit to drop, that makes some plan fit; else what more nodes would do."""

    def fits(changed: Job, on: Cluster = cluster, within: OperatorLimits = limits) -> bool:
        return fits_somewhere(on, model, changed, make_estimator, should_stop, within)

    changes = list(_changes(job))
    words: list[str] = []
    for flag, rest in limits.relaxed():
        if fits(job, within=rest):
            words.append(f"the same without {flag}")
            break
    used = _used_up(cluster)
    if used and fits(job, _freed(cluster)):
        words.append(f"freeing the memory already in use ({used})")
    for change in changes:
        if should_stop():
            raise CancelledError("stopped while looking for a change that fits")
        if fits(change.job):
            words.append(change.words)
            break
    sequence = shorter_sequence(cluster, model, job, make_estimator, should_stop, limits)
    if sequence is not None:
        words.append(f"a sequence of {sequence} tokens")
    if words:
        return f"this would fit: {'; or '.join(words)}"
    cannot = f"shortening the sequence cannot help (tried down to {min(SHORTEST_SEQ_LEN, job.seq_len)} tokens)"
    if exceeds_every_gpu(model, job, cluster):
        cannot = "shortening the sequence cannot help"
    together = combined(changes, job)
    if together is not None and fits(together.job):
        return f"{cannot}; together these would fit: {together.words}"
    for factor in (2, 4):
        more = replace(cluster, nodes=cluster.nodes * factor)
        if fits(job, more):
            return f"{cannot}; {factor} times as many nodes would fit, or a smaller model"
    least = -(-_state_bytes(model, job) // max(_capacity_bytes(cluster), 1))
    needs = f" (it takes at least {least:,.0f} times as many GPUs)" if least > 4 else ""
    return f"{cannot}; not even 4 times as many nodes would fit{needs}: use a smaller model"


def _used_up(cluster: Cluster) -> str:
    """What each GPU type has in use at most; empty where nothing is."""
    most: dict[str, int] = {}
    for gpu in cluster.gpus:
        most[gpu.gpu_type.name] = max(gpu.memory_used_bytes, most.get(gpu.gpu_type.name, 0))
    return ", ".join(f"{size / GIB:.1f} GiB on {name}" for name, size in most.items() if size)


def _freed(cluster: Cluster) -> Cluster:
    """The cluster with nothing in use."""
    nodes = (
        replace(node, groups=tuple(replace(group, memory_used_bytes=0) for group in node.groups))
        for node in cluster.nodes
    )
    return replace(cluster, nodes=tuple(nodes))


def fits_somewhere(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
    limits: OperatorLimits = NO_OPERATOR_LIMITS,
) -> bool:
    """Whether any skeleton of the job fits. Only the smallest micro-batch and 1F1B are looked at: they need least."""
    smallest = min(job.micro_batch_sizes or MICRO_BATCHES)
    changed = replace(job, micro_batch_sizes=(smallest,), virtual_stages=())
    space = enumerate_space(cluster, model, changed, limits)
    if exceeds_every_gpu(model, job, cluster):
        return False
    estimator = limited(make_estimator(cluster, model, space.job), limits)
    one_recompute = job.framework is Framework.MEGATRON
    common = Limits(max_layer_difference=limits.max_layer_difference, same_recompute=one_recompute)
    sketch: Callable[[Skeleton], Sketch] | None = getattr(estimator, "sketch", None)
    if sketch is not None and not limits and not one_recompute:
        return _some_sketch_fits(list(space.skeletons()), sketch, should_stop)
    for skeleton in space.skeletons():
        if should_stop():
            raise CancelledError("stopped while looking for a change that fits")
        table = estimator.stage_table(skeleton)
        if not compute_bounds(table, one_recompute=one_recompute).fits:
            continue
        # The bounds look at stages one by one; what ties them together only the solver sees.
        if common == Limits() or solve(table, PEAK_ALONE, limits=common) is not None:
            return True
    return False


def _some_sketch_fits(skeletons: list[Skeleton], sketch: Callable[[Skeleton], Sketch], should_stop: Stop) -> bool:
    start, step = 0, 1
    while start < len(skeletons):
        if should_stop():
            raise CancelledError("stopped while looking for a change that fits")
        some = [sketch(skeleton) for skeleton in skeletons[start : start + step]]
        if (sketched_bounds(some).excess_bytes <= 0.0).any():
            return True
        start, step = start + step, min(2 * step, _AT_ONCE)
    return False


def exceeds_every_gpu(model: TransformerSpec, job: Job, cluster: Cluster) -> bool:
    """Whether weights, gradients and optimizer state of one replica alone exceed the memory of all GPUs together."""
    return _state_bytes(model, job) > _capacity_bytes(cluster)


def _state_bytes(model: TransformerSpec, job: Job) -> float:
    return model.parameters * state_bytes(job, 1).total


def _capacity_bytes(cluster: Cluster) -> int:
    """Of all GPUs together, what is in use included: freeing that is told apart."""
    return sum(gpu.gpu_type.memory_bytes for gpu in cluster.gpus)


def _states_words(model: TransformerSpec, job: Job, cluster: Cluster) -> str:
    return (
        f"weights, gradients and optimizer state of its {model.parameters / 1e9:,.3g} B parameters alone take "
        f"{_state_bytes(model, job) / GIB:,.0f} GiB, and all {len(cluster.gpus)} GPUs together have "
        f"{_capacity_bytes(cluster) / GIB:,.0f}"
    )


def shorter_sequence(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
    limits: OperatorLimits = NO_OPERATOR_LIMITS,
) -> int | None:
    """The longest halving of the sequence that fits, or None where not even the shortest does."""

    def fits(seq_len: int) -> bool:
        return fits_somewhere(cluster, model, replace(job, seq_len=seq_len), make_estimator, should_stop, limits)

    if not fits(_shortest(job)):
        return None
    seq_len = job.seq_len
    while seq_len > SHORTEST_SEQ_LEN:
        seq_len //= 2
        if fits(seq_len):
            return seq_len
    return None


def _shortest(job: Job) -> int:
    seq_len = job.seq_len
    while seq_len > SHORTEST_SEQ_LEN:
        seq_len //= 2
    return seq_len


def _changes(job: Job) -> Iterator[Change]:
    """Changes of the job that save memory, the least intrusive first."""
    if job.optimizer is not Optimizer.SHARDED:
        yield Change("a sharded optimizer", replace(job, optimizer=Optimizer.SHARDED))
    if job.attention is not Attention.FUSED:
        yield Change("fused attention", replace(job, attention=Attention.FUSED))
    if not job.sequence_parallel:
        yield Change("sequence parallelism", replace(job, sequence_parallel=True))
    if job.micro_batch_sizes is not None and min(job.micro_batch_sizes) > 1:
        yield Change("micro-batch 1", replace(job, micro_batch_sizes=(1,)))
    if job.tp_sizes is not None:
        yield Change("another TP size", replace(job, tp_sizes=None))
    if job.pp_sizes is not None:
        yield Change("another PP size", replace(job, pp_sizes=None))
    if job.dp_sizes is not None:
        yield Change("another DP size", replace(job, dp_sizes=None))
    if job.framework is not Framework.ANY:
        yield Change("recompute per stage (framework any)", replace(job, framework=Framework.ANY))
    if job.precision is Precision.FP32:
        yield Change("bf16 instead of fp32", replace(job, precision=Precision.BF16))
    if job.fp32_gradients and job.precision is not Precision.FP32:
        yield Change("gradients in 16 bits", replace(job, fp32_gradients=False))


def combined(changes: list[Change], job: Job) -> Change | None:
    """All changes at once; None where there are fewer than two."""
    if len(changes) < 2:
        return None
    together = job
    for change in changes:
        fields = {
            name: getattr(change.job, name)
            for name in job.__dataclass_fields__
            if getattr(change.job, name) != getattr(job, name)
        }
        together = replace(together, **fields)
    return Change(", ".join(change.words for change in changes), together)


def _too_many_stages(space: Space) -> str:
    """Says so where the sizes asked for need more layers or GPUs than there are; else empty."""
    job, layers = space.job, space.model.layers
    usable = sum(len(r) for name, r in space.cluster.ranks_by_type.items() if name not in space.excluded_types)
    tp, pp, dp = (min(sizes or (1,)) for sizes in (job.tp_sizes, job.pp_sizes, job.dp_sizes))
    if pp > layers:
        return f"PP {pp} needs {pp} layers, the model has {layers}: use PP {min(layers, usable)} or less"
    if tp * pp * dp > usable:
        named = [("TP", tp, job.tp_sizes), ("PP", pp, job.pp_sizes), ("DP", dp, job.dp_sizes)]
        sizes = " x ".join(f"{name} {value}" for name, value, asked in named if asked)
        return f"{sizes} needs {tp * pp * dp} GPUs, {usable} can take part: use smaller sizes"
    return ""


def _placement_hint(space: Space) -> str:
    """Why no skeleton is legal at all."""
    job, types = space.job, [t.name for t in space.cluster.gpu_types]
    if len(space.excluded_types) == len(types):
        forbidden = " or allow a type that has it" if space.limits.forbidden else ""
        return f"{'; '.join(space.excluded_types.values())}: use another precision{forbidden}"
    if space.limits:
        for flag, rest in space.limits.relaxed():
            if enumerate_space(space.cluster, space.model, job, rest).layouts:
                return f"no pipeline that can be placed keeps {flag}: this can be placed without it"
    if not space.tp_sizes and job.tp_sizes:
        problems = [tp_problem(space.model, tp, True) for tp in job.tp_sizes]
        return next((p for p in problems if p), "no node holds as many GPUs of one type as the TP sizes asked for")
    if not space.dp_sizes and job.dp_sizes:
        return f"none of the DP sizes {job.dp_sizes} divides the global batch {job.global_batch} and has GPUs for it"
    if not space.micro_batches:
        return f"none of the micro-batch sizes {job.micro_batch_sizes} divides the global batch {job.global_batch}"
    too_many = _too_many_stages(space)
    if too_many:
        return too_many
    return (
        f"no TP x PP x DP of {len(space.cluster.gpus)} GPUs keeps TP inside a node, gives {space.model.layers} layers "
        f"to at most as many stages, and divides the global batch {job.global_batch}; free the TP, PP, DP or "
        "micro-batch sizes, or choose a global batch with more divisors"
    )
