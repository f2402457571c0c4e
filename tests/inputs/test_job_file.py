"""The job: defaults that are said, files, flags, and values that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster, parse_cluster
from memx_engine.inputs.documents import dump_yaml, read_document
from memx_engine.inputs.job import Framework, Job, Optimizer, Precision
from memx_engine.inputs.job_file import job_from_document, job_to_document, resolve_job
from memx_engine.inputs.model import TransformerSpec

LLAMA = TransformerSpec("llama2-7b", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096)
GPT2 = replace(LLAMA, name="gpt2", max_positions=1024, position_rows=1024)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return load_cluster("paper-20gpu")


def job_of(gpu: str, **given: str) -> Job:
    text = f"schema: memx/cluster/v1\nnodes: [{{name: n, gpus: [{gpu}]}}]"
    return resolve_job(parse_cluster(text), LLAMA, **given)  # type: ignore[arg-type]  # only texts are given here


def test_every_default_is_said(cluster: Cluster) -> None:
    job = resolve_job(cluster, LLAMA)
    assert (job.global_batch, job.seq_len, job.precision) == (512, 4096, Precision.BF16)
    assert job.assumed == (
        "global batch 512",
        "sequence length 4096",
        "precision bf16",
        "sharded optimizer",
        "fused attention",
        "framework any",
        "sequence parallel",
        "fp32 gradients",
    )


def test_what_is_given_is_not_assumed(cluster: Cluster) -> None:
    job = resolve_job(
        cluster,
        LLAMA,
        global_batch=64,
        seq_len=2048,
        precision="fp16",
        optimizer="replicated",
        attention="unfused",
        framework="megatron",
        sequence_parallel=False,
        fp32_gradients=True,
        micro_batch_sizes=(1, 2),
        tp_sizes=(4,),
        virtual_stages=(1, 4),
    )
    assert job.assumed == ()
    assert (job.framework, job.micro_batch_sizes, job.tp_sizes) == (Framework.MEGATRON, (1, 2), (4,))
    assert (job.fp32_gradients, job.sequence_parallel, job.virtual_stages) == (True, False, (4,))


def test_sequence_is_the_models_where_that_is_shorter(cluster: Cluster) -> None:
    assert resolve_job(cluster, GPT2).seq_len == 1024
    assert resolve_job(cluster, replace(LLAMA, max_positions=131072)).seq_len == 4096


def test_devices_without_bf16_make_the_job_fp16() -> None:
    """Volta and Turing have no bf16; fp16 keeps fp16 gradients (method: 20 bytes per parameter)."""
    job = resolve_job(load_cluster("paper-small"), LLAMA)
    assert job.precision is Precision.FP16
    assert not job.fp32_gradients
    assert "precision fp16 (v100-sxm2-32g, t4 lack bf16)" in job.assumed
    assert "fp16 gradients" in job.assumed


def test_a_cpu_without_16_bit_units_trains_in_fp32() -> None:
    job = job_of("{type: cpu, count: 2, overrides: {memory_gib: 64, fp32_tflops: 1.5, lacks: [bf16, fp16]}}")
    assert job.precision is Precision.FP32


def test_asking_for_a_precision_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="v100-sxm2-32g lacks bf16") as caught:
        resolve_job(load_cluster("paper-small"), LLAMA, precision="bf16")
    assert caught.value.where == "--precision"
    assert "fp16, fp32" in caught.value.hint


def test_unknown_peak_of_the_precision_is_asked_for() -> None:
    with pytest.raises(InputError, match="bf16 peak of mi100 is not publicly known") as caught:
        job_of("{type: mi100, count: 1}")
    assert "overrides: {bf16_tflops: ...}" in caught.value.hint
    assert job_of("{type: mi100, count: 1}", precision="fp16").precision is Precision.FP16
    assert job_of("{type: mi100, count: 1, overrides: {bf16_tflops: 92}}").precision is Precision.BF16


def test_longer_sequence_is_refused_for_learned_positions_and_said_for_rotary(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="exceeds the 1024 learned positions of gpt2") as caught:
        resolve_job(cluster, GPT2, seq_len=2048)
    assert (caught.value.where, caught.value.hint) == ("--seq-len", "allowed: 1 to 1024")
    job = resolve_job(cluster, LLAMA, seq_len=8192)
    assert "sequence length 8192 is beyond the 4096 positions" in job.assumed[1]


def test_flags_override_the_file(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("schema: memx/job/v1\nglobal_batch: 64\noptimizer: replicated\nmicro_batch_sizes: [1, 2]\n")
    job = resolve_job(cluster, LLAMA, file=str(path), global_batch=128)
    assert (job.global_batch, job.optimizer, job.micro_batch_sizes) == (128, Optimizer.REPLICATED, (1, 2))
    assert "sharded optimizer" not in job.assumed


def test_job_reads_back_equal(cluster: Cluster, tmp_path: Path) -> None:
    for job in (resolve_job(cluster, LLAMA), resolve_job(cluster, LLAMA, dp_sizes=(2, 4), virtual_stages=(1,))):
        again = job_from_document(job_to_document(job))
        assert (again, again.assumed) == (job, job.assumed)
        path = tmp_path / "job.yaml"
        path.write_text(dump_yaml(job_to_document(job)))
        assert job_from_document(read_document(str(path))) == job
        assert resolve_job(cluster, LLAMA, file=str(path)) == job


@pytest.mark.parametrize(
    ("line", "key", "message", "hint"),
    [
        ("globalbatch: 4", "globalbatch", "unknown key", "did you mean global_batch?"),
        ("global_batch: 0", "global_batch", "out of bounds", "between 1 and 1,000,000"),
        ("global_batch: 5e9", "global_batch", "out of bounds", "between 1 and 1,000,000"),
        ("seq_len: 4k", "seq_len", "expected a number", "bare number"),
        ("seq_len: -1", "seq_len", "out of bounds", "between 1"),
        ("precision: bfloat16", "precision", "expected one of bf16, fp16, fp32", ""),
        ("optimizer: shard", "optimizer", "expected one of sharded, replicated", "did you mean sharded?"),
        ("attention: flash", "attention", "expected one of fused, unfused", ""),
        ("framework: megatorn", "framework", "expected one of any, megatron", "did you mean megatron?"),
        ("sequence_parallel: 1", "sequence_parallel", "expected true or false", ""),
        ("micro_batch_sizes: [1, x]", "micro_batch_sizes[1]", "expected a number", ""),
        ("micro_batch_sizes: [3, 5]", "micro_batch_sizes", "512 is not divisible", "change the global batch"),
        ("tp_sizes: {a: 1}", "tp_sizes", "expected a list", ""),
        ("virtual_stages: [65]", "virtual_stages[0]", "out of bounds", "between 1 and 64"),
    ],
)
def test_bad_values_in_a_file(cluster: Cluster, tmp_path: Path, line: str, key: str, message: str, hint: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"schema: memx/job/v1\n{line}\n")
    with pytest.raises(InputError) as caught:
        resolve_job(cluster, LLAMA, file=str(path))
    assert caught.value.where == f"{path}:2: {key}"
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_file_of_another_kind_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("schema: memx/cluster/v1\n")
    with pytest.raises(InputError, match="not a job"):
        resolve_job(cluster, LLAMA, file=str(path))
    path.write_text("global_batch: 4\n")
    with pytest.raises(InputError, match="schema is missing"):
        resolve_job(cluster, LLAMA, file=str(path))


def test_bad_flags_are_named(cluster: Cluster) -> None:
    with pytest.raises(InputError) as caught:
        resolve_job(cluster, LLAMA, global_batch=-4)
    assert caught.value.where == "--global-batch"
    with pytest.raises(InputError) as caught:
        resolve_job(cluster, LLAMA, micro_batch_sizes=(0,))
    assert caught.value.where.startswith("--mbs")
    with pytest.raises(InputError, match="not divisible") as caught:
        resolve_job(cluster, LLAMA, global_batch=10, dp_sizes=(4,))
    assert caught.value.where == "--dp"
