from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.catalogue import find_gpu_type
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Optimizer, Precision
from memx_engine.measurement import Truth
from memx_engine.plan import FULL, NONE, SELECTIVE, Recompute
from memx_engine.profile.importers.facts import is_out_of_memory, row_facts
from memx_engine.profile.importers.layouts import layer_measurement, layer_point, row_layout
from memx_engine.profile.importers.models import NotJudgeableError, find_preset, row_model
from tests.cost.shapes import LLAMA2_7B, gpu_type, nodes_of
from tests.profile.tables import LAYER, ROW


def test_a_row_becomes_the_plan_that_was_run() -> None:
    made = row_layout(ROW)
    shape = made.plan.skeleton
    assert (shape.tp, shape.pp, shape.dp, shape.micro_batch, shape.global_batch) == (2, 2, 2, 1, 64)
    assert made.plan.layers == (16, 16) and made.plan.recompute == (FULL, FULL)
    assert [stage.ranks for stage in made.plan.stages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert made.model.fingerprint == replace(LLAMA2_7B, name="x").fingerprint
    assert made.job.precision is Precision.BF16 and made.job.optimizer is Optimizer.SHARDED
    assert FirstPrinciples(made.cluster, made.model, made.job).estimate(made.plan).iteration_time_s > 0
    assert made.facts.time_s == 20.5 and "sharded optimizer" in made.facts.assumed


def test_mixed_runs_with_stages() -> None:
    # Eight layers on the A100 with full recompute, 24 on the MI300X without: the common format's own example.
    row = {k: v for k, v in ROW.items() if k not in ("recompute", "gpu_type", "num_gpus", "dp", "gpus_per_node")}
    made = row_layout({**row, "num_gpus": 4, "stages": "a100-80g:8:full|mi300x:24"})
    assert made.plan.layers == (8, 24) and made.plan.recompute == (FULL, NONE)
    assert [stage.gpu_type for stage in made.plan.stages] == ["a100-sxm-80g", find_gpu_type("mi300x").name]
    assert made.cluster.host is not None


def test_mixed_runs_without_stages_are_split_evenly_and_said() -> None:
    row = {
        **ROW,
        "gpu_type": "a100-sxm-80g+vendor-b+vendor-c",
        "num_gpus": 20,
        "tp": 4,
        "pp": 5,
        "dp": 1,
        "recompute": "a100-sxm-80g:uniform:1|vendor-b:selective|vendor-c:none",
    }
    paper = load_cluster("paper-20gpu")
    made = row_layout(row, paper)
    assert made.cluster is paper
    types = [stage.gpu_type for stage in made.plan.stages]
    assert types == ["a100-sxm-80g", "vendor-b", "vendor-b", "vendor-c", "vendor-c"]
    assert made.plan.recompute == (FULL, SELECTIVE, SELECTIVE, NONE, NONE)
    assert sorted(made.plan.layers) == [6, 6, 6, 7, 7]
    assert any("even split" in text for text in made.facts.assumed)
    assert made.plan.stages[1].ranks == (4, 5, 6, 7)


def test_the_clusters_own_types_count_before_the_catalogue() -> None:
    own = nodes_of(gpu_type("our-chip"), gpu_type("a100-sxm-80g", efficiency=0.5))
    made = row_layout({**ROW, "gpu_type": "our-chip"}, own)
    assert made.cluster is own and made.plan.stages[0].gpu_type == "our-chip"
    # Too many GPUs for it: nodes as the row says them, of the cluster's device.
    larger = row_layout({**ROW, "num_gpus": 16, "dp": 4}, own)
    assert larger.cluster is not own and len(larger.cluster.gpus) == 16
    assert larger.cluster.gpus[0].gpu_type.efficiency == 0.5
    with pytest.raises(NotJudgeableError, match="our-chip"):
        row_layout({**ROW, "gpu_type": "our-chip"})


@pytest.mark.parametrize(
    ("columns", "time_s"),
    [
        # 64 x 4096 tokens on 8 GPUs.
        ({"tokens_per_s_per_gpu": 1600.0}, 64 * 4096 / 8 / 1600),
        ({"samples_per_s": 3.2}, 20.0),
    ],
)
def test_time_from_rates(columns: dict[str, float], time_s: float) -> None:
    row = {k: v for k, v in ROW.items() if k != "iter_time_s"}
    assert row_facts({**row, **columns}).time_s == pytest.approx(time_s)
    assert row_facts(row).time_s is None


def test_the_global_batch_follows_from_time_and_rate() -> None:
    row = {k: v for k, v in ROW.items() if k != "gbs"}
    assert row_facts({**row, "tokens_per_s_per_gpu": 64 * 4096 / 8 / 20.5}).global_batch == 64
    with pytest.raises(NotJudgeableError, match="gbs not stated"):
        row_facts(row)


def test_precision_where_none_is_stated() -> None:
    row = {k: v for k, v in ROW.items() if k != "precision"}
    assert row_facts(row).precision is Precision.BF16
    old = row_facts({**row, "gpu_type": "v100-sxm2-32g", "peak_mem_gib": 30.0})
    assert old.precision is Precision.FP16 and "precision fp16" in old.assumed


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("LLAMA3_8B", "llama3-8b"),
        ("LLAMA3_70B (SFT)", "llama3-70b"),
        ("LLAMA-3-8", "llama3-8b"),
        ("llama1_7B", "llama-7b"),
        ("InternLM-7B", "internlm-7b"),
        ("aquila2_7b_finetune", "aquila2-7b"),
        ("GPT-20B", None),
        ("", None),
    ],
)
def test_presets_by_the_names_that_tables_use(name: str, preset: str | None) -> None:
    found = find_preset(name)
    assert (found.name if found else None) == preset


