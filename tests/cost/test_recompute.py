from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.cost.recompute import basis, counts, strategies
from memx_engine.inputs.job import Framework
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute


def block(k: int) -> Recompute:
    return Recompute("block", k)


def uniform(n: int) -> Recompute:
    return Recompute("uniform", n)


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_layer_is_kept_whole_or_recomputed(n: int, k: int) -> None:
    made = counts(n, block(k))
    if k > n:
        assert made is None
    else:
        assert made is not None
        assert made.whole + made.inputs == n
        assert made.again == made.inputs == k
        assert made.working == 1


@given(st.integers(1, 60), st.integers(1, 10))
def test_uniform_keeps_one_input_per_group_and_recomputes_all(n: int, group: int) -> None:
    made = counts(n, uniform(group))
    assert made is not None
    assert made.inputs == int(np.ceil(n / group))
    assert made.again == n
    assert made.working == min(n, group)


@given(st.integers(1, 40))
def test_the_extremes_are_none_and_full(n: int) -> None:
    everything, full = counts(n, block(n)), counts(n, FULL)
    assert everything == full == counts(n, uniform(1))
    none = counts(n, NONE)
    assert none is not None and none.whole == n and none.again == 0


def test_flagscale_has_no_selective_and_block_stops_where_another_strategy_is_the_same() -> None:
    every = strategies(32, 4, 1, Framework.ANY)
    assert every[:2] == (NONE, SELECTIVE)
    assert block(28) in every and block(29) not in every  # the other three stages hold a layer each
    assert SELECTIVE not in strategies(32, 4, 1, Framework.FLAGSCALE)
    assert strategies(1, 1, 1, Framework.ANY) == (NONE, SELECTIVE, FULL)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_the_table_holds_the_counts_of_a_chunk(v: int) -> None:
    options = strategies(12, 2, v, Framework.ANY)
    table, illegal = basis(12, options, v)
    for n in range(13):
        for r, option in enumerate(options):
            made = counts(n // v, option) if n and n % v == 0 else None
            if option.kind == "uniform" and option.n > n // v:
                made = None  # a group larger than its chunk is measured now and then, never planned
            assert illegal[n, r] == (made is None)
            assert tuple(table[:, n, r]) == (made.vector if made else (0.0,) * 8)
