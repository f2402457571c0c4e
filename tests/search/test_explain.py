"""Verdicts on single plans, with the first-principles cost model."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memx_engine.inputs.cluster import Cluster, GpuType, Link
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Framework, Job, Optimizer
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import Recompute, Verdict
from memx_engine.search.explain import Explanation, PlanRequest, explain_plan, explain_request
from memx_engine.search.implied import dp_choices
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import parse_weights
from memx_engine.search.run import SearchOptions, search
from memx_engine.units import GIB, TERA
from tests.builders import H100, V100, make_cluster, make_job, make_model, make_node
from tests.search.fakes import TableEstimator

A100_40G = GpuType(
    name="a100-sxm-40g",
    vendor="nvidia",
    marketing_name="NVIDIA A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    bf16_flops=312 * TERA,
    fp16_flops=312 * TERA,
    fp32_flops=19.5 * TERA,
    memory_bandwidth_bytes_s=1.555e12,
)


def eight_a100() -> Cluster:
    return Cluster("a100x8", (make_node("n", A100_40G, 8),), inter_node=Link(2.5e10, 5e-6))


def llama2_7b(layers: int = 32) -> TransformerSpec:
    return replace(make_model(layers, "llama2-7b"), ffn=11008, kv_heads=32, vocab=32000, max_positions=4096)


def explain(request: PlanRequest, *, layers: int = 32, **job: object) -> Explanation:
    return explain_request(eight_a100(), llama2_7b(layers), replace(make_job(), **job), request)


def only_reason(explanation: Explanation, rule: str) -> str:
    assert explanation.verdict is Verdict.INVALID and explanation.plan is None
    assert [r.rule for r in explanation.reasons] == [rule]
    return f"{explanation.reasons[0].message}; {explanation.reasons[0].remedy}"


@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("seq_len", [64, 4096])
def test_7b_on_40g_cannot_be_saved_by_a_shorter_sequence(optimizer: Optimizer, seq_len: int) -> None:
    # NVIDIA/Megatron-LM issue 606: the user had lowered the sequence to 64 and still ran out of memory. 18 bytes per
    # parameter are 113 GiB; sharded over DP 8, 7.5 bytes are 47 GiB. TP 2 sharded and TP 4 replicated take 28 GiB.
    explanation = explain(PlanRequest(1, 1, 8, 1), optimizer=optimizer, seq_len=seq_len, global_batch=8)
    assert explanation.verdict is Verdict.DOES_NOT_FIT and explanation.plan is not None
    reason = explanation.reasons[0]
    assert reason.rule == "memory" and reason.stage == 0
    worst = explanation.plan.estimate.worst_gpu
    assert reason.missing_bytes == worst.peak_bytes - worst.capacity_bytes
    assert "shortening the sequence cannot help" in reason.remedy
    assert "TP 2 with DP 4 and a sharded optimizer" in reason.remedy
    assert "TP 4" in reason.remedy and "a pipeline of PP" in reason.remedy


def test_28_heads_refuse_tp8_with_the_legal_lists() -> None:
    # Qwen2.5-7B: 28 heads, 4 KV heads.
    model = replace(make_model(28), heads=28, kv_heads=4, hidden=3584)
    explanation = explain_request(eight_a100(), model, make_job(), PlanRequest(8, 1, 1, 1))
    said = only_reason(explanation, "tp")
    for legal in ("{1,2,4,7,14,28} by heads", "{1,2,4,28} for Megatron", "{1,2,4} without KV replication"):
        assert legal in said


def test_more_gpus_than_there_are() -> None:
    assert "needs 16 GPUs, the cluster has 8" in only_reason(explain(PlanRequest(8, 2, 1, 1)), "placement")


def test_tp_never_leaves_a_node() -> None:
    cluster = make_cluster(H100, H100)
    explanation = explain_request(cluster, llama2_7b(), make_job(), PlanRequest(16, 1, 1, 1))
    assert "would leave a node" in only_reason(explanation, "placement")


def test_a_stage_has_one_type() -> None:
    explanation = explain_request(make_cluster(), llama2_7b(), make_job(), PlanRequest(1, 1, 16, 1))
    assert "one type" in only_reason(explanation, "placement")


def test_batch_must_divide() -> None:
    said = only_reason(explain(PlanRequest(2, 2, 2, 3)), "batch")
    assert "512 is not a multiple of DP 2 x micro-batch 3" in said and "510" in said


def test_30_layers_on_4_stages_keep_30() -> None:
    explanation = explain(PlanRequest(2, 4, 1, 1), layers=30)
    assert explanation.plan is not None and explanation.plan.plan.layers == (8, 8, 7, 7)


def test_layer_list_must_cover_the_model() -> None:
    said = only_reason(explain(PlanRequest(2, 4, 1, 1, layers=(7, 7, 7, 7)), layers=30), "layers")
    assert "sums to 28, the model has 30" in said and "8,8,7,7" in said
    assert "has 3 entries" in only_reason(explain(PlanRequest(2, 4, 1, 1, layers=(10, 10, 12))), "layers")


def test_chunks_can_be_listed_one_by_one() -> None:
    request = PlanRequest(2, 4, 1, 1, layers=(5, 4, 4, 4, 4, 4, 4, 3), virtual_stages=2)
    explanation = explain(request)
    assert explanation.plan is not None
    assert [s.chunk_layers for s in explanation.plan.plan.stages] == [(5, 4), (4, 4), (4, 4), (4, 3)]


def test_interleaving_needs_micro_batches_in_multiples_of_pp() -> None:
    said = only_reason(explain(PlanRequest(2, 4, 1, 2, virtual_stages=2), global_batch=12), "schedule")
    assert "6 micro-batches to be a multiple of PP 4" in said


def test_block_never_exceeds_the_stage_s_own_layers() -> None:
    explanation = explain(PlanRequest(2, 4, 1, 1, layers=(4, 10, 9, 9), recompute=(Recompute.parse("block:6"),)))
    assert "stage 0" in only_reason(explanation, "recompute")


def test_megatron_has_one_recompute() -> None:
    words = tuple(Recompute.parse(w) for w in ("full", "none", "none", "none"))
    request = PlanRequest(2, 4, 1, 1, recompute=words)
    assert "Megatron" in only_reason(explain(request, framework=Framework.MEGATRON), "recompute")


def test_a_type_without_the_precision_does_not_count() -> None:
    explanation = explain_request(make_cluster(H100, V100), llama2_7b(), make_job(), PlanRequest(2, 8, 1, 1))
    assert "lacks bf16" in only_reason(explanation, "placement")


def test_every_overfull_stage_is_named_the_worst_with_its_remedy() -> None:
    explanation = explain(PlanRequest(2, 4, 1, 8, recompute=(Recompute.parse("none"),)))
    assert explanation.verdict is Verdict.DOES_NOT_FIT
    missing = [r.missing_bytes for r in explanation.reasons if r.rule == "memory"]
    assert missing == sorted(missing, key=lambda m: -(m or 0)) and len(missing) >= 2
    assert "more recompute" in explanation.reasons[0].remedy
    assert not explanation.reasons[1].remedy


def test_a_remedy_names_recompute_layers_and_micro_batch_that_fit() -> None:
    cluster, model, job = eight_a100(), llama2_7b(), make_job()
    request = PlanRequest(2, 4, 1, 8, recompute=(Recompute.parse("none"),))
    remedy = explain_request(cluster, model, job, request).reasons[0].remedy
    recompute = re.search(r"--recompute ([\w:,]+)\)", remedy)
    size = re.search(r"--mbs (\d+)", remedy)
    assert recompute is not None and size is not None and 1 <= int(size[1]) < 8
    words = tuple(Recompute.parse(word) for word in recompute[1].split(","))
    for changed in (replace(request, recompute=words), replace(request, micro_batch=int(size[1]))):
        assert explain_request(cluster, model, job, changed).verdict is not Verdict.DOES_NOT_FIT
    shorter = re.search(r"a sequence of (\d+) tokens with nothing else changed", remedy)
    assert shorter is not None
    job = replace(job, seq_len=int(shorter[1]))
    assert explain_request(cluster, model, job, request).verdict is not Verdict.DOES_NOT_FIT


def test_the_order_of_types_that_was_chosen_is_said_and_a_limit_fixes_it() -> None:
    cluster, model, job = make_cluster(), llama2_7b(), make_job()
    request = PlanRequest(8, 2, 1, 1)
    free = explain_request(cluster, model, job, request)
    (order,) = [r.message for r in free.reasons if r.rule == "order"]
    assert free.plan is not None
    first, last = free.plan.plan.skeleton.type_order
    assert f"1 {first} > 1 {last}" in order and "lowest phi" in order and f"1 {last} > 1 {first}" in order
    fixed = explain_request(cluster, model, job, request, limits=OperatorLimits(type_order=(last, first)))
    assert fixed.plan is not None and fixed.plan.plan.skeleton.type_order == (last, first)
    assert not [r for r in fixed.reasons if r.rule in ("order", "limit")]


def test_seven_gpus_suit_no_node_of_eight() -> None:
    explanation = explain(PlanRequest(1, 1, 7, 1))
    assert any("7 GPUs suits no node size (8 of one type)" in r.message for r in explanation.reasons)


def test_dp_is_implied_where_the_gpus_leave_one_choice() -> None:
    cluster, model, job = eight_a100(), llama2_7b(), make_job()
    assert dp_choices(cluster, model, job, 2, 2, 1) == (2,)
    # 3 stages: 6 of 8 GPUs at most, and 2 does not leave one choice.
    assert dp_choices(cluster, model, job, 1, 3, 1) == (1, 2)
    assert dp_choices(cluster, model, job, 8, 2, 1) == ()


def test_planner_chooses_what_is_left_open() -> None:
    explanation = explain(PlanRequest(2, 4, 1, 4, layers="auto"))
    assert explanation.verdict in (Verdict.FITS, Verdict.TIGHT) and explanation.plan is not None
    assert sum(explanation.plan.plan.layers) == 32


def test_a_finished_plan_gets_the_same_judgement() -> None:
    first = explain(PlanRequest(2, 4, 1, 1))
    assert first.plan is not None
    again = explain_plan(eight_a100(), llama2_7b(), make_job(), first.plan.plan)
    assert again.verdict is first.verdict and again.plan is not None
    assert again.plan.estimate == first.plan.estimate


def test_type_order_is_kept() -> None:
    request = PlanRequest(8, 2, 1, 1, type_order=("mi300x", "h100-sxm-80g"))
    explanation = explain_request(make_cluster(), llama2_7b(), make_job(), request)
    assert explanation.plan is not None and explanation.plan.plan.skeleton.type_order == request.type_order
    unknown = replace(request, type_order=("b200", "h100-sxm-80g"))
    assert "no GPU type b200" in only_reason(
        explain_request(make_cluster(), llama2_7b(), make_job(), unknown), "placement"
    )


def test_why_not_tells_the_gap_to_the_best() -> None:
    cluster, model, job = make_cluster(), make_model(layers=12), Job(16, 4096)
    estimator = TableEstimator(cluster, model, job)
    result = search(cluster, model, job, options=SearchOptions(rescored=4), estimator=estimator)
    explanation = explain_request(cluster, model, job, PlanRequest(1, 16, 1, 1), result=result)
    invalid = explanation.verdict is Verdict.INVALID
    assert invalid  # 12 layers cannot fill 16 stages
    explanation = explain_request(cluster, model, job, PlanRequest(4, 4, 1, 1, layers=(6, 2, 2, 2)), result=result)
    said = [r.message for r in explanation.reasons if r.rule == "time"]
    assert any("% against the" in line and "of the best plan found" in line for line in said)


def test_an_interleaved_plan_is_judged_as_one_and_found_in_the_list() -> None:
    cluster, model, job = eight_a100(), llama2_7b(), make_job(64)
    result = search(cluster, model, job, options=SearchOptions(front=0))
    rows = [(i, plan) for i, plan in enumerate(result.table.plans) if plan.skeleton.virtual_stages == 2]
    assert rows
    for row, plan in rows:
        shape = plan.skeleton
        asked = PlanRequest(shape.tp, shape.pp, shape.dp, shape.micro_batch, plan.layers, plan.recompute, 2)
        told = explain_request(cluster, model, job, asked, result=result)
        assert told.plan is not None and told.plan.plan == plan
        if result.table.by_events[row]:
            assert told.plan.phi == pytest.approx(float(result.table.phi[row]), rel=1e-12)
        plain = explain_request(cluster, model, job, replace(asked, virtual_stages=1), result=result)
        assert plain.plan is not None and plain.plan.plan.skeleton == replace(shape, virtual_stages=1)
        assert plain.plan.estimate.iteration_time_s != told.plan.estimate.iteration_time_s
        for explanation in (told, plain):
            assert not [r for r in explanation.reasons if r.rule == "space"]


def test_a_schedule_that_the_search_did_not_look_at_is_not_called_closed() -> None:
    cluster, model, job = eight_a100(), llama2_7b(), replace(make_job(64), micro_batch_sizes=(1, 2))
    result = search(cluster, model, job, options=SearchOptions(front=0))
    told = explain_request(cluster, model, job, PlanRequest(2, 4, 1, 4, "auto", virtual_stages=4), result=result)
    (reason,) = [r.message for r in told.reasons if r.rule == "space"]
    assert "schedule interleaved:4 is not among 1f1b, interleaved:2" in reason
    assert "micro batch 4 is not among 1, 2" in reason
    assert not any("closed" in r.message for r in told.reasons)


def test_an_interleaved_best_plan_is_named_with_its_schedule() -> None:
    cluster, model, job = eight_a100(), llama2_7b(), replace(make_job(8), pp_sizes=(4,), dp_sizes=(1,))
    options = SearchOptions(weights=parse_weights("1,0,0"), front=0)
    result = search(cluster, model, job, options=options)
    assert result.plans[0].plan.skeleton.virtual_stages == 2
    told = explain_request(cluster, model, job, PlanRequest(2, 4, 1, 1), result=result)
    assert any(r.rule == "time" and r.message.endswith(", schedule interleaved:2") for r in told.reasons)


def test_no_plan_of_a_search_breaks_a_rule_that_explain_judges_by() -> None:
    # Little memory and few layers on many stages: groups of uniform:N are soon larger than a stage.
    cluster, model = load_cluster("paper-20gpu"), load_model("llama2-7b")
    job = resolve_job(cluster, model, tp_sizes=(2,), micro_batch_sizes=(1,))
    options = SearchOptions(limits=OperatorLimits(keep_free_bytes=((None, 20 * GIB),)), front=0)
    result = search(cluster, model, job, options=options)
    assert any(option.kind == "uniform" for plan in result.table.plans for option in plan.recompute)
    for plan in result.table.plans:
        assert explain_plan(cluster, model, job, plan).verdict is not Verdict.INVALID, plan
