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
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.process import Finished, run
from memx_engine.profile.protocol import PROBE_PATH, probe_device, probe_spec
from memx_engine.profile.runner import LaneLostError, LaneState, ProfileError, StateCallback, StopCheck
from memx_engine.profile.runners.local import START_UP_S, judge, memory_limit, probe_arguments
from memx_engine.profile.runners.slurm_nodes import (
    GpuRequest,
    SilentControllerError,
    SlurmNode,
    client,
    find_nodes,
    gpu_request,
    is_silent,
)

_JOB_ID = re.compile(r"job allocation (\d+)")
_RELEASE = re.compile(r"(\d+)\.(\d+)")
_LOOK_S = 1.0
_SILENCES = 3
"""How often a point is begun anew because the controller was away, before the lane counts as lost."""


@dataclass(frozen=True)
class SlurmOptions:
    """What the operator's site needs.

    Attributes:
        gres_names: GPU type of the cluster file → its GRES type or node feature in Slurm, where they differ.
        extra: Further arguments of ``salloc``, each one argument.
        device: Device kind for the probe; ``auto`` takes what torch finds on the node.
        controller_wait_s: How long a controller that does not answer is waited for; jobs go on meanwhile.
        step_wait_s: How long a job step may wait for resources of its own job, before the job counts as broken.
        pending_limit_s: How long a job may be pending before its type is given up; None waits as long as it takes.
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
    controller_wait_s: float = 300.0
    step_wait_s: int = 60
    pending_limit_s: float | None = None


class _SlurmLane:
    def __init__(
        self,
        gpu_type: str,
        request: GpuRequest,
        options: SlurmOptions,
        capacity_bytes: int,
        holder: subprocess.Popen[bytes],
        job: str,
        job_name: str,
        on_state: StateCallback,
    ) -> None:
        self.gpu_type, self.request, self.options, self.holder = gpu_type, request, options, holder
        self._limit_bytes = memory_limit(self._truth, capacity_bytes)
        self.job, self.job_name, self.node = job, job_name, ""
        self._shared_steps = ["--overlap"] if release(lambda: False) >= (20, 11) else []
        self._on_state = on_state

    def state(self, should_stop: StopCheck = lambda: False) -> tuple[str, str, str]:
        """(state, reason, node) of the job as squeue tells; a job that squeue no longer knows is ``GONE``.

        A controller that lost its state gives numbers out again, so the name must be this lane's too. Raises
        SilentControllerError when nobody answers.
        """
        query = ["squeue", "-h", "-j", self.job, f"--name={self.job_name}", "-o", "%T|%r|%N"]
        finished = client(query, should_stop)
        if is_silent(finished):
            raise SilentControllerError("the Slurm controller does not answer", where=self.gpu_type)
        parts = (finished.output.strip().splitlines() or [""])[0].split("|")
        return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("GONE", finished.errors.strip()[:200], "")

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        """Run the probe as a job step; a step that fell with the controller is run anew when that is back."""
        for _ in range(_SILENCES):
            finished = self._step(point, timeout_s, should_stop)
            result = judge(finished, point, self._truth, self._truth.value, self.node, timeout_s)
            # The probe's own time limit comes first; a step stopped from outside may have waited for the controller.
            if result.outcome is not Outcome.CRASHED and not finished.timed_out:
                return result
            was_silent, state, reason = self._state_after_silence(should_stop)
            # A step that its own job has no room for: seen after a controller lost part of its state.
            stuck = "unable to create step" in finished.errors.lower()
            if state != "RUNNING" or stuck or self.holder.poll() is not None:
                words = (finished.errors.strip().splitlines() or [""])[-1][:160]
                raise LaneLostError(
                    f"Slurm job {self.job} on {self.node or self.gpu_type} is {state.lower()} "
                    f"({words if stuck or not reason else reason})",
                    where=self.gpu_type,
                )
            if not was_silent and not is_silent(finished):
                return result
        raise LaneLostError("the Slurm controller was away time and again", where=self.gpu_type)

    @property
    def _truth(self) -> Truth:
        return Truth.CPU if self.options.device == "cpu" else Truth.GPU

    def _step(self, point: Point, timeout_s: float, should_stop: StopCheck) -> Finished:
        ranks = point.tp if self.options.collectives else 1
        spec = probe_spec(
            point,
            time_limit_s=timeout_s,
            repetitions=self.options.repetitions,
            device=probe_device(self.options.device, self._truth),
            threads=1,
            memory_limit_bytes=self._limit_bytes,
        )
        # Steps of releases from 22.05 do not take the job's CPUs per task over by themselves.
        arguments = [
            "srun", f"--jobid={self.job}", *self._shared_steps, f"--immediate={self.options.step_wait_s}",
            "--nodes=1", "--ntasks=1", f"--cpus-per-task={ranks}", f"--gres={self.request.words(ranks)}",
            "--quit-on-interrupt", "--kill-on-bad-exit=1", "--export=ALL",
            *probe_arguments(self.options.python, self.options.probe_path, spec, ranks),
        ]  # fmt: skip
        return run(arguments, timeout_s=timeout_s + START_UP_S, should_stop=should_stop)

    def _state_after_silence(self, should_stop: StopCheck) -> tuple[bool, str, str]:
        """(whether the controller was silent, state, reason) of the job, waiting for an answer within the limit."""
        silent = False
        end = time.monotonic() + self.options.controller_wait_s
        while True:
            try:
                state, reason, _ = self.state(should_stop)
            except SilentControllerError as error:
                if time.monotonic() > end:
                    raise LaneLostError(
                        f"the Slurm controller has not answered for {self.options.controller_wait_s:.0f} s; job "
                        f"{self.job} may still hold {self.node}",
                        where=self.gpu_type,
                    ) from error
                if not silent:
                    words = f"job {self.job} on {self.node} goes on, but {error.message}"
                    self._on_state(LaneState(self.gpu_type, "pending", reason=words))
                silent = True
                _sleep(_LOOK_S, should_stop)
                continue
            if silent:
                self._on_state(LaneState(self.gpu_type, "ready", self.node))
            return silent, state, reason

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.holder.stdin is not None:
                self.holder.stdin.close()
        silent = False
        with contextlib.suppress(OSError, ProfileError, CancelledError):
            silent = is_silent(client(["scancel", f"--name={self.job_name}", self.job], lambda: False))
        try:
            self.holder.wait(5)
        except subprocess.TimeoutExpired:
            if silent:
                # salloc hands the job back on its own as soon as the controller answers.
                return
            self.holder.kill()
            self.holder.wait()


def release(should_stop: StopCheck) -> tuple[int, int]:
    """Year and month of the Slurm that is installed here, such as (22, 5); (0, 0) when it does not say."""
    found = _RELEASE.search(client(["srun", "--version"], should_stop).output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _sleep(seconds: float, should_stop: StopCheck) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if should_stop():
            raise CancelledError("stopped by the operator")
        time.sleep(0.1)


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

    def _arguments(self, request: GpuRequest, job_name: str) -> list[str]:
        o = self.options
        # One CPU for each rank, or all ranks of a TP group would share the job's only core.
        arguments = [
            "salloc", f"--job-name={job_name}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={request.count}",
            f"--gres={request.words(request.count)}", f"--time={o.time_limit}",
        ]  # fmt: skip
        arguments += [f"--constraint={request.feature}"] if request.feature else []
        arguments += [f"--partition={o.partition}"] if o.partition else []
        arguments += [f"--account={o.account}"] if o.account else []
        return [*arguments, *o.extra, "cat"]

    def _nodes(self, gpu_type: str, on_state: StateCallback, should_stop: StopCheck) -> tuple[SlurmNode, ...]:
        """The nodes of this Slurm, waiting within the limit for a controller that does not answer."""
        end = time.monotonic() + self.options.controller_wait_s
        told = False
        while True:
            try:
                return find_nodes(should_stop)
            except SilentControllerError as error:
                if time.monotonic() > end:
                    raise
                if not told:
                    on_state(LaneState(gpu_type, "pending", reason=error.message))
                told = True
            _sleep(_LOOK_S, should_stop)

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _SlurmLane:
        """Submit one job for ``gpu_type`` and wait until it runs, reporting the scheduler's reason meanwhile."""
        capacity_bytes = cluster.gpus[cluster.ranks_by_type[gpu_type][0]].capacity_bytes
        nodes = self._nodes(gpu_type, on_state, should_stop)
        request = gpu_request(cluster, gpu_type, nodes, self.options.gres_names, self.options.partition)
        if shutil.which("salloc") is None:
            raise ProfileError("salloc is not on this machine", hint="run this on a login node of the Slurm cluster")
        job_name = f"memx-profile-{uuid.uuid4().hex[:8]}"
        words = tempfile.TemporaryFile()
        holder = subprocess.Popen(
            self._arguments(request, job_name), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=words,
            start_new_session=True,
        )  # fmt: skip

        def said() -> str:
            words.seek(0)
            return words.read(65536).decode("utf-8", errors="replace")

        lane: _SlurmLane | None = None
        last, start = ("", ""), time.monotonic()
        try:
            while True:
                _sleep(0.1 if lane is None else _LOOK_S, should_stop)
                text = said()
                if holder.poll() is not None:
                    reason = (text.strip().splitlines() or ["salloc ended without a word"])[-1]
                    raise ProfileError(f"Slurm refused the job for {gpu_type}: {reason[:200]}", where=gpu_type)
                if lane is None:
                    match = _JOB_ID.search(text)
                    if match is None:
                        continue
                    lane = _SlurmLane(
                        gpu_type, request, self.options, capacity_bytes, holder, match[1], job_name, on_state
                    )
                try:
                    state, reason, node = lane.state(should_stop)
                except SilentControllerError as error:
                    state, reason, node = "", error.message, ""
                if state == "RUNNING" and "Granted" in text:
                    lane.node = node
                    on_state(LaneState(gpu_type, "ready", node))
                    return lane
                reason = f"job {lane.job}: {reason or state.lower()}"
                if (state, reason) != last:
                    last = (state, reason)
                    on_state(LaneState(gpu_type, "pending", reason=reason))
                self._refuse_long_wait(gpu_type, reason, time.monotonic() - start)
        except BaseException:
            if lane is not None:
                lane.close()
            else:
                holder.terminate()
                holder.wait()
            raise

    def _refuse_long_wait(self, gpu_type: str, reason: str, waited_s: float) -> None:
        limit_s = self.options.pending_limit_s
        if limit_s is not None and waited_s > limit_s:
            raise ProfileError(
                f"{reason}; pending for more than {limit_s / 60:g} min",
                where=gpu_type,
                hint="resume later, or wait longer with --max-pending",
            )
