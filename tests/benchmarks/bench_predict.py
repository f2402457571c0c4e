"""Speed of the predictor on one thread. Run: pytest tests/benchmarks/bench_predict.py -s --benchmark-columns=median

The figures that have an aim are printed beside it, best and median round, because other work on the machine only slows.
With --benchmark-timer=time.process_time they are in CPU seconds, which a core of its own would take.

Aims: 150,000 stage rows a second with shared trees, 80,000 with one tree per output; a warm estimate of a plan 2 ms
without its event simulation; training on 5,000 rows 10 s; remembered signatures 1,000,000 a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from memx_engine.cost import composition
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.measurement import Measurement
from memx_engine.predict.booster import Array, Booster
from memx_engine.predict.iteration_features import reference_plan
from memx_engine.predict.iteration_model import IterationModel, Rows
from memx_engine.predict.predicted import Predicted
from memx_engine.predict.signatures import Signatures
from memx_engine.predict.stage_model import STAGE_SETTINGS
from memx_engine.profile.loop import run_profile
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.search.space import enumerate_space

ROWS, FEATURES, BATCH = 5_000, 31, 20_000
INPUTS = (CLUSTER := load_cluster("paper-20gpu"), MODEL := load_model("llama2-7b"), resolve_job(CLUSTER, MODEL))


def told(what: str, benchmark: BenchmarkFixture, each: Callable[[float], float], unit: str, aim: str) -> None:
    """Print a figure by the best and the median round."""
    best, median = each(benchmark.stats["min"]), each(benchmark.stats["median"])
    benchmark.extra_info[unit] = median
    shown = [f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in (best, median)]
    print(f"\n{what}: {shown[0]} {unit}, median {shown[1]} (aim {aim}), load {os.getloadavg()[0]:.1f}")


def made_rows(count: int = ROWS) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    features = np.round(rng.normal(size=(count, FEATURES)), 2)
    targets = np.stack([np.sin(features[:, 0]) + features[:, 1] * features[:, 2], features[:, 3]], axis=1)
    return features, 0.1 * targets + rng.normal(0.0, 0.01, (count, 2))


@pytest.fixture(scope="module")
def learned() -> Predicted:
    store = MemoryStore()
    run_profile(*INPUTS, TestbedRunner(), store)
    measured: list[Measurement] = list(store.measurements())
    made = Predicted.fit(*INPUTS, measured)
    assert isinstance(made, Predicted)
    return made


@pytest.mark.parametrize("shared", [True, False], ids=["shared-trees", "one-per-output"])
def test_bench_batch_predict(benchmark: BenchmarkFixture, shared: bool) -> None:
    features, targets = made_rows()
    settings = replace(STAGE_SETTINGS, shared_trees=shared)
    booster = Booster.fit(features, targets, [f"f{k}" for k in range(FEATURES)], settings)
    asked, _ = made_rows(BATCH)
    assert len(benchmark(lambda: booster.predict(asked))) == BATCH
    words = ("shared trees", "150,000") if shared else ("one tree per output", "80,000")
    told(f"batch predict, {words[0]}", benchmark, lambda s: BATCH / s, "stage rows/s", words[1])


@pytest.mark.parametrize("shared", [True, False], ids=["shared-trees", "one-per-output"])
def test_bench_single_fit(benchmark: BenchmarkFixture, shared: bool) -> None:
    features, targets = made_rows()
    names = [f"f{k}" for k in range(FEATURES)]
    settings = replace(STAGE_SETTINGS, shared_trees=shared)
    benchmark.pedantic(lambda: Booster.fit(features, targets, names, settings), rounds=3)
    words = "shared trees" if shared else "one tree per output"
    told(f"one fit of {ROWS:,} rows, {words}", benchmark, float, "s", "10")


def test_bench_training(benchmark: BenchmarkFixture) -> None:
    features, targets = made_rows()
    rows = Rows(features, targets, tuple(f"f{k}" for k in range(FEATURES)), np.arange(ROWS).astype(str), ("a",) * ROWS)
    # One fit and the eight refits that its intervals come from.
    benchmark.pedantic(lambda: IterationModel.fit(rows, STAGE_SETTINGS), rounds=1)
    told(f"{ROWS:,} rows, the fit and the eight refits of its intervals", benchmark, float, "s", "10")


def test_bench_estimate_without_the_events(
    benchmark: BenchmarkFixture, learned: Predicted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [reference_plan(s, MODEL.layers) for s in enumerate_space(*INPUTS).skeletons() if s.pp <= 8]
    plans = [plan for plan in plans if min(plan.layers) > 0][::17]
    for plan in plans:
        learned.estimate(plan)
    run = composition.simulate([[0.1]], [[0.1]], [], 1)
    monkeypatch.setattr(composition, "simulate", lambda *_, **__: run)
    benchmark(lambda: [learned.estimate(plan) for plan in plans])
    what = f"one plan's warm estimate without the events ({len(plans)} plans)"
    told(what, benchmark, lambda s: 1e3 * s / len(plans), "ms/plan", "2")


def test_bench_estimate_with_the_events(benchmark: BenchmarkFixture, learned: Predicted) -> None:
    skeleton = max(enumerate_space(*INPUTS).skeletons(), key=lambda s: (s.pp, s.micro_batches, -s.virtual_stages))
    plan = reference_plan(skeleton, MODEL.layers)
    learned.estimate(plan)
    benchmark(lambda: learned.estimate(plan))
    what = f"one plan's warm estimate with the events ({skeleton.pp} stages, {skeleton.micro_batches} micro-batches)"
    told(what, benchmark, lambda s: 1e3 * s, "ms/plan", "none")


def test_bench_remembered_signatures(benchmark: BenchmarkFixture) -> None:
    rows, values = made_rows(BATCH)
    kept = Signatures("a", FEATURES, 2)
    kept.get(rows, lambda asked: asked[:, :2])
    assert len(benchmark(lambda: kept.get(rows, lambda asked: asked[:, :2]))) == len(values)
    told("remembered signatures", benchmark, lambda s: BATCH / s, "signatures/s", "1,000,000")


def test_bench_first_tables(benchmark: BenchmarkFixture, learned: Predicted) -> None:
    """Tables of all skeletons of the cluster, nothing remembered."""
    skeletons = list(enumerate_space(*INPUTS).skeletons())

    def all_tables() -> float:
        fresh = Predicted(*INPUTS, learned.stages)
        start = time.perf_counter()
        for skeleton in skeletons:
            fresh.stage_table(skeleton)
        return time.perf_counter() - start

    benchmark.pedantic(all_tables, rounds=2)
