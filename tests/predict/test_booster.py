"""The booster: two outputs, missing targets, bad rows, and reading itself back."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.errors import InputError
from memx_engine.predict.booster import Booster, BoosterSettings

NAMES = ("a", "b", "c")
QUICK = BoosterSettings(rounds=120, subsample=1.0, columns=1.0, min_child_weight=1.0)


def rows(count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(0).uniform(-1, 1, (count, 3))
    return features, np.stack([np.sin(2 * features[:, 0]) + 3.0, features[:, 1] ** 2], axis=1)


@pytest.mark.parametrize("shared", [True, False])
class TestBothKindsOfTrees:
    def test_learns_two_outputs_at_once(self, shared: bool) -> None:
        features, targets = rows()
        booster = Booster.fit(features, targets, NAMES, BoosterSettings(**{**QUICK.__dict__, "shared_trees": shared}))
        assert np.abs(booster.predict(features) - targets).mean() < 0.03
        assert list(booster.gains())[:2] in (["a", "b"], ["b", "a"])
        assert sum(booster.gains().values()) == pytest.approx(1.0)

    def test_a_missing_target_teaches_nothing_and_disturbs_nothing(self, shared: bool) -> None:
        features, targets = rows()
        targets[::2, 1] = np.nan
        settings = BoosterSettings(**{**QUICK.__dict__, "shared_trees": shared})
        predicted = Booster.fit(features, targets, NAMES, settings).predict(features)
        assert np.abs(predicted[:, 1] - features[:, 1] ** 2).mean() < 0.06
        assert np.abs(predicted[:, 0] - targets[:, 0]).mean() < 0.03

    def test_an_output_never_seen_stays_zero(self, shared: bool) -> None:
        features, targets = rows()
        targets[:, 1] = np.nan
        settings = BoosterSettings(**{**QUICK.__dict__, "shared_trees": shared})
        booster = Booster.fit(features, targets, NAMES, settings)
        assert (booster.predict(features)[:, 1] == 0).all()
        assert booster.known.tolist() == [True, False]

    def test_reads_itself_back_exactly(self, shared: bool) -> None:
        features, targets = rows(80)
        settings = BoosterSettings(**{**QUICK.__dict__, "shared_trees": shared})
        booster = Booster.fit(features, targets, NAMES, settings)
        again = Booster.from_bytes(booster.to_bytes(), NAMES, booster.centre.tolist(), booster.known.tolist())
        assert np.array_equal(again.predict(features), booster.predict(features))


def test_same_rows_same_trees() -> None:
    features, targets = rows(60)
    first, second = (Booster.fit(features, targets, NAMES, BoosterSettings(rounds=20)) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()


def test_a_constant_target_is_predicted_everywhere() -> None:
    features, targets = rows(30)
    targets[:] = 7.0
    assert Booster.fit(features, targets, NAMES, QUICK).predict(features) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f, t: (f[:0], t[:0]), "no measurements"),
        (lambda f, t: (np.where(np.arange(len(f))[:, None] == 3, np.nan, f), t), "feature a of row 3"),
        (lambda f, t: (f, np.where(np.arange(len(t))[:, None] == 5, np.inf, t)), "time of row 5 is infinite"),
        (lambda f, t: (f[:, :2], t), "do not belong"),
    ],
)
def test_rows_that_teach_nothing_are_refused(spoil: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Booster.fit(*spoil(*rows(20)), NAMES, QUICK)  # type: ignore[operator,call-arg]  # a function of the two arrays


def test_trees_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Booster.from_bytes(b"{not trees", NAMES, [0, 0], [True, True])
    raw = Booster.fit(*rows(20), NAMES, BoosterSettings(rounds=2)).to_bytes()
    with pytest.raises(InputError, match="3 features, 2 are named"):
        Booster.from_bytes(raw, NAMES[:2], [0, 0], [True, True])
