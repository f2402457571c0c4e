"""Plans of real searches: what is written can be read, and says the same when it is explained."""

from __future__ import annotations

from functools import cache

import pytest

from memx_engine.cost.recompute import counts
from memx_engine.export.plan_file import parse_plan, plan_file, plan_text
from memx_engine.inputs.cluster_file import parse_cluster
from memx_engine.inputs.job import Framework
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.plan import FULL, Recompute, Verdict
from memx_engine.search.assign import build_plan
from memx_engine.search.explain import PlanRequest, explain_plan, explain_request
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.space import enumerate_space

LAB = """
schema: memx/cluster/v1
name: my-lab
nodes:
  - name: a100
    gpus: [{type: a100-80g, count: 4}]
  - name: ascend
    gpus: [{type: ascend-910b, count: 8}]
  - name: mi300x-[0-1]
    gpus: [{type: mi300x, count: 8}]
links:
  inter_node: {bandwidth_gb_s: 12, latency_us: 30, shared: true}
  host: {bandwidth_gb_s: 6.2, latency_us: 50, shared: true}
"""


@cache
def searched(framework: Framework) -> SearchResult:
    cluster, model = parse_cluster(LAB), load_model("qwen2.5-7b")
    job = resolve_job(
        cluster, model, global_batch=512, framework=framework, tp_sizes=(2,), pp_sizes=(7, 14), micro_batch_sizes=(1, 2)
    )
    return search(cluster, model, job, options=SearchOptions(front=0))


@pytest.mark.parametrize("framework", list(Framework))
def test_every_plan_is_read_back_and_explained_with_the_same_numbers(framework: Framework) -> None:
    result = searched(framework)
    shown = {ranked.plan: ranked for ranked in (*result.plans, *result.pareto, result.time_optimal)}
    for ranked in shown.values():
        original = plan_file(result, ranked)
        back = parse_plan(plan_text(original))
        assert back == original
        explained = explain_plan(back.cluster, back.model, back.job, back.plan, objective=back.objective)
        assert explained.verdict is not Verdict.INVALID and explained.plan is not None, explained.reasons
        assert explained.plan.estimate == ranked.estimate


def test_a_stage_with_fewer_layers_than_a_uniform_group_is_written_and_explained_as_one_group() -> None:
    result = searched(Framework.ANY)
    space = enumerate_space(result.cluster, result.model, result.job)
    skeleton = next(s for s in space.skeletons() if (s.pp, s.virtual_stages) == (7, 1))
    layers = (3, 1, 4, 5, 5, 5, 5)
    plan = build_plan(result.cluster, result.model, skeleton, layers, [Recompute("uniform", 4)] * 7)
    words = [str(stage.recompute) for stage in plan.stages]
    assert words == ["uniform:3", "full", *["uniform:4"] * 5]
    explained = explain_plan(result.cluster, result.model, result.job, plan, objective=result.objective)
    assert explained.verdict is not Verdict.INVALID and explained.plan is not None, explained.reasons
    original = plan_file(result, explained.plan)
    back = parse_plan(plan_text(original))
    assert back == original
    again = explain_plan(back.cluster, back.model, back.job, back.plan, objective=back.objective)
    assert again.plan is not None and again.plan.estimate == explained.plan.estimate


@pytest.mark.parametrize("layers", range(1, 9))
@pytest.mark.parametrize("n", (1, 2, 4, 8))
def test_a_uniform_group_larger_than_the_stage_costs_what_the_stage_as_one_group_costs(layers: int, n: int) -> None:
    word = Recompute("uniform", n) if n > 1 else FULL
    assert word.within(layers).n <= layers
    assert counts(layers, word.within(layers)) == counts(layers, word)


def test_the_planners_choice_for_unequal_chunks_counts_no_more_than_the_smaller_one() -> None:
    cluster, model = parse_cluster(LAB), load_model("qwen2.5-7b")
    job = resolve_job(cluster, model, global_batch=528)
    for layers in ((7, 7, 7, 3, 1, 3), (8, 6, 7, 1, 3, 3)):
        request = PlanRequest(2, 3, 2, 2, layers=layers, virtual_stages=2, type_order=("mi300x",))
        explained = explain_request(cluster, model, job, request)
        assert explained.plan is not None, explained.reasons
        again = explain_plan(cluster, model, job, explained.plan.plan)
        assert again.verdict is explained.verdict
