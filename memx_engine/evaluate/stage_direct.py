"""The paper's direct form for stages: seconds and bytes themselves, learned from what a configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memx_engine.cost.correction import Correction
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.pipeline import in_flight
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.plan import NONE, Estimate, GpuEstimate, Plan, Recompute
from memx_engine.predict.booster import Array, Booster
from memx_engine.predict.stage_model import STAGE_SETTINGS, Outside, measured_outside


def raw_stage_features(point: Point, types: Sequence[str]) -> dict[str, float]:
    """A configuration's own numbers, the device as one-hot."""
    out = {f"is_{name}": float(point.gpu_type == name) for name in types}
    return out | {
        "tp": point.tp,
        "micro_batch": point.micro_batch,
        "seq_len": point.seq_len,
        "layers": point.layers,
        "kv_heads": point.model.kv_heads,
        "embedding": float(point.embedding),
        "head": float(point.head),
        "in_flight": point.in_flight,
        "recompute_none": float(point.recompute == NONE),
        "recompute_selective": float(point.recompute.kind == "selective"),
        "recompute_uniform": float(point.recompute.kind in ("full", "uniform")),
        "recompute_n": point.recompute.n,
    }


@dataclass(frozen=True, eq=False)
class DirectStages:
    """Stages by the booster, put together and with optimizer state, links and tails as first principles has them."""

    base: FirstPrinciples
    types: tuple[str, ...]
    booster: Booster
    scale: Array
    least: Array
    outside: dict[str, Outside]

    @classmethod
    def fit(
        cls, cluster: Cluster, model: TransformerSpec, job: Job, measurements: Iterable[Measurement], *, seed: int = 0
    ) -> DirectStages:
        """Learn from the same points, with the same booster and settings as ours.

        Raises:
            InputError: Nothing was measured.
        """
        types = tuple(t.name for t in cluster.gpu_types)
        own, booster, scale, least = _trees(types, measurements, seed)
        return cls(FirstPrinciples(cluster, model, job), types, booster, scale, least, measured_outside(own))

    def estimate(self, plan: Plan) -> Estimate:
        """The iteration time by events and every GPU's peak."""
        plain = self.base.estimate(plan)
        points = [self._point(plan, i) for i in range(len(plan.stages))]
        features = np.array([list(raw_stage_features(p, self.types).values()) for p in points], dtype=np.float64)
        # A sum of trees can leave the range of what it saw, even below zero.
        made = np.maximum(self.booster.predict(features) * self.scale, self.least / 2)
        known = [f + b for f, b in zip(plain.stage_forward_s, plain.stage_backward_s, strict=True)]
        factors = [Correction(time=float(t) / k) for t, k in zip(made[:, 0], known, strict=True)]
        timed = self.base.estimate(plan, factors)
        gpus = tuple(self._sized(gpu, plan, float(made[gpu.stage, 1])) for gpu in plain.gpus)
        return replace(timed, gpus=gpus, peak_bytes=max(gpu.peak_bytes for gpu in gpus))

    def _point(self, plan: Plan, i: int) -> Point:
        stage, skeleton = plan.stages[i], plan.skeleton
        recompute = stage.recompute
        if recompute.kind == "block":
            recompute = Recompute("block", recompute.n * skeleton.virtual_stages)
        flights = in_flight(skeleton.pp, skeleton.micro_batches, skeleton.virtual_stages)[i]
        return Point(
            gpu_type=stage.gpu_type,
            model=self.base.model,
            tp=stage.tp,
            micro_batch=skeleton.micro_batch,
            seq_len=skeleton.seq_len,
            layers=stage.layers,
            embedding=i == 0,
            head=i == skeleton.pp - 1,
            recompute=recompute,
            in_flight=max(round(flights / skeleton.virtual_stages), 1),
        )

    def _sized(self, gpu: GpuEstimate, plan: Plan, reserved: float) -> GpuEstimate:
        """The optimizer's state is known exactly; what the device holds outside the allocator was measured."""
        stage = plan.stages[gpu.stage]
        outside = self.outside.get(gpu.gpu_type)
        groups = (stage.tp > 1) + (stage.dp > 1) + (len(plan.stages) > 1)
        beside = gpu.breakdown.context if outside is None else outside.process_bytes + groups * outside.group_bytes
        return replace(gpu, peak_bytes=reserved + gpu.breakdown.optimizer + beside)


def direct_points(
    cluster: Cluster, measurements: Iterable[Measurement], points: Sequence[Point], *, seed: int = 0
) -> list[tuple[float, float, float]]:
    """Seconds and bytes of single stages; there is no interval.

    Raises:
        InputError: Nothing was measured.
    """
    types = tuple(t.name for t in cluster.gpu_types)
    _, booster, scale, least = _trees(types, measurements, seed)
    features = np.array([list(raw_stage_features(p, types).values()) for p in points], dtype=np.float64)
    made = np.maximum(booster.predict(features) * scale, least / 2)
    return [(float(seconds), float(size), float("nan")) for seconds, size in made]


def _trees(
    types: Sequence[str], measurements: Iterable[Measurement], seed: int
) -> tuple[list[Measurement], Booster, Array, Array]:
    """The measurements used, the trees, and the mean and the least of what they learn."""
    sizes = [(m, m.peak_reserved_bytes or m.peak_allocated_bytes) for m in measurements if m.outcome is Outcome.OK]
    own = [(m, size) for m, size in sizes if m.time_s and size]
    described = [raw_stage_features(m.point, types) for m, _ in own]
    targets = np.array([[m.time_s, size] for m, size in own], dtype=np.float64).reshape(-1, 2)
    scale = targets.mean(axis=0) if len(targets) else np.ones(2)
    names = tuple(described[0]) if described else ()
    features = np.array([list(row.values()) for row in described], dtype=np.float64).reshape(len(own), len(names))
    booster = Booster.fit(features, targets / scale, names, replace(STAGE_SETTINGS, seed=seed))
    return [m for m, _ in own], booster, scale, targets.min(axis=0)
