"""The learned estimator: first principles, stages corrected by the booster, whole iterations by the second level."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import ExchangeRate, FirstPrinciples
from memx_engine.cost.origins import Limits
from memx_engine.cost.pipeline import additive_time
from memx_engine.cost.sketch import Sketch
from memx_engine.cost.table import StageTable
from memx_engine.cost.tables import TableFactors
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Point
from memx_engine.plan import FULL, Estimate, GpuEstimate, Plan, Provenance, Recompute, Skeleton
from memx_engine.predict.booster import OUTPUTS
from memx_engine.predict.compared import StageDescriber
from memx_engine.predict.signatures import Signatures
from memx_engine.predict.stage_features import DIMENSIONS
from memx_engine.predict.stage_model import StageModel, fit_stages, stage_factors

Array = NDArray[np.float64]

UNSEEN = 0.5
"""Share of the parts that are not measured by which they may be off."""

STAGED = 2.0
"""The same of transfers between vendors: they are taken as one pass over the host's link; the copies to and from host
memory on either side, where nothing overlaps them, are two more."""

COMPOSED = 0.05
"""What nodes of one type differ by, and what putting stages together misses, while no whole run is known."""


@dataclass(frozen=True)
class StageFactors:
    """On the parts of a stage's time and memory; ``distance`` and ``outside``: how far and where it is extrapolated."""

    time: float = 1.0
    memory: float = 1.0
    distance: float = 0.0
    outside: tuple[str, ...] = ()


_PLAIN = StageFactors()


