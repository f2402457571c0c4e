"""The testbed against published facts (the MemX paper's measurements), over several seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.job import Attention, Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Outcome, Point, Truth
from memx_engine.plan import Plan, Recompute, Skeleton, Stage, StagePlacement
from memx_engine.testbed.testbed import Testbed

GIB = 1 << 30
SEEDS = range(5)
NVLINK, PCIE, NUMA = Link(240e9, 5e-6), Link(17e9, 1e-5), Link(12e9, 1e-5)

A100 = GpuType("a100-sxm-80g", "NVIDIA", "A100", 80 * GIB, 312e12, 312e12, 19.5e12, 2039e9, efficiency=128 / 312)
VENDOR_B = GpuType("vendor-b", "B", "B", 32 * GIB, 256e12, 256e12, 16e12, 1600e9, efficiency=99 / 256)
VENDOR_C = GpuType("vendor-c", "C", "C", 32 * GIB, 128e12, 128e12, 8e12, 1000e9, efficiency=46 / 128)
V100 = GpuType("v100", "NVIDIA", "V100", 32 * GIB, None, 125e12, 15.7e12, 900e9, lacks=("bf16",), efficiency=0.45)
T4 = GpuType("t4", "NVIDIA", "T4", 15 * GIB, None, 65e12, 8e12, 320e9, lacks=("bf16",), efficiency=0.35)

LLAMA_7B = TransformerSpec("llama2-7b", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096)
SIX_LAYERS = TransformerSpec("six-layers", "llama", 6, 8192, 11008, 64, 16, 128, 32000, 4096)
SMALL_JOB = Job(32, 1024, Precision.FP16, Optimizer.REPLICATED, Attention.UNFUSED, fp32_gradients=False)


def _node(name: str, gpu_type: GpuType, count: int, link: Link, numa: Link) -> Node:
    return Node(name, (GpuGroup(gpu_type, count),), 4, 4, link, link, numa)


def paper_cluster() -> Cluster:
    nodes = (
        _node("a", A100, 4, NVLINK, NVLINK),
        _node("b", VENDOR_B, 8, PCIE, NUMA),
        _node("c", VENDOR_C, 8, PCIE, NUMA),
    )
    return Cluster("paper", nodes, Link(28e9, 1e-5, shared=True), host=Link(10e9, 2e-5))


def small_cluster() -> Cluster:
    nodes = (_node("v", V100, 4, Link(120e9, 5e-6), NUMA), _node("t", T4, 2, NUMA, NUMA))
    return Cluster("small", nodes, Link(3e9, 2e-5, shared=True))


def small_plan(recompute: str, *, micro_batch: int = 2, seq_len: int = 1024) -> Plan:
    types, ranks = ("v100", "v100", "t4"), ((0, 1), (2, 3), (4, 5))
    placements = tuple(StagePlacement(t, 2, 1, r) for t, r in zip(types, ranks, strict=True))
    skeleton = Skeleton(2, 3, 1, micro_batch, seq_len, 32, placements)
    return Plan(skeleton, tuple(Stage(p, (2,), Recompute.parse(recompute)) for p in placements))


def r_squared(x: list[float], y: list[float]) -> float:
    residual = np.array(y) - np.polyval(np.polyfit(x, y, 1), x)
    return float(1 - residual.var() / np.array(y).var())


def small_point(**changes: object) -> Point:
    point = Point(
        "v100", SIX_LAYERS, 2, 1, 1024, 2, precision=Precision.FP16, attention=Attention.UNFUSED, sequence_parallel=True
    )
    return replace(point, **changes)  # type: ignore[arg-type]  # each test names existing fields


def reserved(bed: Testbed, point: Point) -> float:
    peak = bed.measure(point).peak_reserved_bytes
    assert peak is not None
    return float(peak)


def seconds(bed: Testbed, point: Point) -> float:
    time_s = bed.measure(point).time_s
    assert time_s is not None
    return time_s


@pytest.mark.parametrize("seed", SEEDS)
def test_relative_powers_are_those_of_the_paper(seed: int) -> None:
    # Table 3 of the paper: 128 : 99 : 46.
    bed = Testbed(paper_cluster(), seed=seed)
    times = [seconds(bed, Point(t.name, LLAMA_7B, 1, 2, 2048, 2)) for t in (A100, VENDOR_B, VENDOR_C)]
    powers = [128 * times[0] / t for t in times]
    assert powers[1] == pytest.approx(99, rel=0.10)
    assert powers[2] == pytest.approx(46, rel=0.10)


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_is_linear_in_layers_and_micro_batch(seed: int) -> None:
    # Table 2: R2 0.998 and 0.971.
    bed = Testbed(small_cluster(), seed=seed)
    layers, batches = [1, 2, 3, 4, 5, 6], [1, 2, 4, 8]
    assert r_squared(layers, [reserved(bed, small_point(layers=n)) for n in layers]) > 0.99
    assert r_squared(batches, [reserved(bed, small_point(micro_batch=n, layers=1)) for n in batches]) > 0.96


@pytest.mark.parametrize("seed", SEEDS)
def test_throughput_grows_with_the_logarithm_of_the_micro_batch(seed: int) -> None:
    # Figure 3a: near-linear in log2.
    bed = Testbed(small_cluster(), seed=seed)
    throughput = [n / seconds(bed, small_point(micro_batch=n, seq_len=512)) for n in (1, 2, 4)]
    assert r_squared([0, 1, 2], throughput) > 0.95
    assert throughput == sorted(throughput)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gpu_type", [A100, VENDOR_B, VENDOR_C], ids=lambda t: t.name)
def test_the_logarithm_holds_until_the_device_is_full(seed: int, gpu_type: GpuType) -> None:
    # The published 1.000 comes without its range; docs/testbed.md states where it holds here and where it does not.
    bed = Testbed(paper_cluster(), seed=seed)

    def throughput(sizes: list[int], seq_len: int) -> list[float]:
        return [n / seconds(bed, Point(gpu_type.name, LLAMA_7B, 1, n, seq_len, 2)) for n in sizes]

    assert r_squared([0, 1, 2], throughput([1, 2, 4], 512)) > 0.95
    full = throughput([1, 2, 4, 8, 16], 4096)
    assert r_squared([0, 1, 2, 3, 4], full) < 0.95
    assert full[1] / full[0] > full[4] / full[3]
    assert full[4] / full[0] < 1.15


@pytest.mark.parametrize("seed", SEEDS)
def test_time_grows_faster_than_the_sequence(seed: int) -> None:
    # Figure 3c: log-log slope 1.16.
    bed = Testbed(small_cluster(), seed=seed)
    lengths = [1024, 2048, 4096]
    slope = np.polyfit(np.log(lengths), np.log([seconds(bed, small_point(seq_len=n)) for n in lengths]), 1)[0]
    assert slope == pytest.approx(1.16, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_query_groups_hardly_matter(seed: int) -> None:
    # Figure 3d: throughput changes by 0.8 %.
    bed = Testbed(small_cluster(), seed=seed)
    models = [replace(SIX_LAYERS, kv_heads=k) for k in (2, 4)]
    throughput = []
    for model in models:
        time_s = bed.run(small_plan("none"), model, SMALL_JOB).iteration_time_s
        assert time_s is not None
        throughput.append(model.layer.total / time_s)
    assert abs(throughput[1] / throughput[0] - 1) < 0.01


def test_recompute_saves_and_costs_as_on_the_small_cluster() -> None:
    # Figure 8, medians over matched groups: block -7.6 % memory for +8.5 % time, uniform -13.9 % for +19.2 %, selective
    # nearly free.
    cost: dict[str, list[float]] = {"selective": [], "block:1": [], "full": []}
    saving: dict[str, list[float]] = {"selective": [], "block:1": [], "full": []}
    for seed in SEEDS:
        bed = Testbed(small_cluster(), seed=seed)
        for micro_batch in (1, 2):
            plain = bed.run(small_plan("none", micro_batch=micro_batch), SIX_LAYERS, SMALL_JOB)
            for word in cost:
                run = bed.run(small_plan(word, micro_batch=micro_batch), SIX_LAYERS, SMALL_JOB)
                assert run.iteration_time_s is not None and plain.iteration_time_s is not None
                cost[word].append(run.iteration_time_s / plain.iteration_time_s - 1)
                saving[word].append(1 - sum(run.peak_bytes.values()) / sum(plain.peak_bytes.values()))
    assert 0.12 < np.median(cost["full"]) < 0.30
    assert 0.05 < np.median(saving["full"]) < 0.20
    assert 0.05 < np.median(cost["block:1"]) < 0.16
    assert 0.02 < np.median(saving["block:1"]) < 0.12
    assert np.median(cost["selective"]) < 0.07
    assert np.median(saving["block:1"]) < np.median(saving["full"])


def test_a_point_too_large_for_the_device_ends_in_oom() -> None:
    bed = Testbed(small_cluster())
    result = bed.measure(small_point(micro_batch=32, layers=6, seq_len=4096))
    assert result.outcome is Outcome.OOM
    assert result.time_s is None
    assert "out of memory" in result.detail


def test_a_plan_too_large_names_the_first_rank_that_fails() -> None:
    run = Testbed(small_cluster()).run(small_plan("none", micro_batch=4), SIX_LAYERS, SMALL_JOB)
    assert run.iteration_time_s is None
    assert run.oom_rank == 4
    assert run.peak_bytes[4] > T4.memory_bytes


def test_same_seed_same_result_and_other_seed_another() -> None:
    point = small_point()
    first, again = Testbed(small_cluster(), seed=3).measure(point), Testbed(small_cluster(), seed=3).measure(point)
    assert first == again
    assert first.truth is Truth.TESTBED
    assert first.truth_name == "testbed:3"
    assert seconds(Testbed(small_cluster(), seed=4), point) != first.time_s


def test_repetitions_differ_by_noise_and_stragglers_are_set_apart() -> None:
    bed = Testbed(small_cluster(), seed=1)
    runs = [bed.measure(small_point(), attempt=k) for k in range(60)]
    times = [run.time_s for run in runs]
    assert all(t is not None for t in times)
    values = np.array(times, dtype=float)
    # The median of five holds against a straggler that is three times slower.
    assert values.std() / values.mean() < 0.02
    assert values.max() / values.min() < 1.06
    assert sum(run.stragglers for run in runs) > 0


def test_the_hard_form_is_noisier() -> None:
    def spread(hard: bool) -> float:
        bed = Testbed(small_cluster(), seed=1, hard=hard)
        middles = [float(np.median(bed.measure(small_point(), attempt=k).repetitions_s)) for k in range(80)]
        return float(np.std(np.log(middles)))

    assert spread(True) > 1.4 * spread(False)


def test_equal_ends_share_the_pipeline_with_their_slowest_stage() -> None:
    # The T4 stage bounds the iteration: 16 micro-batches cannot take less than 16 times its own time.
    bed = Testbed(small_cluster(), seed=2)
    run = bed.run(small_plan("full"), SIX_LAYERS, SMALL_JOB)
    assert run.iteration_time_s is not None
    slowest = seconds(bed, small_point(micro_batch=2, recompute=Recompute.parse("full"), gpu_type="t4", head=True))
    assert 0.9 * 16 * slowest < run.iteration_time_s < 1.6 * 16 * slowest


@pytest.mark.parametrize("recompute", ["block:1", "uniform:2"])
def test_recompute_counts_within_a_chunk(recompute: str) -> None:
    """As in Megatron: of two chunks of two layers, ``block:1`` recomputes one of each, and no group spans chunks."""
    cluster = paper_cluster()
    bed = Testbed(cluster, seed=0)
    ranks = tuple(range(4))
    job = Job(16, 2048)
    model = replace(LLAMA_7B, layers=8)

    def peaks(word: str) -> list[int]:
        placements = tuple(StagePlacement("a100-sxm-80g", 2, 1, ranks[k : k + 2]) for k in (0, 2))
        skeleton = Skeleton(2, 2, 1, 1, 2048, 16, placements, virtual_stages=2)
        plan = Plan(skeleton, tuple(Stage(p, (2, 2), Recompute.parse(word)) for p in placements))
        return list(bed.run(plan, model, job).peak_bytes.values())

    plain, some, every = peaks("none"), peaks(recompute), peaks("block:2")
    if recompute == "block:1":
        # Two of four layers are kept whole: half the way, but for the one layer that is recomputed at a time.
        assert all(e < s < p for e, s, p in zip(every, some, plain, strict=True))
        middle = [(p + e) / 2 for p, e in zip(plain, every, strict=True)]
        assert some == pytest.approx(middle, rel=0.05)
    else:
        # A group is a whole chunk: as many inputs as chunks, two layers of work space.
        assert all(s < p for s, p in zip(some, plain, strict=True))
        assert some == peaks("uniform:3")
