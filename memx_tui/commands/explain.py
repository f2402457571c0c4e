"""``memx-tui explain``: judge one plan, from a file or from flags."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from memx_engine import InputError
from memx_tui.commands.limit_options import LIMITS, limit_options, parse_flags
from memx_tui.commands.options import FiniteRange, compute_options, input_options, job_options, load_inputs, start_work
from memx_tui.commands.plan import run_search
from memx_tui.commands.stored import stored_estimator
from memx_tui.output import emit, emit_json, say

if TYPE_CHECKING:
    from memx_engine import (
        Calibrated,
        Cluster,
        Explanation,
        FirstPrinciples,
        Job,
        OperatorLimits,
        Recompute,
        SearchOptions,
        SearchResult,
        TransformerSpec,
    )

    Inputs = tuple[Cluster, TransformerSpec, Job]


@click.command()
@click.argument("plan", required=False, metavar="[PLAN.yaml]")
@input_options
@job_options(single_micro_batch=True)
@click.option("--tp", type=click.IntRange(1), metavar="N", help="Tensor-parallel size.")
@click.option("--pp", type=click.IntRange(1), metavar="N", help="Pipeline depth.")
@click.option("--dp", type=click.IntRange(1), metavar="N", help="Data-parallel size.")
@click.option(
    "--layers", metavar="8,8,7,7|auto", help="Layers of each stage; left out: even split; auto: the best split."
)
@click.option(
    "--recompute",
    metavar="full,none,block:3|auto",
    help="Recompute of each stage, one word for all, or auto (default).",
)
@click.option("--schedule", metavar="1f1b|interleaved:V", default="1f1b", show_default=True, help="Pipeline schedule.")
@limit_options
@click.option("--gap", is_flag=True, help="Search too, and say how far the plan is from the best.")
@click.option(
    "--time-limit",
    type=FiniteRange(0, min_open=True),
    metavar="S",
    help="With --gap: search for S seconds at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the judgement as one JSON object.")
@compute_options
def command(
    *,
    plan: str | None,
    cluster: str | None,
    model: str | None,
    job_file: str | None,
    layers: str | None,
    recompute: str | None,
    schedule: str,
    gap: bool,
    time_limit: float | None,
    as_json: bool,
    workspace: Path | None,
    seed: int,
    threads: int,
    log_level: str | None,
    **flags: Any,
) -> None:
    """Judge one plan: does it fit, what does it cost, and why.

    Exits 0 whenever it could judge, also when the answer is that the plan does not fit or is invalid.

    \b
    memx-tui explain plan.yaml
    memx-tui explain --cluster a800x8 --model llama3-8b --tp 2 --pp 2 --dp 2 --mbs 1 --recompute none
    """
    from memx_engine import SearchOptions

    if time_limit is not None and not gap:
        raise InputError("limits a search", where="--time-limit", hint="add --gap to search")
    limits = parse_flags({name: flags.pop(name) for name in LIMITS})
    options = None
    if gap:
        options = SearchOptions(time_limit_s=time_limit, seed=seed, threads=threads, limits=limits, front=0)
    if plan is not None:
        given = [f"--{n.replace('_', '-')}" for n, v in [*flags.items(), ("cluster", cluster), ("model", model)] if v]
        given += ["--job"] if job_file else []
        given += [f"--{n}" for n, v in (("layers", layers), ("recompute", recompute)) if v]
        if given:
            raise InputError(
                "the plan file already says this", where=", ".join(given), hint="give a plan file or flags, not both"
            )
        start_work(workspace, log_level, only_reads=True)
        _explain_file(plan, workspace, options, limits, as_json)
        return
    _check_shape(flags)
    words = (parse_layers(layers), parse_recompute(recompute), parse_schedule(schedule))
    start_work(workspace, log_level, only_reads=True)
    from memx_engine import PlanRequest, explain_request

    loaded = load_inputs(
        cluster,
        model,
        job_file,
        **{
            name: flags[name]
            for name in ("global_batch", "seq_len", "precision", "optimizer", "attention", "framework")
        },
    )
    dp = flags["dp"] or _implied_dp(loaded, flags)
    request = PlanRequest(flags["tp"], flags["pp"], dp, flags["mbs"], *words)
    estimator = stored_estimator(*loaded, workspace)
    result = None if options is None else _search(loaded, options, estimator)
    explanation = explain_request(*loaded, request, estimator=estimator, result=result, limits=limits)
    _show(explanation, loaded, _assumed(loaded, estimator), as_json)


def _check_shape(flags: dict[str, Any]) -> None:
    """Raise InputError that names the sizes that are missing; DP may be implied."""
    missing = [f"--{name}" for name in ("tp", "pp", "mbs") if flags[name] is None]
    if missing:
        raise InputError(
            "needed to describe a plan",
            where=", ".join([*missing, *(["--dp"] if flags["dp"] is None else [])]),
            hint="or give a plan file: memx-tui explain plan.yaml",
        )


def _implied_dp(inputs: Inputs, flags: dict[str, Any]) -> int:
    """The DP size that the GPUs leave; InputError with the choices where it is not clear."""
    from memx_engine import dp_choices

    choices = dp_choices(*inputs, flags["tp"], flags["pp"], flags["mbs"])
    if len(choices) == 1:
        say(f"memx-tui: --dp {choices[0]}, which is what these GPUs leave for TP {flags['tp']} and PP {flags['pp']}")
        return choices[0]
    can = f"it can be {', '.join(map(str, choices))}" if choices else "no DP can be placed with these sizes"
    raise InputError(
        "needed to describe a plan", where="--dp", hint=f"{can}; or give a plan file: memx-tui explain plan.yaml"
    )


def parse_layers(text: str | None) -> tuple[int, ...] | Literal["auto"] | None:
    """``8,8,7,7`` as a tuple; None, the even split, when left out."""
    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"{text!r} is not a list of layer counts", where="--layers", hint="for example 8,8,7,7, or auto"
        ) from None


def parse_recompute(text: str | None) -> tuple[Recompute, ...] | None:
    """One word for each stage, or one for all; None leaves the choice to the planner."""
    from memx_engine import Recompute

    if text is None or text == "auto":
        return None
    try:
        return tuple(Recompute.parse(word) for word in text.split(","))
    except InputError as error:
        raise InputError(error.message, where="--recompute", hint=error.hint) from None


def parse_schedule(text: str) -> int:
    """Virtual stages of ``1f1b`` (1) or ``interleaved:V``."""
    name, _, depth = text.partition(":")
    if text == "1f1b":
        return 1
    if name == "interleaved" and depth.isdigit() and 2 <= int(depth) <= 64:
        return int(depth)
    raise InputError(
        f"schedule {text!r} is not known", where="--schedule", hint="use 1f1b, or interleaved:V with V of at least 2"
    )


def _search(inputs: Inputs, options: SearchOptions, estimator: FirstPrinciples | Calibrated) -> SearchResult | None:
    """The search that a plan is compared with; None, told, where nothing fits."""
    from memx_engine import NoFeasiblePlanError

    try:
        return run_search(inputs, options, estimator)
    except NoFeasiblePlanError as error:
        say(f"memx-tui: nothing to compare with: {error.message}")
        return None


def _explain_file(
    source: str, workspace: Path | None, options: SearchOptions | None, limits: OperatorLimits, as_json: bool
) -> None:
    from memx_engine import explain_plan, gap_by_certificate, load_plan

    file = load_plan(source)
    inputs = (file.cluster, file.model, file.job)
    estimator = stored_estimator(*inputs, workspace)
    result = None
    if options is not None:
        options = replace(options, objective=file.objective, limits=limits or file.limits)
        result = _search(inputs, options, estimator)
    explanation = explain_plan(
        *inputs,
        file.plan,
        objective=file.objective,
        estimator=estimator,
        result=result,
        limits=limits or file.limits,
    )
    changed = file.predictor_fingerprint != estimator.fingerprint
    if changed:
        ungiven = file.provenance != estimator.provenance and str(estimator.provenance) == "uncalibrated"
        words = (
            f"the predictor has changed since {source} was saved (memx {file.version}; {file.provenance} then, "
            f"{estimator.provenance} now), so these numbers differ from the file's"
        )
        if ungiven:
            words = (
                f"{source} was planned on measurements ({file.provenance}) that are not given here: these numbers are "
                "uncalibrated and differ from the file's"
            )
        say(f"memx-tui: {words}")
        if ungiven or (workspace is None and file.provenance != estimator.provenance):
            say("  to judge it on the same measurements, give --workspace DIR, the one it was planned with")
    if explanation.gap is None and explanation.plan is not None and file.certificate is not None and not changed:
        known = gap_by_certificate(file.certificate, file.objective, explanation.plan.estimate)
        explanation = replace(explanation, gap=known)
    _show(explanation, inputs, _assumed(inputs, estimator), as_json, predictor_changed=changed)


def _assumed(inputs: Inputs, estimator: FirstPrinciples | Calibrated) -> tuple[str, ...]:
    """Every assumption behind the judgement, each once."""
    cluster, model, job = inputs
    return tuple(dict.fromkeys((*job.assumed, *model.assumed, *cluster.assumed, *estimator.assumed)))


def _show(explanation: Explanation, inputs: Inputs, assumed: tuple[str, ...], as_json: bool, **facts: bool) -> None:
    cluster, model, _ = inputs
    if as_json:
        from memx_engine import explain_document

        emit_json(explain_document(explanation, *inputs) | {"assumed": list(assumed)} | facts)
        return
    from memx_tui.text.explain_view import explain_text, inputs_heading
    from memx_tui.text.style import Style

    style = Style.of(sys.stdout)
    heading = inputs_heading(f"{model.name} on {cluster.name}", inputs, style)
    emit(explain_text(explanation, heading, assumed, style, len(cluster.gpus)))
