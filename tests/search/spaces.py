"""Whole bounded spaces of small searches by the cost model, for tests of what the search does with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import Skeleton
from memx_engine.search.bounding import Bounder, Tables
from memx_engine.search.control import Control
from memx_engine.search.fitting import Fitting
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.space import enumerate_space


@dataclass(frozen=True, eq=False)
class Ground:
    """What is searched, and what predicts it."""

    cluster: Cluster
    model: TransformerSpec
    job: Job
    estimator: FirstPrinciples

    @classmethod
    def of(cls, cluster: str, model: str, *, layers: int | None = None) -> Ground:
        spec = load_model(model)
        return cls.made(load_cluster(cluster), spec if layers is None else replace(spec, layers=layers))

    @classmethod
    def made(cls, cluster: Cluster, model: TransformerSpec, job: Job | None = None) -> Ground:
        job = job or resolve_job(cluster, model)
        return cls(cluster, model, job, FirstPrinciples(cluster, model, job))

    def skeletons(self, step: int = 1) -> list[Skeleton]:
        """Every ``step``-th skeleton."""
        return list(enumerate_space(self.cluster, self.model, self.job).skeletons())[::step]

    def fitting(self, step: int = 1, variance_kind: str = "bytes") -> Fitting:
        """Of those the ones that pass the memory rule."""
        bounder = Bounder(
            self.estimator,
            Tables(self.estimator),
            OperatorLimits(),
            Control(None, None, None),
            one_recompute=self.job.framework is Framework.MEGATRON,
            variance_kind=variance_kind,
        )
        return bounder.bound(self.skeletons(step), scattered=False).fitting
