"""The array work of the branch and bound against naive enumeration, many skeletons side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from memx_engine.search.problem import BALANCE, MEMORY, NUMBERS, OPTION, PERIOD, PLACE, STAGE_BITS, TAIL, TIME
from memx_engine.search.wave import Wave

Array = NDArray[np.float64]

NO_LIMIT = np.inf


@dataclass(frozen=True, eq=False)
class Node:
    """One skeleton's numbers and choices, and every plan of it as columns of the choices."""

    share: Array
    numbers: tuple[float, ...]
    choices: Array
    plans: list[tuple[int, ...]]

    @property
    def stages(self) -> int:
        return len(self.share)

    @property
    def layers(self) -> NDArray[np.intp]:
        return self.choices[PLACE].astype(np.intp) % (1 << STAGE_BITS)

    def of(self, row: int, plan: tuple[int, ...]) -> Array:
        return self.choices[row, list(plan)]

    def within(self, period: float, peak: float, tail: float) -> list[tuple[int, ...]]:
        limits = ((PERIOD, period), (MEMORY, peak), (TAIL, tail))
        return [p for p in self.plans if all(self.of(row, p).max() <= most for row, most in limits)]


def make_node(rng: np.random.Generator, stages: int, *, rising: bool = False, ties: bool = False) -> Node:
    """Small whole numbers, so that equal sums are equal; ``rising``: no value falls with the layers."""
    most, options = int(rng.integers(2, 5)), 1 if rising else int(rng.integers(1, 4))
    columns = []
    around = rng.integers(0, 5, stages)
    for stage in range(stages):
        counts = [n for n in range(1, most + 1) if rising or rng.random() < 0.8]
        values = rng.integers(1, 4 if ties else 40, (4, most + 1, options))
        if rising:
            values = np.sort(values, axis=1)
        for n, option in product(counts, range(options)):
            if rising or rng.random() < 0.85:
                time, memory, balance, tail = values[:, n, option]
                place = (stage << STAGE_BITS) + n
                columns.append([time, time + around[stage], memory, balance / 64, values[3, n, 0], place, 2 * option])
    choices = np.array(columns, dtype=np.float64).reshape(-1, 7).T
    place = choices[PLACE].astype(int)
    held = [np.flatnonzero(place >> STAGE_BITS == stage).tolist() for stage in range(stages)]
    sums = [sum(place[list(p)] % (1 << STAGE_BITS)) for p in product(*held)]
    layers = int(rng.choice(sums)) if sums else stages + 1
    plans = [p for p, total in zip(product(*held), sums, strict=True) if total == layers]
    share = rng.integers(1, 5, stages).astype(float)
    share /= share.sum()
    numbers = (stages, layers, float(rng.integers(0, 9)), 1.0, 0.5, 1.0, 0.0, 1e9, 1e9)
    assert len(numbers) == NUMBERS
    return Node(share, numbers, choices, plans)


def wave_of(nodes: list[Node]) -> Wave:
    return Wave([n.share for n in nodes], np.array([n.numbers for n in nodes]).T, [n.choices for n in nodes])


def mixed(seed: int, **how: bool) -> list[Node]:
    rng = np.random.default_rng(seed)
    return [make_node(rng, int(stages), **how) for stages in rng.permutation([1, 1, 2, 2, 3, 3, 4, 5])]


def unlimited(nodes: list[Node]) -> list[Array]:
    return [np.full(len(nodes), NO_LIMIT)] * 3


