"""What can never be planned: one message that says what, where and what to do, at once, with the fitting exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_tui import cli
from tests.cli.test_limits import PRIME, cluster, refused


def config(folder: Path, **changes: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(PRIME | changes))
    return str(file)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pin-layers", "3:2", "--pp", "2"], "stage 3 is pinned, and PP 2 has the stages 0 to 1"),
        (["--pin-recompute", "4:full", "--pp", "2,4"], "stage 4 is pinned, and PP 4 has the stages 0 to 3"),
        (["--pin-layers", "40:2"], "16 layers fill at most 16 stages"),
        (["--pin-recompute", "block:40"], "block:40 recomputes more layers than the 16 of the model"),
    ],
)
def test_pins_that_no_pipeline_has_are_2(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 4")
    message = refused(capsys, 2, "--cluster", file, "--model", "llama3.2-1b", *flags)
    assert words in message and flags[0] in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pp", "64"], "PP 64 needs 64 layers, the model has 16: use PP 4 or less"),
        (["--pp", "5"], "PP 5 needs 5 GPUs, 4 can take part"),
        (["--tp", "2", "--pp", "4"], "TP 2 x PP 4 needs 8 GPUs, 4 can take part"),
    ],
)
def test_sizes_beyond_the_model_or_the_cluster_are_3(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 4")
    assert words in refused(capsys, 3, "--cluster", file, "--model", "llama3.2-1b", *flags)


def test_a_model_that_exceeds_all_memory_is_refused_before_anything_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a stage was predicted")

    file = cluster(tmp_path, "a100-sxm-80g, count: 8")
    # 12 · 1,048,576² · 126 layers are 1.7e15 parameters, 18 bytes each.
    huge = config(
        tmp_path,
        hidden_size=1 << 20,
        intermediate_size=1 << 22,
        num_hidden_layers=126,
        num_attention_heads=8192,
    )
    with monkeypatch.context() as patch:
        patch.setattr(FirstPrinciples, "stage_table", never)
        patch.setattr(FirstPrinciples, "sketch", never)
        message = refused(capsys, 3, "--cluster", file, "--model", huge)
    assert "alone take" in message and "all 8 GPUs together have 640" in message
    assert "times as many GPUs" in message and "smaller model" in message
    # llama2-70b: 69 billion parameters at 18 bytes are 1,156 GiB; four times the memory would hold them.
    assert "4 times as many nodes would fit" in refused(capsys, 3, "--cluster", "a800x8", "--model", "llama2-70b")


def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cluster(tmp_path, "a100-sxm-80g, count: 4")
    deep = config(tmp_path, num_hidden_layers=5000)
    message = refused(capsys, 2, "--cluster", file, "--model", deep)
    assert "num_hidden_layers: '5000' is out of bounds" in message and "between 1 and 512" in message


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--schedule", "interleaved:3"], ("16 layers do not divide into 3", "use 1F1B or interleaved:2")),
        (["--schedule", "interleaved:32"], ("16 layers cannot fill", "interleaved:8")),
        (["--layers", "8,4,4"], ("has 3 entries", "8,8, or use PP 3")),
        (["--layers", "16,0"], ("leaves a stage without layers", "at least 1 layer")),
        (
            ["--layers", "auto", "--recompute", "block:16"],
            ("more layers than any stage of PP 2 can have, 15", "block:15"),
        ),
        (["--recompute", "full,none,none"], ("PP 2 needs 1 or 2", "one recompute for all stages or one for each")),
    ],
)
def test_explain_says_what_is_legal_instead(
    asked: list[str], words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 4"), "--model", "llama3.2-1b"]
    shape = ["--tp", "1", "--pp", "2", "--dp", "2", "--mbs", "1", "--global-batch", "8"]
    assert cli.run(["explain", "--json", *inputs, *shape, *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "invalid"
    assert any(words[0] in reason["message"] and words[1] in reason["remedy"] for reason in told["reasons"]), told


def test_every_broken_limit_says_by_how_much_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 2", "h100-sxm-80g, count: 2")]
    shape = ["--model", "llama3.2-1b", "--tp", "1", "--pp", "4", "--dp", "1", "--mbs", "1", "--global-batch", "8"]
    limits = ["--pin-layers", "0:3", "--pin-recompute", "full", "--keep-free", "a100-sxm-80g:79"]
    limits += ["--max-layer-difference", "2"]
    asked = ["--layers", "7,3,3,3", "--recompute", "none"]
    assert cli.run(["explain", "--json", *inputs, *shape, *limits, *asked]) == 0
    told = [r for r in json.loads(capsys.readouterr().out)["reasons"] if r["rule"] == "limit"]
    assert all(reason["remedy"] for reason in told)
    said = " / ".join(f"{r['message']}: {r['remedy']}" for r in told)
    assert "stage 0 has 7 layers, pinned are 3: give it 4 layers fewer" in said
    assert "differ by 4, at most 2 are allowed" in said and "--max-layer-difference 4" in said
    assert "pinned is full: give it full" in said and "--keep-free a100-sxm-80g:" in said


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:2"])
def test_the_gap_is_proven_for_both_schedules(
    schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", cluster(tmp_path, "a100-sxm-80g, count: 4"), "--model", "llama3.2-1b"]
    shape = ["--tp", "1", "--pp", "2", "--dp", "2", "--mbs", "1", "--global-batch", "64", "--schedule", schedule]
    assert cli.run(["explain", *inputs, *shape, "--gap"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "what is proven by events: no plan of the space, interleaved ones included, has a Φ more than" in text
    assert ("by the additive time" in text) == (schedule == "1f1b")
    assert cli.run(["explain", "--json", *inputs, *shape, "--gap"]) == 0
    gap = json.loads(capsys.readouterr().out)["gap"]
    assert 0 <= gap["event_bound_gap"] < 0.5 and gap["excess"] <= gap["event_bound_gap"] / (1 - gap["event_bound_gap"])


def test_what_would_fit_an_interleaved_plan_keeps_the_batch_and_names_the_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--cluster", "a800x8", "--model", "llama3-8b"]
    shape = ["--tp", "1", "--pp", "4", "--dp", "2", "--recompute", "none", "--schedule", "interleaved:2"]
    # 40 / (2 · 5) are 4 micro-batches; of 2 sequences they would be 10, which 4 stages cannot interleave.
    assert cli.run(["explain", "--json", *inputs, *shape, "--mbs", "5", "--global-batch", "40"]) == 0
    remedy = json.loads(capsys.readouterr().out)["reasons"][0]["remedy"]
    assert "--mbs 1" in remedy or "more recompute" in remedy
    # One GPU cannot hold the states: more of the cluster's can.
    alone = ["--tp", "1", "--pp", "1", "--dp", "1", "--mbs", "1"]
    assert cli.run(["explain", "--json", *inputs, *alone]) == 0
    remedy = json.loads(capsys.readouterr().out)["reasons"][0]["remedy"]
    assert "TP 2 with PP 1 and DP 1 on 2 of the cluster's 8 GPUs" in remedy
