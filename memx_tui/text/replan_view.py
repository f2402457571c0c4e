"""What moving from the plan in hand takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_engine import Cluster, Replan, moves_by_node
from memx_tui.text import numbers
from memx_tui.text.grid import Column, table
from memx_tui.text.plan_view import layers_by_type, recompute_by_type
from memx_tui.text.style import Style

if TYPE_CHECKING:
    from memx_tui.replanning import Replanned


def replan_text(replan: Replan, cluster: Cluster, style: Style) -> list[str]:
    """A section: what was chosen, and what every node must receive."""
    lines = [style.section("Moving from the plan in hand")]
    for sentence in _words(replan):
        lines += style.wrap(sentence, " ")
    nodes = moves_by_node(replan.migration, cluster)
    # The nodes that wait longest first, ties in the cluster's order; a terminal is no place for a thousand of them.
    names = sorted(nodes, key=lambda name: -nodes[name][2] - nodes[name][3])[:_MOST_NODES]
    figures = [nodes[name] for name in names]
    columns = [
        Column("node", names, shrink=12),
        Column("GPUs", [str(f[0]) for f in figures], right=True),
        Column("new layers", [str(f[1]) for f in figures], right=True),
        Column("weights GiB", [numbers.size(f[2]) for f in figures], right=True),
        Column("optimizer GiB", [numbers.size(f[3]) for f in figures], right=True),
        Column("keeps GiB", [numbers.size(f[4]) for f in figures], right=True),
    ]
    lines += table(columns, style)
    note = "new layers: most that one GPU of the node receives; weights and optimizer: what the node receives in all"
    if len(nodes) > len(names):
        note = f"{len(nodes) - len(names)} more nodes receive no more than these; --json has them all. {note}"
    return [*lines, *style.wrap(note, " ")]


def answer_text(answer: Replanned, style: Style) -> list[str]:
    """The dashboard's answer: the plan without the nodes, beside the one in hand, and what every node must receive."""
    result, chosen, hand = answer.result, answer.chosen, answer.asked.hand
    estimate, s = chosen.estimate, chosen.plan.skeleton
    stopped = "; the search was stopped, this is the best so far" if result.cancelled else ""
    lines = style.wrap(f"{len(result.cluster.gpus)} GPUs are left; {result.feasible:,} layouts fit{stopped}.", "")
    plan = (
        f"Plan {chosen.rank}: tp {s.tp} pp {s.pp} dp {s.dp} mbs {s.micro_batch}, layers "
        f"{layers_by_type(chosen.plan, style)}, recompute {recompute_by_type(chosen.plan, style)}; fullest GPU "
        f"{numbers.percent(estimate.worst_gpu.used_fraction)} ({estimate.worst_gpu.gpu_type})."
    )
    lines += style.wrap(plan, "")
    time = f"{numbers.seconds(estimate.iteration_time_s)} s per iteration"
    if hand is not None:
        change = numbers.change(estimate.iteration_time_s, hand.iteration_time_s)
        time = f"{time} instead of {numbers.seconds(hand.iteration_time_s)} s ({change})"
    lines += style.wrap(f"{time}; {estimate.certainty}.", "")
    return [*lines, "", *replan_text(answer.replan, result.cluster, style)] if answer.replan is not None else lines


_MOST_NODES = 16


def _words(replan: Replan) -> list[str]:
    chosen, best = replan.migration, replan.best_migration
    words = []
    if replan.gone or replan.added:
        changed = [f"gone: {', '.join(replan.gone)}"] if replan.gone else []
        changed += [f"new: {', '.join(replan.added)}"] if replan.added else []
        words.append("; ".join(changed))
    above = replan.chosen.phi / replan.best.phi - 1.0
    price = f"whose Φ is {above:.1%} lower" if above >= 5e-4 else "as good by Φ"
    time_s, best_s = (ranked.estimate.iteration_time_s for ranked in (replan.chosen, replan.best))
    slower = "" if abs(time_s / best_s - 1.0) < 5e-4 else f" ({time_s / best_s - 1.0:+.1%})"
    cost = f"takes {numbers.seconds(time_s)} s per iteration{slower or ', as the best plan does'}"
    if replan.unchanged:
        words.append(f"The plan in hand stays as it is: it {cost}, its Φ is {above:.1%} above the best. Nothing moves.")
    elif replan.chosen.plan == replan.best.plan:
        words.append(f"The best plan is also the one that moves least within {replan.tolerance:.1%} of it.")
    else:
        words.append(
            f"This plan moves {numbers.size(chosen.received_bytes)} GiB and {cost}; the best plan, {price}, "
            f"takes {numbers.seconds(best_s)} s and would move {numbers.size(best.received_bytes)} GiB."
        )
    receiving = sum(move.received_bytes > 0 for move in chosen.ranks)
    words.append(
        f"{chosen.moved_layers} layers move; {numbers.size(chosen.received_bytes)} GiB are received by {receiving} of "
        f"{len(chosen.ranks)} GPUs, {numbers.size(chosen.kept_bytes)} GiB stay where they are."
    )
    if chosen.lost_weights_bytes + chosen.lost_optimizer_bytes > 0:
        words.append(
            f"Only a checkpoint has {numbers.size(chosen.lost_weights_bytes)} GiB of the weights and "
            f"{numbers.size(chosen.lost_optimizer_bytes)} GiB of the optimizer states: no GPU that stays holds them."
        )
    return words
