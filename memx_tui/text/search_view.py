"""The result of a search as text: ranked table, the chosen plan, the fastest beside it, why, what next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from memx_engine import MemoryBreakdown, OperatorLimits, RankedPlan, SearchResult
from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import (
    cluster_line,
    idle_words,
    job_line,
    layers_by_type,
    plan_block,
    recompute_by_type,
    schedule_word,
)
from memx_tui.text.price import price_words
from memx_tui.text.style import Style

_SHORT = 24


def search_text(
    result: SearchResult,
    shown: Sequence[RankedPlan],
    chosen: RankedPlan,
    style: Style,
    saved: Path | None = None,
    extra: Sequence[str] = (),
) -> str:
    """The whole answer of ``plan``.

    Args:
        result: What the search found.
        shown: The rows of the table.
        chosen: The plan that is described below the table.
        style: Where it is drawn.
        saved: The plan file that was written.
        extra: Lines of what else was asked.
    """
    price = price_words(result, chosen)
    idle = idle_words(chosen.plan, len(result.cluster.gpus))
    lines = [
        *header(result, style),
        "",
        *ranked_table(shown, style, chosen.rank),
        *(style.wrap(price, " ") if price else []),
        *(style.wrap(f"Plan {chosen.rank} leaves {idle}.", " ") if idle else []),
        *style.wrap(_caption(result, len(shown), style), " "),
        "",
        *plan_block(f"Plan {chosen.rank}", chosen.plan, chosen.estimate, style),
        "",
        *fastest(result, chosen, style),
        "",
        *why(result, chosen, style),
        "",
        *([*extra, ""] if extra else []),
        *assumed_block(result.assumed, style),
        "",
        *following(saved, style),
    ]
    return "\n".join(lines)


def certainty(result: SearchResult) -> str:
    """What the numbers rest on; with the interval of the best plan where its types are as well known as all are."""
    if result.feasible:
        best = result.detail(0).estimate
        if best.provenance == result.provenance:
            return best.certainty
    return str(result.provenance)


def header(result: SearchResult, style: Style) -> list[str]:
    pruned = result.pruned
    dropped = [
        f"{numbers.count(n)} {word}"
        for n, word in ((pruned.placement, "misplaced"), (pruned.memory, "too big"), (pruned.time, "too slow"))
        if n
    ]
    searched = (
        f"searched {numbers.count(result.skeletons)} skeletons in {result.seconds:.1f} s"
        f"{' (stopped early)' if result.cancelled else ''}: {', '.join([*dropped, ''])}"
        f"{numbers.count(result.feasible)} fit; {numbers.count(result.plans_covered)} complete plans covered"
    )
    limits = limits_words(result.limits)
    return [
        style.section(f"{result.model.name} on {result.cluster.name}", certainty(result)),
        *style.wrap(cluster_line(result.cluster, style), " "),
        *style.wrap(job_line(result.model, result.job, style), " "),
        *(style.wrap(f"limits: {limits}", " ") if limits else []),
        *style.wrap(searched, " "),
        *(style.wrap(_reused(result), " ") if result.cache_hits + result.cache_misses else []),
    ]


def _reused(result: SearchResult) -> str:
    """How many stages were asked for, and how many of the answers were remembered: by signature, also across runs."""
    asked = result.cache_hits + result.cache_misses
    return (
        f"{numbers.count(asked)} stages evaluated: {numbers.count(result.cache_hits)} remembered by signature, "
        f"{numbers.count(result.cache_misses)} new"
    )


def limits_words(limits: OperatorLimits) -> str:
    """The operator's limits in words; empty where there are none."""
    return "; ".join(
        f"{name.replace('_', ' ')} {', '.join(map(str, values))}" if values != (True,) else name.replace("_", " ")
        for name, values in limits.described().items()
    )


