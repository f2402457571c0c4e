"""First principles corrected by what is stored: the estimator until there is a trained predictor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from memx_engine.cost.first_principles import ExchangeRate, FirstPrinciples
from memx_engine.cost.table import StageTable
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement
from memx_engine.plan import Estimate, Plan, Provenance, Recompute, Skeleton
from memx_engine.predict.calibration import Calibration, calibrate
from memx_engine.predict.factors import PRIOR_POINTS
from memx_engine.profile.store import MeasurementStore

_WEAKEST_FIRST = (Provenance.UNCALIBRATED, Provenance.SIMULATED, Provenance.MEASURED)


class Calibrated:
    """First principles with one shrunk factor per GPU type and metric: time, activations, fragmentation, context.

    The factors scale the terms of a stage's cost, so tables and estimates agree as those of first principles do.
    Without usable measurements it is first principles, ``uncalibrated``, with the same fingerprint.
    """

    def __init__(self, cluster: Cluster, model: TransformerSpec, job: Job, calibration: Calibration) -> None:
        self.cluster, self.model, self.job, self.calibration = cluster, model, job, calibration
        self._base = FirstPrinciples(cluster, model, job, calibration.corrections)
        self._fingerprint = self._base.fingerprint
        if calibration.types:
            known = {
                name: [dict(c.truths), [[metric, f.value, f.points] for metric, f in c.factors.items()]]
                for name, c in calibration.types.items()
            }
            text = json.dumps([self._fingerprint, known], sort_keys=True)
            self._fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def fit(cls, cluster: Cluster, model: TransformerSpec, job: Job, measurements: Iterable[Measurement]) -> Calibrated:
        """The estimator that ``measurements`` give."""
        return cls(cluster, model, job, calibrate(cluster, model, job, measurements))

    @classmethod
    def of_store(cls, cluster: Cluster, model: TransformerSpec, job: Job, store: MeasurementStore) -> Calibrated:
        """The estimator that everything in ``store`` gives."""
        return cls.fit(cluster, model, job, store.measurements())

    @property
    def calibrated(self) -> bool:
        """Whether anything measured moves any prediction."""
        return bool(self.calibration.types)

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
        types = self.calibration.types
        if not types:
            return (*self.calibration.left_out, *self._base.assumed)
        missing = [t.name for t in self.cluster.gpu_types if t.name not in types]
        unmeasured = [
            f"{name}: nothing is measured: first principles with the catalogue's defaults" for name in missing
        ]
        shrinking = f"factors are medians of n points' log ratios, times n / (n + {PRIOR_POINTS:g})"
        known = all(c.factors["fragmentation"].points for c in types.values()) and not missing
        fragmentation = [] if known else [f"where not measured, {self._base.fragmentation_assumed}"]
        said = (*map(str, types.values()), shrinking, *unmeasured, *self.calibration.left_out)
        return (*said, *fragmentation, *self._base.modelled)

    def must_untie(self, skeleton: Skeleton) -> bool:
        return self._base.must_untie(skeleton)

    def recompute_options(self, skeleton: Skeleton) -> tuple[Recompute, ...]:
        return self._base.recompute_options(skeleton)

    def collapsed_options(self, skeleton: Skeleton) -> Mapping[Recompute, str]:
        return self._base.collapsed_options(skeleton)

    def exchange_rates(self, skeleton: Skeleton) -> tuple[ExchangeRate, ...]:
        return self._base.exchange_rates(skeleton)

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        return self._base.stage_table(skeleton)

    def estimate(self, plan: Plan) -> Estimate:
        """As first principles'; ``provenance`` is the weakest word among the types of ``plan``."""
        made = self._base.estimate(plan)
        return replace(made, provenance=self._weakest([stage.gpu_type for stage in plan.stages]))

    def _weakest(self, gpu_types: Iterable[str]) -> Provenance:
        known = self.calibration.types
        words = {known[name].provenance if name in known else Provenance.UNCALIBRATED for name in gpu_types}
        return next((word for word in _WEAKEST_FIRST if word in words), Provenance.UNCALIBRATED)
