"""When nothing fits: what binds, and the smallest change that would fit, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from memx_engine.cost.table import Estimator
from memx_engine.errors import CancelledError, NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Attention, Framework, Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import tp_problem
from memx_engine.plan import Skeleton
from memx_engine.search.bounds import Bounds, compute_bounds
from memx_engine.search.space import MICRO_BATCHES, Space, enumerate_space
from memx_engine.units import GIB

Stop = Callable[[], bool]
MakeEstimator = Callable[[Cluster, TransformerSpec, Job], Estimator]

_SHORTEST_SEQ_LEN = 64


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
        nearest: The skeleton that misses its capacity by least; None where no skeleton is legal.
        make_estimator: Predicts the changed jobs.
    """
    if nearest is None:
        return NoFeasiblePlanError(f"no plan of {space.model.name} can be placed", hint=_placement_hint(space))
    skeleton, bounds = nearest
    placement = skeleton.placements[bounds.binding_stage]
    missing = bounds.excess_bytes / GIB
    message = (
        f"no plan of {space.model.name} fits {space.cluster.name}: the nearest (TP {skeleton.tp}, PP {skeleton.pp}, "
        f"DP {skeleton.dp}, micro-batch {skeleton.micro_batch}) is {missing:.1f} GiB short on stage "
        f"{bounds.binding_stage} ({placement.gpu_type}) even with the best layer split and recompute"
    )
    return NoFeasiblePlanError(message, hint=remedy(space.cluster, space.model, space.job, make_estimator, should_stop))


def remedy(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
) -> str:
    """The smallest change of the job that makes some plan fit, in words; else what more hardware would do."""
    changes = list(_changes(model, job))
    words: list[str] = []
    for change in changes:
        if should_stop():
            raise CancelledError("stopped while looking for a change that fits")
        if fits_somewhere(cluster, model, change.job, make_estimator, should_stop):
            words.append(change.words)
            break
    sequence = shorter_sequence(cluster, model, job, make_estimator, should_stop)
    if sequence is not None:
        words.append(f"a sequence of {sequence} tokens")
    if words:
        return f"this would fit: {'; or '.join(words)}"
    cannot = f"shortening the sequence cannot help (tried down to {min(_SHORTEST_SEQ_LEN, job.seq_len)} tokens)"
    together = combined(changes, job)
    if together is not None and fits_somewhere(cluster, model, together.job, make_estimator, should_stop):
        return f"{cannot}; together these would fit: {together.words}"
    for factor in (2, 4):
        more = replace(cluster, nodes=cluster.nodes * factor)
        if fits_somewhere(more, model, job, make_estimator, should_stop):
            return f"{cannot}; {factor} times as many nodes would fit, or a smaller model"
    return f"{cannot}; not even 4 times as many nodes would fit: use a smaller model"


def fits_somewhere(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
) -> bool:
    """Whether any skeleton of the job fits. Only the smallest micro-batch and 1F1B are looked at: they need least."""
    smallest = min(job.micro_batch_sizes or MICRO_BATCHES)
    space = enumerate_space(cluster, model, replace(job, micro_batch_sizes=(smallest,), virtual_stages=()))
    estimator = make_estimator(cluster, model, space.job)
    for skeleton in space.skeletons():
        if should_stop():
            raise CancelledError("stopped while looking for a change that fits")
        if compute_bounds(estimator.stage_table(skeleton)).fits:
            return True
    return False


def shorter_sequence(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    make_estimator: MakeEstimator = first_principles,
    should_stop: Stop = lambda: False,
) -> int | None:
    """The longest halving of the sequence that fits, or None where not even the shortest does."""
    if not fits_somewhere(cluster, model, replace(job, seq_len=_shortest(job)), make_estimator, should_stop):
        return None
    seq_len = job.seq_len
    while seq_len > _SHORTEST_SEQ_LEN:
        seq_len //= 2
        if fits_somewhere(cluster, model, replace(job, seq_len=seq_len), make_estimator, should_stop):
            return seq_len
    return None


def _shortest(job: Job) -> int:
    seq_len = job.seq_len
    while seq_len > _SHORTEST_SEQ_LEN:
        seq_len //= 2
    return seq_len


def _changes(model: TransformerSpec, job: Job) -> Iterator[Change]:
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


def _placement_hint(space: Space) -> str:
    """Why no skeleton is legal at all."""
    job, types = space.job, [t.name for t in space.cluster.gpu_types]
    if len(space.excluded_types) == len(types):
        return f"{'; '.join(space.excluded_types.values())}: use another precision"
    if not space.tp_sizes and job.tp_sizes:
        problems = [tp_problem(space.model, tp, True) for tp in job.tp_sizes]
        return next((p for p in problems if p), "no node holds as many GPUs of one type as the TP sizes asked for")
    if not space.dp_sizes and job.dp_sizes:
        return f"none of the DP sizes {job.dp_sizes} divides the global batch {job.global_batch} and has GPUs for it"
    if not space.micro_batches:
        return f"none of the micro-batch sizes {job.micro_batch_sizes} divides the global batch {job.global_batch}"
    return (
        f"no TP x PP x DP of {len(space.cluster.gpus)} GPUs keeps TP inside a node, gives {space.model.layers} layers "
        f"to at most as many stages, and divides the global batch {job.global_batch}; free the TP, PP, DP or "
        "micro-batch sizes, or choose a global batch with more divisors"
    )
