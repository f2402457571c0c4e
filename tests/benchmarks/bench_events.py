"""One simulation of 16 stages x 128 micro-batches; the aim is 5 ms. Run: pytest tests/benchmarks/bench_events.py"""

from __future__ import annotations

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from memx_engine.cost.events import simulate
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
