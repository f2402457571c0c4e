"""Event simulation of 1F1B and Megatron's interleaved schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.cost.events import simulate
from memx_engine.cost.pipeline import additive_time, in_flight, lower_bound, paper_eq3


def random_pipeline(rng: np.random.Generator, low: float = 0.2, high: float = 0.5):
    stages, micro_batches = int(rng.integers(2, 12)), int(rng.integers(1, 48))
    time_s, share = rng.uniform(0.4, 1.6, stages), rng.uniform(low, high, stages)
    p2p_s = rng.uniform(0, 0.4, stages - 1) * rng.integers(0, 2)
    return share * time_s, (1 - share) * time_s, p2p_s, micro_batches


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 7), (2, 1), (4, 3), (4, 8), (8, 64), (16, 128)])
def test_equal_stages_take_exactly_g_plus_p_minus_one(stages: int, micro_batches: int) -> None:
    result = simulate([0.25] * stages, [0.5] * stages, [0.0] * (stages - 1), micro_batches)
    assert result.iteration_time_s == (micro_batches + stages - 1) * 0.75
    assert result.busy_s == (micro_batches * 0.75,) * stages


# Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2: the bubble shrinks to (P-1)·t/v.
@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"), [(4, 8, 2), (4, 4, 2), (8, 32, 4), (2, 2, 4), (1, 4, 2)]
)
@pytest.mark.parametrize("overlap", [False, True])
def test_equal_chunks_take_megatrons_interleaved_time(stages, micro_batches, chunks, overlap) -> None:
    forward, backward = np.full((stages, chunks), 0.25), np.full((stages, chunks), 0.5)
    result = simulate(
        forward, backward, np.zeros(stages - 1), micro_batches, virtual_stages=chunks, overlap_p2p=overlap
    )
    whole = 0.75 * chunks
    assert result.iteration_time_s == pytest.approx(micro_batches * whole + (stages - 1) * whole / chunks, rel=1e-12)


def test_two_unequal_stages_by_hand() -> None:
    # Stage 0: F0 0-1, F1 1-2, B0 6-8, B1 11-13. Stage 1: F0 1-3, B0 3-6, F1 6-8, B1 8-11.
    result = simulate([1, 2], [2, 3], [0], 2, record=True)
    assert result.iteration_time_s == 13
    assert result.timeline is not None
    spans = [(s.stage, s.kind, s.micro_batch, s.start_s, s.end_s) for s in result.timeline]
    assert spans == [
        (0, "forward", 0, 0, 1),
        (0, "forward", 1, 1, 2),
        (1, "forward", 0, 1, 3),
        (1, "backward", 0, 3, 6),
        (0, "backward", 0, 6, 8),
        (1, "forward", 1, 6, 8),
        (1, "backward", 1, 8, 11),
        (0, "backward", 1, 11, 13),
    ]


def test_two_unequal_stages_with_transfers_by_hand() -> None:
    # Stage 1: F0 2-4, B0 4-7, F1 7-9, B1 9-12. Stage 0: B0 arrives at 8, 8-10; B1 arrives at 13, 13-15.
    assert simulate([1, 2], [2, 3], [1], 2).iteration_time_s == 15


def test_three_unequal_stages_by_hand() -> None:
    # Stage 1: F0 1-3, F1 3-5, B0 6-10, F2 10-12, B1 12-16, B2 16-20. Stage 0: B0 10-12, B1 16-18, B2 20-22.
    assert simulate([1, 2, 1], [2, 4, 2], [0, 0], 3).iteration_time_s == 22
    # With c = 1/2, 1/4. Stage 1: B0 arrives at 7, 7-11; F2 11-13; B1 13-17; B2 17-21. Stage 0: B2 21.5-23.5.
    assert simulate([1, 2, 1], [2, 4, 2], [0.5, 0.25], 3).iteration_time_s == 23.5


def test_interleaved_by_hand() -> None:
    # P = 2, v = 2, G = 2: all four chunk forwards are warm-up on stage 0, the third is the last warm-up on stage 1.
    # Stage 0: c0m0 0-1, c0m1 1-2, c1m0 arrives 2.5 (wrap 1/2), 2.5-3.5, c1m1 3.5-4.5.
    # Stage 1: c0m0 1-2, c0m1 2-3 , c1m0 3.5-4.5, B c1m0 4.5-5.5, c1m1 5.5-6.5, B c1m1 6.5-7.5, then B c0.
    # Stage 0: B c1m0 5.5-6.5, B c1m1 7.5-8.5; stage 1: B c0m0 arrives 7, 7.5-8.5, c0m1 arrives 9, 9-10;
    # stage 0: B c0m0 8.5-9.5, c0m1 10-11.
    ones = np.ones((2, 2))
    result = simulate(ones, ones, [0.0, 0.5], 2, virtual_stages=2, overlap_p2p=True, record=True)
    assert result.timeline is not None
    ends = {(s.stage, s.chunk, s.micro_batch, s.kind): s.end_s for s in result.timeline}
    assert ends[0, 1, 1, "forward"] == 4.5
    assert ends[1, 1, 0, "forward"] == 4.5
    assert ends[1, 1, 1, "backward"] == 7.5
    assert ends[1, 0, 1, "backward"] == 10
    assert result.iteration_time_s == 11


def test_one_virtual_stage_is_1f1b() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        forward, backward, p2p, micro_batches = random_pipeline(rng)
        flat = simulate(forward, backward, p2p, micro_batches)
        chunked = simulate(forward[:, None], backward[:, None], p2p, micro_batches, virtual_stages=1)
        assert flat == chunked


def test_additive_form_is_never_below_and_lower_bound_never_above() -> None:
    rng = np.random.default_rng(1)
    for _ in range(600):
        forward, backward, p2p, micro_batches = random_pipeline(rng)
        tails = rng.uniform(0, 2, len(forward))
        result = simulate(forward, backward, p2p, micro_batches, tails_s=tails, fixed_s=0.1).iteration_time_s
        both = forward + backward
        assert additive_time(both, micro_batches, p2p_s=p2p, tails_s=tails, fixed_s=0.1) >= result * (1 - 1e-12)
        assert lower_bound(both, micro_batches, p2p_s=p2p, tails_s=tails, fixed_s=0.1) <= result * (1 + 1e-12)


def test_bounds_hold_for_any_share_of_the_forward() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        forward, backward, p2p, micro_batches = random_pipeline(rng, 0.02, 0.98)
        result = simulate(forward, backward, p2p, micro_batches).iteration_time_s
        # The period is at most that of the slowest forward and the slowest backward, each with its transfer.
        transfers = np.asarray(p2p)
        period = (forward + np.append(transfers, 0.0)).max() + (backward + np.append(0.0, transfers)).max()
        most = (micro_batches - 1) * period + (forward + backward).sum() + 2 * transfers.sum()
        assert most >= result * (1 - 1e-12)
        assert lower_bound(forward + backward, micro_batches, p2p_s=p2p) <= result * (1 + 1e-12)


@pytest.mark.parametrize(("transfer", "low_by"), [(0.05, 0.077), (0.1, 0.152), (0.3, 0.439)])
def test_blocking_transfers_lengthen_the_period(transfer: float, low_by: float) -> None:
    # 8 equal stages, 64 micro-batches, c/t given: the paper's equation 3 is too low by so much.
    p2p = [transfer] * 7
    events = simulate([1 / 3] * 8, [2 / 3] * 8, p2p, 64).iteration_time_s
    assert events / paper_eq3([1.0] * 8, 64, p2p_s=p2p) - 1 == pytest.approx(low_by, abs=5e-4)


def test_overlapped_transfers_leave_the_period_alone() -> None:
    p2p = [0.1] * 7
    blocking = simulate([1 / 3] * 8, [2 / 3] * 8, p2p, 64).iteration_time_s
    overlapped = simulate([1 / 3] * 8, [2 / 3] * 8, p2p, 64, overlap_p2p=True).iteration_time_s
    assert overlapped < blocking
    assert overlapped == pytest.approx(paper_eq3([1.0] * 8, 64, p2p_s=p2p), rel=0.01)


def test_in_flight_limits() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        forward, backward, p2p, micro_batches = random_pipeline(rng)
        stages = len(forward)
        free = simulate(forward, backward, p2p, micro_batches).iteration_time_s
        own = simulate(forward, backward, p2p, micro_batches, in_flight=in_flight(stages, micro_batches))
        assert own.iteration_time_s == pytest.approx(free, rel=1e-12)
        tight = simulate(forward, backward, p2p, micro_batches, in_flight=[1] * stages).iteration_time_s
        # One micro-batch in the whole pipeline at a time: no overlap at all.
        assert tight == pytest.approx(micro_batches * (forward.sum() + backward.sum() + 2 * p2p.sum()), rel=1e-12)


def test_timeline_shows_in_flight_counts() -> None:
    for overlap in (False, True):
        result = simulate([1.0] * 4, [2.0] * 4, [0.1] * 3, 16, overlap_p2p=overlap, record=True)
        assert result.timeline is not None
        held, most = [0] * 4, [0] * 4
        for span in result.timeline:
            if span.kind == "forward":
                held[span.stage] += 1
                most[span.stage] = max(most[span.stage], held[span.stage])
            else:
                held[span.stage] -= 1
        assert tuple(most) == in_flight(4, 16, overlap_p2p=overlap)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_stages_never_run_two_operations_at_once(stages, chunks, groups, overlap, random) -> None:
    times = np.array([[random.uniform(0.1, 2) for _ in range(chunks)] for _ in range(stages)])
    result = simulate(
        times, 2 * times, [random.uniform(0, 1) for _ in range(stages)], stages * groups,
        virtual_stages=chunks, overlap_p2p=overlap, record=True,
    )  # fmt: skip
    assert result.timeline is not None
    assert len(result.timeline) == 2 * stages * chunks * stages * groups
    for stage in range(stages):
        own = [span for span in result.timeline if span.stage == stage]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in zip(own, own[1:], strict=False))
        assert result.busy_s[stage] <= result.iteration_time_s + 1e-9


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of the stages"):
        simulate(np.ones((2, 2)), np.ones((2, 2)), [0], 3, virtual_stages=2)
    with pytest.raises(ValueError, match="transfer times"):
        simulate([1, 1], [1, 1], [], 3)
    with pytest.raises(ValueError, match="match the stages"):
        simulate([1, 1], [1, 1, 1], [0], 3)
    with pytest.raises(ValueError, match="finite"):
        simulate([1, float("inf")], [1, 1], [0], 3)
    with pytest.raises(ValueError, match="at least 1"):
        simulate([1], [1], [], 0)
    with pytest.raises(ValueError, match="in-flight"):
        simulate([1, 1], [1, 1], [0], 4, in_flight=[1])


def test_repeating_rounds_may_be_skipped() -> None:
    # The timeline is simulated operation by operation; the time alone skips rounds that repeat.
    rng = np.random.default_rng(11)
    for k in range(300):
        stages, micro_batches = int(rng.integers(1, 9)), int(rng.integers(1, 80))
        forward, backward = rng.uniform(0.1, 1.0, stages), rng.uniform(0.1, 2.0, stages)
        if k % 3 == 0:
            forward, backward = np.round(forward, 1), np.round(backward, 1)
        p2p, tails = (k % 2) * rng.uniform(0.0, 0.3, stages - 1), rng.uniform(0.0, 1.0, stages)
        quick = simulate(forward, backward, p2p, micro_batches, tails_s=tails)
        whole = simulate(forward, backward, p2p, micro_batches, tails_s=tails, record=True)
        assert quick.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-12)
        assert quick.end_s == pytest.approx(whole.end_s, rel=1e-12) and quick.busy_s == whole.busy_s
