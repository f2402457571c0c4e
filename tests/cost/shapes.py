"""Models, clusters and plans that the cost model's tests share, with the public source of every shape."""

from __future__ import annotations

from collections.abc import Sequence

from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import NONE, Plan, Recompute, Skeleton, Stage, StagePlacement
from memx_engine.units import GB, GIB, TERA

# huggingface.co/meta-llama configurations.
LLAMA2_7B = TransformerSpec("llama2-7b", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096)
LLAMA3_8B = TransformerSpec("llama3-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192)
# huggingface.co/google/gemma-2-9b: head_dim 256, tied, every other layer with a window of 4096.
GEMMA2_9B = TransformerSpec(
    "gemma2-9b",
    "gemma2",
    42,
    3584,
    14336,
    16,
    8,
    256,
    256000,
    8192,
    norms_per_layer=4,
    tied_embeddings=True,
    sliding_window=4096,
    windowed_layers=21,
)
# huggingface.co/openai-community/gpt2-large.
GPT2_LARGE = TransformerSpec(
    "gpt2-large",
    "gpt2",
    36,
    1280,
    5120,
    20,
    20,
    64,
    50257,
    1024,
    gated=False,
    norm="layernorm",
    qkv_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
    position_rows=1024,
    dropout=True,
    tied_embeddings=True,
)
# huggingface.co/BAAI/Aquila2-7B.
AQUILA2_7B = TransformerSpec("aquila2-7b", "llama", 32, 4096, 11008, 32, 32, 128, 100008, 2048)


def gpu_type(name: str = "a800-sxm-80g", **changes: object) -> GpuType:
    """An A800: 312 TFLOP/s dense bf16, 80 GiB, 2,039 GB/s (NVIDIA A100 data sheet), products at 0.8 of the peak."""
    values: dict[str, object] = {
        "vendor": "NVIDIA",
        "marketing_name": name,
        "memory_bytes": 80 * GIB,
        "bf16_flops": 312 * TERA,
        "fp16_flops": 312 * TERA,
        "fp32_flops": 19.5 * TERA,
        "memory_bandwidth_bytes_s": 2039 * GB,
        "efficiency": 0.8,
        **changes,
    }
    return GpuType(name, **values)  # type: ignore[arg-type]  # a test may change any field


A800 = gpu_type()
A100_40G = gpu_type("a100-sxm-40g", memory_bytes=40 * GIB, memory_bandwidth_bytes_s=1555 * GB)
V100_32G = gpu_type(
    "v100-sxm2-32g",
    memory_bytes=32 * GIB,
    bf16_flops=None,
    lacks=("bf16",),
    fp16_flops=125 * TERA,
    fp32_flops=15.7 * TERA,
    memory_bandwidth_bytes_s=900 * GB,
)

NVLINK_A800 = Link(160 * GB, 5e-6)  # 8 links x 20 GB/s achieved (NCCL topo.h, SM80_NVLINK_BW)
INFINIBAND = Link(24 * GB, 10e-6)  # HDR, one card per GPU


def nodes_of(*kinds: GpuType, per_node: int = 8, **changes: object) -> Cluster:
    """One node per entry of ``kinds``, NVLink inside, InfiniBand between."""
    inside = NVLINK_A800
    made = tuple(
        Node(f"node-{i}", (GpuGroup(kind, per_node),), per_node, per_node, inside, inside, inside)
        for i, kind in enumerate(kinds)
    )
    values: dict[str, object] = {"host": Link(10 * GB, 30e-6), **changes}
    return Cluster("test", made, INFINIBAND, **values)  # type: ignore[arg-type]  # a test may change any field


def skeleton(
    cluster: Cluster, tp: int, pp: int, dp: int, *, micro_batch: int, seq_len: int, global_batch: int, v: int = 1
) -> Skeleton:
    """Stages on consecutive ranks."""
    size = tp * dp
    placements = tuple(
        StagePlacement(cluster.gpus[i * size].gpu_type.name, tp, dp, tuple(range(i * size, (i + 1) * size)))
        for i in range(pp)
    )
    return Skeleton(tp, pp, dp, micro_batch, seq_len, global_batch, placements, v)


def plan(made: Skeleton, layers: Sequence[int], recompute: Sequence[Recompute] | None = None) -> Plan:
    """Layers and recompute per stage; chunks as equal as they can be."""
    v = made.virtual_stages
    strategies = recompute or [NONE] * made.pp
    stages = []
    for placement, n, strategy in zip(made.placements, layers, strategies, strict=True):
        chunks = tuple(n // v + (1 if k < n % v else 0) for k in range(v))
        stages.append(Stage(placement, chunks, strategy))
    return Plan(made, tuple(stages))
