"""The options of ``profile`` that say where to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from memx_engine import InputError
from memx_tui.commands.options import FiniteRange
from memx_tui.runners import DEFAULT_RUNNER, RunnerSettings

F = TypeVar("F", bound=Callable[..., Any])

_BELONGS = {
    "pace": ("testbed",),
    "python": ("local", "slurm", "ssh"),
    "probe_device": ("local", "slurm", "ssh"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "time_limit": ("slurm",),
    "slurm_arg": ("slurm",),
    "gres_name": ("slurm",),
    "max_pending": ("slurm",),
    "ssh_host": ("ssh",),
    "ssh_arg": ("ssh",),
    "launch": ("command",),
    "repetitions": ("testbed", "local", "slurm", "ssh"),
}
_FLAGS = {"launch": "--command"}
_REPETITIONS = 5


def pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """``TYPE=NAME`` given any number of times, as a mapping."""
    out: dict[str, str] = {}
    for text in value:
        name, equals, rest = text.partition("=")
        if not (name and equals and rest):
            raise click.BadParameter(f"{text!r} is not of the form {param.metavar}", ctx, param)
        out[name] = rest
    return out


def runner_options(function: F) -> F:
    """``--runner`` and everything that only some runner takes."""
    decorators = [
        click.option(
            "--runner",
            metavar="NAME",
            help="testbed[:hard][:SEED] (simulated; the default), local, slurm, ssh or command.",
        ),
        click.option(
            "--pace", type=FiniteRange(0), metavar="X", help="testbed: 1 takes the time it simulates, 0.1 a tenth."
        ),
        click.option("--python", metavar="PATH", help="local, slurm, ssh: a Python with torch, there."),
        click.option(
            "--probe-device", type=click.Choice(["auto", "cpu"]), help="local, slurm, ssh: cpu measures on CPUs."
        ),
        click.option("--partition", metavar="NAME", help="slurm: partition."),
        click.option("--account", metavar="NAME", help="slurm: account."),
        click.option("--time-limit", metavar="HH:MM:SS", help="slurm: time limit of each job (default 02:00:00)."),
        click.option("--slurm-arg", multiple=True, metavar="ARG", help="slurm: an argument for salloc; repeatable."),
        click.option(
            "--gres-name",
            multiple=True,
            callback=pairs,
            metavar="TYPE=NAME",
            help="slurm: what Slurm calls a GPU type, or the feature of its nodes; repeatable.",
        ),
        click.option(
            "--max-pending",
            type=FiniteRange(0, min_open=True),
            metavar="MIN",
            help="slurm: give a GPU type up whose job is pending longer (default: wait).",
        ),
        click.option(
            "--ssh-host",
            multiple=True,
            callback=pairs,
            metavar="TYPE=HOST",
            help="ssh: the host to use for a GPU type; repeatable.",
        ),
        click.option("--ssh-arg", multiple=True, metavar="ARG", help="ssh: a further argument of ssh; repeatable."),
        click.option(
            "--command",
            "launch",
            metavar="'CMD {tp}..'",
            help="command: your launch command with placeholders; its Megatron log is read.",
        ),
        click.option(
            "--repetitions",
            type=click.IntRange(1, 1000),
            metavar="N",
            help=f"Repetitions of every point (default {_REPETITIONS}).",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def runner_settings(flags: dict[str, Any], seed: int) -> RunnerSettings:
    """The settings that the flags of :func:`runner_options` describe.

    Raises:
        InputError: A flag belongs to another runner.
    """
    name = flags["runner"] or DEFAULT_RUNNER
    kind = name.partition(":")[0]
    for flag, kinds in _BELONGS.items():
        value = flags[flag]
        if value not in (None, (), {}) and kind not in kinds:
            raise InputError(
                f"is for the runner {' or '.join(kinds)}, not for {kind}",
                where=_FLAGS.get(flag, f"--{flag.replace('_', '-')}"),
            )
    return RunnerSettings(
        name=name,
        seed=seed,
        pace=flags["pace"] or 0.0,
        repetitions=flags["repetitions"] or _REPETITIONS,
        python=flags["python"] or "",
        device=flags["probe_device"] or "auto",
        partition=flags["partition"] or "",
        account=flags["account"] or "",
        time_limit=flags["time_limit"] or "",
        slurm_arguments=flags["slurm_arg"],
        gres_names=flags["gres_name"],
        max_pending_min=flags["max_pending"],
        ssh_hosts=flags["ssh_host"],
        ssh_arguments=flags["ssh_arg"],
        command=flags["launch"] or "",
    )
