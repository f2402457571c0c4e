"""Trees and a Gaussian process together, on made-up runs whose law is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from memx_engine.errors import InputError
from memx_engine.predict.gaussian import Process
from memx_engine.predict.iteration_model import ITERATION_SETTINGS, Rows
from memx_engine.predict.run_model import RunModel, undisturbed

QUICK = replace(ITERATION_SETTINGS, rounds=60, parallel_trees=1)
NAMES = ("tp", "micro_batch", "hidden", "type_power", "time")


def rows(count: int, *, noise: float = 0.0, seed: int = 1) -> Rows:
    """Time is off by 0.2 per doubling of TP and 0.1 of the micro-batch, memory by 0.1 throughout."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 4, (count, 3)) * math.log(2.0)
    features = np.column_stack([places, np.full(count, 30.0), places.sum(axis=1)])
    time = 0.2 * places[:, 0] + 0.1 * places[:, 1] + rng.normal(0.0, noise, count)
    targets = np.column_stack([time, np.full(count, 0.1)])
    return Rows(features, targets, NAMES, np.array([f"c{i}" for i in range(count)]), ("x",) * count)


def test_the_law_is_learned_and_the_interval_holds() -> None:
    model = RunModel.fit(rows(80, noise=0.02), QUICK)
    new = rows(200, noise=0.02, seed=2)
    made = model.correct(new.features, new.types)
    left = np.abs(new.targets[:, 0] - made.shift[:, 0])
    assert left.mean() < 0.03
    assert 0.88 < (left <= made.width[:, 0]).mean() <= 1.0
    assert model.held_out == 80 and not any(made.outside)


def test_smooth_laws_are_left_to_the_process() -> None:
    assert RunModel.fit(rows(60), QUICK).shares[0] >= 0.5


def test_outside_the_range_the_factor_remains_and_the_interval_is_its_own() -> None:
    known = rows(80, noise=0.02)
    model = RunModel.fit(known, QUICK)
    near = known.features[:1]
    far = near.copy()
    far[0, 2] = math.log(2.0**9)
    inside, outside = model.correct(near, ("x",)), model.correct(far, ("x",))
    assert outside.outside == (("hidden",),)
    assert abs(outside.shift[0, 0] - model.factors[0]) < 0.2 * abs(inside.shift[0, 0] - model.factors[0])
    scatter = np.quantile(np.abs(known.targets[:, 0] - model.factors[0]), 0.9)
    assert outside.width[0, 0] > scatter > 2 * inside.width[0, 0]


def test_disturbed_runs_teach_nothing_of_time() -> None:
    known = rows(60, noise=0.02)
    slow = known.targets.copy()
    slow[:6, 0] += math.log(10.0)
    disturbed = replace(known, targets=slow)
    assert np.isnan(undisturbed(disturbed).targets[:6, 0]).all()
    assert not np.isnan(undisturbed(disturbed).targets[:, 1]).any()
    clean, spoiled = RunModel.fit(known, QUICK), RunModel.fit(disturbed, QUICK)
    new = rows(40, seed=3).features
    assert np.abs(clean.shifts(new)[:, 0] - spoiled.shifts(new)[:, 0]).mean() < 0.03


@pytest.mark.parametrize("count", [1, 3])
def test_few_runs_give_a_shrunk_factor_and_no_confident_interval(count: int) -> None:
    few = rows(count)
    few = replace(few, targets=np.full_like(few.targets, 0.4))
    model = RunModel.fit(few, QUICK)
    made = model.correct(few.features, few.types)
    assert 0 < made.shift[0, 0] < 0.4
    # What shrinking leaves over of three equal runs is what the interval knows; of one run it knows nothing.
    assert np.isnan(made.width[0, 0]) if count == 1 else made.width[0, 0] > 0


def test_constant_targets_stay_constant() -> None:
    known = rows(40)
    flat = replace(known, targets=np.full_like(known.targets, 0.25))
    model = RunModel.fit(flat, QUICK)
    assert model.shifts(known.features) == pytest.approx(0.25, abs=0.02)


def test_contradictory_repeats_widen_the_interval() -> None:
    known = rows(40)
    twice = known.joined(replace(known, targets=known.targets + np.array([0.5, 0.0])))
    calm = RunModel.fit(known, QUICK).correct(known.features[:1], ("x",))
    torn = RunModel.fit(twice, QUICK).correct(known.features[:1], ("x",))
    assert torn.width[0, 0] > 0.24 > calm.width[0, 0]


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinite_figures_are_refused(bad: float) -> None:
    known = rows(20)
    targets = known.targets.copy()
    targets[3, 0] = bad
    with pytest.raises(InputError, match="row 3 is infinite"):
        RunModel.fit(replace(known, targets=targets), QUICK)
    features = known.features.copy()
    features[2, 0] = np.nan
    with pytest.raises(InputError, match="feature tp of row 2 is nan"):
        RunModel.fit(replace(known, features=features), QUICK)


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(InputError, match="no measurements to learn from"):
        RunModel.fit(rows(4).part(np.zeros(4, dtype=bool)), QUICK)


def test_the_process_passes_through_smooth_data_and_shrugs_off_a_wild_row() -> None:
    x = np.linspace(-2, 2, 40)[:, None]
    y = np.sin(2 * x[:, 0])
    wild = y.copy()
    wild[20] += 5.0
    new = np.array([[0.33], [1.27]])
    for targets in (y, wild):
        assert Process.fit(x, targets).predict(new) == pytest.approx(np.sin(2 * new[:, 0]), abs=0.12)
