"""The hidden truth of one simulated device type and node, drawn once per seed. Sizes are stated in docs/testbed.md."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from memx_engine.inputs.cluster import GpuType

GIB = 1 << 30


def stream(*parts: object) -> np.random.Generator:
    """A random stream that depends on ``parts`` only, on every machine alike."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


@dataclass(frozen=True)
class HiddenDevice:
    """What a device type really does.

    Attributes:
        matmul_flops: FLOP/s that a perfectly shaped, endless matrix product reaches.
        power_flops: FLOP/s that a whole reference layer reaches; ``matmul_flops`` is fitted to it.
        processors: Units that tiles are dealt to; the last, partly filled round is lost time.
        depth_half: Inner dimension at which a product reaches half of its speed.
        attention_share: Speed of the fused attention kernel as a share of ``matmul_flops``.
        skips_masked: Whether the attention kernel skips the masked half.
        bandwidth_bytes_s: Reached by element-wise kernels.
        launch_s: Host time per kernel; a layer is never faster than its launches.
        checkpoint_s: Cost of saving and restoring the random state per recomputed layer.
        collective_share, collective_half_bytes, collective_step_s: Share of the link a collective reaches, the message
            at which it reaches half of that, and the cost of one ring step.
        staging_s: Fixed cost of a transfer through host memory.
        overlap: Share of the last backward under which data-parallel traffic hides.
        block_bytes: Allocation granularity. fragmentation: Reserved over allocated, at rest.
        churn: Extra fragmentation where recompute allocates and frees in turn.
        context_bytes: Device memory outside the allocator. communicator_bytes: Per process group.
        pressure: Slowdown when the allocator is within 8 % of the device's memory.
        noise: Log standard deviation from run to run. straggler: Probability of a slow repetition.
        cliff: Micro-batch sizes at which the library picks a poor kernel, and its slowdown.
    """

    matmul_flops: float
    power_flops: float
    processors: int
    depth_half: float
    attention_share: float
    skips_masked: bool
    bandwidth_bytes_s: float
    launch_s: float
    checkpoint_s: float
    collective_share: float
    collective_half_bytes: float
    collective_step_s: float
    staging_s: float
    overlap: float
    block_bytes: int
    fragmentation: float
    churn: float
    context_bytes: int
    communicator_bytes: int
    pressure: float
    noise: float
    straggler: float
    cliff_micro_batch: int
    cliff: float


def hidden_device(gpu_type: GpuType, precision: str, seed: int, hard: bool) -> HiddenDevice:
    """Draw the hidden truth of ``gpu_type``; the operator's ``efficiency`` only sets the middle of the draw."""
    draw = stream("device", seed, gpu_type.name)
    nvidia = gpu_type.vendor.lower() == "nvidia"
    peak = gpu_type.peak_flops(precision) or gpu_type.peak_flops("fp32") or 1e12
    reach = gpu_type.efficiency * 1.25
    bandwidth = gpu_type.memory_bandwidth_bytes_s or peak / 150
    spread = 2.0 if hard else 1.0
    return HiddenDevice(
        matmul_flops=peak * min(reach, 0.97),
        # Published relative powers of the paper's cluster hold within a few percent, whatever the seed.
        power_flops=peak * gpu_type.efficiency * float(np.exp(draw.normal(0.0, 0.02))),
        processors=108 if nvidia else int(draw.integers(24, 80)),
        depth_half=float(draw.uniform(160, 320) if nvidia else draw.uniform(350, 800)),
        attention_share=float(draw.uniform(0.5, 0.65) if nvidia else draw.uniform(0.25, 0.5)),
        skips_masked=nvidia or bool(draw.random() < 0.5),
        bandwidth_bytes_s=bandwidth * float(draw.uniform(0.75, 0.88) if nvidia else draw.uniform(0.5, 0.75)),
        launch_s=float(draw.uniform(4e-6, 7e-6) if nvidia else draw.uniform(9e-6, 20e-6)),
        checkpoint_s=float(draw.uniform(40e-6, 150e-6)),
        collective_share=float(draw.uniform(0.7, 0.85) if nvidia else draw.uniform(0.4, 0.65)),
        collective_half_bytes=float(draw.uniform(1, 3) if nvidia else draw.uniform(4, 16)) * (1 << 20),
        collective_step_s=float(draw.uniform(6e-6, 12e-6) if nvidia else draw.uniform(20e-6, 50e-6)),
        staging_s=float(draw.uniform(60e-6, 200e-6)),
        overlap=float(draw.uniform(0.5, 0.8) if nvidia else draw.uniform(0.0, 0.4)),
        block_bytes=(2 << 20) if nvidia else int(draw.choice([2, 4, 8])) << 20,
        fragmentation=float(draw.uniform(0.02, 0.05) if nvidia else draw.uniform(0.04, 0.11)),
        churn=float(draw.uniform(0.01, 0.04) * spread),
        context_bytes=int(draw.uniform(0.7, 1.3) * GIB if nvidia else draw.uniform(1.0, 3.2) * GIB),
        communicator_bytes=int(draw.uniform(0.15, 0.5) * GIB),
        pressure=float(draw.uniform(0.03, 0.12) * spread),
        noise=float(draw.uniform(0.004, 0.009) * spread),
        straggler=0.01 * spread,
        cliff_micro_batch=int(draw.choice([2, 4, 8])) if hard else 0,
        cliff=float(draw.uniform(1.08, 1.2)),
    )


def node_factor(name: str, seed: int, hard: bool) -> float:
    """How much slower or faster one node is than its siblings (cooling, clocks, neighbours)."""
    return float(np.exp(stream("node", seed, name).normal(0.0, 0.03 if hard else 0.01)))


def uplink_factor(name: str, seed: int, hard: bool) -> float:
    """Share of its network that a node really gets."""
    low = 0.6 if hard else 0.8
    return float(stream("uplink", seed, name).uniform(low, 0.97))
