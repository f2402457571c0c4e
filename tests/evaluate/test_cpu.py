"""The accuracy table of a machine's own CPU, with a made-up machine in the place of the probe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from memx_engine.errors import CancelledError, InputError
from memx_engine.evaluate.cpu import REPEATS, cpu_accuracy, cpu_inputs, judged_points, learned_points
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.predict.compared import StageDescriber
from memx_engine.profile.runner import LaneState, StateCallback, StopCheck


@dataclass
class Machine:
    """Slower than the cost model says, more so for short sequences, with ``noise`` from run to run."""

    noise: float = 0.02
    fails: frozenset[Point] = frozenset()
    name: str = "made up"
    truth: Truth = Truth.CPU
    truth_name: str = "cpu"
    gpu_type: str = "cpu"
    asked: list[Point] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> Machine:
        self.describer = StageDescriber(cluster, cpu_inputs()[2])
        on_state(LaneState(gpu_type, "ready"))
        return self

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        self.asked.append(point)
        if point in self.fails:
            return Measurement(point, Outcome.CRASHED, self.truth, self.truth_name, detail="it broke")
        seconds = sum(self.describer.seconds(point).parts) * (1.5 + 40.0 / point.seq_len)
        seconds *= float(np.exp(self.rng.normal(0.0, self.noise)))
        sizes = self.describer.sizes(point)
        parameters = 8 * point.layers * 700_000 + (point.embedding + point.head) * 8 * 2048 * 256
        peak = int(parameters + 1.2 * sizes.held + sizes.working + sizes.logits)
        return Measurement(
            point, Outcome.OK, self.truth, self.truth_name, seconds / 3, 2 * seconds / 3, peak_allocated_bytes=peak
        )

    def close(self) -> None:
        pass


def by_method(machine: Machine) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    table = cpu_accuracy(machine, judged=6)
    return table.document, {row["method"]: row for row in table.rows}


def test_unseen_points_are_judged_beside_the_machines_own_noise() -> None:
    machine = Machine()
    document, rows = by_method(machine)
    assert list(rows) == ["first-principles", "direct", "memx"]
    assert {row["n"] for row in rows.values()} == {6}
    assert len(machine.asked) == len(learned_points()) + 6 * REPEATS
    # Two normal draws of 2 % lie 2 % x 2 / sqrt(pi) apart on average.
    assert 1.0 < document["noise"]["time_pct"] < 4.0 and document["provenance"] == "measured"
    assert rows["memx"]["time_mape_pct"] < 0.3 * rows["first-principles"]["time_mape_pct"]
    assert rows["memx"]["time_mape_pct"] < rows["direct"]["time_mape_pct"]


def test_learned_and_judged_points_are_different_and_the_same_again() -> None:
    for seed in range(3):
        judged = judged_points(8, seed)
        assert not set(judged) & set(learned_points()) and len(set(judged)) == 8
        assert judged == judged_points(8, seed)
    assert judged_points(8, 0) != judged_points(8, 1)


def test_points_that_fail_are_named_and_too_few_are_refused() -> None:
    asked = judged_points(6, 0)
    document, rows = by_method(Machine(fails=frozenset(asked[:2])))
    assert [item["reason"] for item in document["skipped"]] == ["it broke"] * 2
    assert rows["memx"]["n"] == 4
    with pytest.raises(InputError, match="only 0 of 6"):
        by_method(Machine(fails=frozenset(asked)))


def test_it_stops_when_asked() -> None:
    with pytest.raises(CancelledError):
        cpu_accuracy(Machine(), should_stop=lambda: True)
