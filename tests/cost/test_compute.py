from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.cost.activations import Shape
from memx_engine.cost.compute import (
    LAUNCH_S,
    Device,
    attention_pairs,
    embedding_time,
    head_time,
    layer_products,
    layer_time,
    optimizer_time,
)
from memx_engine.cost.network import Rate
from memx_engine.errors import InputError
from memx_engine.inputs.job import Attention, Job, Optimizer, Precision
from memx_engine.units import GB, TERA
from tests.cost.shapes import A800, GEMMA2_9B, GPT2_LARGE, LLAMA2_7B, LLAMA3_8B, V100_32G, gpu_type

JOB = Job(8, 4096)
DEVICE = Device.of(A800, JOB)
NVLINK = Rate(1 / (160 * GB), 3.4e-6)
NO_LINK = Rate()


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_products_are_two_flop_per_parameter_and_token(tp: int) -> None:
    shape = Shape(tp, 2, 4096, True)
    flop = sum(2 * m * n * k for m, n, k in layer_products(LLAMA3_8B, shape))
    matrices = LLAMA3_8B.layer.total - LLAMA3_8B.layer.norms
    assert flop == pytest.approx(2 * matrices * shape.tokens / tp)


def test_fused_attention_skips_what_the_mask_hides() -> None:
    s = 8192
    assert attention_pairs(LLAMA3_8B, JOB, s) == s * s / 2
    assert attention_pairs(LLAMA3_8B, replace(JOB, attention=Attention.UNFUSED), s) == s * s
    window = 4096
    half = 0.5 * (window * s - window**2 / 2) + 0.5 * s * s / 2
    assert attention_pairs(GEMMA2_9B, JOB, s) == half  # every other layer is windowed
    assert attention_pairs(GEMMA2_9B, JOB, 2048) == 2048**2 / 2


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 8))
def test_larger_products_run_at_higher_speed_and_never_above_the_type(m: float, n: float, k: float, by: float) -> None:
    small, large = DEVICE.saturation(m, n, k), DEVICE.saturation(by * m, by * n, by * k)
    assert 0 < small <= large < 1
    assert 2 * m * n * k / DEVICE.product_s(m, n, k, 2) <= DEVICE.peak_flops * DEVICE.efficiency


def test_a_thin_product_is_bound_by_memory() -> None:
    # One row times a matrix: the matrix is read once, 2 bytes an element.
    seconds = DEVICE.product_s(1, 4096, 4096, 2)
    assert seconds >= 2 * 4096 * 4096 / (2039 * GB)


@given(st.integers(1, 16), st.sampled_from([1, 2, 4, 8]))
def test_time_grows_with_tokens_and_falls_with_tp(micro_batch: int, tp: int) -> None:
    one = layer_time(LLAMA2_7B, JOB, Shape(tp, micro_batch, 4096, True), DEVICE, NO_LINK)
    more = layer_time(LLAMA2_7B, JOB, Shape(tp, micro_batch + 1, 4096, True), DEVICE, NO_LINK)
    alone = layer_time(LLAMA2_7B, JOB, Shape(1, micro_batch, 4096, True), DEVICE, NO_LINK)
    assert one.forward_s < more.forward_s < one.forward_s * (micro_batch + 1) / micro_batch * (1 + 1e-9)
    assert alone.forward_s / tp <= one.forward_s * (1 + 1e-9) <= alone.forward_s * (1 + 1e-9)


def test_backward_is_about_twice_forward() -> None:
    t = layer_time(LLAMA3_8B, replace(JOB, seq_len=8192), Shape(1, 1, 8192, True), DEVICE, NO_LINK)
    assert 1.9 < t.backward_s / t.forward_s < 2.4


def test_a_large_layer_runs_near_the_types_efficiency() -> None:
    shape = Shape(1, 4, 4096, True)
    t = layer_time(LLAMA2_7B, JOB, shape, DEVICE, NO_LINK)
    flop = 6 * LLAMA2_7B.layer.total * shape.tokens
    achieved = flop / (t.forward_s + t.backward_s) / DEVICE.peak_flops
    assert 0.75 * DEVICE.efficiency < achieved < DEVICE.efficiency


