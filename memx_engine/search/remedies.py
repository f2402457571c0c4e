"""What would make one plan fit, found by trying changes of it on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from memx_engine.cost.table import Estimator
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.parallelism import legal_tp
from memx_engine.plan import Estimate, Plan, Recompute, Verdict
from memx_engine.search.assign import build_plan
from memx_engine.search.bounds import fixed_split
from memx_engine.search.diagnose import SHORTEST_SEQ_LEN, MakeEstimator, fits_somewhere, shorter_sequence
from memx_engine.search.objective import TIME_ALONE
from memx_engine.search.solver import Limits, solve
from memx_engine.units import GIB


def plan_remedy(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    plan: Plan,
    estimate: Estimate,
    estimator: Estimator,
) -> str:
    """What would fit, the smallest changes first; says so where shortening the sequence cannot help."""
    make_estimator = estimator.derive
    within = list(_within_layout(cluster, model, job, plan, estimator))
    if within:
        seq_len = _shorter_alone(cluster, model, job, plan, make_estimator)
        within += [f"a sequence of {seq_len} tokens with nothing else changed"] if seq_len else []
        return f"what would fit: {', or '.join(within)}"
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

    words = list(_changes(model, asked, fits)) or list(_more_gpus(cluster, model, asked, fits))
    # 1F1B needs least memory, and is what these were tried with.
    plain = "" if shape.virtual_stages == 1 else ", with 1F1B"
    would = f"what would fit{plain}: {', or '.join(words)}" if words else "no other layout fits"
    seq_len = shorter_sequence(cluster, model, asked, make_estimator)
    if seq_len is not None:
        return f"{would}{', or' if words else '; only'} a sequence of {seq_len} tokens"
    gpu = max(estimate.gpus, key=lambda g: g.peak_bytes - g.capacity_bytes)
    states = gpu.breakdown.weights + gpu.breakdown.gradients + gpu.breakdown.optimizer
    return (
        f"shortening the sequence cannot help (weights, gradients and optimizer state alone take {states / GIB:.1f} of "
        f"{gpu.capacity_bytes / GIB:.1f} GiB); {would}"
    )


def _within_layout(
    cluster: Cluster, model: TransformerSpec, job: Job, plan: Plan, estimator: Estimator
) -> Iterator[str]:
    """Recompute, layers, both, or the micro-batch: each change of ``plan`` on its own stages that was tried and fits.

    Of several choices that fit, the fastest is named.
    """
    skeleton = plan.skeleton
    table = estimator.stage_table(skeleton)
    common = Limits(same_recompute=job.framework is Framework.MEGATRON)

    def fitting(layers: Sequence[int], options: Sequence[Recompute]) -> Plan | None:
        changed = build_plan(cluster, model, skeleton, layers, options)
        return None if estimator.estimate(changed).verdict is Verdict.DOES_NOT_FIT else changed

    if all(n % skeleton.virtual_stages == 0 for n in plan.layers):
        found = solve(fixed_split(table, plan.layers), TIME_ALONE, limits=common)
        changed = found and fitting(plan.layers, [table.options[r] for r in found.options])
        if changed:
            yield f"more recompute with the same layers (--recompute {_listed(changed.recompute)})"
    if all(option in table.options for option in plan.recompute):
        pinned = replace(common, recompute=tuple(table.options.index(option) for option in plan.recompute))
        found = solve(table, TIME_ALONE, limits=pinned)
        changed = found and fitting(found.layers, plan.recompute)
        if changed:
            yield f"another split of the layers with the same recompute (--layers {_listed(changed.layers)})"
    found = solve(table, TIME_ALONE, limits=common)
    changed = found and fitting(found.layers, [table.options[r] for r in found.options])
    if changed and changed.layers != plan.layers and changed.recompute != plan.recompute:
        yield f"both (--layers {_listed(changed.layers)} --recompute {_listed(changed.recompute)})"
    if skeleton.virtual_stages > 1:
        changed = build_plan(cluster, model, replace(skeleton, virtual_stages=1), plan.layers, plan.recompute)
        if estimator.estimate(changed).verdict is not Verdict.DOES_NOT_FIT:
            yield "1F1B with nothing else changed (--schedule 1f1b)"
    for smaller in _halvings(skeleton.micro_batch):
        shape = replace(skeleton, micro_batch=smaller)
        unit = skeleton.dp * smaller * (skeleton.pp if skeleton.virtual_stages > 1 else 1)
        if skeleton.global_batch % unit:
            continue
        if estimator.estimate(replace(plan, skeleton=shape)).verdict is not Verdict.DOES_NOT_FIT:
            yield f"micro-batch {smaller} with nothing else changed (--mbs {smaller})"
            break


def _shorter_alone(
    cluster: Cluster, model: TransformerSpec, job: Job, plan: Plan, make_estimator: MakeEstimator
) -> int | None:
    """The longest halving of the sequence at which the very plan fits; None where none does."""
    for seq_len in _halvings(plan.skeleton.seq_len):
        shorter = replace(plan, skeleton=replace(plan.skeleton, seq_len=seq_len))
        estimator = make_estimator(cluster, model, replace(job, seq_len=seq_len))
        if estimator.estimate(shorter).verdict is not Verdict.DOES_NOT_FIT:
            return seq_len
        if seq_len <= SHORTEST_SEQ_LEN:
            break
    return None


def _halvings(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value


def _listed(values: Sequence[object]) -> str:
    """As a flag takes it: one word where all agree."""
    words = [str(value) for value in values]
    return words[0] if len(set(words)) == 1 and not words[0].isdigit() else ",".join(words)


def _changes(model: TransformerSpec, job: Job, fits: Callable[[Job], bool]) -> Iterator[str]:
    """Changes that fit, each tried alone first: same layout, then other layouts of the same GPUs."""
    (pp,), (dp,), (size,) = job.pp_sizes or (1,), job.dp_sizes or (1,), job.micro_batch_sizes or (1,)
    sharded = replace(job, optimizer=Optimizer.SHARDED)
    for smaller in _halvings(size):
        if job.global_batch % (dp * smaller) == 0 and fits(replace(job, micro_batch_sizes=(smaller,))):
            yield f"micro-batch {smaller} with another layer split or more recompute"
            break
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


def _more_gpus(cluster: Cluster, model: TransformerSpec, job: Job, fits: Callable[[Job], bool]) -> Iterator[str]:
    """The fewest more GPUs of the cluster with which a larger TP or a deeper pipeline fits."""
    (tp,), (pp,), (dp,) = job.tp_sizes or (1,), job.pp_sizes or (1,), job.dp_sizes or (1,)
    sizes = [(wider, pp) for wider in legal_tp(model, True) if wider > tp]
    sizes += [(tp, deeper) for deeper in range(pp + 1, model.layers + 1)]
    for wider, deeper in sorted(sizes, key=lambda size: (size[0] * size[1], size[1])):
        gpus = wider * deeper * dp
        if gpus > len(cluster.gpus):
            return
        if fits(replace(job, tp_sizes=(wider,), pp_sizes=(deeper,))):
            yield f"TP {wider} with PP {deeper} and DP {dp} on {gpus} of the cluster's {len(cluster.gpus)} GPUs"
            return


def _multiples(pp: int, dp: int, layers: int) -> Iterator[int]:
    """Deeper pipelines of the same GPUs."""
    for factor in range(2, dp + 1):
        if dp % factor == 0 and pp * factor <= layers:
            yield pp * factor
