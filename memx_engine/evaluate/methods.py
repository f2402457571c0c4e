"""The three predictions that are compared: first principles alone, the paper's direct form, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memx_engine.evaluate.rows import JudgedRow
from memx_engine.evaluate.samples import CONVENTIONS, Convention, Sample, all_samples
from memx_engine.predict.booster import Array, Booster, BoosterSettings
from memx_engine.predict.intervals import Widths
from memx_engine.predict.iteration_model import (
    ITERATION_SETTINGS,
    LEAST_FOR_TREES,
    SIZES,
    Rows,
)
from memx_engine.predict.layers import LayerCorrections, LayerRow
from memx_engine.predict.recalibrate import MAY_BE_OFF, recalibrated
from memx_engine.predict.run_model import RunModel
from memx_engine.predict.tuning import held_out_error

Mask = NDArray[np.bool_]

CLEARLY = 0.9
"""A convention, or recompute as features, replaces the default when it leaves at most this share of the error."""


@dataclass(frozen=True)
class Split:
    """Masks over the judged rows: learned from, calibrated with, judged."""

    train: Mask
    calibrate: Mask
    test: Mask


@dataclass(frozen=True, eq=False)
class Predictions:
    """Per sample, NaN where a sample is not judged: (n, 2) seconds and bytes, and (n, 2) half widths of logarithms.

    ``held_out``: how many times the widths rest on.
    """

    values: Array
    widths: Array
    held_out: int = 0


class Truth:
    """Judged rows with their samples under every convention, made when first asked for.

    ``layers``: single layers that were measured; only what is asked for as corrected makes use of them.
    """

    def __init__(self, rows: Sequence[JudgedRow], layers: Sequence[LayerRow] = ()) -> None:
        default, refused = all_samples(rows, CONVENTIONS[0])
        lost = {label for label, _ in refused}
        self.refused = refused
        self.rows = [row for row in rows if row.label not in lost]
        if refused:
            default, _ = all_samples(self.rows, CONVENTIONS[0])
        self._layers = LayerCorrections(list(layers)) if layers else None
        self._samples: dict[tuple[Convention, bool], list[Sample]] = {(CONVENTIONS[0], False): default}

    def samples(self, convention: Convention = CONVENTIONS[0], *, corrected: bool = False) -> list[Sample]:
        """In the same order under every convention up to which device is slowest, so always matched by place."""
        key = convention, corrected and self._layers is not None
        if key not in self._samples:
            self._samples[key], _ = all_samples(self.rows, convention, self._layers if key[1] else None)
        return self._samples[key]

    @cached_property
    def row_of(self) -> NDArray[np.int64]:
        return np.array([sample.row for sample in self.samples()], dtype=np.int64)

    @cached_property
    def configurations(self) -> NDArray[np.str_]:
        """(rows,)"""
        return np.array([row.configuration for row in self.rows], dtype=np.str_)

    @cached_property
    def frameworks(self) -> NDArray[np.str_]:
        return np.array([row.framework for row in self.rows], dtype=np.str_)

    @cached_property
    def out_of_memory(self) -> Mask:
        """(rows,)"""
        return np.array([row.out_of_memory for row in self.rows], dtype=np.bool_)

    @cached_property
    def capacity_bytes(self) -> Array:
        """(n,) memory of the sample's GPU type."""
        rows = [self.rows[sample.row].layout.cluster.gpu_type(sample.subject) for sample in self.samples()]
        return np.array([float(gpu_type.memory_bytes) for gpu_type in rows])

    @cached_property
    def outside_bytes(self) -> Array:
        """(n,) what the device holds beside the part of the memory that the row counts."""
        return np.array([sample.outside_bytes for sample in self.samples()])

    def dimensions(self, names: Sequence[str]) -> dict[str, NDArray[np.str_]]:
        """(n,) per name, the values as text."""
        columns: dict[str, list[str]] = {name: [] for name in names}
        for sample in self.samples():
            layout = self.rows[sample.row].layout
            s, model = layout.plan.skeleton, layout.model
            found = {
                "gpu_type": "+".join(s.type_order),
                "gpus": s.tp * s.pp * s.dp,
                "tp": s.tp,
                "pp": s.pp,
                "dp": s.dp,
                "micro_batch": s.micro_batch,
                "seq_len": s.seq_len,
                "layers": model.layers,
                "hidden": model.hidden,
                "recompute": "|".join(dict.fromkeys(f"{p.gpu_type}:{p.recompute}" for p in layout.plan.stages)),
            }
            for name in names:
                columns[name].append(str(found[name]))
        return {name: np.array(values, dtype=np.str_) for name, values in columns.items()}

    @cached_property
    def measured(self) -> Array:
        """(n, 2) seconds and bytes, NaN where a sample is not about them."""
        return np.array([[_number(s.time_s), _number(s.memory_bytes)] for s in self.samples()]).reshape(-1, 2)

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple(sample.subject for sample in self.samples())

    def predicted(self, convention: Convention = CONVENTIONS[0], *, corrected: bool = False) -> Array:
        """(n, 2) what the cost model composes."""
        samples = self.samples(convention, corrected=corrected)
        made = [[s.predicted_time_s, s.predicted_memory_bytes] for s in samples]
        return np.array(made, dtype=np.float64).reshape(-1, 2)

    def arrays(
        self, convention: Convention, features: Callable[[Sample], dict[str, float]], *, corrected: bool = False
    ) -> Rows:
        """All samples as arrays, targets log(measured / composed)."""
        samples = self.samples(convention, corrected=corrected)
        described = [features(sample) for sample in samples]
        names = tuple(described[0]) if described else ()
        matrix = np.array([[float(row[name]) for name in names] for row in described], dtype=np.float64)
        targets = np.log(self.measured / self.predicted(convention, corrected=corrected))
        groups = self.configurations[self.row_of] if samples else np.array([], dtype=np.str_)
        return Rows(matrix, targets, names, groups, self.types)


