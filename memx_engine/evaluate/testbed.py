"""The accuracy table on the simulated cluster: learned from the minimal set, judged on whole plans nobody measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import CancelledError, InputError
from memx_engine.evaluate.accuracy import SCHEMA, AccuracyTable, counted
from memx_engine.evaluate.judged import Judged
from memx_engine.evaluate.metrics import mean_over
from memx_engine.evaluate.plans import draw_plans
from memx_engine.evaluate.stage_direct import DirectStages
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement
from memx_engine.plan import Estimate, Plan
from memx_engine.predict.predicted import Predicted
from memx_engine.profile.loop import run_profile
from memx_engine.profile.runners.testbed import TestbedRunner, parse_testbed
from memx_engine.profile.store import MemoryStore
from memx_engine.testbed.testbed import Testbed, TestbedRun

PLANS = 150
"""Plans that run, judged for every seed."""

METHODS = ("first-principles", "direct", "memx")


@dataclass(frozen=True)
class TestbedTruth:
    """Which instances of the simulated cluster are asked.

    Attributes:
        cluster: What the judged plans run on. measured: What the points are measured on; the same devices.
        plans: Plans that run, judged for every seed.
    """

    cluster: Cluster
    model: TransformerSpec
    job: Job
    measured: Cluster
    seeds: tuple[int, ...]
    hard: bool = False
    plans: int = PLANS

    __test__ = False

    @property
    def name(self) -> str:
        kind = "testbed:hard" if self.hard else "testbed"
        return f"{kind}:{self.seeds[0]}" if len(self.seeds) == 1 else kind


def testbed_truth(
    name: str,
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    *,
    measured: Cluster | None = None,
    seeds: Sequence[int],
    plans: int = PLANS,
) -> TestbedTruth:
    """``testbed[:hard][:SEED]``; without a seed of its own, all of ``seeds``.

    Raises:
        InputError: The name is another, or a GPU type of the cluster is not in ``measured``.
    """
    seed, hard = parse_testbed(name)
    measured = measured or cluster
    lacking = sorted(set(cluster.ranks_by_type) - set(measured.ranks_by_type))
    if lacking:
        raise InputError(
            f"{measured.name} has no {', '.join(lacking)}, which {cluster.name} has", where="--measured-on"
        )
    own = name.rpartition(":")[2].isdecimal()
    return TestbedTruth(cluster, model, job, measured, (seed,) if own else tuple(seeds), hard, plans)


def testbed_accuracy(
    truth: TestbedTruth,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> AccuracyTable:
    """Measure, learn and judge, seed by seed; figures are means over the seeds.

    Raises:
        InputError: No plan of the cluster runs. CancelledError: Stopped.
    """
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    steps, points = len(truth.seeds) * truth.plans, []
    for place, seed in enumerate(truth.seeds):
        if should_stop is not None and should_stop():
            raise CancelledError("interrupted; nothing was written")
        measurements = measure(truth, seed)
        points.append(len(measurements))
        judged = _judge(truth, seed, measurements, place * truth.plans, steps, on_progress, should_stop)
        for name in METHODS:
            figures[name].append(judged[name].figures())
    rows = []
    for name in METHODS:
        mean = mean_over(figures[name])
        mean["time_max_pct"] = max(seed["time_max_pct"] for seed in figures[name])
        rows.append({"method": name, "source": truth.cluster.name, **counted(mean)})
    return AccuracyTable(
        {
            "schema": SCHEMA,
            "table": "accuracy",
            "truth": truth.name,
            "trained_on": f"{round(float(np.mean(points)))} points of {truth.measured.name}",
            "provenance": "simulated",
            "cluster": truth.cluster.name,
            "model": truth.model.name,
            "plans": truth.plans,
            "seeds": list(truth.seeds),
            "skipped": [],
            "rows": rows,
        }
    )


def measure(truth: TestbedTruth, seed: int) -> list[Measurement]:
    """The minimal set of every GPU type, in memory."""
    store = MemoryStore()
    runner = TestbedRunner(seed=seed, hard=truth.hard)
    run_profile(truth.measured, truth.model, truth.job, runner, store)
    return list(store.measurements())


def _judge(
    truth: TestbedTruth,
    seed: int,
    measurements: Sequence[Measurement],
    done: int,
    steps: int,
    on_progress: Callable[[int, int], None] | None,
    should_stop: Callable[[], bool] | None,
) -> dict[str, Judged]:
    inputs = (truth.cluster, truth.model, truth.job)
    bed = Testbed(truth.cluster, seed=seed, hard=truth.hard)
    estimators = (
        FirstPrinciples(*inputs),
        DirectStages.fit(*inputs, measurements, seed=seed),
        Predicted.fit(*inputs, measurements),
    )
    held_out = estimators[2].held_out if isinstance(estimators[2], Predicted) else 0
    judged = {name: Judged(held_out if name == "memx" else 0) for name in METHODS}
    found = 0
    for plans in draw_plans(*inputs, seed):
        for plan in plans:
            if should_stop is not None and should_stop():
                raise CancelledError("interrupted; nothing was written")
            run = bed.run(plan, truth.model, truth.job)
            for name, estimator in zip(METHODS, estimators, strict=True):
                _compare(judged[name], plan, estimator.estimate(plan), run)
            if run.iteration_time_s is not None:
                break
        else:
            continue
        found += 1
        if on_progress is not None:
            on_progress(done + found, steps)
        if found == truth.plans:
            break
    if not found:
        raise InputError(f"no plan of {truth.model.name} runs on {truth.cluster.name}", where="--cluster")
    return judged


def _compare(judged: Judged, plan: Plan, made: Estimate, run: TestbedRun) -> None:
    judged.add_outcome(
        said=any(gpu.peak_bytes > gpu.capacity_bytes for gpu in made.gpus), failed=run.iteration_time_s is None
    )
    if run.iteration_time_s is None:
        return
    width = math.log(made.interval_s[1] / made.iteration_time_s) if made.interval_s else math.nan
    peaks = [(gpu.gpu_type, gpu.peak_bytes, float(run.peak_bytes[gpu.rank])) for gpu in made.gpus]
    s = plan.skeleton
    kinds = sorted({stage.recompute.kind for stage in plan.stages})
    place = {
        "types": "+".join(sorted(set(s.type_order))),
        "tp": str(s.tp),
        "pp": str(s.pp),
        "dp": str(s.dp),
        "micro_batch": str(s.micro_batch),
        "virtual_stages": str(s.virtual_stages),
        "recompute": kinds[0] if len(kinds) == 1 else "mixed",
    }
    judged.add((made.iteration_time_s, run.iteration_time_s), width, peaks, place)
