"""What the search needs to know of a skeleton: time and memory of every stage for every layer count and recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Estimate, Plan, Provenance, Recompute, Skeleton

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StageTable:
    """Dense tables over (stage i, layers n, recompute option r); P stages, n = 0..L, R options.

    A combination that does not exist (zero layers, more than the other stages leave, ``block:K`` or ``uniform:N``
    beyond n, layers not a multiple of the virtual stages, a recompute the framework forbids) is infinite.

    Attributes:
        forward_s, backward_s: (P, L+1, R) one micro-batch, all virtual chunks together; backward includes recompute.
        memory_bytes: (P, L+1, R) peak of the stage's GPUs, with this skeleton's micro-batches in flight.
        tail_s: (P, L+1) exposed data-parallel communication and optimizer step.
        capacity_bytes: (P,) the least capacity among the stage's GPUs, less ``reserve_bytes``.
        p2p_s: (P-1,) one-way transfer between stages i and i+1.
        gpus: (P,) GPUs per stage, the weights of the memory variance.
        options: The R recompute strategies, lightest first.
        micro_batches: G. virtual_stages: v. fixed_s: Time per iteration outside the pipeline.
        wrap_s: One-way transfer from the last stage to the first; matters to interleaved schedules only.
        reserve_bytes: (P,) or one number, what the operator keeps free on every GPU; off ``capacity_bytes`` already.
    """

    forward_s: Array
    backward_s: Array
    memory_bytes: Array
    tail_s: Array
    capacity_bytes: Array
    p2p_s: Array
    gpus: Array
    options: tuple[Recompute, ...]
    micro_batches: int
    layers: int
    virtual_stages: int = 1
    fixed_s: float = 0.0
    wrap_s: float = 0.0
    reserve_bytes: Array | float = 0.0

    @property
    def stages(self) -> int:
        return int(self.memory_bytes.shape[0])

    @property
    def whole_bytes(self) -> Array:
        """(P,) capacity with the reserve: what utilization is a share of."""
        return self.capacity_bytes + self.reserve_bytes

    @property
    def time_s(self) -> Array:
        """(P, L+1, R) forward and backward of one micro-batch, t = f + b."""
        return self.forward_s + self.backward_s


def at_least(values: Array) -> Array:
    """(P, L+1) least value over at least n layers: never falls with n, never above the value of n."""
    return np.asarray(np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1])


class Estimator(Protocol):
    """Predicts stages and plans of one cluster, model and job. First principles is one; a trained predictor another."""

    @property
    def provenance(self) -> Provenance: ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever any prediction could change."""
        ...

    def stage_table(self, skeleton: Skeleton) -> StageTable:
        """Tables of every layer count and recompute option of ``skeleton``; same skeleton, same table."""
        ...

    def estimate(self, plan: Plan) -> Estimate:
        """Everything predicted of ``plan``, its iteration time by event simulation. Agrees with ``stage_table``."""
        ...

    def derive(self, cluster: Cluster, model: TransformerSpec, job: Job) -> Estimator:
        """What predicts changed inputs on the same ground: nothing is measured or learned anew."""
        ...


@runtime_checkable
class Timer(Protocol):
    """An estimator that predicts iteration times alone, which takes a small part of complete estimates."""

    def iteration_times(self, plans: Sequence[Plan]) -> Array:
        """(n,) seconds; each is ``estimate(plan).iteration_time_s``."""
        ...


def iteration_times(estimator: Estimator, plans: Sequence[Plan]) -> Array:
    """(n,) iteration time of every plan, by complete estimates where ``estimator`` is no :class:`Timer`."""
    if isinstance(estimator, Timer):
        return estimator.iteration_times(plans)
    return np.array([estimator.estimate(plan).iteration_time_s for plan in plans], dtype=np.float64)
