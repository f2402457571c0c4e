"""The device catalogue: figures with their sources, and what names mean."""

from __future__ import annotations

import pytest

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import SPANS, find_gpu_type, interconnect, load_catalogue, load_links, scaled
from memx_engine.units import GIB, MIB


def test_at_least_forty_devices_of_every_vendor() -> None:
    catalogue = load_catalogue()
    assert len(catalogue) >= 40
    vendors = {"NVIDIA", "AMD", "Intel", "Huawei", "Biren", "Iluvatar CoreX", "MetaX", "Kunlunxin", "generic"}
    assert vendors <= {t.vendor for t in catalogue.values()}
    assert catalogue["cpu"].vendor == "generic"


def test_every_device_has_sources_and_says_what_is_not_sourced() -> None:
    for gpu_type in load_catalogue().values():
        assert gpu_type.sources or gpu_type.notes, gpu_type.name
        if gpu_type.bf16_flops is None and gpu_type.fp16_flops is None:
            assert any("give" in note for note in gpu_type.notes), gpu_type.name
        assert 0.3 < gpu_type.efficiency < 0.9
        assert 1 * GIB <= gpu_type.context_bytes <= 4 * GIB
        assert "context_bytes" in gpu_type.assumed
        for precision in gpu_type.lacks:
            assert gpu_type.peak_flops(precision) is None


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100-sxm-80g", 81559),  # nvidia-smi, NVIDIA/nccl issue 1264: 79.65 GiB
        ("a100-sxm-80g", 81920),  # nvidia-smi, modal-labs/modal-client pull 2797: 80.0 GiB
        ("ascend-910b1", 65536),  # npu-smi info
        ("mi300x", 196592),  # 206141652992 bytes, ROCm issue 4750
        ("t4", 15360),
    ],
)
def test_memory_is_what_the_device_reports(name: str, mib: int) -> None:
    assert load_catalogue()[name].memory_bytes == mib * MIB
    assert "memory_bytes" not in load_catalogue()[name].assumed


@pytest.mark.parametrize(
    ("name", "bf16_tflops"),
    [
        ("a100-sxm-80g", 312.0),  # A100 data sheet, dense
        ("h100-sxm-80g", 989.4),  # 528 tensor cores at 1830 MHz; 1979 is the sparse figure
        ("mi300x", 1307.4),  # rocm.docs.amd.com gpu-specs
        ("rtx-3090", 71.2),  # with fp32 accumulation, llm.c mfu.h
        ("mi250x-gcd", 191.5),  # half of the package's 383
        ("ascend-910c", 376.0),  # half of the package's 752, CloudMatrix384
    ],
)
def test_peaks_are_dense_and_per_device(name: str, bf16_tflops: float) -> None:
    assert load_catalogue()[name].bf16_flops == scaled(bf16_tflops, 12)


@pytest.mark.parametrize("name", ["t4", "v100-sxm2-16g", "v100-sxm2-32g", "v100-pcie", "rtx-2080ti", "titan-rtx"])
def test_volta_and_turing_lack_bf16(name: str) -> None:
    gpu_type = load_catalogue()[name]
    assert not gpu_type.supports("bf16")
    assert gpu_type.supports("fp16")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H200", "h200-sxm-141g"),
        ("H20", "h20-96g"),
        ("NVIDIA H20", "h20-96g"),
        ("NVIDIA B200", "b200-sxm-180g"),
        ("NVIDIA GB200", "gb200-186g"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("910B1", "ascend-910b1"),
        ("Ascend910B", "ascend-910b"),
        ("h100 nvl", "h100-nvl-94g"),
        ("A800-SXM4-80GB", "a800-sxm-80g"),
    ],
)
def test_names_that_tools_print(written: str, name: str) -> None:
    assert find_gpu_type(written).name == name


def test_every_own_alias_means_its_type_or_is_shared() -> None:
    for gpu_type in load_catalogue().values():
        assert find_gpu_type(gpu_type.name) is gpu_type
        for alias in gpu_type.aliases:
            try:
                assert find_gpu_type(alias) is gpu_type, alias
            except InputError as error:
                assert gpu_type.name in error.hint, alias


def test_a_name_of_several_devices_lists_them() -> None:
    with pytest.raises(InputError, match="several devices") as caught:
        find_gpu_type("a100")
    assert "a100-sxm-40g, a100-sxm-80g, a100-pcie-40g, a100-pcie-80g" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "near"), [("a100-sxm-80gb0", "a100-sxm-80g"), ("h10", "h100"), ("mi300", "mi300x")]
)
def test_unknown_name_offers_the_nearest(written: str, near: str) -> None:
    with pytest.raises(InputError, match="not in the catalogue") as caught:
        find_gpu_type(written)
    assert near in caught.value.hint


@pytest.mark.parametrize("written", ["rtx 3090 ti", "NVIDIA H20-3e", "A100 SXM 96GB", "zzz", "", "90"])
def test_another_device_is_not_taken_for_a_known_one(written: str) -> None:
    with pytest.raises(InputError):
        find_gpu_type(written)


def test_links_are_sound_and_every_device_has_some() -> None:
    for default in load_links().values():
        assert 0 < default.link.bandwidth_bytes_s < 1e12
        assert 0 < default.link.latency_s < 1e-3
        assert default.about
    for name in load_catalogue():
        links = interconnect(name)
        assert links.span in SPANS
        assert links.island.link.bandwidth_bytes_s >= links.numa.link.bandwidth_bytes_s, name


def test_islands_reach_as_far_as_the_link_does() -> None:
    assert interconnect("a100-sxm-80g").island_size(8) == 8  # NVSwitch
    assert interconnect("a100-pcie-80g").island_size(8) == 4  # one NUMA domain
    assert interconnect("mi250x-gcd").island_size(8) == 2  # one package
    assert interconnect("t4").island_size(2) == 2
