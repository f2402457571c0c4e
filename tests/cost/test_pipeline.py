"""Closed forms of the iteration time and in-flight counts."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.cost.events import simulate
from memx_engine.cost.pipeline import (
    additive_time,
    held_bytes,
    in_flight,
    interleaved_estimate,
    lower_bound,
    paper_eq3,
    paper_eq4,
    stage_period,
)


def test_additive_time_by_hand() -> None:
    # Periods 3 + 1, 5 + 1 + 2, 2 + 2; (4-1)·8 + 10 + 2·3 + 0.5 + 4.
    assert stage_period([3, 5, 2], [1, 2]).tolist() == [4, 8, 4]
    assert additive_time([3, 5, 2], 4, p2p_s=[1, 2], tails_s=[1, 4, 2], fixed_s=0.5) == 44.5


def test_one_stage() -> None:
    assert additive_time([2], 5) == 10
    assert lower_bound([2], 5) == 10


def test_paper_equations_by_hand() -> None:
    # (4-1)·5 + 10 + 2·3 + 0.5 + 4
    assert paper_eq3([3, 5, 2], 4, p2p_s=[1, 2], dp_s=4, fixed_s=0.5) == 35.5
    # (4 - 1 + 1/2)·5/2 + 10/2 + 2·3
    assert paper_eq4([3, 5, 2], 4, 2, p2p_s=[1, 2]) == 19.75


def test_additive_time_without_transfers_is_equation_3() -> None:
    assert additive_time([3, 5, 2], 4, tails_s=[2, 2, 2]) == paper_eq3([3, 5, 2], 4, dp_s=2)


def test_lower_bound_by_hand() -> None:
    # Stage 1: (3 + 2·1) + 4·5 = 25 and then stage 0's tail; stage 2's own 4·2 + 30 is longer.
    assert lower_bound([3, 5, 2], 4, p2p_s=[1, 2], tails_s=[1, 0, 0]) == 26
    assert lower_bound([3, 5, 2], 4, p2p_s=[1, 2], tails_s=[1, 0, 30], fixed_s=1) == 39


def test_interleaved_estimate() -> None:
    # Equal chunks: Megatron's G·t + (P-1)·t/v.
    assert interleaved_estimate([2, 2, 2, 2], 8, 2) == 8 * 2 + 3 * 2 / 2
    # v = 1: equation 3.
    assert interleaved_estimate([3, 5, 2], 4, 1, p2p_s=[1, 2], wrap_s=9) == paper_eq3([3, 5, 2], 4, p2p_s=[1, 2])
    # 4·5 + 5/2 + 2·2·3 + 2·1·9 + 1 + 4
    assert interleaved_estimate([3, 5, 2], 4, 2, p2p_s=[1, 2], wrap_s=9, tails_s=[4, 0, 0], fixed_s=1) == 57.5


def test_in_flight_counts() -> None:
    assert in_flight(4, 8) == (4, 3, 2, 1)
    assert in_flight(4, 2) == (2, 2, 2, 1)
    # min(G·v, 2·(P-i-1) + (v-1)·P + 1)
    assert in_flight(4, 8, 2) == (11, 9, 7, 5)
    assert in_flight(4, 4, 2) == (8, 8, 7, 5)
    assert in_flight(4, 8, overlap_p2p=True) == (7, 5, 3, 1)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"), [(4, 8, 2), (4, 4, 2), (2, 8, 3), (8, 16, 4), (1, 3, 2)]
)
def test_held_bytes_of_equal_chunks_are_counts(stages: int, micro_batches: int, chunks: int) -> None:
    held = held_bytes(np.full((stages, chunks), 3.0), micro_batches)
    assert (held / 3).tolist() == list(in_flight(stages, micro_batches, chunks))


def test_held_bytes_of_one_chunk_are_1f1b() -> None:
    assert held_bytes([[2.0], [3.0], [5.0]], 8).tolist() == [6, 6, 5]


def test_held_bytes_of_unequal_chunks_match_a_walk_through_the_events() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        stages, chunks, groups = (int(x) for x in rng.integers(1, 5, 3))
        sizes = rng.uniform(0, 10, (stages, chunks))
        ones = np.ones((stages, chunks))
        result = simulate(ones, ones, np.zeros(stages), stages * groups, virtual_stages=chunks, record=True)
        assert result.timeline is not None
        held, most = np.zeros(stages), np.zeros(stages)
        for span in result.timeline:
            held[span.stage] += sizes[span.stage, span.chunk] * (1 if span.kind == "forward" else -1)
            most[span.stage] = max(most[span.stage], held[span.stage])
        # One chunk per stage walks as 1F1B in both; more walk Megatron's interleaved order.
        assert held_bytes(sizes, stages * groups) == pytest.approx(most)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="transfers"):
        additive_time([1, 2, 3], 4, p2p_s=[1])
    with pytest.raises(ValueError, match="tails"):
        lower_bound([1, 2, 3], 4, tails_s=[1])
