"""The longest path: never above the events of random pipelines, and equal to them where the docstring says so."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.cost.events import simulate
from memx_engine.cost.paths import path_bound
from memx_engine.cost.pipeline import lower_bound


def random_pipeline(rng: np.random.Generator, v: int) -> tuple[np.ndarray, np.ndarray, int, dict[str, np.ndarray]]:
    """Equal, nearly equal or quite unequal chunks; an embedding and a head; transfers; tails short to long."""
    p = int(rng.integers(1 if v == 1 else 2, 7))
    g = int(rng.integers(1, 20)) if v == 1 else p * int(rng.integers(1, 6))
    kind = int(rng.integers(3))
    if kind == 0:
        forward = np.full((p, v), 1.0)
        backward = forward * rng.uniform(1, 3)
    elif kind == 1:
        forward = rng.uniform(0.8, 1.2, (p, 1)) * np.ones((p, v))
        backward = forward * rng.uniform(1.8, 3, (p, 1))
    else:
        forward = rng.uniform(0, 1, (p, v)) * (rng.random((p, v)) < 0.8)
        backward = rng.uniform(0, 2, (p, v))
    forward[0, 0] += rng.choice([0, 0.3])
    forward[-1, -1] += rng.choice([0, 0.5])
    backward[-1, -1] += rng.choice([0, 1])
    links = rng.uniform(0, 1, p) * rng.choice([0, 0.1, 0.5])
    return forward, backward, g, {"links": links, "tails": rng.uniform(0, 1, p) * rng.choice([0, 2, 20])}


@pytest.mark.parametrize(("v", "cases"), [(1, 1000), (2, 1200), (3, 800), (4, 400)])
def test_no_random_pipeline_is_faster_than_its_longest_path(v: int, cases: int) -> None:
    rng = np.random.default_rng(v)
    tight = 0
    for _ in range(cases):
        forward, backward, g, given = random_pipeline(rng, v)
        links, tails = given["links"], given["tails"]
        events = simulate(
            forward,
            backward,
            links[:-1] if v == 1 else links,
            g,
            tails_s=tails,
            fixed_s=0.3,
            virtual_stages=v,
            overlap_p2p=v > 1 and bool(rng.integers(2)),
        ).iteration_time_s
        bound = path_bound(
            forward.tolist(), backward.tolist(), g, p2p_s=links[:-1].tolist(), tails_s=tails.tolist(), fixed_s=0.3
        )
        assert bound <= events * (1 + 1e-12), (forward, backward, g, given)
        # Never below what was known before.
        work = (forward + backward).sum(axis=1)
        own = float((g * work + tails).max()) + 0.3
        known = lower_bound(work, g, p2p_s=links[:-1], tails_s=tails, fixed_s=0.3) if v == 1 else own
        assert bound >= known * (1 - 1e-12)
        tight += bound >= 0.9 * events
    assert tight >= 0.75 * cases


@pytest.mark.parametrize(("p", "v"), [(1, 1), (2, 1), (5, 1), (2, 2), (5, 2), (2, 4), (5, 4)])
def test_equal_stages_without_transfers_are_exact(p: int, v: int) -> None:
    # Narayanan et al. 2021, section 2.2: G·t + (P-1)·t/v.
    forward, backward, g = np.full((p, v), 1.0), np.full((p, v), 2.0), 4 * p
    bound = path_bound(forward.tolist(), backward.tolist(), g, p2p_s=[0.0] * (p - 1), fixed_s=0.5)
    assert bound == pytest.approx(g * 3 * v + (p - 1) * 3 + 0.5)
    assert bound == pytest.approx(
        simulate(forward, backward, np.zeros(p - 1), g, virtual_stages=v, fixed_s=0.5).iteration_time_s
    )


def test_by_hand() -> None:
    # 1F1B of two stages, the first slow: 3 micro-batches of 3 + 6. Its first backward waits for its forward, transfer,
    # stage 1's 1 + 2 and the way back, 3 + 1 + 3 + 1 = 8; before it come two forwards of 3, so that it pauses for 2.
    # Behind its last forward two backwards of 6 are more than the turn of 5 and one backward: no pause.
    forward, backward = [[3.0], [1.0]], [[6.0], [2.0]]
    assert path_bound(forward, backward, 3, p2p_s=[1.0]) == 27 + 2
    assert simulate(forward, backward, [1.0], 3).iteration_time_s == 29


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="do not match"):
        path_bound([[1.0], [1.0]], [[1.0], [1.0]], 2, p2p_s=[])