def ranked_table(plans: Sequence[RankedPlan], style: Style, highlight: int | None = None) -> list[str]:
    """One row per plan; row of rank ``highlight`` is bold."""
    estimates = [p.estimate for p in plans]
    skeletons = [p.plan.skeleton for p in plans]
    worst = [e.worst_gpu for e in estimates]

    def risk(row: int) -> str | None:
        fraction = worst[row].used_fraction
        return "bad" if fraction > 1 else "warn" if fraction > 0.9 else None

    columns = [
        Column("#", [f"{p.rank or '-'}{style.glyphs.pareto if p.pareto else ' '}" for p in plans], right=True),
        Column(style.glyphs.phi, [numbers.phi(p.phi) for p in plans], right=True),
        Column("time s", [numbers.seconds(e.iteration_time_s) for e in estimates], right=True),
        Column("tok/s", [numbers.rate(e.tokens_per_s) for e in estimates], right=True),
        Column("tp", [str(s.tp) for s in skeletons], right=True),
        Column("pp", [str(s.pp) for s in skeletons], right=True),
        Column("dp", [str(s.dp) for s in skeletons], right=True),
        Column("mbs", [str(s.micro_batch) for s in skeletons], right=True),
        Column("schedule", [schedule_word(p.plan) for p in plans], drop=1),
        Column("layers", [layers_by_type(p.plan, style) for p in plans], shrink=12),
        Column("recompute", [recompute_by_type(p.plan, style) for p in plans], shrink=9),
        Column("worst GPU", [f"{numbers.percent(g.used_fraction)} {g.gpu_type}" for g in worst], shrink=12, look=risk),
        Column(
            "spread", [f"{numbers.spread_gib(e.memory_variance_bytes2):.1f}" for e in estimates], right=True, drop=2
        ),
    ]
    index = next((i for i, p in enumerate(plans) if p.rank == highlight), None)
    return table(columns, style, gap=2 if style.width >= 110 else 1, highlight=index)


def _caption(result: SearchResult, shown: int, style: Style) -> str:
    total = numbers.count(result.feasible)
    return (
        f"{shown} of {total} shown, one per skeleton; {style.glyphs.pareto} nothing known beats it in time, peak and "
        f"spread together; spread: standard deviation of the GPUs' peak memory in GiB; "
        "layers and recompute: per stage, one block for each GPU type along the pipeline; "
        f"{len(result.pareto)} plans on the front: {result.front}"
    )


def fastest(result: SearchResult, chosen: RankedPlan, style: Style) -> list[str]:
    """The time-optimal plan beside the chosen one, with its price."""
    quick = result.time_optimal
    if quick.plan == chosen.plan:
        return [style.section("Fastest plan found"), *style.wrap("The chosen plan is also the fastest.", " ")]
    ours, theirs = chosen.estimate, quick.estimate
    words = (
        f"Time {numbers.change(theirs.iteration_time_s, ours.iteration_time_s)}, "
        f"Φ {numbers.change(quick.phi, chosen.phi)}; worst GPU {numbers.percent(theirs.worst_gpu.used_fraction)} "
        f"({theirs.worst_gpu.gpu_type}) instead of {numbers.percent(ours.worst_gpu.used_fraction)}, "
        f"spread {numbers.spread_gib(theirs.memory_variance_bytes2):.1f} instead of "
        f"{numbers.spread_gib(ours.memory_variance_bytes2):.1f} GiB. --weights 1,0,0 or throughput leans this way."
    )
    return [style.section("Fastest plan found"), *ranked_table([quick], style), *style.wrap(words, " ")]


