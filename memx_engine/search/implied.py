"""What a request leaves out and the cluster implies."""

from __future__ import annotations

from dataclasses import replace

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.space import enumerate_space


def dp_choices(
    cluster: Cluster, model: TransformerSpec, job: Job, tp: int, pp: int, micro_batch: int
) -> tuple[int, ...]:
    """The DP sizes that can be placed with the other sizes of a plan; the one that uses every GPU alone where it can.

    More than one size: nothing is implied, and these are the choices. Empty: no DP can be placed.
    """
    asked = replace(
        job, tp_sizes=(tp,), pp_sizes=(pp,), dp_sizes=None, micro_batch_sizes=(micro_batch,), virtual_stages=()
    )
    found = sorted({layout.dp for layout in enumerate_space(cluster, model, asked).layouts})
    found = [dp for dp in found if job.global_batch % (dp * micro_batch) == 0]
    whole = [dp for dp in found if tp * pp * dp == len(cluster.gpus)]
    return tuple(whole or found)
