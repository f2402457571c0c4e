"""When interleaving is worth proposing: how much memory is to spare, and how unlike the devices are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job

PRESSURE_FOR_INTERLEAVING = 1.25
HETEROGENEITY_FOR_INTERLEAVING = 0.10


def heterogeneity_index(cluster: Cluster, job: Job, types: tuple[str, ...] | None = None) -> float:
    """Standard deviation over mean of the GPUs' attainable compute at the job's precision.

    ``types`` limits it to the GPUs of those types. Types without a public peak are left out.
    """
    rates, counts = [], []
    for gpu_type in cluster.gpu_types:
        peak = gpu_type.peak_flops(str(job.precision.value))
        if peak is not None and (types is None or gpu_type.name in types):
            rates.append(peak * gpu_type.efficiency)
            counts.append(len(cluster.ranks_by_type[gpu_type.name]))
    each = np.repeat(rates, counts)
    return float(np.std(each) / np.mean(each)) if len(each) else 0.0


@dataclass(frozen=True)
class ScheduleAdvice:
    """Whether the two indices speak for interleaving; the estimates of both schedules decide.

    ``pressure_index`` is the least available memory over the greatest demand of a stage.
    """

    pressure_index: float
    heterogeneity_index: float

    @property
    def proposes_interleaving(self) -> bool:
        return (
            self.pressure_index >= PRESSURE_FOR_INTERLEAVING
            and self.heterogeneity_index <= HETEROGENEITY_FOR_INTERLEAVING
        )

    def __str__(self) -> str:
        room, unlike = f"memory-pressure index {self.pressure_index:.2f}", f"{self.heterogeneity_index:.2f}"
        verdict = "speak for interleaving" if self.proposes_interleaving else "speak for 1F1B"
        return (
            f"{room} (interleaving wants at least {PRESSURE_FOR_INTERLEAVING}) and heterogeneity index {unlike} "
            f"(at most {HETEROGENEITY_FOR_INTERLEAVING}) {verdict}; both are estimated wherever both are legal"
        )