class Predicted:
    """First principles with learned corrections of stages; see :mod:`memx_engine.predict.stage_model`.

    A stage's factors depend on its skeleton and its kind of recompute, never on its number of layers, so tables and
    estimates agree and the exact solver stays exact. GPU types that nobody measured keep first principles.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        stages: StageModel,
        others: Mapping[str, Correction] = MappingProxyType({}),
        signatures: Signatures | None = None,
    ) -> None:
        """See the class.

        Args:
            others: Corrections of GPU types that too little is known of to learn from.
            signatures: Predictions of the same stages that are remembered already.
        """
        self.cluster, self.model, self.job, self.stages, self.others = cluster, model, job, stages, others
        self._base = FirstPrinciples(cluster, model, job, {**others, **stages.corrections(cluster)})
        self._describer = StageDescriber(cluster, job)
        self._known: dict[Point, StageFactors] = {}
        fresh = Signatures(stages.digest, len(stages.model.names), len(OUTPUTS))
        self.signatures = fresh if signatures is None else signatures
        self.repaired = self._remembered = 0

    @classmethod
    def fit(
        cls, cluster: Cluster, model: TransformerSpec, job: Job, measurements: Iterable[Measurement]
    ) -> Predicted | FirstPrinciples:
        """The estimator that ``measurements`` give; first principles, uncalibrated, where none can be compared."""
        stages = fit_stages(cluster, model, job, measurements)
        return FirstPrinciples(cluster, model, job) if stages is None else cls(cluster, model, job, stages)

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> Predicted:
        """The same learned stages for other inputs."""
        return Predicted(cluster, model, job, self.stages, self.others, self.signatures)

    @property
    def hits(self) -> int:
        """Stages whose factors were remembered."""
        return self._remembered + self.signatures.hits

    @property
    def misses(self) -> int:
        """Stage signatures that went to the trees."""
        return self.signatures.misses

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._base.fingerprint} {self.stages.digest}".encode()).hexdigest()[:16]

    @property
    def provenance(self) -> Provenance:
        """The weakest word among the types that a plan can use."""
        return self._weakest([t.name for t in self.cluster.gpu_types if t.supports(self.job.precision.value)])

    @property
    def one_recompute_for_all(self) -> bool:
        return self._base.one_recompute_for_all

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was measured and on which ground, and what the model takes for granted."""
        said = list(self.learned)
        said += [
            f"{t.name}: nothing is measured: first principles with the catalogue's defaults"
            for t in self.cluster.gpu_types
            if t.name not in self.stages.points and t.name not in self.others
        ]
        return (*said, *self.stages.left_out, *self.modelled)

    @property
    def learned(self) -> tuple[str, ...]:
        """What was learned of each GPU type, and what was repaired, one sentence each."""
        own = {t.name for t in self.cluster.gpu_types}
        said = []
        for name, count in sorted(self.stages.points.items()):
            if name not in own:
                continue
            time, width = self.stages.times[name], self.stages.model.widths[0].width(name)
            word = f" ({self.stages.provenance[name]})" if self.stages.provenance[name] != "measured" else ""
            text = (
                f"{name}: predictor learned from {count} points of {', '.join(self.stages.grounds[name])}{word}: "
                f"computing x{time.layers:.3g}, collectives x{time.collectives:.3g}"
            )
            if name in self.stages.sized:
                text += f", activations x{self.stages.memories[name].held:.3g}"
            else:
                text += ", memory not measured"
            said.append(text + (f"; 95 % of its unseen stages within {math.expm1(width):.1%}" if width else ""))
        if self.repaired:
            said.append(f"{self.repaired} predicted peaks fell with the micro-batch and were held at the smaller one's")
        return tuple(said)

    @property
    def modelled(self) -> tuple[str, ...]:
        """What the cost model leaves out or simplifies."""
        return self._base.modelled

    @property
    def fragmentation_assumed(self) -> str:
        """What is taken for fragmentation where it was not measured."""
        return self._base.fragmentation_assumed

    @property
    def held_out(self) -> int:
        """How many held-out times the intervals come from."""
        return len(self.stages.model.widths[0].residuals)

    @property
    def importances(self) -> Mapping[str, float]:
        """Feature → share of the trees' gain, largest first; empty while there are only factors."""
        booster = self.stages.model.booster
        return booster.gains() if booster else {}

    @property
    def dimension_gains(self) -> Mapping[str, float]:
        """Dimension of a plan → share of the trees' gain on its features; the search varies what matters first."""
        gains = self.importances
        return {name: sum(gains.get(f, 0.0) for f in features) for name, features in DIMENSIONS.items()}

    def must_untie(self, skeleton: Skeleton) -> bool:
        return self._base.must_untie(skeleton)

    def recompute_options(self, skeleton: Skeleton) -> tuple[Recompute, ...]:
        return self._base.recompute_options(skeleton)

    def collapsed_options(self, skeleton: Skeleton) -> Mapping[Recompute, str]:
        return self._base.collapsed_options(skeleton)

    def exchange_rates(self, skeleton: Skeleton) -> tuple[ExchangeRate, ...]:
        """First principles' rates, their seconds scaled by the stage's factor."""
        out = []
        for rate in self._base.exchange_rates(skeleton):
            found = self._factors(skeleton, [(rate.stage, self._kind(rate.recompute))])[0]
            out.append(replace(rate, extra_s=rate.extra_s * found.time, saved_bytes=rate.saved_bytes * found.memory))
        return tuple(out)

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        """First principles' table, every (stage, option) scaled by its factors."""
        return self._base.stage_table(skeleton, lambda options: self._learned(skeleton, range(skeleton.pp), options))

    def sketch(self, skeleton: Skeleton, limits: Limits | None = None) -> Sketch:
        """The rows that bounds of :meth:`stage_table` need, shared between skeletons."""
        return self._base.sketch(skeleton, lambda stage, options: self._learned(skeleton, (stage,), options), limits)

    def _learned(self, skeleton: Skeleton, stages: Sequence[int], options: tuple[Recompute, ...]) -> TableFactors:
        kinds = [self._kind(option) for option in options]
        asked = list(dict.fromkeys(kinds))
        found = self._factors(skeleton, [(i, kind) for i in stages for kind in asked])
        pairs = np.array([[f.time, f.memory] for f in found]).reshape(len(stages), len(asked), 2)
        pairs = pairs[:, [asked.index(kind) for kind in kinds]]
        groups = np.array([self._groups_bytes(skeleton, i) for i in stages])
        return TableFactors(pairs[:, :, 0], pairs[:, :, 1], groups)

    def estimate(self, plan: Plan) -> Estimate:
        """As first principles composes it from the corrected stages, with intervals and probabilities."""
        skeleton = plan.skeleton
        found = self._factors(skeleton, [(i, self._kind(stage.recompute)) for i, stage in enumerate(plan.stages)])
        corrections = []
        for i, stage in enumerate(plan.stages):
            context = 1.0
            base = self.stages.outside.get(stage.gpu_type)
            if base is not None and base.process_bytes > 0:
                context += self._groups_bytes(skeleton, i) / base.process_bytes
            corrections.append(Correction(time=found[i].time, activations=found[i].memory, context=context))
        made = self._base.estimate(plan, corrections)
        return replace(
            made,
            gpus=self._with_probabilities(made.gpus, found),
            interval_s=self._interval(plan, made, [f.distance for f in found]),
            provenance=self._weakest([stage.gpu_type for stage in plan.stages]),
            extrapolated=tuple(dict.fromkeys(name for f in found for name in f.outside)),
        )

    def iteration_times(self, plans: Sequence[Plan]) -> NDArray[np.float64]:
        """(n,) iteration time of every plan, as :meth:`estimate` gives it."""
        corrections = []
        for plan in plans:
            asked = [(i, self._kind(stage.recompute)) for i, stage in enumerate(plan.stages)]
            corrections.append([Correction(time=f.time) for f in self._factors(plan.skeleton, asked)])
        return self._base.iteration_times(plans, corrections)

    # --- one stage ------------------------------------------------------------------------------------------------

    def _factors(self, skeleton: Skeleton, asked: Sequence[tuple[int, Recompute]]) -> list[StageFactors]:
        """What is learned of stages under kinds of recompute; whatever is new goes to the trees in one call."""
        points = [self._point(skeleton, i, kind) for i, kind in asked]
        missing = [p for p in dict.fromkeys(points) if p is not None and p not in self._known]
        self._remembered += len(points) - len(missing)
        if missing:
            factors, far, outside, repaired = stage_factors(self.stages, self._describer, missing, self.signatures)
            self.repaired += repaired
            for point, pair, distance, names in zip(missing, factors, far, outside, strict=True):
                self._known[point] = StageFactors(float(pair[0]), float(pair[1]), float(distance), names)
        return [_PLAIN if p is None else self._known[p] for p in points]

    @staticmethod
    def _kind(option: Recompute) -> Recompute:
        """What stands for all strategies that the trees cannot tell apart."""
        return FULL if option.kind == "uniform" else Recompute("block", 1) if option.kind == "block" else option

    def _point(self, skeleton: Skeleton, i: int, kind: Recompute) -> Point | None:
        """What stands for the stage whatever its layers and micro-batches in flight; None where its type is not
        measured."""
        placement = skeleton.placements[i]
        if placement.gpu_type not in self.stages.points:
            return None
        return Point(
            gpu_type=placement.gpu_type,
            model=self.model,
            tp=placement.tp,
            micro_batch=skeleton.micro_batch,
            seq_len=skeleton.seq_len,
            layers=1,
            embedding=i == 0,
            head=i == skeleton.pp - 1,
            recompute=kind,
            precision=self.job.precision,
            attention=self.job.attention,
            sequence_parallel=self.job.sequence_parallel and placement.tp > 1,
        )

    def _groups_bytes(self, skeleton: Skeleton, i: int) -> float:
        """What the process groups of stage ``i`` hold: tensor, data and pipeline parallel."""
        placement = skeleton.placements[i]
        known = self.stages.outside.get(placement.gpu_type)
        groups = (placement.tp > 1) + (placement.dp > 1) + (skeleton.pp > 1)
        return known.group_bytes * groups if known else 0.0

    # --- how sure -------------------------------------------------------------------------------------------------

    def _interval(self, plan: Plan, made: Estimate, far: Sequence[float]) -> tuple[float, float] | None:
        """95 % interval: the widest of the stages', and an allowance for what no stage measurement sees.

        None where a type is not measured. Exposed data-parallel communication, optimizer and fixed time are first
        principles'; they may be off by :data:`UNSEEN` of their size. Transfers between stages may take that much
        longer, between vendors :data:`STAGED`, wherever that lets them set the pace.
        """
        widths = []
        for stage, distance in zip(plan.stages, far, strict=True):
            if stage.gpu_type not in self.stages.points:
                return None
            widths.append(self.stages.width(stage.gpu_type, stage.tp, distance))
        known = [w for w in widths if w is not None]
        if len(known) < len(widths):
            return None
        parts = made.time_breakdown_s
        outside = sum(parts[name] for name in ("dp_comm", "optimizer", "fixed")) / made.iteration_time_s
        factor = math.exp(max(known)) * (1.0 + COMPOSED + UNSEEN * outside) * self._slower_transfers(plan, made)
        return made.iteration_time_s / factor, made.iteration_time_s * factor

    def _slower_transfers(self, plan: Plan, made: Estimate) -> float:
        """What slower transfers would make of the iteration time: a boundary of vendors can come to set the pace."""
        vendors = [self.cluster.gpu_type(stage.gpu_type).vendor for stage in plan.stages]
        slow = [
            c * (1.0 + (UNSEEN if a == b else STAGED))
            for c, a, b in zip(made.p2p_s, vendors, vendors[1:], strict=False)
        ]
        stages = [f + b for f, b in zip(made.stage_forward_s, made.stage_backward_s, strict=True)]
        count = plan.skeleton.micro_batches
        plain = additive_time(stages, count, p2p_s=made.p2p_s, tails_s=made.tail_s)
        return additive_time(stages, count, p2p_s=slow, tails_s=made.tail_s) / plain if plain > 0 else 1.0

    def _with_probabilities(
        self, gpus: Sequence[GpuEstimate], found: Sequence[StageFactors]
    ) -> tuple[GpuEstimate, ...]:
        """``gpus`` with the chance that each runs out of memory; those of one stage and capacity are alike."""
        known: dict[tuple[int, int], float | None] = {}
        out = []
        for gpu in gpus:
            key = (gpu.stage, gpu.capacity_bytes)
            if key not in known:
                known[key] = self._probability(gpu, found[gpu.stage].distance)
            out.append(replace(gpu, oom_probability=known[key]))
        return tuple(out)

    def _probability(self, gpu: GpuEstimate, distance: float) -> float | None:
        """The chance that the activations' truth exceeds what capacity leaves them; None where nothing is known."""
        if gpu.gpu_type not in self.stages.sized:
            return None
        parts = gpu.breakdown
        dynamic = parts.activations + parts.logits + parts.buffers
        room = gpu.capacity_bytes - (gpu.peak_bytes - dynamic)
        if dynamic <= 0 or room <= 0:
            return 1.0 if room <= 0 else 0.0
        return self.stages.model.widths[1].exceeds(math.log(room / dynamic), distance)

    def _weakest(self, gpu_types: Sequence[str]) -> Provenance:
        words = {self.stages.provenance.get(name, Provenance.UNCALIBRATED) for name in gpu_types}
        order = (Provenance.UNCALIBRATED, Provenance.SIMULATED, Provenance.MEASURED)
        return next((word for word in order if word in words), Provenance.UNCALIBRATED)
