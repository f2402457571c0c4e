"""One simulation of 16 stages x 128 micro-batches; the aim is 5 ms. Run: pytest tests/benchmarks/bench_events.py"""

from __future__ import annotations

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from memx_engine.cost.events import simulate
from memx_engine.cost.many_events import Pipeline, iteration_times
from memx_engine.cost.schedule import program


def _run() -> float:
    return simulate(np.full(16, 0.3), np.linspace(0.5, 0.9, 16), np.full(15, 0.01), 128).iteration_time_s


def _run_cold() -> float:
    program.cache_clear()
    return _run()


def test_bench_simulate(benchmark: BenchmarkFixture) -> None:
    assert benchmark(_run) > 0


def test_bench_simulate_first_time(benchmark: BenchmarkFixture) -> None:
    assert benchmark(_run_cold) > 0


def test_bench_simulate_interleaved(benchmark: BenchmarkFixture) -> None:
    times = np.full((16, 2), 0.2)
    assert benchmark(lambda: simulate(times, 2 * times, np.zeros(15), 128, virtual_stages=2).iteration_time_s) > 0


def test_bench_a_hundred_at_once(benchmark: BenchmarkFixture) -> None:
    rng = np.random.default_rng(0)
    pipelines = []
    for stages in rng.integers(1, 21, 100).tolist():
        layers = rng.integers(1, 5, stages) * 0.02
        tails, p2p = [0.1] * stages, [0.001] * (stages - 1)
        pipelines.append(Pipeline(layers.tolist(), (2 * layers).tolist(), p2p, 2 ** int(rng.integers(5, 10)), tails))
    assert benchmark(lambda: float(iteration_times(pipelines).min())) > 0
