"""Measure through Slurm: one allocation per GPU type, one job step per point.

The allocation is held by ``salloc ... cat`` whose standard input is a pipe of this process: when the tool ends, even
by kill -9, the pipe closes, ``cat`` ends and Slurm takes the job back.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster, GpuType
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.process import Finished, run
from memx_engine.profile.protocol import PROBE_PATH, probe_device, probe_spec
from memx_engine.profile.runner import LaneLostError, LaneState, ProfileError, StateCallback, StopCheck
from memx_engine.profile.runners.local import START_UP_S, judge, probe_arguments

_JOB_ID = re.compile(r"job allocation (\d+)")
_GRES = re.compile(r"gpu:(?:([^:,()\s]+):)?(\d+)")
_COMMAND_S = 30.0


@dataclass(frozen=True)
class SlurmOptions:
    """What the operator's site needs.

    Attributes:
        gres_names: GPU type of the cluster file → the type's name in Slurm, where they differ.
        extra: Further arguments of ``salloc``, each one argument.
        device: Device kind for the probe; ``auto`` takes what torch finds on the node.
    """

    partition: str = ""
    account: str = ""
    time_limit: str = "02:00:00"
    extra: tuple[str, ...] = ()
    python: str = "python3"
    probe_path: str = str(PROBE_PATH)
    gres_names: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    collectives: bool = True
    repetitions: int = 5


def parse_gres(text: str) -> dict[str, int]:
    """GPU counts by type of a GRES string such as ``gpu:a100:4(S:0-1),gpu:mi300x:8``; untyped GPUs count as ``""``."""
    counts: dict[str, int] = {}
    for match in _GRES.finditer(text):
        name = match[1] or ""
        counts[name] = counts.get(name, 0) + int(match[2])
    return counts


def slurm_nodes(should_stop: StopCheck = lambda: False) -> dict[str, dict[str, int]]:
    """Nodes of the default view of ``sinfo`` with their GPUs by type; ProfileError when Slurm does not answer."""
    finished = _client(["sinfo", "-h", "-N", "-o", "%N|%G"], should_stop)
    if finished.returncode != 0:
        raise ProfileError(
            f"sinfo failed: {finished.errors.strip()[:200]}", hint="is this a login node of the Slurm cluster?"
        )
    nodes: dict[str, dict[str, int]] = {}
    for line in finished.output.splitlines():
        name, _, gres = line.strip().partition("|")
        if name:
            nodes[name] = parse_gres(gres)
    return nodes


def _client(arguments: list[str], should_stop: StopCheck) -> Finished:
    if shutil.which(arguments[0]) is None:
        raise ProfileError(
            f"{arguments[0]} is not on this machine", hint="run this on a login node of the Slurm cluster"
        )
    return run(arguments, timeout_s=_COMMAND_S, should_stop=should_stop)


def gres_name(gpu_type: GpuType, known: set[str], options: SlurmOptions) -> str:
    """The Slurm name of ``gpu_type``; ProfileError naming what Slurm has when none matches."""
    wanted = options.gres_names.get(gpu_type.name)
    candidates = [wanted] if wanted else [gpu_type.name, *gpu_type.aliases]
    by_lower = {name.lower(): name for name in known}
    for candidate in candidates:
        if candidate.lower() in by_lower:
            return by_lower[candidate.lower()]
    prefixes = [name for name in known if name and gpu_type.name.lower().startswith(name.lower() + "-")]
    if len(prefixes) == 1 and not wanted:
        return prefixes[0]
    raise ProfileError(
        f"Slurm has no GPU type that matches {wanted or gpu_type.name}",
        where="sinfo",
        hint=f"it has {', '.join(sorted(filter(None, known))) or 'no typed GPUs'}; name one with --gres-name"
        f" {gpu_type.name}=NAME",
    )


class _SlurmLane:
    def __init__(
        self, gpu_type: str, gres: str, options: SlurmOptions, holder: subprocess.Popen[bytes], job: str
    ) -> None:
        self.gpu_type, self.gres, self.options, self.holder, self.job = gpu_type, gres, options, holder, job
        self.node = ""

    def state(self) -> tuple[str, str, str]:
        """(state, reason, node) of the job as squeue tells; a job that squeue no longer knows is ``GONE``."""
        finished = _client(["squeue", "-h", "-j", self.job, "-o", "%T|%r|%N"], lambda: False)
        parts = (finished.output.strip().splitlines() or [""])[0].split("|")
        return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("GONE", finished.errors.strip()[:200], "")

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        truth = Truth.CPU if self.options.device == "cpu" else Truth.GPU
        ranks = point.tp if self.options.collectives else 1
        spec = probe_spec(
            point,
            time_limit_s=timeout_s,
            repetitions=self.options.repetitions,
            device=probe_device(self.options.device, truth),
            threads=1,
        )
        arguments = [
            "srun", f"--jobid={self.job}", "--overlap", "--nodes=1", "--ntasks=1", f"--gres=gpu:{self.gres}:{ranks}",
            "--quit-on-interrupt", "--kill-on-bad-exit=1", "--export=ALL",
            *probe_arguments(self.options.python, self.options.probe_path, spec, ranks),
        ]  # fmt: skip
        finished = run(arguments, timeout_s=timeout_s + START_UP_S, should_stop=should_stop)
        result = judge(finished, point, truth, truth.value, self.node, timeout_s)
        if result.outcome is Outcome.CRASHED:
            state, reason, _ = self.state()
            if state != "RUNNING" or self.holder.poll() is not None:
                words = (finished.errors.strip().splitlines() or [""])[-1][:160]
                raise LaneLostError(
                    f"Slurm job {self.job} on {self.node or self.gpu_type} is {state.lower()} ({reason or words})",
                    where=self.gpu_type,
                )
        return result

    def close(self) -> None:
        with contextlib.suppress(OSError, ProfileError, CancelledError):
            if self.holder.stdin is not None:
                self.holder.stdin.close()
        with contextlib.suppress(OSError, ProfileError, CancelledError):
            _client(["scancel", self.job], lambda: False)
        try:
            self.holder.wait(5)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()


@dataclass(frozen=True)
class SlurmRunner:
    """Opens one allocation per GPU type; several may wait and run side by side."""

    options: SlurmOptions = SlurmOptions()
    name: str = "slurm"

    @property
    def truth(self) -> Truth:
        return Truth.CPU if self.options.device == "cpu" else Truth.GPU

    @property
    def truth_name(self) -> str:
        return self.truth.value

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def _arguments(self, gres: str, count: int) -> list[str]:
        o = self.options
        arguments = [
            "salloc", "--job-name=memx-profile", "--nodes=1", "--ntasks=1", f"--gres=gpu:{gres}:{count}",
            f"--time={o.time_limit}",
        ]  # fmt: skip
        arguments += [f"--partition={o.partition}"] if o.partition else []
        arguments += [f"--account={o.account}"] if o.account else []
        return [*arguments, *o.extra, "cat"]

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _SlurmLane:
        """Submit one job for ``gpu_type`` and wait until it runs, reporting the scheduler's reason meanwhile."""
        nodes = slurm_nodes(should_stop)
        known = {name for gres in nodes.values() for name in gres}
        gres = gres_name(cluster.gpu_type(gpu_type), known, self.options)
        count = max(counts.get(gres, 0) for counts in nodes.values())
        if shutil.which("salloc") is None:
            raise ProfileError("salloc is not on this machine", hint="run this on a login node of the Slurm cluster")
        words = tempfile.TemporaryFile()
        holder = subprocess.Popen(
            self._arguments(gres, count), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=words,
            start_new_session=True,
        )  # fmt: skip

        def said() -> str:
            words.seek(0)
            return words.read(65536).decode("utf-8", errors="replace")

        lane: _SlurmLane | None = None
        last, next_look = ("", ""), 0.0
        try:
            while True:
                if should_stop():
                    raise CancelledError("stopped by the operator")
                match = _JOB_ID.search(said())
                if holder.poll() is not None:
                    reason = (said().strip().splitlines() or ["salloc ended without a word"])[-1]
                    raise ProfileError(f"Slurm refused the job for {gpu_type}: {reason[:200]}", where=gpu_type)
                if match and lane is None:
                    lane = _SlurmLane(gpu_type, gres, self.options, holder, match[1])
                if lane is not None and time.monotonic() >= next_look:
                    next_look = time.monotonic() + 1.0
                    state, reason, node = lane.state()
                    if state == "RUNNING" and "Granted" in said():
                        lane.node = node
                        on_state(LaneState(gpu_type, "ready", node))
                        return lane
                    if (state, reason) != last:
                        last = (state, reason)
                        on_state(LaneState(gpu_type, "pending", reason=f"job {lane.job}: {reason or state.lower()}"))
                time.sleep(0.1)
        except BaseException:
            if lane is not None:
                lane.close()
            else:
                holder.terminate()
                holder.wait()
            raise
