"""The simulated cluster's front door: measure one stage, or run a whole plan, as a real cluster would."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memx_engine.inputs.cluster import Cluster, Link
from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Plan, Stage
from memx_engine.testbed.hidden import HiddenDevice, hidden_device, node_factor, stream
from memx_engine.testbed.kernels import StageTruth, fit_to_power, stage_truth
from memx_engine.testbed.network import Network
from memx_engine.testbed.pipeline import peak_held, run_pipeline, stage_order

_STRAGGLER = 3.0


@dataclass(frozen=True)
class TestbedRun:
    """What a real run would have returned: the iteration time, or the rank that ran out of memory.

    Attributes:
        iteration_time_s: Median over ``repetitions_s`` (without stragglers); None after an OOM.
        peak_bytes: Per rank of the plan, device memory in use at the peak; empty ranks are left out.
    """

    iteration_time_s: float | None
    repetitions_s: tuple[float, ...]
    stragglers: int
    peak_bytes: dict[int, int]
    oom_rank: int | None

    __test__ = False


def _state_bytes(precision: Precision, fp32_gradients: bool, dp: int, sharded: bool) -> float:
    shard = dp if sharded else 1
    if precision is Precision.FP32:
        return 8.0 + 8.0 / shard
    gradients = 4.0 if fp32_gradients else 2.0
    moments = 12.0 if precision is Precision.BF16 or fp32_gradients else 16.0
    return 2.0 + gradients + moments / shard


class Testbed:
    """One instance of the simulated cluster, named ``testbed:SEED`` or ``testbed:hard:SEED``."""

    __test__ = False

    def __init__(self, cluster: Cluster, *, seed: int = 0, hard: bool = False) -> None:
        self.cluster, self.seed, self.hard = cluster, seed, hard
        self._devices: dict[tuple[str, Precision], HiddenDevice] = {}

    @property
    def name(self) -> str:
        return f"testbed:hard:{self.seed}" if self.hard else f"testbed:{self.seed}"

    def device(self, gpu_type: str, precision: Precision) -> HiddenDevice:
        """The hidden truth of a type; for tests and documentation only."""
        key = (gpu_type, precision)
        if key not in self._devices:
            drawn = hidden_device(self.cluster.gpu_type(gpu_type), precision.value, self.seed, self.hard)
            fitted = fit_to_power(drawn, precision)
            self._devices[key] = replace(fitted, cliff_micro_batch=drawn.cliff_micro_batch)
        return self._devices[key]

    def _group_link(self, ranks: tuple[int, ...]) -> Link | None:
        """The slowest link inside a TP group; None for one rank."""
        pairs = list(zip(ranks, ranks[1:], strict=False))
        links = [self.cluster.link(a, b) for a, b in pairs]
        return min(links, key=lambda link: link.bandwidth_bytes_s) if links else None

    def _draws(self, rng: np.random.Generator, device: HiddenDevice, count: int) -> tuple[list[float], int]:
        factors = np.exp(rng.normal(0.0, device.noise, count))
        slow = rng.random(count) < device.straggler
        factors[slow] *= _STRAGGLER * (1.0 + rng.random(int(slow.sum())))
        return [float(f) for f in factors], int(slow.sum())

    def measure(self, point: Point, *, repetitions: int = 5, attempt: int = 0) -> Measurement:
        """Measure one stage on a representative node of its type; ``duration_s`` is virtual time.

        Peaks are those of forward and backward with weights and gradients, without optimizer state, whose size is known
        exactly. ``attempt`` numbers repeated measurements of one point, which differ by noise only.
        """
        gpu_type = self.cluster.gpu_type(point.gpu_type)
        device = self.device(point.gpu_type, point.precision)
        ranks = self.cluster.ranks_by_type[point.gpu_type]
        node_index = self.cluster.gpus[ranks[0]].node_index
        node = self.cluster.nodes[node_index]
        capacity = self.cluster.gpus[ranks[0]].capacity_bytes
        room = capacity - device.context_bytes - (device.communicator_bytes if point.tp > 1 else 0)
        state = _state_bytes(point.precision, point.precision is not Precision.FP16, 1, True)
        state -= {Precision.BF16: 12.0, Precision.FP16: 16.0, Precision.FP32: 8.0}[point.precision]
        truth = stage_truth(point, device, self._group_link(ranks[: point.tp]), state_bytes=state, capacity_bytes=room)
        rng = stream("measure", self.seed, self.hard, point.key, attempt)
        base = Measurement(
            point=point,
            outcome=Outcome.OK,
            truth=Truth.TESTBED,
            truth_name=self.name,
            node=node.name,
            device=f"{gpu_type.marketing_name} (simulated)",
            versions={"testbed": "1"},
            capacity_bytes=capacity,
            outside_bytes=capacity - room,
        )
        start_up = float(rng.uniform(8.0, 14.0))
        if truth.reserved_bytes > room:
            return replace(
                base,
                outcome=Outcome.OOM,
                duration_s=start_up,
                detail=f"out of memory: asked for {truth.reserved_bytes} bytes with {room} left on the device",
            )
        factors, _ = self._draws(rng, device, repetitions)
        slow = node_factor(node.name, self.seed, self.hard)
        once = (truth.forward_s + truth.backward_s) * slow
        runs = [once * f for f in factors]
        middle = float(np.median(runs))
        kept = [r for r in runs if r <= 2.0 * middle]
        scale = float(np.median(kept)) / (truth.forward_s + truth.backward_s)
        return replace(
            base,
            forward_s=truth.forward_s * scale,
            backward_s=truth.backward_s * scale,
            optimizer_s=truth.optimizer_s * slow,
            repetitions_s=tuple(runs),
            stragglers=len(runs) - len(kept),
            peak_allocated_bytes=truth.allocated_bytes,
            peak_reserved_bytes=truth.reserved_bytes,
            duration_s=start_up + sum(runs) * max(point.in_flight, 1) + 2 * once,
        )

    def _stage_point(self, plan: Plan, index: int, layers: int, model: TransformerSpec, job: Job) -> Point:
        stage, skeleton = plan.stages[index], plan.skeleton
        return Point(
            gpu_type=stage.gpu_type,
            model=model,
            tp=stage.tp,
            micro_batch=skeleton.micro_batch,
            seq_len=skeleton.seq_len,
            layers=layers,
            embedding=index == 0,
            head=index == len(plan.stages) - 1,
            recompute=stage.recompute,
            precision=job.precision,
            attention=job.attention,
            sequence_parallel=job.sequence_parallel and stage.tp > 1,
        )

    def run(self, plan: Plan, model: TransformerSpec, job: Job, *, repetitions: int = 3) -> TestbedRun:
        """Run one iteration of ``plan`` on all its ranks, ``repetitions`` times.

        Returns iteration time and per-rank peaks, or the first rank that ran out of memory, as a real run would.
        """
        model = replace(model, tied_embeddings=False) if plan.untied else model
        skeleton = plan.skeleton
        stages, chunks, batches = len(plan.stages), skeleton.virtual_stages, skeleton.micro_batches
        devices = {s.gpu_type: self.device(s.gpu_type, job.precision) for s in plan.stages}
        network = Network(self.cluster, model, job, plan, devices, self.seed, self.hard)
        peaks: dict[int, int] = {}
        oom_rank: int | None = None
        truths: list[list[StageTruth]] = []
        whole: list[StageTruth] = []
        for i, stage in enumerate(plan.stages):
            order = stage_order(i, stages, chunks, batches)
            share = [layers / stage.layers for layers in stage.chunk_layers]
            in_flight = max(1.0, peak_held(order, share))
            truth, outside = self._stage_memory(plan, i, in_flight, model, job, devices[stage.gpu_type])
            whole.append(truth)
            per_chunk = []
            for c, layers in enumerate(stage.chunk_layers):
                point = self._stage_point(plan, i, layers, model, job)
                point = replace(point, embedding=point.embedding and c == 0, head=point.head and c == chunks - 1)
                link = self._group_link(stage.ranks[: stage.tp])
                per_chunk.append(
                    stage_truth(point, devices[stage.gpu_type], link, state_bytes=6.0, capacity_bytes=1 << 62)
                )
            truths.append(per_chunk)
            for rank in stage.ranks:
                peaks[rank] = truth.reserved_bytes + outside
                if peaks[rank] > self.cluster.gpus[rank].capacity_bytes and oom_rank is None:
                    oom_rank = rank
        if oom_rank is not None:
            return TestbedRun(None, (), 0, peaks, oom_rank)
        times, slow_runs = [], 0
        for repetition in range(repetitions):
            rng = stream("run", self.seed, self.hard, plan, repetition)
            seconds = self._iteration(plan, model, job, network, truths, whole, devices, rng)
            times.append(seconds)
        middle = float(np.median(times))
        kept = [t for t in times if t <= 1.5 * middle]
        slow_runs = len(times) - len(kept)
        return TestbedRun(float(np.median(kept)), tuple(times), slow_runs, peaks, None)

    def _stage_memory(
        self, plan: Plan, index: int, in_flight: float, model: TransformerSpec, job: Job, device: HiddenDevice
    ) -> tuple[StageTruth, int]:
        stage = plan.stages[index]
        point = self._stage_point(plan, index, stage.layers, model, job)
        groups = (stage.tp > 1) + (stage.dp > 1) + (len(plan.stages) > 1)
        outside = device.context_bytes + groups * device.communicator_bytes
        state = _state_bytes(job.precision, job.fp32_gradients, stage.dp, job.optimizer is Optimizer.SHARDED)
        room = min(self.cluster.gpus[rank].capacity_bytes for rank in stage.ranks) - outside
        link = self._group_link(stage.ranks[: stage.tp])
        truth = stage_truth(
            point,
            device,
            link,
            state_bytes=state,
            capacity_bytes=room,
            chunks=stage.chunk_layers,
            flights=in_flight,
        )
        return truth, outside

    def _iteration(
        self,
        plan: Plan,
        model: TransformerSpec,
        job: Job,
        network: Network,
        truths: list[list[StageTruth]],
        whole: list[StageTruth],
        devices: dict[str, HiddenDevice],
        rng: np.random.Generator,
    ) -> float:
        skeleton, stages = plan.skeleton, plan.stages
        count, chunks, batches = len(stages), skeleton.virtual_stages, skeleton.micro_batches
        finish = np.zeros(count)
        for replica in range(skeleton.dp):
            factors = np.empty((count, 2, chunks, batches))
            for i, stage in enumerate(stages):
                members = stage.ranks[replica * stage.tp : (replica + 1) * stage.tp]
                nodes = {self.cluster.gpus[r].node_index for r in members}
                slow = max(node_factor(self.cluster.nodes[n].name, self.seed, self.hard) for n in nodes)
                noise = rng.normal(0.0, devices[stage.gpu_type].noise, (2, chunks, batches))
                pressure = whole[i].forward_s / max(sum(t.forward_s for t in truths[i]), 1e-12)
                factors[i] = np.exp(noise) * slow * max(pressure, 1.0)

            def duration(i: int, is_forward: bool, chunk: int, batch: int, factors: np.ndarray = factors) -> float:
                truth = truths[i][chunk]
                seconds = truth.forward_s if is_forward else truth.backward_s
                return seconds * float(factors[i, 0 if is_forward else 1, chunk, batch])

            pairs = list(zip(stages, stages[1:], strict=False))
            transfers = [network.point_to_point(a, b, replica) for a, b in pairs]
            blocking = [self._vendor(a) != self._vendor(b) for a, b in pairs]
            wrap = network.point_to_point(stages[-1], stages[0], replica) if chunks > 1 and count > 1 else 0.0
            finish = np.maximum(finish, run_pipeline(duration, transfers, blocking, chunks, batches, wrap))
        ends = []
        for i, stage in enumerate(stages):
            last = sum(t.backward_s for t in truths[i])
            exposed = network.data_parallel(stage, whole[i].state_parameters, last)
            shard = stage.dp if job.optimizer is Optimizer.SHARDED else 1
            ends.append(float(finish[i]) + exposed + whole[i].optimizer_s / shard)
        if model.tied_embeddings and count > 1:
            table = model.padded_vocab(stages[0].tp) // stages[0].tp * model.hidden
            link = self.cluster.link(stages[0].ranks[0], stages[-1].ranks[0])
            both = 2 * table * 4 / link.bandwidth_bytes_s
            ends[0], ends[-1] = ends[0] + both, ends[-1] + both
        # Gradient norm and loss scale cross all ranks over the hosts; the data loader runs once.
        ranks = sum(len(s.ranks) for s in stages)
        fixed = 0.004 + 0.0008 * float(np.log2(max(ranks, 2)))
        straggler = 1.0
        if rng.random() < 0.01 * (2.0 if self.hard else 1.0):
            straggler = 1.5 + float(rng.random())
        return (max(ends) + fixed) * straggler * float(np.exp(rng.normal(0.0, 0.003)))

    def _vendor(self, stage: Stage) -> str:
        return self.cluster.gpu_type(stage.gpu_type).vendor
