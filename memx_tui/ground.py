"""What planning rests on: first principles, corrected by what a workspace holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memx_engine import Calibrated, Cluster, FirstPrinciples, Job, TransformerSpec


@dataclass(frozen=True)
class Ground:
    """What planning rests on now, in words for the operator.

    Attributes:
        word: ``uncalibrated``, ``simulated`` or ``measured``: what a search started now would say.
        stored: Measurements in the workspace by ground, such as ``{"testbed:0": 787}``; skipped points do not count.
        missing: GPU types of the cluster that nothing was measured on.
        notice: What somebody should know of the workspace, such as a session that died in it.
    """

    word: str = "uncalibrated"
    stored: tuple[tuple[str, int], ...] = ()
    missing: tuple[str, ...] = ()
    notice: str = ""

    @property
    def total(self) -> int:
        return sum(count for _, count in self.stored)

    def line(self) -> str:
        """One sentence."""
        if not self.total:
            return "Planning rests on first principles (uncalibrated): nothing is measured yet."
        grounds = ", ".join(f"{count:,} results of {name}" for name, count in self.stored)
        if self.word == "uncalibrated":
            of = f" of {', '.join(self.missing)}" if self.missing else ""
            return f"Planning stays uncalibrated: {grounds} are not enough{of}."
        return f"Planning rests on {grounds} ({self.word}); p plans with them."


def stored_estimator(
    cluster: Cluster, model: TransformerSpec, job: Job, folder: Path
) -> FirstPrinciples | Calibrated | None:
    """What the measurements in ``folder`` give; None without a workspace there.

    The measurements are only read: another session may be writing to them. What is learned is kept beside them.

    Raises:
        StorageError: The workspace cannot be read.
    """
    from memx_engine import PREDICTORS, Calibrated, Workspace

    if not Workspace.exists(folder):
        return None
    with Workspace(folder, read_only=True) as store:
        return Calibrated.of_store(cluster, model, job, store, keep=folder / PREDICTORS)


def find_ground(cluster: Cluster, model: TransformerSpec, job: Job, folder: Path) -> Ground:
    """Read the workspace and say what planning would rest on.

    Raises:
        StorageError: The workspace cannot be read.
    """
    from memx_engine import Calibrated, OfCluster, Outcome, Workspace

    if not Workspace.exists(folder):
        return Ground()
    with Workspace(folder, read_only=True) as store:
        estimator = Calibrated.of_store(cluster, model, job, store, learn=False)
        own = {t.name for t in cluster.gpu_types}
        counts: dict[str, int] = {}
        seen: set[str] = set()
        for (truth, gpu_type, outcome), count in OfCluster(store, cluster).counts().items():
            if gpu_type in own and outcome != Outcome.SKIPPED.value:
                counts[truth] = counts.get(truth, 0) + count
                seen.add(gpu_type)
        holder = store.writer
    notice = ""
    if holder is not None and holder.is_dead():
        notice = (
            f"{holder.words} ended without closing the workspace; its {sum(counts.values()):,} results are kept, "
            "at most the points that were running are lost, r goes on"
        )
    missing = tuple(t.name for t in cluster.gpu_types if t.name not in seen)
    return Ground(estimator.provenance.value, tuple(sorted(counts.items())), missing, notice)