def test_unfused_attention_is_slower_and_grows_with_the_square() -> None:
    def core(seq_len: int, kind: Attention) -> float:
        job = Job(8, seq_len, attention=kind)
        return layer_time(LLAMA2_7B, job, Shape(1, 1, seq_len, True), DEVICE, NO_LINK).core_forward_s

    assert core(4096, Attention.UNFUSED) > 3 * core(4096, Attention.FUSED)
    assert 3.8 < core(8192, Attention.UNFUSED) / core(4096, Attention.UNFUSED) < 4.0


def test_small_layers_take_what_their_kernels_take_to_be_issued() -> None:
    tiny = layer_time(GPT2_LARGE, Job(8, 128), Shape(1, 1, 128, True), DEVICE, NO_LINK)
    assert tiny.forward_s == pytest.approx(tiny.backward_s / 2)
    assert tiny.forward_s > 10 * LAUNCH_S
    with_tp = layer_time(GPT2_LARGE, Job(8, 128), Shape(4, 1, 128, True), DEVICE, NVLINK)
    assert with_tp.forward_s + with_tp.forward_comm_s > tiny.forward_s


def test_tensor_parallel_collectives_by_hand() -> None:
    # Two all-reduces of tokens x hidden x 2 bytes each way.
    shape = Shape(8, 1, 4096, False)
    t = layer_time(LLAMA2_7B, JOB, shape, DEVICE, NVLINK)
    assert t.forward_comm_s == t.backward_comm_s == pytest.approx(2 * NVLINK.all_reduce_s(4096 * 4096 * 2, 8))
    side_by_side = replace(LLAMA2_7B, parallel_block=True)
    assert layer_time(side_by_side, JOB, shape, DEVICE, NVLINK).forward_comm_s == pytest.approx(t.forward_comm_s / 2)
    assert layer_time(LLAMA2_7B, JOB, Shape(1, 1, 4096, True), DEVICE, NO_LINK).forward_comm_s == 0


def test_the_head_weighs_as_much_as_its_matrix() -> None:
    # 128,256 x 4096 = 525 M parameters against 218 M of a layer: 2.4 layers without their attention.
    shape = Shape(1, 1, 8192, True)
    head = head_time(LLAMA3_8B, JOB, shape, DEVICE, NO_LINK)
    layer = layer_time(LLAMA3_8B, JOB, shape, DEVICE, NO_LINK)
    assert 1.8 < (head.forward_s + head.backward_s) / (layer.forward_s + layer.backward_s) < 2.6
    embedding = embedding_time(LLAMA3_8B, JOB, shape, DEVICE, NO_LINK)
    assert embedding.forward_s < 0.1 * layer.forward_s


def test_the_optimizer_runs_at_memory_bandwidth() -> None:
    replicated = replace(JOB, optimizer=Optimizer.REPLICATED)
    # Gradients read twice, 12 bytes of state read and written, weights written, the gradient buffer cleared.
    assert optimizer_time(replicated, DEVICE, 1e9, 4) == pytest.approx((4 + 4 + 24 + 2 + 4) * 1e9 / (0.8 * 2039 * GB))
    assert optimizer_time(JOB, DEVICE, 1e9, 4) < optimizer_time(replicated, DEVICE, 1e9, 4) / 2


def test_a_device_without_the_precision_or_a_known_peak_is_named() -> None:
    with pytest.raises(InputError, match="v100-sxm2-32g has no bf16"):
        Device.of(V100_32G, JOB)
    with pytest.raises(InputError, match="peak of mystery is not publicly known"):
        Device.of(gpu_type("mystery", bf16_flops=None), JOB)
    assert Device.of(V100_32G, replace(JOB, precision=Precision.FP16)).peak_flops == 125 * TERA


def test_unknown_memory_bandwidth_follows_from_the_peak() -> None:
    assert Device.of(gpu_type("x", memory_bandwidth_bytes_s=None), JOB).memory_bytes_s == 312 * TERA / 200