def why(result: SearchResult, chosen: RankedPlan, style: Style) -> list[str]:
    """Why this plan: weights, margin over the next, what binds, how sure the search is."""
    weights = result.objective.weights
    estimate = chosen.estimate
    points = [
        f"weights {weights.profile}: time {weights.time:g}, peak {weights.peak:g}, spread {weights.variance:g}"
        + (f"; {weights.reason}" if weights.reason else "")
    ]
    other = next((p for p in result.plans if p.rank != chosen.rank), None)
    if other is not None and chosen.rank == 1:
        points.append(f"lowest Φ, {numbers.phi(chosen.phi)}; the next has {numbers.phi(other.phi)}")
    elif other is not None:
        points.append(f"picked by hand: Φ {numbers.phi(chosen.phi)}, rank 1 has {numbers.phi(result.plans[0].phi)}")
    worst = estimate.worst_gpu
    free = worst.capacity_bytes - worst.peak_bytes
    points.append(
        f"fullest GPU: {worst.gpu_type} (rank {worst.rank}, {worst.node}, stage {worst.stage}): "
        f"{numbers.size(worst.peak_bytes)} of {numbers.size(worst.capacity_bytes)} GiB, {numbers.size(free)} GiB free; "
        f"the largest part is {largest_part(worst.breakdown)}"
    )
    pace = [f + b for f, b in zip(estimate.stage_forward_s, estimate.stage_backward_s, strict=True)]
    slowest = max(range(len(pace)), key=pace.__getitem__)
    if len(pace) > 1:
        points.append(
            f"stage {slowest} ({chosen.plan.stages[slowest].gpu_type}) sets the pace: "
            f"{numbers.milliseconds(pace[slowest])} ms per micro-batch, the quickest stage "
            f"{numbers.milliseconds(min(pace))} ms"
        )
    points.append(certificate_words(result))
    lines = [style.section("Why this plan")]
    for point in points:
        lines.extend(style.wrap(point, "   ", first=" - "))
    return lines


def following(saved: Path | None, style: Style) -> list[str]:
    """What to type next."""
    lines = [style.section("Next")]
    if saved is None:
        words = "save a plan: the same command with -o plan.yaml (--pick N for another rank)"
        return [*lines, *style.wrap(words, " ")]
    name = shlex.quote(str(saved))
    steps = (
        (f"memx-tui explain {name}", "judge it again, from the file alone"),
        (f"memx-tui show {name}", "see it again"),
        (f"memx-tui compare {name} other.yaml", "put it beside another"),
        ("memx-tui", "the dashboard"),
    )
    width = max(len(command) for command, _ in steps)
    return [*lines, *(f" {command.ljust(width)}  {style.paint(note, 'dim')}" for command, note in steps)]


def largest_part(breakdown: MemoryBreakdown) -> str:
    """The name of the largest part, with its share."""
    parts = breakdown.as_dict()
    name = max(parts, key=parts.__getitem__)
    return f"{name} ({numbers.percent(parts[name] / breakdown.total)})" if breakdown.total > 0 else name


def certificate_words(result: SearchResult) -> str:
    """How far from optimal the answer can be, in words."""
    certificate = result.certificate
    rescored = f"{certificate.rescored} skeleton{'s' if certificate.rescored != 1 else ''} ordered by event simulation"
    bound = certificate.event_lower_bound
    if bound is not None:
        lower = max(0.0, 1.0 - bound / result.plans[0].phi)
        rescored += f", by which no plan searched, interleaved ones included, has a Φ more than {lower:.1%} lower"
    if certificate.optimal:
        return f"proven optimal over everything searched (for the {certificate.objective} time); {rescored}"
    if certificate.gap is not None and result.plans[0].plan.skeleton.virtual_stages > 1:
        return (
            "plan 1 is interleaved, of which the additive time proves nothing; the best 1F1B plan is at most "
            f"{certificate.gap:.1%} above the lower bound of 1F1B plans; {rescored}"
        )
    if certificate.gap is None:
        return f"not proven optimal: no lower bound was computed; {rescored}"
    return f"at most {certificate.gap:.1%} above the lower bound (for the {certificate.objective} time); {rescored}"


def assumed_block(assumed: Sequence[str], style: Style) -> list[str]:
    """Every assumption the numbers rest on; short ones share a line."""
    lines = [style.section("Assumed, because nothing else was said")]
    if not assumed:
        return [*lines, " nothing"]
    for short, group in groupby(assumed, key=lambda sentence: len(sentence) <= _SHORT):
        for sentence in ["; ".join(group)] if short else group:
            lines.extend(style.wrap(sentence, "   ", first=" - "))
    return lines
