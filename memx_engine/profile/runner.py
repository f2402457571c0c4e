"""Where a probe runs: the seam between the profiling loop and a testbed, this machine, Slurm, SSH or a launch script.

A runner opens one lane per GPU type; lanes work side by side, a lane measures one point at a time. Starting, waiting
and cancelling are the lane's business; storing, resuming and retrying are the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from memx_engine.errors import MemxError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Point, Truth


class ProfileError(MemxError):
    """Profiling could not go on: no device of a type could be reached, or every point failed."""

    exit_code = 4
    title = "Profiling failed"


class LaneLostError(ProfileError):
    """A lane broke under a point (job preempted, connection lost, node drained); the loop may reopen it and retry."""

    title = "The connection to a device was lost"


@dataclass(frozen=True)
class LaneState:
    """What a lane is doing: ``pending`` with the scheduler's reason, ``ready``, ``lost`` or ``closed``."""

    gpu_type: str
    state: str
    node: str = ""
    reason: str = ""


StateCallback = Callable[[LaneState], None]
StopCheck = Callable[[], bool]


class Lane(Protocol):
    """One representative device (or TP group of devices) of one type."""

    @property
    def gpu_type(self) -> str: ...

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        """Measure one point in a process of its own.

        OOM, a hang beyond ``timeout_s`` and a crash are outcomes of the measurement. Raises LaneLostError when the
        place itself is gone, CancelledError within a second of ``should_stop`` turning true.
        """
        ...

    def close(self) -> None:
        """Release the device; cancels the jobs this lane submitted and only those. Never raises for a dead job."""
        ...


class Runner(Protocol):
    """Opens lanes. ``truth`` and ``truth_name`` say what kind of ground it stands on."""

    @property
    def name(self) -> str: ...

    @property
    def truth(self) -> Truth: ...

    @property
    def truth_name(self) -> str: ...

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        """Truth and truth name that label every measurement of ``gpu_type``; resuming finds them again by these."""
        ...

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> Lane:
        """Open a lane on a representative node of ``gpu_type``; blocks while a job is pending, reporting its reason.

        Raises ProfileError when the type cannot be reached at all, with what to do about it.
        """
        ...
