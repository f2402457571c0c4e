"""Whose measurements these are: a result belongs to a device as the cluster file described it, not to a name.

Two clusters may use one name, and one name may be given to another device later. Every stored result therefore carries
a fingerprint of what it depends on, and a store is read through :class:`OfCluster`. How many nodes there are, what they
are called and where they stand is no part of it: a larger cluster of the same devices goes on with what was measured.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import astuple, replace

from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Truth
from memx_engine.profile.store import Accept, MeasurementStore

_SAME_MEMORY = 0.1
"""How far the memory that a driver reports may lie from the described one: GB for GiB, and what the driver keeps."""


def described(cluster: Cluster, gpu_type: str, tp: int, truth: Truth) -> str:
    """Fingerprint of the device group that measures a point of ``tp`` on ``gpu_type``; KeyError for an unknown type.

    The type's memory, peaks and bandwidth, and with TP the slowest link of the group. A simulated device is nothing but
    its description, so there the assumed efficiency and the memory in use count too; what a real one reaches does not
    depend on them.
    """
    kind = cluster.gpu_type(gpu_type)
    ranks = cluster.ranks_by_type[gpu_type][:tp]
    links = [cluster.link(a, b) for a, b in zip(ranks, ranks[1:], strict=False)]
    slowest = min(links, key=lambda link: link.bandwidth_bytes_s, default=None)
    facts: list[object] = [
        kind.vendor.casefold(),
        kind.memory_bytes,
        kind.bf16_flops,
        kind.fp16_flops,
        kind.fp32_flops,
        kind.memory_bandwidth_bytes_s,
        tp,
        slowest and astuple(slowest),
    ]
    if truth is Truth.TESTBED:
        facts += [kind.efficiency, cluster.gpus[ranks[0]].capacity_bytes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


class OfCluster:
    """The part of ``store`` that was measured on the devices of ``cluster`` as they are described now.

    A store is told nothing of clusters, so this is where a fingerprint is written and compared. What was stored without
    one (schema 1) counts too, where its device's memory is as described.
    """

    def __init__(self, store: MeasurementStore, cluster: Cluster) -> None:
        self._store, self._cluster = store, cluster
        self._known: dict[tuple[str, int, Truth], str] = {}

    def _described(self, gpu_type: str, tp: int, truth: Truth) -> str:
        key = (gpu_type, tp, truth)
        if key not in self._known:
            self._known[key] = described(self._cluster, gpu_type, tp, truth)
        return self._known[key]

    def owns(self, measurement: Measurement) -> bool:
        """Whether ``measurement`` stands for a device of the cluster."""
        point = measurement.point
        if point.gpu_type not in self._cluster.ranks_by_type:
            return False
        if measurement.described:
            return measurement.described == self._described(point.gpu_type, point.tp, measurement.truth)
        memory = self._cluster.gpu_type(point.gpu_type).memory_bytes
        there = measurement.capacity_bytes
        used = max(self._cluster.gpus[r].memory_used_bytes for r in self._cluster.ranks_by_type[point.gpu_type])
        return there is None or (1 - _SAME_MEMORY) * (memory - used) <= there <= (1 + _SAME_MEMORY) * memory

    def add(self, measurement: Measurement) -> None:
        """Store ``measurement`` with the fingerprint of what it was made on."""
        point = measurement.point
        self._store.add(replace(measurement, described=self._described(point.gpu_type, point.tp, measurement.truth)))

    def measurements(self) -> Iterator[Measurement]:
        """The cluster's own measurements in the order they came."""
        return filter(self.owns, self._store.measurements())

    def sorted_out(self) -> tuple[list[Measurement], tuple[str, ...]]:
        """The cluster's own measurements, and in sentences what else is stored under the names of its types."""
        own: list[Measurement] = []
        others: Counter[str] = Counter()
        for m in self._store.measurements():
            if self.owns(m):
                own.append(m)
            elif m.point.gpu_type in self._cluster.ranks_by_type:
                others[m.point.gpu_type] += 1
        return own, tuple(
            f"{count} measurements of {name} are left out: the device, or its links, had other figures then"
            for name, count in sorted(others.items())
        )

    def latest(self, truth_name: str, keys: Collection[str], accept: Accept | None = None) -> dict[str, Measurement]:
        """The latest of the cluster's own measurements of every point key among ``keys``."""
        return self._store.latest(truth_name, keys, lambda m: self.owns(m) and (accept is None or accept(m)))

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many of the cluster's own measurements there are by (truth name, GPU type, outcome)."""
        return dict(Counter((m.truth_name, m.point.gpu_type, m.outcome.value) for m in self.measurements()))
