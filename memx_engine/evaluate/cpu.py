"""The accuracy table on this machine's own CPU: real stages measured by the probe, learned from some, judged on others.

What is judged is single stages in configurations that were not measured: one CPU has no pipeline. Every judged point is
measured several times, scattered over the whole run, so that the machine's own noise is known: how far one measurement
of a point lies from the next.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import CancelledError, InputError
from memx_engine.evaluate.accuracy import SCHEMA, AccuracyTable, counted
from memx_engine.evaluate.judged import Judged
from memx_engine.evaluate.stage_direct import direct_points
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import parse_cluster
from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.plan import FULL, NONE
from memx_engine.predict.compared import StageDescriber
from memx_engine.predict.points import PointEstimator
from memx_engine.predict.stage_model import StageModel, fit_stages, stage_factors
from memx_engine.profile.runner import Runner

MODEL = TransformerSpec("cpu-small", "llama", 8, 256, 688, 8, 4, 32, 2048, 512)
"""Small enough that a stage takes a tenth of a second on one core."""

JUDGED = 8
REPEATS = 3
TIMEOUT_S = 120.0

_CLUSTER = """
schema: memx/cluster/v1
name: this-machine
gpu_types:
  cpu: {memory_gib: 4, fp32_tflops: 0.1, lacks: [bf16, fp16]}
nodes:
  - {name: here, gpus: [{type: cpu, count: 1}]}
"""


def cpu_inputs() -> tuple[Cluster, TransformerSpec, Job]:
    """One CPU as a cluster. Its peak is a guess, which first principles alone has to live with."""
    job = Job(16, 256, Precision.FP32, Optimizer.REPLICATED, sequence_parallel=False)
    return parse_cluster(_CLUSTER, "this-machine"), MODEL, job


def learned_points() -> tuple[Point, ...]:
    """Two or three values of every size, crossed in parts, and both ends."""
    base = Point("cpu", MODEL, 1, 2, 128, 2, precision=Precision.FP32, sequence_parallel=False)
    points = [
        replace(base, micro_batch=mbs, seq_len=seq, layers=layers)
        for mbs, seq, layers in itertools.product((1, 4), (64, 256), (1, 4))
    ]
    points += [
        replace(base, recompute=FULL, micro_batch=mbs, seq_len=seq) for mbs, seq in ((1, 64), (2, 128), (4, 256))
    ]
    points += [replace(base, in_flight=flights, micro_batch=mbs) for flights, mbs in ((2, 2), (4, 1), (4, 4))]
    points += [replace(base, head=True, micro_batch=mbs) for mbs in (1, 4)]
    points += [replace(base, embedding=True, micro_batch=mbs) for mbs in (1, 4)]
    return (*points, base, replace(base, head=True, recompute=FULL))


def judged_points(count: int, seed: int) -> tuple[Point, ...]:
    """Points between and beside the learned ones, the same for a seed."""
    base = Point("cpu", MODEL, 1, 2, 128, 2, precision=Precision.FP32, sequence_parallel=False)
    known = set(learned_points())
    every = [
        replace(base, micro_batch=mbs, seq_len=seq, layers=layers, recompute=recompute, in_flight=flights, head=head)
        for mbs, seq, layers, recompute, flights, head in itertools.product(
            (1, 2, 3, 4), (64, 128, 192, 256), (1, 2, 3, 4), (NONE, FULL), (1, 2, 3), (False, True)
        )
    ]
    unseen = [point for point in every if point not in known]
    order = np.random.default_rng([seed, 30]).permutation(len(unseen))
    return tuple(unseen[k] for k in order[:count])


def cpu_accuracy(
    runner: Runner,
    *,
    judged: int = JUDGED,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AccuracyTable:
    """Measure, learn and judge.

    Args:
        runner: Where the probe runs, such as a ``LocalRunner`` with ``device="cpu"``.

    Raises:
        ProfileError: The probe cannot run. InputError: Fewer than three points could be judged.
        CancelledError: Stopped.
    """
    inputs = cpu_inputs()
    cluster = inputs[0]
    asked = judged_points(judged, seed)
    # Mixed, so that what else the machine does meanwhile falls on both alike.
    todo = [*learned_points(), *asked * REPEATS]
    order = np.random.default_rng([seed, 31]).permutation(len(todo))
    found: dict[Point, list[Measurement]] = defaultdict(list)
    lane = runner.open(cluster, "cpu", on_state=lambda state: None, should_stop=should_stop)
    try:
        for done, place in enumerate(order.tolist()):
            if should_stop():
                raise CancelledError("interrupted; nothing was written")
            found[todo[place]].append(lane.measure(todo[place], timeout_s=TIMEOUT_S, should_stop=should_stop))
            if on_progress is not None:
                on_progress(done + 1, len(todo))
    finally:
        lane.close()
    learned = [m for point in learned_points() for m in found[point] if m.outcome is Outcome.OK]
    truth = {point: [m for m in found[point] if m.outcome is Outcome.OK and m.time_s] for point in asked}
    kept = [point for point in asked if truth[point]]
    skipped = [(point.label, found[point][0].detail) for point in asked if not truth[point]]
    if len(kept) < 3 or not learned:
        raise InputError(
            f"only {len(kept)} of {len(asked)} points could be measured", hint=skipped[0][1] if skipped else ""
        )
    predicted = {
        "first-principles": _first_principles(inputs, kept),
        "direct": direct_points(cluster, learned, kept, seed=seed),
        "memx": _memx(inputs, learned, kept),
    }
    rows = []
    for name, made in predicted.items():
        figures = Judged()
        for point, (seconds, size, width) in zip(kept, made, strict=True):
            own = truth[point]
            time_s = statistics.median(m.time_s for m in own if m.time_s)
            peaks = [("cpu", size, float(m.peak_allocated_bytes)) for m in own[:1] if m.peak_allocated_bytes]
            figures.add((seconds, time_s), width, peaks, _place(point))
        rows.append({"method": name, "source": "cpu", **counted(figures.figures())})
    return AccuracyTable(
        {
            "schema": SCHEMA,
            "table": "accuracy",
            "truth": "cpu",
            "trained_on": f"{len(learned)} points",
            "provenance": "measured",
            "seeds": [seed],
            "device": next((m.device for m in learned), ""),
            "noise": {"time_pct": _noise(list(truth.values())), "repeats": REPEATS},
            "skipped": [{"row": label, "reason": reason} for label, reason in skipped],
            "rows": rows,
        }
    )


Predictions = list[tuple[float, float, float]]
"""Seconds, bytes, half width of the time's logarithm or NaN."""


