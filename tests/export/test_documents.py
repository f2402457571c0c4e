"""The JSON documents: fixed keys, plain finite values, and numbers that are those of the result."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from memx_engine.errors import InputError
from memx_engine.export.comparison import compare_document, comparison_notes
from memx_engine.export.documents import explain_document, search_document
from memx_engine.export.plan_file import plan_file
from memx_engine.plan import Verdict
from memx_engine.search.objective import Weights
from memx_engine.search.result import RankedPlan
from tests.builders import make_cluster, make_estimate, make_job, make_model, make_plan, make_result

RESULT = make_result(n_plans=12, calibrated=True)

PLAN_KEYS = {
    "rank",
    "phi",
    "pareto",
    "tp",
    "pp",
    "dp",
    "micro_batch",
    "seq_len",
    "micro_batches",
    "schedule",
    "virtual_stages",
    "stages",
    "iteration_time_s",
    "iteration_time_interval_s",
    "tokens_per_s",
    "time_breakdown_s",
    "peak_memory_bytes",
    "memory_variance_mib2",
    "gpus",
}
BREAKDOWN_KEYS = {
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "context",
    "fragmentation",
}


def strict(document: Any) -> Any:
    """The document as any JSON reader would get it; fails on values that JSON does not know."""
    return json.loads(json.dumps(document, allow_nan=False))


def test_search_document_has_the_fixed_keys() -> None:
    document = search_document(RESULT, top=5)
    assert strict(document) == document
    assert document["schema"] == "memx/search-result/v1"
    assert set(document) >= {
        "cluster",
        "model",
        "job",
        "assumed",
        "provenance",
        "weights",
        "search",
        "plans",
        "time_optimal",
        "pareto",
        "baselines",
    }
    assert set(document["cluster"]) >= {"name", "fingerprint", "gpus"}
    assert document["cluster"]["gpus"] == 16
    assert document["model"] == {
        "name": "llama-test",
        "fingerprint": RESULT.model.fingerprint,
        "parameters": 8_030_261_248,
    }
    assert document["job"]["global_batch"] == 512
    assert document["provenance"] == "simulated"
    assert set(document["weights"]) >= {"profile", "time", "peak", "variance", "reason", "references"}
    assert set(document["weights"]["references"]) == {"time_s", "peak_bytes", "variance_mib2", "epsilon_mib2"}
    search = document["search"]
    assert set(search) >= {
        "space",
        "skeletons",
        "pruned",
        "feasible",
        "plans_covered",
        "seconds",
        "cache",
        "certificate",
    }
    assert search["pruned"] == {"placement": 12, "memory": 12, "time": 0}
    assert search["cache"] == {"hits": 3, "misses": 5}
    assert set(search["certificate"]) == {
        "objective",
        "lower_bound",
        "best",
        "gap",
        "optimal",
        "event_gap",
        "rescored",
        "event_lower_bound",
    }
    assert search["space"]["tp"] == [1, 2, 4, 8]
    assert document["baselines"] == []


def test_plans_of_the_search_document() -> None:
    document = search_document(RESULT, top=10)
    assert [plan["rank"] for plan in document["plans"]] == list(range(1, 11))
    assert len(search_document(RESULT, top=99)["plans"]) == 12
    for plan, ranked in zip(document["plans"], RESULT.plans, strict=False):
        assert set(plan) >= PLAN_KEYS
        assert plan["phi"] == ranked.phi
        assert plan["iteration_time_s"] == ranked.estimate.iteration_time_s
        assert plan["iteration_time_interval_s"] == list(ranked.estimate.interval_s or ())
        assert plan["memory_variance_mib2"] == ranked.estimate.memory_variance_bytes2 / 2**40
        assert len(plan["stages"]) == plan["pp"]
        assert sum(stage["layers"] for stage in plan["stages"]) == RESULT.model.layers
        assert sorted(rank for stage in plan["stages"] for rank in stage["ranks"]) == list(range(16))
        assert len(plan["gpus"]) == 16
        for gpu in plan["gpus"]:
            assert set(gpu["breakdown"]) == BREAKDOWN_KEYS
            assert math.isclose(sum(gpu["breakdown"].values()), gpu["peak_bytes"])
            assert gpu["oom_probability"] is not None
    fastest = document["time_optimal"]
    assert fastest["iteration_time_s"] == RESULT.table.time_s.min()
    assert document["pareto"]
    assert all(plan["pareto"] and "gpus" not in plan for plan in document["pareto"])


def test_interleaved_stages_show_their_chunks() -> None:
    plan = make_plan(layers=(9, 8, 8, 7), virtual_stages=2)
    ranked = RankedPlan(1, plan, make_estimate(plan), 1.0, True)
    document = search_document(dataclasses.replace(RESULT, plans=(ranked,), time_optimal=ranked), top=1)
    stages = document["plans"][0]["stages"]
    assert [stage["layers"] for stage in stages] == [9, 8, 8, 7]
    assert stages[0]["chunk_layers"] == [5, 4]
    assert document["plans"][0]["schedule"] == "interleaved"


def test_numbers_that_are_not_finite_become_null() -> None:
    estimate = dataclasses.replace(RESULT.plans[0].estimate, tokens_per_s=float("inf"))
    ranked = dataclasses.replace(RESULT.plans[0], phi=float("nan"), estimate=estimate)
    document = search_document(dataclasses.replace(RESULT, time_optimal=ranked), top=1)
    assert strict(document) == document
    assert document["time_optimal"]["phi"] is None
    assert document["time_optimal"]["tokens_per_s"] is None


def test_explain_document() -> None:
    cluster, model, job = make_cluster(), make_model(), make_job()
    plan = make_plan(cluster)
    ranked = RankedPlan(1, plan, make_estimate(plan, cluster, model, memory_scale=40.0), 2.0, False)
    reason = SimpleNamespace(
        rule="memory", message="stage 0 lacks 12 GiB", stage=0, missing_bytes=12.0, remedy="recompute"
    )
    explanation: Any = SimpleNamespace(verdict=Verdict.DOES_NOT_FIT, reasons=(reason,), plan=ranked, gap=None)
    document = explain_document(explanation, cluster, model, job)
    assert strict(document) == document
    assert document["verdict"] == "does_not_fit"
    assert document["reasons"] == [
        {
            "rule": "memory",
            "message": "stage 0 lacks 12 GiB",
            "stage": 0,
            "missing_bytes": 12.0,
            "remedy": "recompute",
        }
    ]
    assert document["gap"] is None
    assert set(document["plan"]) >= PLAN_KEYS
    assert document["plan"]["gpus"][0]["oom_probability"] is None
    assert "precision is not given: bf16" in document["assumed"]


def test_explain_document_of_an_invalid_request() -> None:
    reason = SimpleNamespace(rule="heads", message="TP 8", stage=None, missing_bytes=None, remedy="use 4")
    explanation: Any = SimpleNamespace(verdict=Verdict.INVALID, reasons=(reason,), plan=None, gap=None)
    document = explain_document(explanation, make_cluster(), make_model(), make_job())
    assert strict(document) == document
    assert document["verdict"] == "invalid"
    assert document["plan"] is None


def metric(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = [m for m in document["metrics"] if m["name"] == name]
    assert len(found) == 1
    metric: dict[str, Any] = found[0]
    return metric


def test_compare_document_says_better_and_worse_by_the_direction_of_the_metric() -> None:
    first, second = (plan_file(RESULT, RESULT.plans[i]) for i in (0, 5))
    document = compare_document([first, second], ["a.yaml", "b.yaml"])
    assert strict(document) == document
    assert document["schema"] == "memx/compare/v1"
    assert [plan["name"] for plan in document["plans"]] == ["a.yaml", "b.yaml"]
    time, tokens = metric(document, "iteration_time_s"), metric(document, "tokens_per_s")
    assert time["values"] == [first.estimate.iteration_time_s, second.estimate.iteration_time_s]
    assert time["deltas"][0] is None
    delta = second.estimate.iteration_time_s - first.estimate.iteration_time_s
    assert time["deltas"][1]["absolute"] == delta
    assert math.isclose(time["deltas"][1]["relative"], delta / first.estimate.iteration_time_s)
    slower = delta > 0
    assert time["deltas"][1]["word"] == ("worse" if slower else "better")
    assert tokens["deltas"][1]["word"] == ("worse" if slower else "better")
    assert metric(document, "phi")["deltas"][1]["word"] == "worse"  # rank 6 against rank 1
    back = compare_document([second, first])
    assert metric(back, "phi")["deltas"][1]["word"] == "better"
    assert [plan["name"] for plan in back["plans"]] == ["A", "B"]


def test_equal_plans_are_the_same() -> None:
    file = plan_file(RESULT, RESULT.plans[0])
    document = compare_document([file, file, file])
    for row in document["metrics"]:
        assert [d["word"] for d in row["deltas"][1:]] == ["same", "same"]
    assert document["differences"] == []
    assert document["notes"] == []


def test_a_zero_base_has_no_relative_difference() -> None:
    file = plan_file(RESULT, RESULT.plans[0])
    even = dataclasses.replace(file, estimate=dataclasses.replace(file.estimate, memory_variance_bytes2=0.0))
    row = metric(compare_document([even, file]), "memory_variance_mib2")
    assert row["deltas"][1]["relative"] is None
    assert row["deltas"][1]["word"] == "worse"


def test_differences_list_the_choices_that_differ() -> None:
    files = []
    for words in ("none", "full"):
        plan = make_plan(recompute=words)
        estimate = make_estimate(plan)
        files.append(dataclasses.replace(plan_file(RESULT, RESULT.plans[0]), plan=plan, estimate=estimate))
    document = compare_document(files)
    assert document["differences"] == [{"name": "recompute", "values": [["none"] * 4, ["full"] * 4]}]


def test_notes_say_what_is_not_comparable() -> None:
    file = plan_file(RESULT, RESULT.plans[0])
    weights = Weights("throughput", 0.7, 0.2, 0.1)
    other = dataclasses.replace(
        file,
        model=make_model(layers=40),
        objective=dataclasses.replace(file.objective, weights=weights),
        predictor_fingerprint="another",
        phi=99.0,
    )
    notes = comparison_notes([file, other])
    assert any("different models" in note for note in notes)
    assert any("weights or references" in note for note in notes)
    assert any("different predictors" in note for note in notes)
    assert not any("clusters" in note for note in notes)
    # Under the first plan's weights the two have the same phi, whatever the second file says of its own.
    row = metric(compare_document([file, other]), "phi")
    assert math.isclose(row["values"][1], file.phi)
    assert row["deltas"][1]["word"] == "same"


def test_a_comparison_needs_two_plans() -> None:
    with pytest.raises(InputError, match="at least two"):
        compare_document([plan_file(RESULT, RESULT.plans[0])])