def limits(rng: np.random.Generator, nodes: list[Node]) -> list[Array]:
    """Per node a quantile of its own values."""
    share = rng.uniform(0.7, 1.0, (3, len(nodes)))
    rows = (PERIOD, MEMORY, TAIL)
    return [
        np.array([np.quantile(n.choices[row], s) if n.choices.size else 0.0 for n, s in zip(nodes, some, strict=True)])
        for row, some in zip(rows, share, strict=True)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_oracle_finds_what_enumeration_finds(seed: int) -> None:
    nodes, rng = mixed(seed), np.random.default_rng([1, seed])
    most = limits(rng, nodes) if seed % 2 else unlimited(nodes)
    wave = wave_of(nodes)
    wave.narrow(most)
    low, high = rng.integers(0, 20, (2, len(nodes))) / 64
    high = np.maximum(low, high)
    wave.set_means(low, high)
    a, b = rng.integers(0, 5, (2, len(nodes))).astype(float)
    active = rng.random(len(nodes)) < 0.9
    plans = wave.ask(a, b, active)
    found = 0
    for k, node in enumerate(nodes):
        left = node.within(*(float(values[k]) for values in most))
        if not (left and active[k]):
            assert not plans.exists[k]
            continue

        def spread(plan: tuple[int, ...], node: Node = node, k: int = k) -> Array:
            balance = node.of(BALANCE, plan)
            return np.asarray(node.share * (balance - low[k]) * (balance - high[k]))

        cost = [a[k] * node.of(TIME, p).sum() + b[k] * spread(p).sum() for p in left]
        assert plans.exists[k]
        assert a[k] * plans.x[k] + b[k] * plans.y[k] == pytest.approx(min(cost), abs=1e-9)
        layers, options, memory = wave.plan_of(plans, k)
        (mine,) = (
            p
            for p in left
            if node.layers[list(p)].tolist() == list(layers) and node.of(OPTION, p).tolist() == list(options)
        )
        assert cost[left.index(mine)] == pytest.approx(min(cost), abs=1e-9)
        # The measures are those of the plan itself.
        mean = float(node.share @ node.of(BALANCE, mine))
        expected = {
            "x": node.of(TIME, mine).sum(),
            "y": spread(mine).sum(),
            "terms": np.abs(spread(mine)).sum(),
            "time_s": node.numbers[2] * node.of(PERIOD, mine).max()
            + node.of(TIME, mine).sum()
            + 0.5
            + node.of(TAIL, mine).max(),
            "peak": node.of(MEMORY, mine).max(),
            "period_s": node.of(PERIOD, mine).max(),
            "tail_s": node.of(TAIL, mine).max(),
            "mean": mean,
            "variance": node.share @ (node.of(BALANCE, mine) - mean) ** 2,
        }
        for name, value in expected.items():
            assert getattr(plans, name)[k] == pytest.approx(value, abs=1e-9), name
        assert memory == tuple(node.of(MEMORY, mine).tolist())
        found += 1
    assert found >= 2


@pytest.mark.parametrize("seed", range(12))
def test_of_equals_later_stages_take_more_layers_and_the_first_option_is_taken(seed: int) -> None:
    nodes = mixed(seed, ties=True)
    wave = wave_of(nodes)
    wave.narrow(unlimited(nodes))
    one = np.ones(len(nodes))
    plans = wave.ask(one, 0 * one, one.astype(bool))
    tied = 0
    for k, node in enumerate(nodes):
        if not node.plans:
            assert not plans.exists[k]
            continue
        cost = [node.of(TIME, p).sum() for p in node.plans]
        best = [p for p, value in zip(node.plans, cost, strict=True) if value == min(cost)]
        tied += len(best) > 1
        first = min(best, key=lambda p: ((-node.layers[list(p)][::-1]).tolist(), p))
        layers, options, _ = wave.plan_of(plans, k)
        assert (layers, options) == (tuple(node.layers[list(first)].tolist()), tuple(node.of(OPTION, first).tolist()))
    assert tied >= 2


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_a_plan_within_the_limits_needs_is_dropped(seed: int) -> None:
    nodes, rng = mixed(100 + seed), np.random.default_rng([2, seed])
    most = limits(rng, nodes)
    wave = wave_of(nodes)
    wave.narrow(most)
    dropped = 0
    for k, (node, left) in enumerate(zip(nodes, wave.choices(), strict=True)):
        plans = node.within(*(float(values[k]) for values in most))
        needed = {tuple(node.choices[:, column].tolist()) for plan in plans for column in plan}
        kept = {tuple(column) for column in left.T.tolist()}
        assert needed <= kept <= {tuple(column) for column in node.choices.T.tolist()}
        assert wave.alive[k] or not plans
        for row, values in zip((PERIOD, MEMORY, TAIL), most, strict=True):
            assert (left[row] <= values[k]).all()
        dropped += node.choices.shape[1] - len(kept)
        if plans:
            # Least sums and the interval of the mean hold for every plan that is left.
            low, high = (ends[k] for ends in wave.mean_ends())
            means = [float(node.share @ node.of(BALANCE, p)) for p in plans]
            assert low - 1e-12 <= min(means) and max(means) <= high + 1e-12
            assert wave.least_total_s()[k] <= min(node.of(TIME, p).sum() for p in plans)
    assert dropped > 20


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_has_less_period_peak_or_tail_than_the_least_ends(seed: int) -> None:
    rising = seed % 2 == 0
    nodes, rng = mixed(200 + seed, rising=rising), np.random.default_rng([3, seed])
    most = limits(rng, nodes) if seed % 3 else unlimited(nodes)
    wave = wave_of(nodes)
    wave.narrow(most)
    ends = wave.least_ends()
    judged = 0
    for k, node in enumerate(nodes):
        plans = node.within(*(float(values[k]) for values in most))
        judged += len(plans) > 0
        for row, least in zip((PERIOD, MEMORY, TAIL), ends, strict=True):
            true = min((node.of(row, p).max() for p in plans), default=np.inf)
            assert least[k] <= true
            # With values that never fall with the layers, and none missing, the bound is reached.
            if rising and seed % 3 == 0:
                assert least[k] == true
    assert judged >= 2


def test_the_corner_is_below_every_plan() -> None:
    nodes = mixed(300)
    wave = wave_of(nodes)
    wave.narrow(unlimited(nodes))
    low, high = wave.mean_ends()
    wave.set_means(low, high)
    x, y, terms = wave.corner()
    for k, node in enumerate(nodes):
        for plan in node.plans:
            balance = node.of(BALANCE, plan)
            mean = float(node.share @ balance)
            assert x[k] <= node.of(TIME, plan).sum()
            assert y[k] <= node.share @ (balance - mean) ** 2 + 1e-12 and abs(y[k]) <= terms[k]


def test_values_around_a_cut() -> None:
    nodes, rng = [node for node in mixed(7) if node.choices.size], np.random.default_rng(8)
    wave = wave_of(nodes)
    for which, row in enumerate((PERIOD, MEMORY, TAIL)):
        cut = rng.integers(0, 45, len(nodes)).astype(float)
        lower, upper = wave.around(np.full(len(nodes), which), cut)
        for k, node in enumerate(nodes):
            values = node.choices[row]
            assert lower[k] == max(values[values <= cut[k]], default=-np.inf)
            assert upper[k] == min(values[values > cut[k]], default=np.inf)


def test_skeletons_without_a_choice_hold_no_plan_and_disturb_no_other() -> None:
    node = next(node for node in mixed(9) if len(node.plans) > 1 and node.stages > 1)
    nothing = Node(node.share, node.numbers, np.zeros((7, 0)), [])
    no_last_stage = Node(
        node.share, node.numbers, node.choices[:, node.choices[PLACE] < (node.stages - 1) << STAGE_BITS], []
    )
    answers = []
    for nodes in ([node], [nothing, node, no_last_stage], [no_last_stage, nothing, node]):
        wave = wave_of(nodes)
        wave.narrow(unlimited(nodes))
        one = np.ones(len(nodes))
        plans = wave.ask(one, 0 * one, one.astype(bool))
        at = nodes.index(node)
        assert np.flatnonzero(plans.exists).tolist() == [at]
        assert np.isfinite(wave.least_ends()[0]).tolist() == [k == at for k in range(len(nodes))]
        answers.append((plans.x[at], plans.time_s[at], wave.plan_of(plans, at)))
    assert answers[0] == answers[1] == answers[2]
    wave = wave_of([nothing, nothing])
    wave.narrow([np.full(2, NO_LIMIT)] * 3)
    assert not wave.ask(np.ones(2), np.ones(2), np.ones(2, dtype=bool)).exists.any()
    assert np.isinf(wave.least_ends()).all() and not wave.alive.any()
