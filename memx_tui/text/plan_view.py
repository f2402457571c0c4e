"""One plan as text: its shape, its stages, its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from memx_engine import Cluster, Estimate, GpuEstimate, Job, Plan, TransformerSpec, Verdict
from memx_tui.text import numbers
from memx_tui.text.bars import memory_bars
from memx_tui.text.grid import Column, table
from memx_tui.text.style import Style

VERDICT_WORDS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight",
    Verdict.DOES_NOT_FIT: "does not fit",
    Verdict.INVALID: "invalid",
}
VERDICT_LOOKS = {Verdict.FITS: "good", Verdict.TIGHT: "warn", Verdict.DOES_NOT_FIT: "bad", Verdict.INVALID: "bad"}
_TIME_WORDS = {"tp_comm": "TP", "pp_comm": "PP", "dp_comm": "DP"}


def schedule_word(plan: Plan) -> str:
    """``1f1b``, or ``interleaved:V``, as ``--schedule`` takes it."""
    skeleton = plan.skeleton
    return skeleton.schedule if skeleton.virtual_stages == 1 else f"interleaved:{skeleton.virtual_stages}"


def runs(words: Iterable[str], times: str) -> str:
    """Words with repeats folded: ``8,8,7`` becomes ``2×8,7``."""
    parts = []
    for word, group in groupby(words):
        length = len(list(group))
        parts.append(word if length == 1 else f"{length}{times}{word}")
    return ",".join(parts)


def layers_by_type(plan: Plan, style: Style) -> str:
    """Layers of each stage, one block per GPU type along the pipeline: ``14|2×5|2×4``."""
    blocks = groupby(plan.stages, key=lambda stage: stage.gpu_type)
    return "|".join(runs((str(stage.layers) for stage in block), style.glyphs.times) for _, block in blocks)


def recompute_by_type(plan: Plan, style: Style) -> str:
    """Recompute of each stage in the same blocks; one word where all stages agree."""
    if len(set(plan.recompute)) == 1:
        return str(plan.recompute[0])
    out = []
    for _, block in groupby(plan.stages, key=lambda stage: stage.gpu_type):
        words = [str(stage.recompute) for stage in block]
        out.append(words[0] if len(set(words)) == 1 else runs(words, style.glyphs.times))
    return "|".join(out)


def ranks(values: Sequence[int]) -> str:
    """Ranks with consecutive ones folded: ``0-3,8``."""
    parts: list[str] = []
    for _, group in groupby(enumerate(sorted(values)), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in group]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def cluster_line(cluster: Cluster, style: Style) -> str:
    """How many GPUs of which type: ``20 GPUs: 4 × a100-sxm-80g, 8 × vendor-b``."""
    counts = [f"{len(r)} {style.glyphs.times} {name}" for name, r in cluster.ranks_by_type.items()]
    nodes = len(cluster.nodes)
    return f"{len(cluster.gpus)} GPUs on {nodes} node{'s' if nodes != 1 else ''}: {', '.join(counts)}"


def job_line(model: TransformerSpec, job: Job, style: Style) -> str:
    """The job in one line."""
    parts = [
        f"{numbers.parameters(model.parameters)} parameters, {model.layers} layers",
        f"batch {job.global_batch} {style.glyphs.times} {job.seq_len} tokens",
        str(job.precision),
        f"{job.optimizer} optimizer",
        f"{job.attention} attention",
    ]
    if str(job.framework) != "any":
        parts.append(f"{job.framework} rules")
    return style.glyphs.dot.join(parts)


def idle_words(plan: Plan, gpus: int) -> str:
    """``12 of 28 GPUs idle`` where the plan leaves any of the cluster's ``gpus`` unused; else empty."""
    idle = gpus - sum(len(stage.ranks) for stage in plan.stages)
    return f"{idle} of {gpus} GPUs idle" if idle > 0 else ""


def shape_line(plan: Plan, style: Style) -> str:
    """The plan's dimensions in one line."""
    s = plan.skeleton
    dims = f"tp {s.tp}  pp {s.pp}  dp {s.dp}  mbs {s.micro_batch}"
    unit = "micro-batch" if s.micro_batches == 1 else "micro-batches"
    parts = [dims, schedule_word(plan), f"{s.micro_batches} {unit} per replica"]
    if plan.untied:
        parts.append("embeddings untied (the pipeline's ends are of different vendors)")
    return style.glyphs.dot.join(parts)


