"""Right answers on the sample clusters, whatever the cost model's constants are."""

from __future__ import annotations

import pytest

from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import NONE, Recompute, Verdict
from memx_engine.search.explain import PlanRequest, explain_request
from memx_engine.search.objective import parse_weights
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search


def plan(cluster_name: str, model_name: str, weights: str, **job: object) -> SearchResult:
    cluster, model = load_cluster(cluster_name), load_model(model_name)
    options = SearchOptions(weights=parse_weights(weights), rescored=16)
    return search(cluster, model, resolve_job(cluster, model, **job), options=options)  # type: ignore[arg-type]


def test_throughput_weights_do_not_choose_tp8() -> None:
    # TP 8 has no variance at all and is the slowest of the four measured layouts (FlagPerf llama3_8B-megatron on
    # 8 x A800: 2451 of 3699 tokens/s per GPU): without the floor of the variance it would win.
    result = plan("a800x8", "llama3-8b", "throughput")
    assert result.plans[0].plan.skeleton.tp != 8
    assert result.certificate.optimal


def test_motivating_case_is_faster_with_recompute_on_the_small_gpus() -> None:
    # Table 1 of the MemX paper: 21:11 overflows X; 8:24 fits and leaves X idle; TP 4, DP 2, micro-batch 8.
    cluster, model = load_cluster("motivation-xy"), load_model("llama2-7b")
    job = resolve_job(cluster, model)
    order = ("vendor-x", "vendor-y")
    by_compute = PlanRequest(4, 2, 2, 8, layers=(21, 11), recompute=(NONE,), type_order=order)
    assert explain_request(cluster, model, job, by_compute).verdict is Verdict.DOES_NOT_FIT
    by_memory = PlanRequest(4, 2, 2, 8, layers=(8, 24), recompute=(NONE,), type_order=order)
    before = explain_request(cluster, model, job, by_memory)
    assert before.verdict is not Verdict.DOES_NOT_FIT and before.plan is not None

    result = plan("motivation-xy", "llama2-7b", "1,0,0", tp_sizes=(4,), dp_sizes=(2,), micro_batch_sizes=(8,))
    x_first = next(p for p in result.plans if p.plan.skeleton.type_order == order)
    on_x, on_y = x_first.plan.recompute
    assert on_x != NONE and on_y == NONE
    assert x_first.estimate.worst_gpu.used_fraction <= 1.0
    limit = before.plan.estimate.iteration_time_s / 1.12
    assert x_first.estimate.iteration_time_s <= limit
    assert result.plans[0].estimate.iteration_time_s <= x_first.estimate.iteration_time_s

    balanced = plan("motivation-xy", "llama2-7b", "auto")
    assert balanced.objective.weights.profile == "heterogeneous"
    assert balanced.time_optimal.phi > balanced.plans[0].phi
    assert balanced.time_optimal.estimate.iteration_time_s <= result.plans[0].estimate.iteration_time_s


def test_nothing_fits_names_the_constraint_and_a_change() -> None:
    with pytest.raises(Exception, match="GiB short on stage") as caught:
        plan("paper-small", "llama2-7b", "auto")
    assert "times as many nodes would fit" in str(caught.value)


def test_a_v100_cluster_is_planned_in_fp16_with_every_type() -> None:
    # V100 and T4 lack bf16.
    result = plan("paper-small", "gpt2-large", "auto", seq_len=1024)
    assert result.job.precision.value == "fp16"
    assert any("fp16" in line for line in result.assumed)


def test_recompute_words_of_the_answer_parse_back() -> None:
    result = plan("a800x8", "llama2-7b", "safety")
    for option in result.plans[0].plan.recompute:
        assert Recompute.parse(str(option)) == option
