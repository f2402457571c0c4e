"""What would make one plan fit, found by trying changes of it on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import legal_tp
from memx_engine.plan import Estimate, Plan
from memx_engine.search.diagnose import MakeEstimator, first_principles, fits_somewhere, shorter_sequence
from memx_engine.units import GIB


def plan_remedy(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    plan: Plan,
    estimate: Estimate,
    make_estimator: MakeEstimator = first_principles,
) -> str:
    """What would fit, the smallest changes first; says so where shortening the sequence cannot help."""
    shape = plan.skeleton
    asked = replace(
        job,
        tp_sizes=(shape.tp,),
        pp_sizes=(shape.pp,),
        dp_sizes=(shape.dp,),
        micro_batch_sizes=(shape.micro_batch,),
        virtual_stages=(),
    )

    def fits(changed: Job) -> bool:
        return fits_somewhere(cluster, model, changed, make_estimator)

    words = list(_changes(model, asked, fits))
    would = f"what would fit: {', or '.join(words)}" if words else "no other layout on these GPUs fits"
    seq_len = shorter_sequence(cluster, model, asked, make_estimator)
    if seq_len is not None:
        return f"{would}{', or' if words else '; only'} a sequence of {seq_len} tokens"
    gpu = max(estimate.gpus, key=lambda g: g.peak_bytes - g.capacity_bytes)
    states = gpu.breakdown.weights + gpu.breakdown.gradients + gpu.breakdown.optimizer
    return (
        f"shortening the sequence cannot help (weights, gradients and optimizer state alone take {states / GIB:.1f} of "
        f"{gpu.capacity_bytes / GIB:.1f} GiB); {would}"
    )


def _changes(model: TransformerSpec, job: Job, fits: Callable[[Job], bool]) -> Iterator[str]:
    """Changes that fit, each tried alone first: same layout, then other layouts of the same GPUs."""
    (pp,), (dp,), (size,) = job.pp_sizes or (1,), job.dp_sizes or (1,), job.micro_batch_sizes or (1,)
    sharded = replace(job, optimizer=Optimizer.SHARDED)
    if fits(job):
        yield "another layer split or more recompute in the same layout"
        return
    smaller = size // 2
    while smaller >= 1:
        if job.global_batch % (dp * smaller) == 0 and fits(replace(job, micro_batch_sizes=(smaller,))):
            yield f"micro-batch {smaller}"
            break
        smaller //= 2
    if job.optimizer is not Optimizer.SHARDED and dp > 1 and fits(sharded):
        yield "a sharded optimizer"
    yield from _wider(model, job, fits)
    for deeper in _multiples(pp, dp, model.layers):
        if fits(replace(job, pp_sizes=(deeper,), dp_sizes=(dp * pp // deeper,))):
            yield f"a pipeline of PP {deeper} with DP {dp * pp // deeper}"
            break


def _wider(model: TransformerSpec, job: Job, fits: Callable[[Job], bool]) -> Iterator[str]:
    """The smallest larger TP with a sharded optimizer, and the smallest that needs none."""
    (tp,), (dp,) = job.tp_sizes or (1,), job.dp_sizes or (1,)
    found: dict[Optimizer, tuple[int, int]] = {}
    for wider in legal_tp(model, True):
        if wider <= tp or (tp * dp) % wider:
            continue
        for optimizer in (Optimizer.SHARDED, Optimizer.REPLICATED):
            narrower = tp * dp // wider
            changed = replace(job, tp_sizes=(wider,), dp_sizes=(narrower,), optimizer=optimizer)
            if optimizer not in found and job.global_batch % narrower == 0 and fits(changed):
                found[optimizer] = (wider, narrower)
    sharded, replicated = found.get(Optimizer.SHARDED), found.get(Optimizer.REPLICATED)
    if sharded is not None and sharded != replicated:
        yield f"TP {sharded[0]} with DP {sharded[1]} and a sharded optimizer"
    if replicated is not None:
        yield f"TP {replicated[0]} with DP {replicated[1]} (sharded optimizer or not)"


def _multiples(pp: int, dp: int, layers: int) -> Iterator[int]:
    """Deeper pipelines of the same GPUs."""
    for factor in range(2, dp + 1):
        if dp % factor == 0 and pp * factor <= layers:
            yield pp * factor
