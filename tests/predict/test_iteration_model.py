"""The second level: factors from few runs, trees from many, and what happens outside the measured range."""

from __future__ import annotations

import math

import numpy as np
import pytest

from memx_engine.predict.iteration_model import ITERATION_SETTINGS, Extra, IterationModel, Rows, grouped_folds

QUICK = ITERATION_SETTINGS.__class__(**{**ITERATION_SETTINGS.__dict__, "rounds": 60, "parallel_trees": 1})


def rows(count: int, shift: float = 0.3) -> Rows:
    rng = np.random.default_rng(1)
    tp = np.log(2.0) * rng.integers(0, 4, count)
    hidden = np.log(1024.0) + np.log(2.0) * rng.integers(0, 3, count)
    targets = np.stack([shift + 0.2 * tp, np.full(count, np.nan)], axis=1)
    groups = np.array([f"c{i}" for i in range(count)])
    return Rows(np.stack([tp, hidden], axis=1), targets, ("tp", "hidden"), groups, ("x",) * count)


def test_one_run_gives_a_shrunk_factor() -> None:
    one = rows(1, shift=0.3)
    model = IterationModel.fit(one, QUICK)
    assert model.booster is None
    assert 0 < model.factors[0] / one.targets[0, 0] < 1
    assert model.factors[1] == 0.0
    assert np.isnan(model.correct(one.features, one.types).width).all()


def test_repeats_of_a_configuration_count_once() -> None:
    four = rows(4)
    repeated = Rows(four.features, four.targets, four.names, np.array(["c"] * 4), four.types)
    assert IterationModel.fit(repeated, QUICK).configurations == (1, 0)


def test_many_runs_give_trees_that_tell_configurations_apart() -> None:
    model = IterationModel.fit(rows(120), QUICK)
    known = rows(120)
    shift = model.shifts(known.features)
    assert np.abs(shift[:, 0] - known.targets[:, 0]).max() < 0.05
    assert (shift[:, 1] == 0).all()
    correction = model.correct(known.features, known.types)
    assert (correction.width[:, 0] < 0.1).all() and not any(correction.outside)


def test_outside_the_range_the_factor_remains_and_the_interval_widens() -> None:
    model = IterationModel.fit(rows(120), QUICK)
    far = np.array([[math.log(8.0), math.log(65536.0)]])
    near = np.array([[math.log(8.0), math.log(4096.0)]])
    inside, outside = model.correct(near, ("x",)), model.correct(far, ("x",))
    assert outside.outside == (("hidden",),) and inside.outside == ((),)
    assert outside.width[0, 0] > 2 * inside.width[0, 0]
    factor = model.factors[0]
    assert abs(outside.shift[0, 0] - factor) < 0.1 * abs(inside.shift[0, 0] - factor)


@pytest.mark.parametrize("folds", [2, 5, 99])
def test_folds_keep_configurations_together_and_cover_every_row(folds: int) -> None:
    groups = np.array([f"c{i % 7}" for i in range(40)])
    masks = grouped_folds(groups, folds, 0)
    assert len(masks) == min(folds, 7)
    assert (np.sum(masks, axis=0) == 1).all()
    for mask in masks:
        assert not set(groups[mask]) & set(groups[~mask])


def test_synthetic_rows_are_held_out_with_what_they_were_made_from() -> None:
    four = Rows(np.zeros((4, 1)), np.zeros((4, 2)), ("a",), np.array(["p", "q", "p", "r"]), ("t",) * 4)
    extra = Extra(four, (frozenset("p"), frozenset("q"), frozenset("pq"), frozenset("r")))
    assert extra.without(np.array(["p"])).groups.tolist() == ["q", "r"]
    assert len(extra.without(np.array(["p", "q", "r"]))) == 0


def test_intervals_never_see_a_held_out_points_own_synthetic_rows() -> None:
    """Noise that nobody can foresee, with synthetic copies of every point that give it away."""
    generator = np.random.default_rng(0)
    features, groups = generator.random((60, 2)), np.arange(60).astype(str)
    targets = generator.normal(size=(60, 2))
    noise = Rows(features, targets, ("a", "b"), groups, ("t",) * 60)
    copies = Extra(noise, tuple(frozenset([g]) for g in groups.tolist()))
    plain, helped = IterationModel.fit(noise, QUICK), IterationModel.fit(noise, QUICK, extra=copies)
    # The whole model may use them: it comes closer to what it saw. Its widths may not.
    left = [float(np.abs(targets - m.shifts(features)).mean()) for m in (plain, helped)]
    assert left[1] < 0.9 * left[0]
    widths = [m.widths[0].width("t", 0.0) for m in (plain, helped)]
    assert widths[0] is not None and widths[1] is not None and widths[1] > 0.8 * widths[0]
