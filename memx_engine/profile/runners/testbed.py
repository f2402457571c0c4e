"""Measure on the simulated cluster, in virtual time or replayed live."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from memx_engine.errors import CancelledError, InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Point, Truth
from memx_engine.profile.runner import LaneState, StateCallback, StopCheck
from memx_engine.testbed.testbed import Testbed


def parse_testbed(name: str) -> tuple[int, bool]:
    """Seed and hardness of ``testbed[:hard][:SEED]``; InputError for anything else."""
    parts = name.split(":")
    hard = len(parts) > 1 and parts[1] == "hard"
    rest = parts[2:] if hard else parts[1:]
    if parts[0] != "testbed" or len(rest) > 1 or not all(part.isdecimal() for part in rest):
        raise InputError(
            f"{name!r} names no testbed", hint="write testbed, testbed:SEED, testbed:hard or testbed:hard:SEED"
        )
    return int(rest[0]) if rest else 0, hard


@dataclass
class _TestbedLane:
    gpu_type: str
    bed: Testbed
    pace: float
    repetitions: int

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        result = self.bed.measure(point, repetitions=self.repetitions)
        end = time.monotonic() + self.pace * result.duration_s
        while True:
            if should_stop():
                raise CancelledError("stopped by the operator")
            left = end - time.monotonic()
            if left <= 0:
                return replace(result, started_at=time.time())
            time.sleep(min(left, 0.1))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class TestbedRunner:
    """Points take virtual time; ``pace`` 1 replays them live, 0 (the default) does not wait."""

    seed: int = 0
    hard: bool = False
    pace: float = 0.0
    repetitions: int = 5
    name: str = "testbed"
    truth: Truth = Truth.TESTBED

    __test__ = False

    @property
    def truth_name(self) -> str:
        return f"testbed:hard:{self.seed}" if self.hard else f"testbed:{self.seed}"

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _TestbedLane:
        bed = Testbed(cluster, seed=self.seed, hard=self.hard)
        node = cluster.nodes[cluster.gpus[cluster.ranks_by_type[gpu_type][0]].node_index].name
        on_state(LaneState(gpu_type, "ready", node))
        return _TestbedLane(gpu_type, bed, self.pace, self.repetitions)
