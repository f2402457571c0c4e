"""Measure over SSH: the probe is copied once to the node's temporary folder, then run once per point."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.process import Finished, run
from memx_engine.profile.protocol import PROBE_PATH, probe_device, probe_spec
from memx_engine.profile.runner import LaneLostError, LaneState, ProfileError, StateCallback, StopCheck
from memx_engine.profile.runners.local import START_UP_S, judge, memory_limit, probe_arguments

_LOST = 255
"""ssh's own exit code when the connection, not the command, failed."""


@dataclass(frozen=True)
class SshOptions:
    """How to reach the nodes.

    Attributes:
        hosts: GPU type → host to use; without one, the first node of that type under its name in the cluster file.
        arguments: Further arguments of ssh (``-p``, ``-i``, ...), each one argument.
    """

    hosts: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    python: str = "python3"
    folder: str = "/tmp"
    device: str = "auto"
    collectives: bool = True
    repetitions: int = 5


def ssh_arguments(host: str, options: SshOptions, command: list[str]) -> list[str]:
    """ssh's argument vector; the remote words are quoted, since the far side's shell reads them once."""
    return [
        "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", *options.arguments,
        "--", host, shlex.join(command),
    ]  # fmt: skip


def _last_words(finished: Finished) -> str:
    return (finished.errors.strip().splitlines() or [f"exit code {finished.returncode}"])[-1][:200]


@dataclass
class _SshLane:
    gpu_type: str
    host: str
    node: str
    probe: str
    options: SshOptions
    memory_limit_bytes: int | None = None

    def _remote(
        self,
        command: list[str],
        *,
        timeout_s: float,
        should_stop: StopCheck,
        stdin: str = "",
        tethered: bool = False,
    ) -> Finished:
        arguments = ssh_arguments(self.host, self.options, command)
        return run(arguments, stdin=stdin, timeout_s=timeout_s, should_stop=should_stop, tethered=tethered)

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        truth = Truth.CPU if self.options.device == "cpu" else Truth.GPU
        ranks = point.tp if self.options.collectives else 1
        spec = probe_spec(
            point,
            time_limit_s=timeout_s,
            repetitions=self.options.repetitions,
            device=probe_device(self.options.device, truth),
            threads=1,
            memory_limit_bytes=self.memory_limit_bytes,
            tethered=True,
        )
        # The far side closes the probe's standard input when the connection, or this process, is gone.
        command = probe_arguments(self.options.python, self.probe, spec, ranks)
        finished = self._remote(command, timeout_s=timeout_s + START_UP_S, should_stop=should_stop, tethered=True)
        result = judge(finished, point, truth, truth.value, self.node, timeout_s)
        if finished.returncode == _LOST and result.outcome is Outcome.CRASHED:
            raise LaneLostError(f"ssh to {self.host} failed: {_last_words(finished)}", where=self.gpu_type)
        return result

    def close(self) -> None:
        with contextlib.suppress(OSError, CancelledError):
            self._remote(["rm", "-f", "--", self.probe], timeout_s=15, should_stop=lambda: False)


@dataclass(frozen=True)
class SshRunner:
    """Reaches one node of each type with ssh; keys and host names come from the operator's ssh configuration."""

    options: SshOptions = SshOptions()
    name: str = "ssh"

    @property
    def truth(self) -> Truth:
        return Truth.CPU if self.options.device == "cpu" else Truth.GPU

    @property
    def truth_name(self) -> str:
        return self.truth.value

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _SshLane:
        if shutil.which("ssh") is None:
            raise ProfileError("ssh is not on this machine")
        device = cluster.gpus[cluster.ranks_by_type[gpu_type][0]]
        node = cluster.nodes[device.node_index].name
        host = self.options.hosts.get(gpu_type, node)
        source = PROBE_PATH.read_text(encoding="utf-8")
        digest = hashlib.sha256(source.encode()).hexdigest()[:12]
        lane = _SshLane(gpu_type, host, node, f"{self.options.folder}/memx-probe-{digest}.py", self.options)
        lane.memory_limit_bytes = memory_limit(self.truth, device.capacity_bytes)
        copy = ["sh", "-c", 'umask 077; cat > "$1"', "sh", lane.probe]
        copied = lane._remote(copy, timeout_s=60, should_stop=should_stop, stdin=source)
        if copied.returncode != 0:
            raise ProfileError(
                f"{host} cannot be reached for {gpu_type}: {_last_words(copied)}",
                where=gpu_type,
                hint="check that ssh works without a password, or name another host with --ssh-host TYPE=HOST",
            )
        check = lane._remote(
            [self.options.python, lane.probe, "--self-check"], timeout_s=2 * START_UP_S, should_stop=should_stop
        )
        if check.returncode != 0:
            lane.close()
            raise ProfileError(
                f"the probe cannot run on {host} with {self.options.python}: {_last_words(check)}",
                where=gpu_type,
                hint="name a Python there that has torch with --python",
            )
        on_state(LaneState(gpu_type, "ready", node))
        return lane
