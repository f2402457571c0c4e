"""A runner without devices: each point's result comes from a function, on a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.runner import LaneState, StateCallback, StopCheck

Answer = Callable[[Point, int], Measurement]


class FakeClock:
    """Monotonic seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def ok(point: Point, _attempt: int = 0) -> Measurement:
    """Time and memory that follow the point's size."""
    size = point.layers * point.micro_batch * point.seq_len / point.tp
    return Measurement(
        point,
        Outcome.OK,
        Truth.GPU,
        "fake",
        forward_s=size * 1e-6,
        backward_s=size * 2e-6,
        repetitions_s=(size * 3e-6,) * 4,
        peak_allocated_bytes=int(size * point.in_flight * 1000),
        node="fake-node",
    )


def crashed(point: Point, _attempt: int = 0) -> Measurement:
    return Measurement(point, Outcome.CRASHED, Truth.GPU, "fake", detail="segmentation fault")


@dataclass
class FakeLane:
    gpu_type: str
    runner: FakeRunner

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        if should_stop():
            raise CancelledError("stopped by the operator")
        with self.runner.lock:
            attempt = self.runner.attempts.get(point.key, 0)
            self.runner.attempts[point.key] = attempt + 1
            self.runner.measured.append(point)
        return self.runner.answer(point, attempt)

    def close(self) -> None:
        with self.runner.lock:
            self.runner.closed += 1


@dataclass
class FakeRunner:
    """``answer(point, attempt)`` returns the measurement or raises; ``refuse`` raises when a lane is opened."""

    answer: Answer = ok
    refuse: Callable[[str, int], None] | None = None
    name: str = "fake"
    truth: Truth = Truth.GPU
    truth_name: str = "fake"
    attempts: dict[str, int] = field(default_factory=dict)
    measured: list[Point] = field(default_factory=list)
    opened: dict[str, int] = field(default_factory=dict)
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> FakeLane:
        with self.lock:
            number = self.opened.get(gpu_type, 0)
            self.opened[gpu_type] = number + 1
        if self.refuse is not None:
            self.refuse(gpu_type, number)
        on_state(LaneState(gpu_type, "ready", "fake-node"))
        return FakeLane(gpu_type, self)
