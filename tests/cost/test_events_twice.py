"""The event simulator against a second one that shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.cost.events import simulate
from memx_engine.cost.pipeline import additive_time, interleaved_estimate, lower_bound
from tests.cost.naive_events import naive_iteration_time, program_1f1b, program_interleaved


@pytest.mark.parametrize("seed", range(6))
def test_1f1b_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        stages, micro_batches = int(rng.integers(1, 9)), int(rng.integers(1, 20))
        forward, backward = rng.uniform(0.01, 2, (2, stages))
        p2p = rng.uniform(0, 1, stages - 1) * rng.integers(0, 2)
        tails, fixed = rng.uniform(0, 3, stages), float(rng.uniform(0, 1))
        seen = simulate(forward, backward, p2p, micro_batches, tails_s=tails, fixed_s=fixed).iteration_time_s
        naive = naive_iteration_time(
            forward[:, None].tolist(),
            backward[:, None].tolist(),
            p2p.tolist(),
            micro_batches,
            tails_s=tails.tolist(),
            fixed_s=fixed,
        )
        assert seen == pytest.approx(naive, rel=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_interleaved_agrees(seed: int, overlap: bool) -> None:
    rng = np.random.default_rng(100 + seed)
    for _ in range(40):
        stages, chunks, groups = int(rng.integers(1, 6)), int(rng.integers(2, 5)), int(rng.integers(1, 5))
        micro_batches = stages * groups
        forward, backward = rng.uniform(0.01, 2, (2, stages, chunks))
        links = rng.uniform(0, 1, stages) * rng.integers(0, 2)
        tails, fixed = rng.uniform(0, 3, stages), float(rng.uniform(0, 1))
        seen = simulate(
            forward,
            backward,
            links,
            micro_batches,
            tails_s=tails,
            fixed_s=fixed,
            virtual_stages=chunks,
            overlap_p2p=overlap,
        ).iteration_time_s
        naive = naive_iteration_time(
            forward.tolist(),
            backward.tolist(),
            links[:-1].tolist(),
            micro_batches,
            wrap_s=float(links[-1]),
            tails_s=tails.tolist(),
            fixed_s=fixed,
            send_at_once=overlap,
        )
        assert seen == pytest.approx(naive, rel=1e-12)


def test_the_programs_run_everything_once() -> None:
    for stages, chunks, groups in ((1, 2, 1), (4, 2, 2), (3, 3, 1)):
        for stage in range(stages):
            plain = program_1f1b(stage, stages, stages * groups)
            assert len(set(plain)) == len(plain) == 2 * stages * groups
            woven = program_interleaved(stage, stages, stages * groups, chunks)
            assert len(set(woven)) == len(woven) == 2 * stages * groups * chunks


@pytest.mark.parametrize("seed", range(4))
def test_closed_forms_hold_against_the_second_simulator(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    for _ in range(50):
        stages, micro_batches = int(rng.integers(2, 8)), int(rng.integers(1, 24))
        time_s, share = rng.uniform(0.4, 1.6, stages), rng.uniform(0.2, 0.5, stages)
        p2p, tails = rng.uniform(0, 0.4, stages - 1), rng.uniform(0, 2, stages)
        events = naive_iteration_time(
            (share * time_s)[:, None].tolist(),
            ((1 - share) * time_s)[:, None].tolist(),
            p2p.tolist(),
            micro_batches,
            tails_s=tails.tolist(),
        )
        assert lower_bound(time_s, micro_batches, p2p_s=p2p, tails_s=tails) <= events * (1 + 1e-12)
        assert events <= additive_time(time_s, micro_batches, p2p_s=p2p, tails_s=tails) * (1 + 1e-12)


def test_the_interleaved_estimate_is_exact_for_equal_chunks_and_too_low_for_others() -> None:
    rng = np.random.default_rng(300)
    lowest = 1.0
    for _ in range(60):
        stages, chunks, groups = int(rng.integers(2, 6)), int(rng.integers(2, 4)), int(rng.integers(1, 6))
        micro_batches = stages * groups
        equal = naive_iteration_time(
            [[1.0] * chunks] * stages, [[2.0] * chunks] * stages, [0.0] * stages, micro_batches
        )
        assert interleaved_estimate([3.0 * chunks] * stages, micro_batches, chunks) == pytest.approx(equal, rel=1e-12)
        forward = rng.uniform(0.2, 1.8, (stages, chunks))
        events = naive_iteration_time(forward.tolist(), (2 * forward).tolist(), [0.0] * stages, micro_batches)
        estimate = interleaved_estimate(3 * forward.sum(axis=1), micro_batches, chunks)
        lowest = min(lowest, estimate / events)
        # Every stage runs all of its chunks for every micro-batch: that much is always true.
        assert events >= micro_batches * 3 * forward.sum(axis=1).max() * (1 - 1e-12)
    assert lowest < 0.9
