from __future__ import annotations

from memx_engine.plan import Skeleton
from memx_engine.search.priority import varied_first
from memx_engine.search.space import enumerate_space
from tests.builders import make_cluster, make_job, make_model


def skeletons() -> list[Skeleton]:
    cluster, model = make_cluster(), make_model()
    return list(enumerate_space(cluster, model, make_job()).skeletons())


def test_every_combination_of_what_matters_comes_before_any_comes_twice() -> None:
    every = skeletons()
    order = varied_first(every, {"tp": 0.4, "micro_batch": 0.3, "types": 0.0})
    assert sorted(order) == list(range(len(every)))
    keys = [(every[i].placements[0].tp, every[i].micro_batch) for i in order]
    distinct = len(set(keys))
    assert 4 < distinct < len(every)
    assert len(set(keys[:distinct])) == distinct
    # Without importances the same prefix misses some: it is the importances that bring them forward.
    plain = [(every[i].placements[0].tp, every[i].micro_batch) for i in varied_first(every, {})]
    assert len(set(plain[:distinct])) < distinct


def test_the_order_is_always_the_same_and_scattered() -> None:
    every = skeletons()
    assert varied_first(every, {}) == varied_first(every, {"tp": 0.01})
    order = varied_first(every, {})
    assert sorted(order) == list(range(len(every))) and order != sorted(order)
    assert varied_first([], {"tp": 1.0}) == []