def _number(value: float | None) -> float:
    return np.nan if value is None else value


Method = Callable[[Truth, Split, int], Predictions]


def first_principles(truth: Truth, split: Split, seed: int) -> Predictions:
    """The cost model with nothing learned."""
    values = np.where(split.test[truth.row_of][:, None], truth.predicted(), np.nan)
    return Predictions(values, np.full(values.shape, np.nan))


def direct(truth: Truth, split: Split, seed: int) -> Predictions:
    """The paper's form: raw seconds and bytes from raw features, with the same booster and settings as ours."""
    rows = truth.arrays(CONVENTIONS[0], lambda sample: dict(sample.raw))
    learn = (split.train | split.calibrate)[truth.row_of]
    test = split.test[truth.row_of]
    values = np.full(truth.measured.shape, np.nan)
    measured = truth.measured[learn]
    if learn.any():
        scale = np.where(np.isnan(measured).all(axis=0), 1.0, _mean(measured))
        least = np.where(np.isnan(measured).all(axis=0), np.nan, _least(measured))
        settings = replace(ITERATION_SETTINGS, seed=seed)
        booster = Booster.fit(rows.features[learn], measured / scale, rows.names, settings)
        # A sum of trees can leave the range of what it saw, even below zero.
        values[test] = np.maximum(booster.predict(rows.features[test]) * scale, least / 2)
    return Predictions(values, np.full(values.shape, np.nan))


def _mean(values: Array) -> Array:
    present = ~np.isnan(values)
    return np.asarray(np.where(present, values, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1))


def _least(values: Array) -> Array:
    return np.asarray(np.where(np.isnan(values), np.inf, values).min(axis=0))


def _everything(sample: Sample) -> dict[str, float]:
    return {**sample.skeleton, **sample.recompute}


