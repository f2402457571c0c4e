from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.predict.booster import BoosterSettings
from memx_engine.predict.iteration_model import Rows
from memx_engine.predict.tuning import SPACE, WORTH, _settings, held_out_error, tune, tune_on

START = BoosterSettings(rounds=50, depth=8, learning_rate=0.3, subsample=0.5, min_child_weight=16.0)


def bowl(settings: BoosterSettings) -> float:
    """Least, 1, at depth 3 and a learning rate of 0.03; nothing else matters."""
    return 1.0 + (settings.depth - 3) ** 2 / 10 + math.log(settings.learning_rate / 0.03) ** 2


@given(st.sampled_from(SPACE), st.floats(0, 1))
def test_places_and_values_are_each_others_inverse(dimension: object, place: float) -> None:
    value = dimension.value(place)  # type: ignore[attr-defined]  # a Dimension; hypothesis loses the type
    assert dimension.low <= value <= dimension.high  # type: ignore[attr-defined]
    again = dimension.value(dimension.place(value))  # type: ignore[attr-defined]
    assert again == pytest.approx(value)


def test_a_bowl_is_descended_much_faster_than_by_chance() -> None:
    found = [tune(bowl, replace(START, seed=s), trials=16).best_error for s in range(3)]
    generator = np.random.default_rng(0)
    chance = [min(bowl(_settings(START, p)) for p in generator.random((16, len(SPACE)))) for _ in range(200)]
    assert max(found) - 1.0 < 0.2 * (float(np.median(chance)) - 1.0)
    tuned = tune(bowl, START, trials=10)
    assert bowl(tuned.settings) == tuned.best_error < tuned.start_error
    assert len(tuned.trials) == 10 and tuned.ended == "trials"
    assert tune(bowl, START, trials=10).trials == tuned.trials


def test_what_is_hardly_better_is_not_taken() -> None:
    tuned = tune(lambda s: 1.0 if s == START else 1.0 - (1.0 - WORTH) / 2, START, trials=8)
    assert tuned.settings == START and tuned.best_error < 1.0


def test_budget_and_cancelling_keep_what_was_found() -> None:
    seen: list[tuple[int, int, float]] = []
    tuned = tune(bowl, START, trials=20, on_progress=lambda *a: seen.append(a), should_stop=lambda: len(seen) >= 9)
    assert tuned.ended == "cancelled" and len(tuned.trials) == 9
    assert [done for done, _, _ in seen] == list(range(1, 10))
    bests = [best for _, _, best in seen]
    assert bests == sorted(bests, reverse=True)
    late = tune(bowl, START, trials=20, time_limit_s=0.0)
    assert late.ended == "time" and len(late.trials) == 1 and late.settings == START
    assert len(tune(bowl, START, trials=1).trials) == 1


def rows(groups: int, repeats: int) -> Rows:
    generator = np.random.default_rng(0)
    features = np.repeat(generator.random((groups, 3)), repeats, axis=0)
    targets = np.stack([np.sin(6 * features[:, 0]), features[:, 1] ** 2], axis=1)
    names = ("a", "b", "c")
    return Rows(features, targets, names, np.repeat(np.arange(groups), repeats).astype(str), ("t",) * len(features))


def test_the_error_is_of_configurations_that_the_model_never_saw() -> None:
    # Random labels that every repeat of a configuration shares can be remembered but never foreseen.
    base = rows(40, 4)
    labels = np.repeat(np.random.default_rng(1).normal(size=(40, 2)), 4, axis=0)
    remembered = Rows(base.features, labels, base.names, base.groups, base.types)
    quick = BoosterSettings(rounds=100, depth=6, learning_rate=0.2)
    chance = sum(float(np.abs(c - np.median(c)).mean()) for c in labels.T)
    assert held_out_error(remembered, quick) > 0.8 * chance
    assert held_out_error(base, quick) < 0.5 * sum(float(np.abs(c - c.mean()).mean()) for c in base.targets.T)
    assert held_out_error(base.part(base.groups == "0"), quick) == math.inf


def test_tuning_on_rows_does_not_leave_the_space() -> None:
    tuned = tune_on(rows(20, 1), BoosterSettings(rounds=50, depth=2), trials=4)
    for trial in tuned.trials[1:]:
        for dimension in SPACE:
            assert dimension.low <= getattr(trial.settings, dimension.name) <= dimension.high
    assert tuned.best_error <= tuned.start_error
