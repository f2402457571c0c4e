"""From what the operator says about the runner to the engine's runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memx_engine import InputError

if TYPE_CHECKING:
    from memx_engine import Runner

RUNNERS = ("testbed", "local", "slurm", "ssh", "command")
DEFAULT_RUNNER = "testbed"


@dataclass(frozen=True)
class RunnerSettings:
    """Where to measure, and how to reach it.

    Attributes:
        name: ``testbed[:hard][:SEED]``, ``local``, ``slurm``, ``ssh`` or ``command``.
        seed: The testbed's, where ``name`` states none. pace: 1 replays the testbed's time live, 0 does not wait.
        python: A Python with torch, where the probe runs; empty for this one (local) or ``python3`` (elsewhere).
        device: ``cpu`` measures on CPUs; ``auto`` on accelerators.
        gres_names: GPU type → its name in Slurm. max_pending_min: How long a job may wait there; None for ever.
        ssh_hosts: GPU type → host.
        command: The operator's own launch command with placeholders.
    """

    name: str = DEFAULT_RUNNER
    seed: int = 0
    pace: float = 0.0
    repetitions: int = 5
    python: str = ""
    device: str = "auto"
    threads: int = 1
    partition: str = ""
    account: str = ""
    time_limit: str = ""
    slurm_arguments: tuple[str, ...] = ()
    gres_names: Mapping[str, str] = field(default_factory=dict)
    max_pending_min: float | None = None
    ssh_hosts: Mapping[str, str] = field(default_factory=dict)
    ssh_arguments: tuple[str, ...] = ()
    command: str = ""

    @property
    def kind(self) -> str:
        """The runner without the testbed's details."""
        return self.name.partition(":")[0]

    @property
    def simulated(self) -> bool:
        return self.kind == "testbed"

    @property
    def lanes_at_once(self) -> int | None:
        """On this one machine the types must not disturb one another."""
        return 1 if self.kind == "local" else None


def make_runner(settings: RunnerSettings) -> Runner:
    """The runner that ``settings`` describe.

    Raises:
        InputError: It is not known, or lacks what it needs.
    """
    if settings.kind not in RUNNERS or (settings.kind != "testbed" and ":" in settings.name):
        raise InputError(
            f"no runner is called {settings.name!r}",
            where="--runner",
            hint="use testbed[:hard][:SEED], local, slurm, ssh or command",
        )
    if settings.kind == "testbed":
        return _testbed(settings)
    if settings.kind == "local":
        return _local(settings)
    if settings.kind == "slurm":
        return _slurm(settings)
    return _ssh(settings) if settings.kind == "ssh" else _command(settings)


def _testbed(settings: RunnerSettings) -> Runner:
    from memx_engine import TestbedRunner, parse_testbed

    try:
        seed, hard = parse_testbed(settings.name)
    except InputError as error:
        raise InputError(error.message, where="--runner", hint=error.hint) from None
    named = settings.name.rpartition(":")[2].isdecimal()
    return TestbedRunner(seed if named else settings.seed, hard, pace=settings.pace, repetitions=settings.repetitions)


def _local(settings: RunnerSettings) -> Runner:
    from memx_engine import LocalRunner

    runner = LocalRunner(threads=settings.threads, device=settings.device, repetitions=settings.repetitions)
    if not settings.python:
        return runner
    from dataclasses import replace

    return replace(runner, python=settings.python)


def _slurm(settings: RunnerSettings) -> Runner:
    from memx_engine import SlurmOptions, SlurmRunner

    defaults = SlurmOptions()
    return SlurmRunner(
        SlurmOptions(
            partition=settings.partition,
            account=settings.account,
            time_limit=settings.time_limit or defaults.time_limit,
            extra=settings.slurm_arguments,
            python=settings.python or defaults.python,
            gres_names=dict(settings.gres_names),
            pending_limit_s=None if settings.max_pending_min is None else 60 * settings.max_pending_min,
            device=settings.device,
            repetitions=settings.repetitions,
        )
    )


def _ssh(settings: RunnerSettings) -> Runner:
    from memx_engine import SshOptions, SshRunner

    return SshRunner(
        SshOptions(
            hosts=dict(settings.ssh_hosts),
            arguments=settings.ssh_arguments,
            python=settings.python or SshOptions().python,
            device=settings.device,
            repetitions=settings.repetitions,
        )
    )


def _command(settings: RunnerSettings) -> Runner:
    from memx_engine import CommandRunner, CommandTemplate

    if not settings.command:
        raise InputError(
            "is needed by the runner 'command'",
            where="--command",
            hint="your launch command with placeholders, such as './train.sh {node} {tp} {micro_batch} {seq_len}'",
        )
    return CommandRunner(CommandTemplate.parse(settings.command))