def memx(truth: Truth, split: Split, seed: int) -> Predictions:
    """Ours: first principles times what the iteration model learned, then one factor from the calibration rows."""
    learn_rows = split.train if split.train.any() else split.calibrate
    conventions = choose_conventions(truth, learn_rows | split.calibrate)
    rows, composed = _assembled(truth, conventions)
    everything = rows
    known = ~np.isnan(rows.targets).all(axis=1)
    learn, test = learn_rows[truth.row_of] & known, split.test[truth.row_of]
    values = np.full(truth.measured.shape, np.nan)
    widths = np.full(truth.measured.shape, np.nan)
    if not learn.any():
        values[test] = composed[test]
        return Predictions(values, widths)
    settings = replace(ITERATION_SETTINGS, seed=seed)
    rows = _useful(truth, rows, learn, settings)
    model = RunModel.fit(rows.part(learn), settings)
    kinds = tuple(name for name, judged in zip(rows.types, test, strict=True) if judged)
    made = model.correct(rows.features[test], kinds)
    shift, width = made.shift, made.width
    calibrate = (split.calibrate & ~learn_rows)[truth.row_of] & known
    if calibrate.any():
        own = everything.columns([name for name in MAY_BE_OFF if name in everything.names])
        left = rows.targets[calibrate] - model.shifts(rows.features[calibrate])
        shift = shift + recalibrated(own.features[calibrate], own.names, left, own.features[test])
        still = left - recalibrated(own.features[calibrate], own.names, left, own.features[calibrate])
        kinds = tuple(name for name, known_run in zip(rows.types, calibrate, strict=True) if known_run)
        wider = np.array([_number(Widths.of(still[:, k], kinds).overall) for k in range(2)])
        width = np.where(np.isfinite(wider), np.fmax(width, wider), width)
    values[test] = composed[test] * np.exp(shift)
    widths[test] = width
    return Predictions(values, widths, model.held_out)


def choose_conventions(truth: Truth, learn: Mask) -> dict[str, Convention]:
    """Framework → the convention whose composed estimates come nearest to the known runs, before any factor.

    The right one needs the least correction; one that is wrong can still scatter little around a factor, but such a
    factor does not hold for other sizes.
    """
    chosen = dict.fromkeys(truth.frameworks, CONVENTIONS[0])
    for framework in chosen:
        own = (learn & (truth.frameworks == framework))[truth.row_of]
        if own.sum() < 3:
            continue
        scores = {
            c: _distance(np.log(truth.measured[own] / truth.predicted(c, corrected=True)[own])) for c in CONVENTIONS
        }
        best = min(CONVENTIONS, key=scores.__getitem__)
        if scores[best] < CLEARLY * scores[CONVENTIONS[0]]:
            chosen[framework] = best
    return chosen


def _distance(logs: Array) -> float:
    """Mean absolute logarithm of time and of memory, added; an output with fewer than three figures has no say."""
    total = 0.0
    for column in logs.T:
        known = column[~np.isnan(column)]
        if len(known) >= 3:
            total += float(np.abs(known).mean())
    return total


def _assembled(truth: Truth, conventions: dict[str, Convention]) -> tuple[Rows, Array]:
    """All features, targets and composed estimates, every row under its framework's convention."""
    used = list(dict.fromkeys(conventions.values()))
    rows = truth.arrays(used[0], _everything, corrected=True)
    composed = truth.predicted(used[0], corrected=True).copy()
    features, targets = rows.features.copy(), rows.targets.copy()
    frameworks = truth.frameworks[truth.row_of]
    for framework, convention in conventions.items():
        if convention is not used[0]:
            own = frameworks == framework
            other = truth.arrays(convention, _everything, corrected=True)
            features[own], targets[own] = other.features[own], other.targets[own]
            composed[own] = truth.predicted(convention, corrected=True)[own]
    return replace(rows, features=features, targets=targets), composed


def _useful(truth: Truth, rows: Rows, learn: Mask, settings: BoosterSettings) -> Rows:
    """Features that vary among the known rows; those of recompute only where cross-validation says so."""
    spread = np.ptp(rows.features[learn], axis=0)
    samples = truth.samples()
    skeleton = [name for name in samples[0].skeleton if spread[rows.names.index(name)] > 0]
    recompute = [name for name in samples[0].recompute if spread[rows.names.index(name)] > 0]
    # Sizes stay: that one never varied is what tells an extrapolation.
    sizes = [name for name in rows.names if name in SIZES and name not in skeleton]
    plain = rows.columns([*skeleton, *sizes])
    if not recompute or len(np.unique(rows.groups[learn])) < LEAST_FOR_TREES:
        return plain
    full = rows.columns([*skeleton, *sizes, *recompute])
    quick = replace(settings, rounds=max(settings.rounds // 2, 1), parallel_trees=1)
    errors = [held_out_error(candidate.part(learn), quick) for candidate in (plain, full)]
    return full if errors[1] < CLEARLY * errors[0] else plain


METHODS: dict[str, Method] = {"first-principles": first_principles, "direct": direct, "memx": memx}
