"""Train once: a predictor is kept beside the measurements and used again while these, the job and the settings stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError, OutputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement
from memx_engine.predict.booster import OUTPUTS, BoosterSettings
from memx_engine.predict.predictor_file import VERSION, load_predictor, save_predictor
from memx_engine.predict.signatures import Signatures
from memx_engine.predict.stage_model import STAGE_SETTINGS, StageModel, fit_stages
from memx_engine.predict.tuned_settings import kept_settings

FORM = "stages/1"
"""Part of what a predictor is trained from: changes whenever features or fitting change."""

PREDICTORS = "predictors"
"""Folder of a workspace that holds trained predictors."""

KEPT = 4
"""Predictor files in a folder; the oldest go first."""


@dataclass(frozen=True)
class Trained:
    """A predictor and where it came from; ``note`` is a sentence for the operator, or empty."""

    stages: StageModel | None
    note: str = ""
    reused: bool = False
    folder: Path | None = None

    @property
    def signatures_path(self) -> Path | None:
        """Where predictions of this predictor are kept across runs; None where nothing is."""
        if self.stages is None or self.folder is None:
            return None
        return self.folder / f"{self.stages.digest}.npz"

    def signatures(self) -> Signatures | None:
        """What earlier runs remembered; empty where a file is missing or damaged, None without a predictor."""
        if self.stages is None:
            return None
        made = Signatures(self.stages.digest, len(self.stages.model.names), len(OUTPUTS))
        path = self.signatures_path
        if path is not None and path.exists():
            # Nothing is lost but time: what cannot be read is predicted again and written anew.
            with suppress(InputError):
                made.load(path)
        return made


def training_fingerprint(
    cluster: Cluster,
    job: Job,
    measurements: Sequence[Measurement],
    settings: BoosterSettings = STAGE_SETTINGS,
) -> str:
    """Changes whenever another predictor could come of it.

    Points carry their own model and sizes; of the job only what decides bytes and formats matters, so that planning for
    another batch or another model trains nothing anew.
    """
    rows = [
        [
            m.point.key,
            m.truth.value,
            m.truth_name,
            m.time_s,
            m.peak_reserved_bytes,
            m.peak_allocated_bytes,
            m.outside_bytes,
            m.collectives,
        ]
        for m in measurements
    ]
    formats = Job(
        1,
        1,
        precision=job.precision,
        optimizer=job.optimizer,
        attention=job.attention,
        sequence_parallel=job.sequence_parallel,
        fp32_gradients=job.fp32_gradients,
    )
    base = FirstPrinciples(cluster, measurements[0].point.model, formats).fingerprint
    text = json.dumps([FORM, VERSION, base, asdict(settings), rows])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def trained_stages(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    measurements: Sequence[Measurement],
    folder: Path | None = None,
) -> Trained:
    """The predictor of ``measurements``: that of ``folder`` where it was trained from exactly these, else a new one.

    A file that is damaged, of a newer release or not writable is told and passed over, never a reason to stop.
    """
    if not measurements:
        return Trained(None)
    if folder is None:
        return Trained(fit_stages(cluster, model, job, measurements))
    settings, problem = kept_settings(folder)
    fingerprint = training_fingerprint(cluster, job, measurements, settings)
    path = folder / f"{fingerprint}.json"
    notes = [problem] if problem else []
    if path.exists():
        try:
            kept, trained_from = load_predictor(path)
            if trained_from == fingerprint:
                return Trained(kept, reused=True, folder=folder)
            notes.append(f"{path.name}: trained from other measurements; trained anew")
        except InputError as error:
            notes.append(f"{path.name}: {error.message}; trained anew")
    stages = fit_stages(cluster, model, job, measurements, settings=settings)
    if stages is not None:
        try:
            save_predictor(stages, fingerprint, path)
            _prune(folder)
        except (OutputError, OSError) as error:
            reason = error.message if isinstance(error, OutputError) else str(error)
            notes.append(f"the trained predictor is not kept: {reason}")
    return Trained(stages, "; ".join(notes), folder=folder)


def _prune(folder: Path) -> None:
    # Named by fingerprint; the folder's other files, such as tuned settings, stay.
    name = "[0-9a-f]" * 16
    for ending in (".json", ".npz"):
        files = sorted(folder.glob(name + ending), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[KEPT:]:
            path.unlink(missing_ok=True)
