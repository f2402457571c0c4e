"""What is measured: one pipeline stage in one configuration on one GPU type, and what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property

from memx_engine.inputs.job import Attention, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import NONE, Recompute


class Outcome(StrEnum):
    """How a measurement ended. All but ``skipped`` were really tried; an OOM is a result, not a failure."""

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SKIPPED = "skipped"


class Truth(StrEnum):
    """What kind of ground a measurement stands on; a simulated one is never shown as measured."""

    TESTBED = "testbed"
    CPU = "cpu"
    GPU = "gpu"
    TABLE = "table"


@dataclass(frozen=True)
class Point:
    """One stage to measure: ``layers`` layers of ``model`` sharded ``tp`` ways on GPUs of one type.

    Attributes:
        embedding, head: Whether the stage holds the pipeline's first or last part beside its layers.
        in_flight: Micro-batches whose activations are held at the peak.
    """

    gpu_type: str
    model: TransformerSpec
    tp: int
    micro_batch: int
    seq_len: int
    layers: int
    embedding: bool = False
    head: bool = False
    recompute: Recompute = NONE
    in_flight: int = 1
    precision: Precision = Precision.BF16
    attention: Attention = Attention.FUSED
    sequence_parallel: bool = True

    @cached_property
    def key(self) -> str:
        """Hash of everything that can change the result; the same point on the same type has the same key."""
        document = {f.name: getattr(self, f.name) for f in fields(self)}
        document["model"] = self.model.fingerprint
        document["recompute"] = str(self.recompute)
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def label(self) -> str:
        """Short words for a progress line."""
        return self.label_in(self.model)

    def label_in(self, run_of: TransformerSpec) -> str:
        """``label`` in a run of the model ``run_of``: with the number of KV heads where it is not that model's own."""
        layers = f"{self.layers} layer{'s' if self.layers != 1 else ''}"
        parts = ("embedding " if self.embedding else "") + layers + (" head" if self.head else "")
        kv = f" kv{self.model.kv_heads}" if self.model.kv_heads != run_of.kv_heads else ""
        return f"{parts} tp{self.tp} mbs{self.micro_batch} seq{self.seq_len}{kv} {self.recompute} x{self.in_flight}"


@dataclass(frozen=True)
class Measurement:
    """One point's result with its full conditions.

    Attributes:
        forward_s, backward_s, optimizer_s: Medians over the repetitions, one micro-batch (the optimizer: one call);
            None unless ``outcome`` is ok.
        whole_s: Forward and backward together, where the ground does not tell them apart.
        repetitions_s: Forward plus backward of every repetition after warm-up.
        stragglers: Repetitions reported apart, more than three times the median.
        peak_allocated_bytes, peak_reserved_bytes: As the device's allocator reports them; None where it does not.
        outside_bytes: Device memory in use beyond what the allocator reserved: context, libraries, communicators; None
            where the device does not tell.
        capacity_bytes: The device's memory, where known.
        node, device: Where it ran, as the host and the driver name themselves.
        versions: Framework, driver and tool versions.
        truth, truth_name: Kind of ground, and which (``testbed:0``, ``cpu``).
        started_at: Seconds since the epoch, UTC. duration_s: What the measurement cost, in the truth's own time.
        detail: The failure's own words, or why a point was skipped and by which bound.
        collectives: False where one rank of a TP group was measured alone, without the group's communication.
        described: Fingerprint of the device as the cluster file described it (:mod:`memx_engine.profile.described`);
            empty until it is stored for a cluster.
    """

    point: Point
    outcome: Outcome
    truth: Truth
    truth_name: str
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    whole_s: float | None = None
    repetitions_s: tuple[float, ...] = ()
    stragglers: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    outside_bytes: int | None = None
    capacity_bytes: int | None = None
    node: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    duration_s: float = 0.0
    detail: str = ""
    collectives: bool = True
    described: str = ""

    @property
    def time_s(self) -> float | None:
        """Forward plus backward of one micro-batch."""
        if self.forward_s is None or self.backward_s is None:
            return self.whole_s
        return self.forward_s + self.backward_s

    @property
    def spread(self) -> float | None:
        """Half the distance between the quartiles of the repetitions over their median; None below four."""
        values = sorted(self.repetitions_s)
        if len(values) < 4:
            return None
        quarter = len(values) // 4
        return (values[-1 - quarter] - values[quarter]) / 2 / values[len(values) // 2]
