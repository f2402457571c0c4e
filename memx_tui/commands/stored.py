"""The estimator of a verb: first principles, corrected by what the workspace holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memx_tui.output import say
from memx_tui.paths import find_paths

if TYPE_CHECKING:
    from memx_engine import Calibrated, Cluster, FirstPrinciples, Job, TransformerSpec


def remember(estimator: FirstPrinciples | Calibrated) -> None:
    """Keep what the learned predictor said of stages for later runs."""
    from memx_engine import Calibrated

    if isinstance(estimator, Calibrated):
        estimator.remember()


def stored_estimator(
    cluster: Cluster, model: TransformerSpec, job: Job, workspace: Path | None
) -> FirstPrinciples | Calibrated:
    """What the measurements of ``workspace`` give, or of the cluster's own folder where profiling puts them by default.

    The measurements are only read: the workspace may be on a read-only file system, and another session may be writing
    to it. What is learned from them is kept beside them where that can be written.

    Raises:
        StorageError: The workspace cannot be read.
    """
    from memx_engine import PREDICTORS, Calibrated, FirstPrinciples, Workspace

    folder = workspace or find_paths().workspace(cluster.name)
    if not Workspace.exists(folder):
        return FirstPrinciples(cluster, model, job)
    with Workspace(folder, read_only=True) as store:
        estimator = Calibrated.of_store(cluster, model, job, store, keep=folder / PREDICTORS)
    if estimator.note:
        say(f"memx-tui: {estimator.note}")
    if workspace is None and estimator.calibrated:
        say(f"memx-tui: using the measurements in {folder}")
    return estimator