def _first_principles(inputs: tuple[Cluster, TransformerSpec, Job], points: Sequence[Point]) -> Predictions:
    estimator = PointEstimator(FirstPrinciples(*inputs))
    made = [estimator.estimate(point) for point in points]
    return [(e.time_s, e.memory.weights + e.memory.gradients + e.dynamic_bytes, float("nan")) for e in made]


def _memx(inputs: tuple[Cluster, TransformerSpec, Job], learned: Sequence[Measurement], points: Sequence[Point]) -> Any:
    cluster, model, job = inputs
    stages = fit_stages(cluster, model, job, learned)
    plain = PointEstimator(FirstPrinciples(cluster, model, job))
    describer = StageDescriber(cluster, job)
    if stages is None:
        return _first_principles(inputs, points)
    factors, distances, _, _ = stage_factors(stages, describer, points)
    return [
        _learned(stages, describer, plain, point, pair, float(far))
        for point, pair, far in zip(points, factors, distances, strict=True)
    ]


def _learned(
    stages: StageModel, describer: StageDescriber, plain: PointEstimator, point: Point, pair: Any, far: float
) -> tuple[float, float, float]:
    memory = plain.estimate(point).memory
    seconds = float(pair[0]) * stages.times["cpu"].seconds(describer.seconds(point))
    size = float(pair[1]) * stages.memories["cpu"].bytes(describer.sizes(point))
    width = stages.width("cpu", point.tp, far)
    return seconds, memory.weights + memory.gradients + size, float("nan") if width is None else width


def _noise(repeats: Sequence[Sequence[Measurement]]) -> float | None:
    """Mean difference between two measurements of one point over their mean, in percent."""
    apart = []
    for own in repeats:
        times = [m.time_s for m in own if m.time_s]
        apart += [abs(a - b) / ((a + b) / 2) for a, b in itertools.combinations(times, 2)]
    return 100.0 * statistics.mean(apart) if apart else None


def _place(point: Point) -> dict[str, str]:
    return {
        "layers": str(point.layers),
        "micro_batch": str(point.micro_batch),
        "seq_len": str(point.seq_len),
        "in_flight": str(point.in_flight),
        "recompute": str(point.recompute),
        "head": "yes" if point.head else "no",
    }
