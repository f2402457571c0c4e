"""Options that several verbs share, and turning them into the engine's values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memx_engine import InputError, OutputError
from memx_tui.size_words import parse_amounts, parse_sizes

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from memx_engine import Cluster, Job, PlanFile, TransformerSpec

F = TypeVar("F", bound=Callable[..., Any])

LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_THREADS = 2
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class FiniteRange(click.FloatRange):
    """A number that is one: click takes ``nan`` and ``inf`` for numbers within every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def _list(
    parse: Callable[[str], tuple[int, ...]], ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return parse(value)
    except InputError as error:
        raise click.BadParameter(error.message, ctx, param) from None


def sizes_option(flag: str, text: str) -> Callable[[F], F]:
    """An option that takes a list of sizes."""
    return click.option(flag, callback=partial(_list, parse_sizes), metavar="N,N..", help=text)


def amounts_option(flag: str, text: str) -> Callable[[F], F]:
    """An option that takes a list of numbers."""
    return click.option(flag, callback=partial(_list, parse_amounts), metavar="N[,N..]", help=text)


def _samples(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from memx_engine import sample_clusters

    names = [s.name for s in sample_clusters() if s.name.startswith(incomplete)]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def _presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from memx_engine import model_presets

    names = [name for name in model_presets() if name.startswith(incomplete)]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def _apply(decorators: list[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def input_options(function: F) -> F:
    """``--cluster`` and ``--model``."""
    return _apply(
        [
            click.option(
                "--cluster", metavar="FILE|SAMPLE", shell_complete=_samples, help="Cluster file, or a sample's name."
            ),
            click.option(
                "--model",
                metavar="NAME|PATH",
                shell_complete=_presets,
                help="Preset such as llama2-7b, a config.json, or a folder holding one.",
            ),
        ]
    )(function)


def job_options(*, single_micro_batch: bool = False, free: bool = False) -> Callable[[F], F]:
    """JOB: ``--job`` and the flags that override it. ``free``: batch and sequence may be lists to choose from."""
    work: list[Callable[[F], F]] = [
        click.option("--global-batch", type=int, metavar="N", help="Sequences per iteration (default 512)."),
        click.option("--seq-len", type=int, metavar="N", help="Tokens per sequence."),
    ]
    if free:
        work = [
            amounts_option("--global-batch", "Sequences per iteration (default 512); several are compared per token."),
            amounts_option("--seq-len", "Tokens per sequence; several are compared per token."),
            sizes_option("--heads", "Attention heads to consider instead of the model's."),
            sizes_option("--kv-heads", "KV heads (query groups) to consider instead of the model's."),
        ]
    micro_batch: Callable[[F], F] = (
        click.option("--mbs", type=click.IntRange(1), metavar="N", help="Micro-batch size.")
        if single_micro_batch
        else sizes_option("--mbs", "Micro-batch sizes to consider.")
    )
    return _apply(
        [
            click.option("--job", "job_file", metavar="FILE", help="Job file; the flags below override it."),
            *work,
            micro_batch,
            click.option("--precision", type=click.Choice(["bf16", "fp16", "fp32"]), help="Number format."),
            click.option(
                "--optimizer", type=click.Choice(["sharded", "replicated"]), help="Optimizer state over DP or not."
            ),
            click.option("--attention", type=click.Choice(["fused", "unfused"]), help="Attention kernel."),
            click.option(
                "--framework", type=click.Choice(["any", "megatron", "flagscale"]), help="Whose rules limit the plan."
            ),
        ]
    )


def _set_threads(ctx: click.Context, param: click.Parameter, value: int) -> int:
    source = ctx.get_parameter_source(param.name or "")
    limit_threads(value, replace=source is click.core.ParameterSource.COMMANDLINE)
    return value


def compute_options(function: F) -> F:
    """What every computing verb takes: workspace, seed, threads, log level."""
    return _apply(
        [
            click.option(
                "--workspace",
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Folder for this work's records, created if absent.",
            ),
            click.option("--seed", type=click.IntRange(0), default=0, metavar="N", help="Seed of every random choice."),
            click.option(
                "--threads",
                type=click.IntRange(1),
                default=DEFAULT_THREADS,
                metavar="N",
                show_default=True,
                is_eager=True,
                callback=_set_threads,
                help="Most threads to use.",
            ),
            click.option(
                "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="How much the log records."
            ),
        ]
    )(function)


def limit_threads(threads: int, *, replace: bool) -> None:
    """Bound the thread pools of numpy and its like; works only before they are first imported.

    A limit that the environment already sets stays unless ``replace``. Waiting threads sleep instead of spinning: on a
    busy login node spinning is what makes OpenMP collapse.
    """
    for name in _THREAD_VARIABLES:
        if replace or not os.environ.get(name):
            os.environ[name] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def start_work(workspace: Path | None, log_level: str | None, *, only_reads: bool = False) -> None:
    """Create the workspace and start the log, in the workspace when there is one.

    Args:
        only_reads: The verb writes nothing but the log there, so a workspace that cannot be written will do; the log
            then goes where it goes without a workspace, and that is said.

    Raises:
        OutputError: The workspace cannot be created, or not be written by a verb that must.
    """
    from memx_tui.logs import start_logging
    from memx_tui.output import say
    from memx_tui.paths import find_paths

    level, own = log_level or "info", find_paths().log_file
    problem: OutputError | None
    if workspace is None:
        problem = start_logging(own, level)
    else:
        try:
            workspace.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"the workspace cannot be created: {getattr(error, 'strerror', None) or error}",
                where=f"--workspace {workspace}",
                hint="choose a folder that you may write to",
            ) from error
        writable = os.access(workspace, os.W_OK | os.X_OK)
        if not writable and not only_reads:
            raise OutputError(
                "the workspace is read-only",
                where=f"--workspace {workspace}",
                hint="choose a folder that you may write to",
            )
        problem = start_logging(workspace / "memx.log", level) if writable else None
        if not writable or (only_reads and problem is not None):
            say(f"memx-tui: {workspace} is read-only: it is read, and the log goes to {own}")
            problem = start_logging(own, level)
    if problem is not None:
        say(f"memx-tui: {problem}")


def refuse_two_stdins(**sources: str | None) -> None:
    """Standard input can be read once: refuse ``-`` for two options."""
    dashes = [f"--{name}" for name, value in sources.items() if value == "-"]
    if len(dashes) > 1:
        raise InputError(
            "standard input can be read only once", where=" and ".join(dashes), hint="give one of them as a file"
        )


def require(name: str, value: str | None) -> str:
    """``value``, or an InputError that says what the option takes."""
    if value:
        return value
    if name == "cluster":
        from memx_engine import sample_clusters

        known = ", ".join(sample.name for sample in sample_clusters())
        raise InputError("is needed", where="--cluster", hint=f"a cluster file, or one of the samples: {known}")
    from memx_engine import model_presets

    known = ", ".join(model_presets())
    raise InputError("is needed", where="--model", hint=f"a config.json, or one of the presets: {known}")


def load_inputs(
    cluster: str | None,
    model: str | None,
    job_file: str | None,
    *,
    base: PlanFile | None = None,
    without: Sequence[str] = (),
    **overrides: Any,
) -> tuple[Cluster, TransformerSpec, Job]:
    """Read what the operator described.

    Args:
        cluster: ``--cluster``. model: ``--model``. job_file: ``--job``.
        base: A plan file whose inputs count where none is given. without: Names of nodes to leave out.
        overrides: The job flags, by the names of ``resolve_job``; None where not given.

    Raises:
        InputError: Any of them is missing or cannot be used.
    """
    from memx_engine import load_cluster, load_model, resolve_job, without_nodes

    refuse_two_stdins(cluster=cluster, model=model, job=job_file)
    cluster_value = base.cluster if base and not cluster else load_cluster(require("cluster", cluster))
    cluster_value = without_nodes(cluster_value, without)
    model_value = base.model if base and not model else load_model(require("model", model))
    # The sizes that narrowed the earlier search were for its cluster: what trains is kept, not how it was divided.
    earlier = None
    if base is not None:
        earlier = replace(base.job, micro_batch_sizes=None, tp_sizes=None, pp_sizes=None, dp_sizes=None)
    job = resolve_job(cluster_value, model_value, file=job_file, base=earlier, **overrides)
    return cluster_value, model_value, job
