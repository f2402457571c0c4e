"""Transfers of the simulated cluster: contention on shared uplinks, staging between vendors, data-parallel rings."""

from __future__ import annotations

from collections import Counter

from memx_engine.inputs.cluster import Cluster, LinkClass
from memx_engine.inputs.job import Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Plan, Stage
from memx_engine.testbed.hidden import HiddenDevice, uplink_factor


class Network:
    """Seconds that the transfers of one plan take."""

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        plan: Plan,
        devices: dict[str, HiddenDevice],
        seed: int,
        hard: bool,
    ) -> None:
        self.cluster, self.model, self.job, self.plan, self.devices = cluster, model, job, plan, devices
        self.uplinks = [uplink_factor(node.name, seed, hard) for node in cluster.nodes]
        self.flows = self._boundary_flows()

    def _crosses(self, a: int, b: int) -> bool:
        return self.cluster.link_class(a, b) in (LinkClass.INTER_NODE, LinkClass.INTER_SITE)

    def _boundary_flows(self) -> Counter[tuple[int, str]]:
        """How many stage-to-stage streams leave or enter each node."""
        flows: Counter[tuple[int, str]] = Counter()
        for here, there in zip(self.plan.stages, self.plan.stages[1:], strict=False):
            for d in range(here.dp):
                a, b = here.ranks[d * here.tp], there.ranks[d * there.tp]
                if self._crosses(a, b):
                    flows[self.cluster.gpus[a].node_index, "out"] += 1
                    flows[self.cluster.gpus[b].node_index, "in"] += 1
        return flows

    def point_to_point(self, here: Stage, there: Stage, replica: int) -> float:
        """One micro-batch's activations from ``here`` to ``there`` (or its gradient back), seconds."""
        a, b = here.ranks[replica * here.tp], there.ranks[replica * there.tp]
        size = self.plan.skeleton.micro_batch * self.plan.skeleton.seq_len * self.model.hidden
        size *= self.job.bytes_per_element
        link = self.cluster.link(a, b)
        bandwidth, seconds = link.bandwidth_bytes_s, link.latency_s + 15e-6
        if self._crosses(a, b):
            x, y = self.cluster.gpus[a].node_index, self.cluster.gpus[b].node_index
            crowd = max(self.flows[x, "out"], self.flows[y, "in"], 1)
            bandwidth *= min(self.uplinks[x], self.uplinks[y])
            if link.shared:
                # Streams of different stages overlap in part only.
                bandwidth /= 1.0 + 0.5 * (crowd - 1)
            else:
                bandwidth *= min(here.tp, there.tp)
        seconds += size / bandwidth
        if self.cluster.gpus[a].gpu_type.vendor != self.cluster.gpus[b].gpu_type.vendor:
            staging = self.cluster.host_link(a, b) or link
            seconds += self.devices[here.gpu_type].staging_s + self.devices[there.gpu_type].staging_s
            seconds += 2.0 * size / (staging.bandwidth_bytes_s * 0.7)
        return seconds

    def data_parallel(self, stage: Stage, parameters: int, last_backward_s: float) -> float:
        """Exposed gradient reduction (and weight gathering) of one stage, seconds."""
        n = stage.dp
        if n == 1:
            return 0.0
        device = self.devices[stage.gpu_type]
        ring = [stage.ranks[d * stage.tp] for d in range(n)]
        pairs = list(zip(ring, ring[1:] + ring[:1], strict=True))
        slowest, latency = float("inf"), 0.0
        for a, b in pairs:
            link = self.cluster.link(a, b)
            bandwidth = link.bandwidth_bytes_s
            if self._crosses(a, b):
                bandwidth *= min(self.uplinks[self.cluster.gpus[r].node_index] for r in (a, b))
                if link.shared:
                    bandwidth /= stage.tp
            slowest, latency = min(slowest, bandwidth), max(latency, link.latency_s)
        share = device.collective_share
        gradient = 4 if self.job.fp32_gradients else self.job.bytes_per_element
        steps = (n - 1) * (latency + device.collective_step_s)
        volume = (n - 1) / n * parameters
        if self.job.optimizer is Optimizer.SHARDED:
            reduce = steps + volume * gradient / (slowest * share)
            gather = steps + volume * self.job.bytes_per_element / (slowest * share)
        else:
            reduce, gather = 2 * (steps + volume * gradient / (slowest * share)), 0.0
        return max(reduce - device.overlap * last_backward_s, 0.15 * reduce) + gather
