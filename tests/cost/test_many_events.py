"""Many pipelines at once against one at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.cost.events import simulate
from memx_engine.cost.many_events import Pipeline, iteration_times
from tests.cost.naive_events import naive_iteration_time


def random_pipeline(rng: np.random.Generator, stages: int, micro_batches: int, spread: float = 1.0) -> Pipeline:
    forward, backward = (1.0 + spread * rng.random((2, stages))) * [[0.1], [0.2]]
    p2p = spread * rng.random(stages - 1) * 0.05 * rng.integers(0, 2)
    if rng.integers(2):
        # Equal stages, and pipelines whose steady state takes several rounds to repeat.
        forward, backward, p2p = np.round(forward, 2), np.round(backward, 2), np.round(p2p, 2)
    tails, fixed = rng.uniform(0, 3, stages), float(rng.uniform(0, 1))
    return Pipeline(forward.tolist(), backward.tolist(), p2p.tolist(), micro_batches, tails.tolist(), fixed)


def alone(pipeline: Pipeline) -> float:
    shape = (len(pipeline.tails_s), pipeline.virtual_stages)
    return simulate(
        np.reshape(pipeline.forward_s, shape),
        np.reshape(pipeline.backward_s, shape),
        pipeline.p2p_s,
        pipeline.micro_batches,
        tails_s=pipeline.tails_s,
        fixed_s=pipeline.fixed_s,
        virtual_stages=pipeline.virtual_stages,
    ).iteration_time_s


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 12), st.sampled_from([3, 60, 300]))
def test_together_as_alone_to_the_last_bit(seed: int, count: int, most_stages: int, most_batches: int) -> None:
    rng = np.random.default_rng(seed)
    pipelines = [
        random_pipeline(
            rng,
            int(rng.integers(1, most_stages + 1)),
            int(rng.integers(1, most_batches + 1)),
            float(rng.choice([0.0, 0.05, 1.0])),
        )
        for _ in range(count)
    ]
    assert iteration_times(pipelines).tolist() == [alone(pipeline) for pipeline in pipelines]


def test_long_steady_pipelines_take_as_long_as_their_operations_one_by_one() -> None:
    rng = np.random.default_rng(5)
    pipelines = [random_pipeline(rng, stages, 400, 0.3) for stages in (1, 2, 3, 5, 9, 14) for _ in range(4)]
    for pipeline, seen in zip(pipelines, iteration_times(pipelines), strict=True):
        naive = naive_iteration_time(
            [[s] for s in pipeline.forward_s],
            [[s] for s in pipeline.backward_s],
            list(pipeline.p2p_s),
            pipeline.micro_batches,
            tails_s=list(pipeline.tails_s),
            fixed_s=pipeline.fixed_s,
        )
        assert seen == pytest.approx(naive, rel=1e-12)


def test_interleaved_ones_among_plain_ones() -> None:
    rng = np.random.default_rng(6)
    plain = [random_pipeline(rng, stages, 12) for stages in (2, 4)]
    woven = []
    for stages, chunks in ((2, 2), (3, 4)):
        forward, backward = rng.uniform(0.1, 1.0, (2, stages * chunks)).tolist()
        tails, links = rng.random((2, stages)).tolist()
        woven.append(Pipeline(forward, backward, links, 12, tails, 0.5, chunks))
    mixed = [woven[0], plain[0], woven[1], plain[1]]
    assert iteration_times(mixed).tolist() == [alone(pipeline) for pipeline in mixed]


def test_nothing_takes_no_time() -> None:
    assert iteration_times([]).shape == (0,)


def test_what_simulate_refuses_is_refused() -> None:
    good = Pipeline([1.0, 1.0], [2.0, 2.0], [0.0], 4, [0.0, 0.0])
    for bad in (
        replace(good, p2p_s=[]),
        replace(good, backward_s=[2.0]),
        replace(good, micro_batches=0),
        replace(good, forward_s=[1.0, float("inf")]),
        replace(good, tails_s=[0.0, -1.0]),
    ):
        with pytest.raises(ValueError):
            iteration_times([good, bad])
