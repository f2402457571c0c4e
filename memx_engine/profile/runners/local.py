"""Measure on this machine: one probe process per point, torchrun when the point has a real TP group to run on."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import find_gpu_type, load_catalogue
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.process import Finished, run
from memx_engine.profile.protocol import PROBE_PATH, find_result, probe_device, probe_spec, read_result
from memx_engine.profile.runner import LaneState, ProfileError, StateCallback, StopCheck

START_UP_S = 60.0
"""What importing torch and joining a process group may take beside the measurement's own limit."""


def truth_of(gpu_type: str) -> Truth:
    """A CPU is measured as ``cpu``; anything else as ``gpu``."""
    return Truth.CPU if gpu_type == "cpu" or gpu_type.startswith("cpu-") else Truth.GPU


def memory_limit(truth: Truth, capacity_bytes: int) -> int | None:
    """What the probe takes for the device's memory; a GPU has its own, a CPU is given that of the cluster file."""
    return capacity_bytes if truth is Truth.CPU else None


def judge(finished: Finished, point: Point, truth: Truth, truth_name: str, node: str, timeout_s: float) -> Measurement:
    """A finished probe process as a measurement."""
    result = read_result(finished.output + "\n" + finished.errors, point, truth=truth, truth_name=truth_name, node=node)
    # A rank without memory has said so; that the others waited for it in vain is no hang.
    if finished.timed_out and result.outcome is not Outcome.OOM:
        detail = f"not finished within {timeout_s:g} s; stopped from outside"
        return Measurement(
            point, Outcome.TIMEOUT, truth, truth_name, node=node, duration_s=finished.seconds, detail=detail
        )
    if result.outcome is Outcome.CRASHED and finished.returncode < 0:
        result = replace(result, detail=f"the probe was killed by signal {-finished.returncode}; {result.detail}")
    return replace(result, duration_s=finished.seconds)


def probe_arguments(python: str, probe: str, spec: Mapping[str, Any], ranks: int) -> list[str]:
    """The argument vector that measures ``spec`` with ``ranks`` processes on one node."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [python, *start, probe, json.dumps(spec)]


def _is_another(device: str, gpu_type: str) -> bool:
    """Whether the driver's name ``device`` surely means another type; types of the operator's own cannot be judged."""
    catalogue = load_catalogue()
    try:
        return gpu_type in catalogue and find_gpu_type(device, catalogue).name != gpu_type
    except InputError:
        return False


@dataclass
class _LocalLane:
    gpu_type: str
    node: str
    python: str
    collectives: bool
    threads: int
    environment: Mapping[str, str]
    memory_limit_bytes: int | None
    truth: Truth
    device: str
    repetitions: int

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        truth = self.truth
        spec = probe_spec(
            point,
            time_limit_s=timeout_s,
            repetitions=self.repetitions,
            device=probe_device(self.device, truth),
            threads=self.threads,
            memory_limit_bytes=self.memory_limit_bytes,
            tethered=True,
        )
        ranks = point.tp if self.collectives else 1
        arguments = probe_arguments(self.python, str(PROBE_PATH), spec, ranks)
        finished = run(
            arguments,
            timeout_s=timeout_s + START_UP_S,
            should_stop=should_stop,
            environment=self.environment,
            tethered=True,
        )
        return judge(finished, point, truth, truth.value, self.node, timeout_s)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class LocalRunner:
    """Measure on this machine with ``python``, which must have torch.

    Attributes:
        threads: CPU threads per rank. collectives: Whether TP points run with real ranks.
        device: ``cpu`` runs every type's points on this machine's CPU; ``auto`` takes what torch finds.
    """

    python: str = sys.executable
    threads: int = 1
    collectives: bool = True
    device: str = "auto"
    repetitions: int = 5
    name: str = "local"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def truth(self) -> Truth:
        return Truth.GPU

    @property
    def truth_name(self) -> str:
        return "local"

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        truth = Truth.CPU if self.device == "cpu" else truth_of(gpu_type)
        return truth, truth.value

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _LocalLane:
        """Check that torch is there and name the node; ProfileError when it is not."""
        python = shutil.which(self.python)
        if python is None:
            raise ProfileError(f"no Python at {self.python}", hint="name one that has torch with --python")
        check = run([python, str(PROBE_PATH), "--self-check"], timeout_s=START_UP_S * 2, should_stop=should_stop)
        if check.returncode != 0:
            words = (check.errors or check.output).strip().splitlines()[-1:]
            raise ProfileError(
                f"the probe cannot run with {python}: {' '.join(words)[:200]}",
                hint="name a Python that has torch with --python, or install it: pip install 'memx-tui[probe]'",
            )
        truth, _ = self.ground(gpu_type)
        device = str((find_result(check.output) or {}).get("device", ""))
        if truth is Truth.GPU and _is_another(device, gpu_type):
            raise ProfileError(
                f"this machine has {device}, which is not {gpu_type}",
                where=gpu_type,
                hint="measure that type where it is, with --runner slurm or ssh, and name this machine's with --types",
            )
        limit = memory_limit(truth, cluster.gpus[cluster.ranks_by_type[gpu_type][0]].capacity_bytes)
        on_state(LaneState(gpu_type, "ready", os.uname().nodename))
        environment = {"OMP_NUM_THREADS": str(self.threads), **self.environment}
        return _LocalLane(
            gpu_type=gpu_type,
            node=os.uname().nodename,
            python=python,
            collectives=self.collectives,
            threads=self.threads,
            environment=environment,
            memory_limit_bytes=limit,
            truth=truth,
            device=self.device,
            repetitions=self.repetitions,
        )
