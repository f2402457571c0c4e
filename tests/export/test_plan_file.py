"""Plan files: they round-trip exactly, and refuse whatever contradicts itself."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError, OutputError
from memx_engine.export.plan_file import PlanFile, load_plan, parse_plan, plan_file, plan_text, save_plan
from memx_engine.inputs.cluster_file import cluster_to_document, load_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import GpuEstimate, Recompute
from memx_engine.search.limits import OperatorLimits
from memx_engine.units import GIB
from tests.builders import H100, MI300X, V100, make_cluster, make_estimate, make_job, make_plan, make_result

RESULT = make_result(n_plans=12)


@pytest.fixture
def file() -> PlanFile:
    plan = make_plan(layers=(9, 9, 7, 7), recompute=("none", "full", "block:3", "selective"))
    estimate = make_estimate(plan, calibrated=True)
    return dataclasses.replace(
        plan_file(RESULT, RESULT.plans[0]), plan=plan, estimate=estimate, provenance=estimate.provenance
    )


def test_every_plan_of_a_result_round_trips() -> None:
    for ranked in RESULT.plans:
        original = plan_file(RESULT, ranked)
        assert parse_plan(plan_text(original)) == original


def test_round_trip_keeps_what_equality_ignores(file: PlanFile) -> None:
    back = parse_plan(plan_text(file))
    assert back == file
    assert back.model.assumed == file.model.assumed
    assert back.job.assumed == file.job.assumed
    assert back.cluster.fingerprint == file.cluster.fingerprint
    assert back.model.fingerprint == file.model.fingerprint
    assert plan_text(back) == plan_text(file)


def test_the_operators_limits_round_trip(file: PlanFile) -> None:
    limits = OperatorLimits(
        layers=((0, 9), (MI300X.name, 7)),
        recompute=((2, Recompute("block", 3)),),
        keep_free_bytes=((None, 2.0 * GIB), (H100.name, 1e9 / 3)),
        max_layer_difference=2,
        type_order=(H100.name, MI300X.name),
    )
    original = dataclasses.replace(file, limits=limits)
    assert parse_plan(plan_text(original)) == original
    with pytest.raises(InputError, match="given 9 and 8"):
        parse_plan(plan_text(original).replace("0:9", "0:9, 0:8"))


@pytest.mark.parametrize("preset", ["gemma2-9b", "gpt2-large", "opt-30b", "falcon-40b"])
def test_other_models_round_trip(preset: str) -> None:
    model = load_model(preset)
    heads = 2 if model.heads % 4 else 4
    base, extra = divmod(model.layers, 16 // heads)
    layers = tuple(base + (i < extra) for i in range(16 // heads))
    plan = make_plan(tp=heads, layers=layers)
    estimate = make_estimate(plan, model=model)
    file = dataclasses.replace(plan_file(RESULT, RESULT.plans[0]), model=model, plan=plan, estimate=estimate)
    assert parse_plan(plan_text(file)) == file


def test_interleaved_and_untied_round_trip(file: PlanFile) -> None:
    plan = dataclasses.replace(make_plan(layers=(9, 8, 8, 7), virtual_stages=2), untied=True)
    interleaved = dataclasses.replace(file, plan=plan, estimate=make_estimate(plan), certificate=None)
    interleaved = dataclasses.replace(interleaved, provenance=interleaved.estimate.provenance)
    text = plan_text(interleaved)
    assert parse_plan(text) == interleaved
    assert yaml.safe_load(text)["plan"]["stages"][0]["chunk_layers"] == [5, 4]


def test_unequal_gpus_of_a_stage_round_trip(file: PlanFile) -> None:
    def worse(gpu: GpuEstimate) -> GpuEstimate:
        return dataclasses.replace(gpu, oom_probability=0.125) if gpu.rank == 1 else gpu

    estimate = dataclasses.replace(file.estimate, gpus=tuple(worse(gpu) for gpu in file.estimate.gpus))
    uneven = dataclasses.replace(file, estimate=estimate)
    assert parse_plan(plan_text(uneven)) == uneven


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12), st.floats(1e-300, 1e200))
def test_floats_round_trip_to_the_last_bit(time_s: float, peak: float, phi: float) -> None:
    file = plan_file(RESULT, RESULT.plans[0])
    references = dataclasses.replace(file.objective.references, time_s=time_s, peak_bytes=peak, variance_bytes2=peak)
    changed = dataclasses.replace(file, phi=phi, objective=dataclasses.replace(file.objective, references=references))
    assert parse_plan(plan_text(changed)) == changed


@pytest.mark.parametrize(
    "name", ["null", "1e5", "yes", "0x10", "a: b # c", "-", "Ünïcode · 模型", "line\nbreak", "'\""]
)
def test_awkward_names_round_trip(file: PlanFile, name: str) -> None:
    model = dataclasses.replace(file.model, name=name)
    odd = dataclasses.replace(file, model=model, predictor_fingerprint=name, assumed=(name, name))
    back = parse_plan(plan_text(odd))
    assert back == odd
    assert back.model.name == name


def test_the_file_is_plain_yaml_that_stands_alone(file: PlanFile) -> None:
    document = yaml.safe_load(plan_text(file))
    assert document["schema"] == "memx/plan/v1"
    assert document["memx_version"] == file.version
    assert [stage["layers"] for stage in document["plan"]["stages"]] == [9, 9, 7, 7]
    assert [stage["recompute"] for stage in document["plan"]["stages"]] == ["none", "full", "block:3", "selective"]
    assert document["plan"]["stages"][2]["ranks"] == [8, 9, 10, 11]
    assert document["plan"]["stages"][2]["nodes"] == ["node-1-mi300x"]
    assert document["weights"]["references"]["time_s"] == file.objective.references.time_s
    assert document["cluster"] == json.loads(json.dumps(cluster_to_document(file.cluster)))
    assert document["job"]["global_batch"] == 512
    assert document["predicted"]["provenance"] == "simulated"
    assert sum(len(group["ranks"]) for group in document["predicted"]["memory"]) == 16
    assert set(document["predicted"]["memory"][0]["breakdown"]) == set(file.estimate.gpus[0].breakdown.as_dict())


def test_the_first_lines_tell_people_what_it_is(file: PlanFile) -> None:
    head = [line for line in plan_text(file).splitlines() if line.startswith("#")]
    text = "\n".join(head)
    assert head[0] == f"# Training plan for llama-test on test-cluster, by MemX {file.version}"
    assert "TP 4 x PP 4 x DP 1, micro-batch 1, 512 micro-batches, 1f1b" in text
    assert "Stage 2: 7 layers on 4 x mi300x (node-1-mi300x), recompute block:3" in text
    assert f"{file.estimate.iteration_time_s:.4g} s per iteration" in text
    assert "SIMULATED" in text
    assert file.cluster.fingerprint in text


def test_save_and_load(file: PlanFile, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(file, path)
    assert load_plan(path) == file
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]


def test_existing_files_need_force(file: PlanFile, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("precious")
    with pytest.raises(OutputError, match="exists"):
        save_plan(file, path)
    assert path.read_text() == "precious"
    save_plan(file, path, force=True)
    assert load_plan(path) == file


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(file: PlanFile, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OutputError, match="cannot be written"):
        save_plan(file, tmp_path / "plan.yaml")


def test_missing_folder(file: PlanFile, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        save_plan(file, tmp_path / "none" / "plan.yaml")


def test_predictions_that_are_not_finite_are_not_saved(file: PlanFile, tmp_path: Path) -> None:
    broken = dataclasses.replace(file, estimate=dataclasses.replace(file.estimate, lower_bound_s=float("nan")))
    with pytest.raises(OutputError, match="lower_bound_s is nan"):
        save_plan(broken, tmp_path / "plan.yaml")
    assert not list(tmp_path.iterdir())


def edited(file: PlanFile, *path: object, value: object) -> InputError:
    """The error of loading ``file`` after ``value`` was put at ``path``."""
    document = yaml.safe_load(plan_text(file))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InputError) as caught:
        parse_plan(yaml.safe_dump(document, sort_keys=False), "plan.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("plan", "stages", 0, "layers"), 8, "9 + 7 + 7 = 31 layers, the model has 32"),
        (("plan", "stages", 0, "layers"), 0, "out of bounds"),
        (("plan", "stages", 1, "ranks"), [0, 1, 2, 3], "rank 0 is in stage 0 too"),
        (("plan", "stages", 1, "ranks"), [4, 4, 5, 6], "rank 4 is twice in this stage"),
        (("plan", "stages", 1, "ranks"), [8, 9, 10, 11], "rank 8 is a mi300x, not a h100-sxm-80g"),
        (("plan", "stages", 1, "ranks"), [4, 5, 6], "3 ranks, but tp 4 x dp 1 needs 4"),
        (("plan", "stages", 1, "ranks"), [4, 5, 6, 99], "out of bounds"),
        (("plan", "stages", 1, "nodes"), ["node-1-mi300x"], "the ranks are on node-0-h100-sxm-80g"),
        (("plan", "stages", 1, "gpu_type"), "h100", "expected one of"),
        (("plan", "stages", 1, "tp"), 2, "4 ranks, but tp 2 x dp 1 needs 2"),
        (("plan", "stages", 1, "recompute"), "half", "recompute 'half' is not known"),
        (("plan", "stages", 2, "recompute"), "block:8", "block:8 counts more layers than the stage has (7)"),
        (("plan", "stages", 1, "chunk_layers"), [5, 4], "2 chunks, but virtual_stages is 1"),
        (("plan", "tp"), 2, "stage 0 has tp 4, dp 1; the plan tp 2, dp 1"),
        (("plan", "tp"), 5, "TP 5 does not divide the 32 attention heads"),
        (("plan", "pp"), 3, "4 stages, but pp is 3"),
        (("plan", "dp"), 3, "does not divide the global batch 512"),
        (("plan", "global_batch"), 256, "256 is not the job's 512"),
        (("plan", "seq_len"), 2048, "2048 is not the job's 4096"),
        (("plan", "micro_batches"), 256, "256 micro-batches, but the batch makes 512"),
        (("plan", "schedule"), "interleaved", "does not go with virtual_stages 1"),
        (("plan", "schedule"), "gpipe", "expected one of"),
        (("model", "layers"), 33, "= 32 layers, the model has 33"),
        (("job", "global_batch"), 1024, "512 is not the job's 1024"),
        (("cluster", "nodes", 0, "gpus", 0, "count"), 4, ""),
        (("predicted", "peak_memory_bytes"), 1.0, "not the highest peak"),
        (("predicted", "iteration_time_s"), 1.0, "the parts sum to"),
        (("predicted", "iteration_time_s"), "fast", "expected a number"),
        (("predicted", "stage_forward_s"), [1.0], "1 values, expected 4"),
        (("predicted", "provenance"), "guessed", "expected one of"),
        (("predicted", "memory", 0, "ranks"), [0, 1, 2], "nothing is predicted for rank 3"),
        (("predicted", "memory", 0, "ranks"), [0, 1, 2, 4], "rank 4 is not a GPU of stage 0"),
        (("predicted", "memory", 0, "peak_bytes"), 1.0, "the parts sum to"),
        (("predicted", "memory", 0, "capacity_bytes"), 1, "bytes, not 1"),
        (("predicted", "memory", 0, "oom_probability"), 1.5, "out of bounds"),
        (("predicted", "memory", 0, "breakdown", "weight"), 1.0, "unknown key 'weight'"),
        (("weights", "time"), 0.9, "sum to 1"),
        (("phi",), 0, "out of bounds"),
        (("stuff",), 1, "unknown key 'stuff'"),
        (("plan", "stage"), [], "unknown key 'stage'"),
    ],
)
def test_contradictions_are_refused(file: PlanFile, path: tuple[object, ...], value: object, words: str) -> None:
    error = edited(file, *path, value=value)
    assert words in error.message
    assert error.where.startswith("plan.yaml")
    assert error.exit_code == 2


def test_errors_name_line_and_key(file: PlanFile) -> None:
    text = plan_text(file)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.strip() == "recompute: full")
    with pytest.raises(InputError) as caught:
        parse_plan(text.replace("recompute: full", "recompute: half"), "plan.yaml")
    assert caught.value.where == f"plan.yaml:{line}: plan.stages[1].recompute"


def test_newer_and_other_schemas(file: PlanFile) -> None:
    error = edited(file, "schema", value="memx/plan/v2")
    assert "written by a newer MemX" in error.message
    assert "upgrade" in error.hint
    assert "this is a cluster file, not a plan file" in edited(file, "schema", value="memx/cluster/v1").message
    assert "is not the schema" in edited(file, "schema", value="v1").message
    with pytest.raises(InputError, match="schema is missing"):
        parse_plan("a: 1")
    with pytest.raises(InputError, match="not a plan file"):
        parse_plan("[1, 2]")


def test_a_newer_schema_is_named_before_its_unknown_keys(file: PlanFile) -> None:
    text = plan_text(file).replace("memx/plan/v1", "memx/plan/v7") + "novelty: 1\n"
    with pytest.raises(InputError, match="newer"):
        parse_plan(text)


def test_truncated_files(file: PlanFile) -> None:
    text = plan_text(file)
    for cut in range(0, len(text), 97):
        with pytest.raises(InputError):
            parse_plan(text[:cut], "plan.yaml")
    head = text[: text.index("weights:")]
    with pytest.raises(InputError, match="the plan file has no memx_version") as caught:
        parse_plan(head, "plan.yaml")
    assert "complete" in caught.value.hint


def test_a_tensor_parallel_group_stays_in_its_node(file: PlanFile) -> None:
    cluster = make_cluster(H100, H100, gpus_per_node=4)
    plan = make_plan(cluster, tp=4, layers=(16, 16))
    estimate = make_estimate(plan, cluster)
    two = dataclasses.replace(file, cluster=cluster, plan=plan, estimate=estimate)
    assert parse_plan(plan_text(two)).plan == plan
    document = yaml.safe_load(plan_text(two))
    for stage, ranks in zip(document["plan"]["stages"], ([2, 3, 4, 5], [0, 1, 6, 7]), strict=True):
        stage["ranks"] = ranks
        del stage["nodes"]
    with pytest.raises(InputError, match="tensor-parallel group of rank 2 spans"):
        parse_plan(yaml.safe_dump(document))


def test_large_clusters_stay_compact() -> None:
    cluster = make_cluster(*[H100] * 64, *[MI300X] * 64)
    job = make_job(global_batch=2048)
    plan = make_plan(cluster, tp=8, dp=32, layers=(8, 8, 8, 8), job=job)
    estimate = make_estimate(plan, cluster)
    file = dataclasses.replace(
        plan_file(RESULT, RESULT.plans[0]), cluster=cluster, job=job, plan=plan, estimate=estimate
    )
    text = plan_text(file)
    assert len(text.splitlines()) < 2500
    assert parse_plan(text) == file


def test_a_device_without_bf16_round_trips() -> None:
    cluster = make_cluster(V100, V100)
    plan = make_plan(cluster)
    file = dataclasses.replace(
        plan_file(RESULT, RESULT.plans[0]), cluster=cluster, plan=plan, estimate=make_estimate(plan, cluster)
    )
    assert parse_plan(plan_text(file)).cluster == cluster


@pytest.mark.parametrize("sample", ["paper-20gpu", "a800x8", "h100-mi300x", "a100-ascend", "thousand-gpus"])
def test_estimates_of_the_cost_model_round_trip(sample: str) -> None:
    cluster, model = load_cluster(sample), load_model("llama3-8b")
    dp = min(len(ranks) for ranks in cluster.ranks_by_type.values())
    pp = len(cluster.gpus) // dp
    job = resolve_job(cluster, model, global_batch=8 * dp)
    base, extra = divmod(model.layers, pp)
    plan = make_plan(cluster, tp=1, dp=dp, layers=tuple(base + (i < extra) for i in range(pp)), job=job)
    estimate = FirstPrinciples(cluster, model, job).estimate(plan)
    original = dataclasses.replace(
        plan_file(RESULT, RESULT.plans[0]),
        cluster=cluster,
        model=model,
        job=job,
        plan=plan,
        estimate=estimate,
        provenance=estimate.provenance,
    )
    back = parse_plan(plan_text(original))
    assert back == original
    assert FirstPrinciples(back.cluster, back.model, back.job).estimate(back.plan) == estimate