def test_models_are_completed_by_stated_rules() -> None:
    shape: dict[str, Any] = {"layers": 24, "hidden": 1024, "heads": 16, "seq_len": 1024}
    gpt, assumed = row_model({**shape, "model": "GPT"})
    assert (gpt.ffn, gpt.vocab, gpt.gated, gpt.tied_embeddings) == (4096, 50257, False, True)
    assert assumed == ("ffn 4096", "vocabulary 50257")
    gated, assumed = row_model({**shape, "ffn": 2816, "vocab": 32000, "kv_heads": 4})
    assert gated.gated and gated.kv_heads == 4 and assumed == ()
    with pytest.raises(NotJudgeableError, match="ffn is not stated"):
        row_model({**shape, "model": "my-llama"})
    with pytest.raises(NotJudgeableError, match="no multiple|not a multiple"):
        row_model({**shape, "heads": 17, "model": "GPT"})
    # A preset's name on another shape is that shape.
    small, _ = row_model({**shape, "model": "llama2-7b", "ffn": 2816})
    assert small.hidden == 1024


def test_a_layer_row_is_a_point() -> None:
    point = layer_point(LAYER)
    assert (point.layers, point.embedding, point.head, point.tp) == (1, False, False, 1)
    assert point.model.fingerprint == replace(LLAMA2_7B, name="x").fingerprint
    made = layer_measurement(LAYER, "table.csv")
    assert made.truth is Truth.TABLE and made.truth_name == "table table.csv"
    assert made.time_s == pytest.approx(0.02575)
    ends = layer_point({**LAYER, "layer_kind": "last layer (head)", "vocab": 32000})
    assert (ends.layers, ends.head) == (0, True)
    with pytest.raises(NotJudgeableError, match="vocab not stated"):
        layer_point({**LAYER, "layer_kind": "first layer (embedding)"})
    with pytest.raises(NotJudgeableError, match="the layer kind"):
        layer_point({**LAYER, "layer_kind": "norm"})
    with pytest.raises(NotJudgeableError, match="outside the cost model"):
        layer_point({**LAYER, "precision": "tf32"})


def test_only_runs_without_any_figure_are_out_of_memory() -> None:
    assert is_out_of_memory({"notes": "OOM; ckpt=no"})
    assert is_out_of_memory({"notes": "CUDA out of memory"})
    assert not is_out_of_memory({"notes": "OOM at twice the batch", "iter_time_s": 2.0})
    assert not is_out_of_memory({"notes": "in the ROOM"})


def test_a_word_that_is_no_strategy_is_named() -> None:
    with pytest.raises(NotJudgeableError, match="recompute 'some' is not known"):
        row_facts({**ROW, "recompute": "some"})
    assert row_facts({**ROW, "recompute": "block:3"}).stages[0].recompute == Recompute("block", 3)