def outcome_line(estimate: Estimate, style: Style) -> str:
    """What the plan gives: time with its interval, tokens per second, worst GPU, spread."""
    worst = estimate.worst_gpu
    risk = "" if estimate.oom_risk is None else f" (OOM risk {numbers.risk(estimate.oom_risk)})"
    time = f"{numbers.seconds(estimate.iteration_time_s)} s per iteration"
    if estimate.interval_s is not None:
        low, high = estimate.interval_s
        time += f" (95%: {numbers.seconds(low)}..{numbers.seconds(high)})"
    parts = [
        time,
        f"{numbers.rate(estimate.tokens_per_s)} tokens/s",
        f"worst GPU {worst.gpu_type} {numbers.percent(worst.used_fraction)}{risk}",
        f"spread {numbers.spread_gib(estimate.memory_variance_bytes2):.1f} GiB",
    ]
    return style.glyphs.dot.join(parts)


def time_line(estimate: Estimate) -> str:
    """Where the iteration time goes, seen from the slowest stage; parts below 0.05 % are left out."""
    total = estimate.iteration_time_s
    parts = [
        f"{_TIME_WORDS.get(name, name)} {numbers.seconds(value)}"
        for name, value in estimate.time_breakdown_s.items()
        if abs(value) > 0.0005 * total
    ]
    if not parts:
        return f"{numbers.seconds(total)} s"
    whose = f" (slowest stage: {estimate.slowest_stage})" if len(estimate.stage_forward_s) > 1 else ""
    return f"{numbers.seconds(total)} s = {' + '.join(parts)}{whose}"


def stage_table(plan: Plan, estimate: Estimate, style: Style) -> list[str]:
    """One row per pipeline stage."""
    micro_batches = plan.skeleton.micro_batches
    busy = [
        micro_batches * (f + b) / estimate.iteration_time_s
        for f, b in zip(estimate.stage_forward_s, estimate.stage_backward_s, strict=True)
    ]
    worst: dict[int, GpuEstimate] = {}
    for gpu in estimate.gpus:
        if gpu.stage not in worst or gpu.used_fraction > worst[gpu.stage].used_fraction:
            worst[gpu.stage] = gpu
    nodes = [_nodes(estimate, index, style) for index in range(len(plan.stages))]
    columns = [
        Column("stage", [str(i) for i in range(len(plan.stages))], right=True),
        Column("GPUs", [f"{len(s.ranks)} {style.glyphs.times} {s.gpu_type}" for s in plan.stages], shrink=18),
        Column("layers", ["+".join(map(str, s.chunk_layers)) for s in plan.stages], right=True),
        Column("recompute", [str(s.recompute) for s in plan.stages]),
        Column("fwd ms", [numbers.milliseconds(t) for t in estimate.stage_forward_s], right=True),
        Column("bwd ms", [numbers.milliseconds(t) for t in estimate.stage_backward_s], right=True),
        Column("busy", [numbers.percent(b) for b in busy], right=True),
        Column("peak GiB", [numbers.size(worst[i].peak_bytes) for i in range(len(plan.stages))], right=True, drop=3),
        Column("used", [numbers.percent(worst[i].used_fraction) for i in range(len(plan.stages))], right=True),
        Column("ranks", [ranks(s.ranks) for s in plan.stages], drop=2, shrink=5),
        Column("nodes", nodes, drop=1, shrink=6),
    ]
    return table(columns, style, gap=2 if style.width >= 90 else 1)


def _nodes(estimate: Estimate, stage: int, style: Style) -> str:
    names = list(dict.fromkeys(gpu.node for gpu in estimate.gpus if gpu.stage == stage))
    return ",".join(names) if len(names) <= 2 else f"{names[0]}..{names[-1]} ({len(names)})"


def plan_block(title: str, plan: Plan, estimate: Estimate, style: Style) -> list[str]:
    """Everything about one plan: shape, outcome, where the time goes, stages, memory bars."""
    verdict = estimate.verdict
    note = f"{VERDICT_WORDS[verdict]}, {estimate.basis}"
    lines = [
        style.section(title, note),
        *style.wrap(shape_line(plan, style), " "),
        *style.wrap(outcome_line(estimate, style), " "),
        *style.wrap(time_line(estimate), " "),
        "",
        *stage_table(plan, estimate, style),
        "",
        *memory_bars(estimate, style),
    ]
    return lines
