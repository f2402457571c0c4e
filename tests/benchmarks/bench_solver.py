"""Proving the best split and recompute of a skeleton; three kinds of GPU, memory for about twice the layers.

Aims (one core): 5 x 24 in 0.05 s, 10 x 32 in 0.2 s, 20 x 80 in 0.7 s, 40 x 126 in 4 s. ``blocks`` adds block:K for
every K. Run: pytest tests/benchmarks/bench_solver.py
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from memx_engine.cost.table import StageTable
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute
from memx_engine.search.solver import solve
from tests.search.instances import make_objective

SIZES = [(5, 24), (10, 32), (20, 80), (40, 126)]


def build_table(stages: int, layers: int, *, blocks: bool = False, roominess: float = 2.0) -> StageTable:
    """Stage times and memory of a transformer on three GPU types; block:K for every K when ``blocks``."""
    rng = np.random.default_rng(stages)
    kind = np.sort(rng.integers(0, 3, stages))
    speed = np.array([312.0, 256.0, 120.0])[kind] * rng.uniform(0.97, 1.03, stages)
    capacity = np.array([80.0, 64.0, 32.0])[kind] * 2**30
    words = [NONE, SELECTIVE, FULL] + [Recompute("block", k) for k in range(1, layers + 1) if blocks]
    n = np.arange(layers + 1, dtype=np.float64)
    held = np.minimum(64, stages - np.arange(stages))[:, None]
    head = np.zeros((stages, 1))
    head[-1] = 0.8
    forward, backward, memory = (np.full((stages, layers + 1, len(words)), np.inf) for _ in range(3))
    for r, word in enumerate(words):
        recomputed = np.minimum(word.n, n) if word.kind == "block" else n * (word == FULL)
        kept = (0.85 if word == SELECTIVE else 1.0) * (n - recomputed) + 0.06 * recomputed
        forward[:, :, r] = (n + head) / speed[:, None]
        backward[:, :, r] = (2 * (n + head) + recomputed + 0.05 * n * (word == SELECTIVE)) / speed[:, None]
        memory[:, :, r] = 3.0 * (n + head) + 0.4 * kept * held
        missing = (n < 1) | (n < word.n)
        for array in (forward, backward, memory):
            array[:, missing, r] = np.inf
    fixed = 4 * 2**30
    scale = min((capacity[:, None] - fixed).sum() / (roominess * layers * memory[:, 1].min(axis=1).mean()), 2e9)
    return StageTable(
        forward_s=forward,
        backward_s=backward,
        memory_bytes=fixed + memory * scale,
        tail_s=np.broadcast_to(n * 1e-3, (stages, layers + 1)),
        capacity_bytes=capacity,
        p2p_s=np.full(stages - 1, 1e-4),
        gpus=np.full(stages, 4.0),
        options=tuple(words),
        micro_batches=64,
        layers=layers,
    )


@pytest.mark.parametrize("weights", [(0.4, 0.2, 0.4), (0.3, 0.5, 0.2), (0.7, 0.2, 0.1)], ids=["het", "safe", "fast"])
@pytest.mark.parametrize("blocks", [False, True], ids=["three", "blocks"])
@pytest.mark.parametrize(("stages", "layers"), SIZES)
def test_bench_solve(
    benchmark: BenchmarkFixture, stages: int, layers: int, blocks: bool, weights: tuple[float, float, float]
) -> None:
    table = build_table(stages, layers, blocks=blocks)
    objective = make_objective(table, weights)
    solution = benchmark.pedantic(lambda: solve(table, objective), rounds=3)
    assert solution is not None and solution.optimal
    benchmark.extra_info["nodes"] = solution.nodes


@pytest.mark.parametrize(("stages", "layers"), SIZES)
def test_bench_closing_at_the_root(benchmark: BenchmarkFixture, stages: int, layers: int) -> None:
    table = build_table(stages, layers, blocks=True)
    objective = make_objective(table, (0.4, 0.2, 0.4))
    best = solve(table, objective)
    assert best is not None
    closed = benchmark.pedantic(lambda: solve(table, objective, incumbent_phi=0.8 * best.phi), rounds=5)
    assert closed is not None and closed.closed
