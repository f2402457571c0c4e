"""First principles corrected by what is stored: the estimator until there is a trained predictor."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.first_principles import ExchangeRate, FirstPrinciples
from memx_engine.cost.origins import Limits
from memx_engine.cost.sketch import Sketch
from memx_engine.cost.table import StageTable
from memx_engine.errors import OutputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome
from memx_engine.plan import Estimate, Plan, Provenance, Recompute, Skeleton
from memx_engine.predict.calibration import Calibration, calibrate
from memx_engine.predict.compositions import Composition, Runs, find_runs, fit_compositions, layer_measurements
from memx_engine.predict.factors import PRIOR_POINTS
from memx_engine.predict.predicted import Predicted
from memx_engine.predict.run_level import RunLevel, fit_run_level
from memx_engine.predict.signatures import Signatures
from memx_engine.predict.soundness import sound
from memx_engine.predict.trained import Trained, trained_stages
from memx_engine.profile.described import OfCluster
from memx_engine.profile.importers.columns import Kind
from memx_engine.profile.store import Store

LEAST_TO_LEARN = 20
"""Distinct measured points of a GPU type from which on the predictor learns from it; of fewer only a factor."""

_WEAKEST_FIRST = (Provenance.UNCALIBRATED, Provenance.SIMULATED, Provenance.MEASURED)


class Calibrated:
    """First principles corrected by measurements.

    Stages: of GPU types with enough points, the learned predictor (:class:`~.predicted.Predicted`); of others one
    shrunk factor each for time, activations, fragmentation and context. All scale the terms of a stage's cost, so
    tables and estimates agree as those of first principles do.

    Iterations: one factor per GPU type from imported runs (a skeleton takes the geometric mean over its GPUs), or with
    many runs trees over skeletons; whatever split and recompute, so that inside a skeleton it is a constant and the
    exact solver stays exact.

    Without usable data all of it is first principles, ``uncalibrated``, with the same fingerprint.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        calibration: Calibration,
        compositions: Mapping[str, Composition] | None = None,
        left_out: tuple[str, ...] = (),
        trained: Trained | None = None,
        signatures: Signatures | None = None,
        runs: RunLevel | None = None,
    ) -> None:
        self.cluster, self.model, self.job = cluster, model, job
        self.calibration, self.compositions = calibration, dict(compositions or {})
        self._runs_left_out, self.runs = left_out, runs
        self._plain = FirstPrinciples(cluster, model, job) if runs else None
        self._by_skeleton: dict[Skeleton, tuple[float, float, tuple[str, ...]]] = {}
        self._left_out = (*calibration.left_out, *left_out)
        self.trained = trained or Trained(None)
        self._signatures = self.trained.signatures() if signatures is None else signatures
        self._base = _stages_of(calibration, self.trained, self._signatures)(cluster, model, job)
        self._fingerprint = self._base.fingerprint
        if self.calibrated:
            known = {
                name: [dict(c.truths), [[metric, f.value, f.points] for metric, f in c.factors.items()]]
                for name, c in calibration.types.items()
            }
            composed = {name: [c.factor.value, c.factor.points] for name, c in self.compositions.items()}
            level = runs.digest if runs else ""
            text = json.dumps([self._fingerprint, known, composed, level], sort_keys=True)
            self._fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def fit(
        cls,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        measurements: Iterable[Measurement],
        runs: Runs | None = None,
        *,
        learn: bool = True,
        keep: Path | None = None,
    ) -> Calibrated:
        """The estimator that ``measurements`` of stages and ``runs`` of whole iterations give.

        Runs are compared with what the corrected stages are composed to, so that no miss is corrected twice.

        Args:
            learn: Train the predictor where there is enough; without it all types get factors, which is quicker.
            keep: Folder of trained predictors, where one of the same measurements is found again.
        """
        runs = runs or Runs()
        kept, unsound = sound(measurements)
        calibration = calibrate(cluster, model, job, kept, really_measured=runs.real_types)
        enough = learnable(calibration)
        trained = trained_stages(cluster, model, job, enough, keep) if learn else Trained(None)
        stages_of = _stages_of(calibration, trained)
        compositions = fit_compositions(runs, stages_of)
        level = fit_run_level(runs, stages_of) if learn else None
        return cls(cluster, model, job, calibration, compositions, (*unsound, *runs.left_out), trained, runs=level)

    @classmethod
    def of_store(
        cls,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        store: Store,
        *,
        learn: bool = True,
        keep: Path | None = None,
    ) -> Calibrated:
        """The estimator of all that ``store`` has: the cluster's own points, imported layers and iterations."""
        runs = find_runs(cluster, job, store.imported(Kind.ITERATION.value))
        layers = layer_measurements(cluster, store.imported(Kind.LAYER.value))
        own, left_out = OfCluster(store, cluster).sorted_out()
        runs = replace(runs, left_out=(*runs.left_out, *left_out))
        return cls.fit(cluster, model, job, [*own, *layers], runs, learn=learn, keep=keep)

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> Calibrated:
        """The same factors for other inputs; types are known by their names."""
        return Calibrated(
            cluster,
            model,
            job,
            self.calibration,
            self.compositions,
            self._runs_left_out,
            self.trained,
            self._signatures,
            self.runs,
        )

    def remember(self) -> None:
        """Keep the predictions of stages for later runs, where the predictor is kept and anything is new.

        A folder that cannot be written costs later runs some time and nothing else.
        """
        path = self.trained.signatures_path
        if path is not None and self._signatures is not None and self._signatures.misses:
            with suppress(OutputError):
                self._signatures.save(path)

    @property
    def note(self) -> str:
        """What happened to the kept predictor, for the operator; empty where there is nothing to say."""
        return self.trained.note

    @property
    def importances(self) -> Mapping[str, float]:
        """Feature → share of the trees' gain, largest first; empty where no trees were grown."""
        return self._base.importances if isinstance(self._base, Predicted) else {}

    @property
    def dimension_gains(self) -> Mapping[str, float]:
        """See :attr:`Predicted.dimension_gains`; empty where no trees were grown."""
        return self._base.dimension_gains if isinstance(self._base, Predicted) else {}

    @property
    def calibrated(self) -> bool:
        """Whether anything measured moves any prediction."""
        return bool(self.calibration.types or self.compositions)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def provenance(self) -> Provenance:
        """The weakest word among the types that a plan can use: one unmeasured type leaves all ``uncalibrated``."""
        usable = [t.name for t in self.cluster.gpu_types if t.supports(self.job.precision.value)]
        return self._weakest(usable)

    @property
    def hits(self) -> int:
        return self._base.hits

    @property
    def misses(self) -> int:
        return self._base.misses

    @property
    def one_recompute_for_all(self) -> bool:
        return self._base.one_recompute_for_all

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was measured, on which ground, what was left out, and what the model takes for granted."""
        if not self.calibrated:
            return (*self._left_out, *self._base.assumed)
        types = self.calibration.types
        learned = self._base.learned if isinstance(self._base, Predicted) else ()
        points = self.trained.stages.points if self.trained.stages else {}
        few = [t for name, t in types.items() if name not in points]
        composed = [str(self.runs)] if self.runs is not None else [*map(str, self.compositions.values())]
        said = [*learned, *map(str, few), *composed]
        if few:
            names = ", ".join(t.gpu_type for t in few)
            said.append(f"{names}: fewer than {LEAST_TO_LEARN} points with times: one factor each, no interval")
        if few or (self.compositions and self.runs is None):
            said.append(f"factors are medians of n log ratios, times n / (n + {PRIOR_POINTS:g})")
        for name in (t.name for t in self.cluster.gpu_types):
            if name not in types and name not in self.compositions:
                said.append(f"{name}: nothing is measured: first principles with the catalogue's defaults")
            elif name not in types:
                said.append(f"{name}: no single stage is measured: memory is first principles with the defaults")
        said += self._left_out
        sized = self.trained.stages.sized if self.trained.stages else frozenset()
        if any(
            t.name not in sized and (t.name not in types or not types[t.name].factors["fragmentation"].points)
            for t in self.cluster.gpu_types
        ):
            said.append(f"where not measured, {self._base.fragmentation_assumed}")
        return (*said, *self._base.modelled)

    def must_untie(self, skeleton: Skeleton) -> bool:
        return self._base.must_untie(skeleton)

    def recompute_options(self, skeleton: Skeleton) -> tuple[Recompute, ...]:
        return self._base.recompute_options(skeleton)

    def collapsed_options(self, skeleton: Skeleton) -> Mapping[Recompute, str]:
        return self._base.collapsed_options(skeleton)

    def exchange_rates(self, skeleton: Skeleton) -> tuple[ExchangeRate, ...]:
        factor = self._composed(skeleton)
        return tuple(replace(rate, extra_s=rate.extra_s * factor) for rate in self._base.exchange_rates(skeleton))

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        """As first principles', times scaled by the skeleton's composition factor."""
        table, factor = self._base.stage_table(skeleton), self._composed(skeleton)
        if factor == 1.0:
            return table
        return replace(
            table,
            forward_s=table.forward_s * factor,
            backward_s=table.backward_s * factor,
            tail_s=table.tail_s * factor,
            p2p_s=table.p2p_s * factor,
            fixed_s=table.fixed_s * factor,
            wrap_s=table.wrap_s * factor,
        )

    def sketch(self, skeleton: Skeleton, limits: Limits | None = None) -> Sketch:
        """The rows that bounds of :meth:`stage_table` need, shared between skeletons."""
        sketch, factor = self._base.sketch(skeleton, limits=limits), self._composed(skeleton)
        if factor == 1.0:
            return sketch
        return replace(
            sketch,
            factor=factor,
            p2p_s=sketch.p2p_s * factor,
            fixed_s=sketch.fixed_s * factor,
            wrap_s=sketch.wrap_s * factor,
        )

    def estimate(self, plan: Plan) -> Estimate:
        """As first principles', scaled alike; ``provenance`` is the weakest word among the types of ``plan``."""
        made, factor = self._base.estimate(plan), self._composed(plan.skeleton)
        made = replace(made, provenance=self._weakest([stage.gpu_type for stage in plan.stages]))
        if factor == 1.0 and not self._has_runs(plan.skeleton):
            return made
        return replace(
            made,
            iteration_time_s=made.iteration_time_s * factor,
            additive_time_s=made.additive_time_s * factor,
            lower_bound_s=made.lower_bound_s * factor,
            tokens_per_s=made.tokens_per_s / factor,
            time_breakdown_s={part: seconds * factor for part, seconds in made.time_breakdown_s.items()},
            stage_forward_s=tuple(s * factor for s in made.stage_forward_s),
            stage_backward_s=tuple(s * factor for s in made.stage_backward_s),
            p2p_s=tuple(s * factor for s in made.p2p_s),
            tail_s=tuple(s * factor for s in made.tail_s),
            interval_s=self._interval(made, factor, plan.skeleton),
            extrapolated=self._extrapolated(made, plan.skeleton),
        )

    def iteration_times(self, plans: Sequence[Plan]) -> NDArray[np.float64]:
        """(n,) iteration time of every plan, as :meth:`estimate` gives it."""
        factors = np.array([self._composed(plan.skeleton) for plan in plans])
        return np.asarray(self._base.iteration_times(plans) * factors)

    def _composed(self, skeleton: Skeleton) -> float:
        """What whole runs say of the skeleton: the trees', else the geometric mean of its GPUs' types' factors."""
        if self._has_runs(skeleton):
            return self._of_runs(skeleton)[0]
        if not self.compositions:
            return 1.0
        logs = gpus = 0.0
        for placement in skeleton.placements:
            known = self.compositions.get(placement.gpu_type)
            gpus += len(placement.ranks)
            logs += len(placement.ranks) * (math.log(known.factor.value) if known else 0.0)
        return math.exp(logs / gpus)

    def _has_runs(self, skeleton: Skeleton) -> bool:
        """Whether trees over runs speak for the skeleton: all its types were run."""
        return self.runs is not None and set(skeleton.type_order) <= self.compositions.keys()

    def _of_runs(self, skeleton: Skeleton) -> tuple[float, float, tuple[str, ...]]:
        """(factor, half width of its logarithm, sizes outside what was run)."""
        assert self.runs is not None and self._plain is not None
        found = self._by_skeleton.get(skeleton)
        if found is None:
            found = self._by_skeleton[skeleton] = self.runs.correct(self._plain, skeleton)
        return found

    def _extrapolated(self, made: Estimate, skeleton: Skeleton) -> tuple[str, ...]:
        outside = self._of_runs(skeleton)[2] if self._has_runs(skeleton) else ()
        return tuple(dict.fromkeys((*made.extrapolated, *outside)))

    def _interval(self, made: Estimate, factor: float, skeleton: Skeleton) -> tuple[float, float] | None:
        """The stages' interval scaled, or that of held-out runs where it is wider or there is no other."""
        scaled = made.interval_s and (made.interval_s[0] * factor, made.interval_s[1] * factor)
        width = self._of_runs(skeleton)[1] if self._has_runs(skeleton) else math.nan
        if math.isnan(width):
            return scaled
        time, wide = made.iteration_time_s * factor, math.exp(width)
        low, high = scaled or (time, time)
        return min(low, time / wide), max(high, time * wide)

    def _weakest(self, gpu_types: Iterable[str]) -> Provenance:
        words = {word for name in gpu_types for word in self._words(name)}
        return next((word for word in _WEAKEST_FIRST if word in words), Provenance.UNCALIBRATED)

    def _words(self, gpu_type: str) -> tuple[Provenance, ...]:
        known = (self.calibration.types.get(gpu_type), self.compositions.get(gpu_type))
        return tuple(found.provenance for found in known if found is not None) or (Provenance.UNCALIBRATED,)


def learnable(calibration: Calibration) -> list[Measurement]:
    """What the predictor learns from: the points of types with at least :data:`LEAST_TO_LEARN` times."""
    rich = {name for name, t in calibration.types.items() if t.factors["time"].points >= LEAST_TO_LEARN}
    return [m for m in calibration.used if m.outcome is Outcome.OK and m.point.gpu_type in rich]


def _stages_of(
    calibration: Calibration, trained: Trained, signatures: Signatures | None = None
) -> Callable[[Cluster, TransformerSpec, Job], FirstPrinciples | Predicted]:
    """What predicts stages on any inputs: the learned predictor, factors for types that it does not know."""
    stages = trained.stages

    def estimator(cluster: Cluster, model: TransformerSpec, job: Job) -> FirstPrinciples | Predicted:
        if stages is None or not set(stages.points) & set(cluster.ranks_by_type):
            return FirstPrinciples(cluster, model, job, calibration.corrections)
        others = {name: c for name, c in calibration.corrections.items() if name not in stages.points}
        return Predicted(cluster, model, job, stages, others, signatures)

    return estimator
