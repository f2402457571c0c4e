"""What ``evaluate`` is asked, resolved: which truth, which rows are learned from, which table is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memx_engine.errors import InputError
from memx_engine.evaluate.accuracy import AccuracyOptions, AccuracyTable, accuracy
from memx_engine.evaluate.cpu import cpu_accuracy
from memx_engine.evaluate.rows import read_judged
from memx_engine.evaluate.testbed import PLANS, testbed_accuracy, testbed_truth
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model
from memx_engine.profile.runners.local import LocalRunner

TABLES = ("accuracy",)

CPU = "cpu"
"""The truth of this machine's own CPU."""

DEFAULT_CLUSTER = "paper-20gpu"
DEFAULT_MODEL = "llama2-7b"


@dataclass(frozen=True)
class Ground:
    """What a truth that is no table stands on.

    Attributes:
        cluster: Whose plans are judged. measured: Whose devices are measured; the same one when left out.
        plans: Plans judged for every seed.
    """

    cluster: Cluster
    model: TransformerSpec
    job: Job
    measured: Cluster | None = None
    plans: int = PLANS

    @classmethod
    def default(cls) -> Ground:
        """The MemX paper's cluster and model."""
        cluster, model = load_cluster(DEFAULT_CLUSTER), load_model(DEFAULT_MODEL)
        return cls(cluster, model, resolve_job(cluster, model))


def evaluate(
    truth: Sequence[str] = (),
    *,
    train: Sequence[str] = (),
    test: Sequence[str] = (),
    table: str = "accuracy",
    options: AccuracyOptions | None = None,
    ground: Ground | None = None,
    python: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> AccuracyTable:
    """Judge every method on a truth.

    Args:
        truth: Files, whose own rows are split into learned and judged ones; or ``testbed[:hard][:SEED]``, or ``cpu``.
        train, test: Files of each instead. ground: What the testbed simulates; the paper's cluster when left out.
        python: A Python that has torch, for ``cpu``; this one when left out.

    Raises:
        ProfileError: The probe cannot run on this machine.
        InputError: Neither or both forms are given, a table is not known, or a file cannot be used.
        CancelledError: Stopped.
    """
    if table not in TABLES:
        raise InputError(f"no table is called {table!r}", where="--table", hint=f"tables: {', '.join(TABLES)}")
    if bool(truth) == bool(train or test) or bool(train) != bool(test):
        raise InputError(
            "say what to judge", where="--truth", hint="either --truth FILE..., or --train FILE... and --test FILE..."
        )
    chosen = options or AccuracyOptions()
    if any(is_testbed(name) or name == CPU for name in truth):
        if len(truth) > 1:
            raise InputError("one truth at a time", where="--truth")
        if truth[0] == CPU:
            runner = LocalRunner(python=python or sys.executable, device="cpu")
            stop = should_stop or _never
            return cpu_accuracy(runner, seed=chosen.seeds[0], on_progress=on_progress, should_stop=stop)
        g = ground or Ground.default()
        asked = testbed_truth(
            truth[0], g.cluster, g.model, g.job, measured=g.measured, seeds=chosen.seeds, plans=g.plans
        )
        return testbed_accuracy(asked, on_progress=on_progress, should_stop=should_stop)
    judged = read_judged([Path(name) for name in truth or test])
    known = read_judged([Path(name) for name in train], layers=True) if train else None
    return accuracy(judged, known, chosen, on_progress=on_progress, should_stop=should_stop)


def _never() -> bool:
    return False


def is_testbed(name: str) -> bool:
    """Whether a truth names the simulated cluster; a file of that name is meant by ``./testbed``."""
    return name.split(":")[0] == "testbed"
