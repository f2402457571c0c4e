"""Where one plan stands beside the plans that a search found, in words."""

from __future__ import annotations

from collections.abc import Iterator

from memx_engine.plan import Estimate, Plan, Verdict
from memx_engine.search.gap import Gap
from memx_engine.search.result import SearchResult
from memx_engine.search.rules import Reason


def standing(result: SearchResult, gap: Gap, plan: Plan, estimate: Estimate) -> Iterator[Reason]:
    """How far ``plan`` is from the best found (rule ``time``), and why the search does not list it.

    ``space``: the search never looked at such a plan, so that it proved nothing of it.
    """
    best = result.plans[0]
    within = " within the limits" if result.limits else ""
    yield Reason(
        "time",
        f"by event simulation phi {gap.phi:.4f} is {gap.excess:+.1%} against the {gap.best_phi:.4f} of the best plan "
        f"found{within}, iteration time {gap.time_excess:+.1%}; of {len(result.table)} skeletons (plans without their "
        f"layers and recompute) {gap.ahead} were found to have a better plan. The best: {_shape_words(best.plan)}",
    )
    listed = next((other for other in result.table.plans if other.skeleton == plan.skeleton), None)
    if listed is None and estimate.verdict is not Verdict.DOES_NOT_FIT:
        outside = "; ".join(_outside(result, plan))
        if outside:
            yield Reason("space", f"the search did not look at such plans: {outside}")
        else:
            yield Reason("time", "the search closed this skeleton: its bounds are worse than the plans it kept")
    elif listed is not None and listed != plan:
        yield Reason(
            "time",
            f"the search lists this skeleton with layers {_layer_words(listed)} and recompute "
            f"{','.join(map(str, listed.recompute))}",
        )


def schedule_words(plan: Plan) -> str:
    """``1f1b``, or ``interleaved:V``, as ``--schedule`` takes it."""
    skeleton = plan.skeleton
    return skeleton.schedule if skeleton.virtual_stages == 1 else f"interleaved:{skeleton.virtual_stages}"


def _outside(result: SearchResult, plan: Plan) -> Iterator[str]:
    """Each dimension of the searched space that the plan's own value is not among."""
    shape = plan.skeleton
    own: dict[str, object] = {
        "schedule": schedule_words(plan),
        "tp": shape.tp,
        "pp": shape.pp,
        "dp": shape.dp,
        "micro_batch": shape.micro_batch,
        "seq_len": shape.seq_len,
        "global_batch": shape.global_batch,
        "type_order": " > ".join(shape.type_order if result.limits.all_orders else dict.fromkeys(shape.type_order)),
    }
    for name, value in own.items():
        looked_at = result.space.get(name)
        if looked_at is not None and value not in looked_at:
            words = name.replace("_", " ")
            words = words.upper() if len(name) == 2 else words
            yield f"{words} {value} is not among {', '.join(map(str, looked_at))}"


def _shape_words(plan: Plan) -> str:
    shape = plan.skeleton
    interleaved = "" if shape.virtual_stages == 1 else f", schedule {schedule_words(plan)}"
    return (
        f"TP {shape.tp}, PP {shape.pp}, DP {shape.dp}, micro-batch {shape.micro_batch} on "
        f"{' > '.join(shape.type_order)}, layers {_layer_words(plan)}{interleaved}"
    )


def _layer_words(plan: Plan) -> str:
    return ",".join(map(str, plan.layers))
