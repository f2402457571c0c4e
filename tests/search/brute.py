"""Brute force over whole small searches: every skeleton of a space, every split, every recompute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from memx_engine.cost.table import Estimator
from memx_engine.inputs.job import Job
from memx_engine.plan import Skeleton
from memx_engine.search.bounds import as_1f1b
from memx_engine.search.objective import Objective
from memx_engine.search.solver import Limits
from tests.search.instances import FREE, brute_force


def plain(job: Job) -> Job:
    """``job`` without interleaving, which the certificate leaves out."""
    return replace(job, virtual_stages=())


def best_of(skeletons: Iterable[Skeleton], estimator: Estimator, objective: Objective, limits: Limits = FREE) -> float:
    """The least additive Phi of all complete plans; infinite where none fits."""
    tables = (as_1f1b(estimator.stage_table(skeleton)) for skeleton in skeletons)
    return min((brute_force(table, objective, limits)[0] for table in tables), default=float(np.inf))
