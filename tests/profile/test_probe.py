"""The probe itself, on this machine's CPU with a real torch."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Attention, Precision
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Recompute
from memx_engine.profile.protocol import PROBE_PATH, probe_spec
from memx_engine.profile.runner import ProfileError
from memx_engine.profile.runners.local import LocalRunner
from tests.profile.conftest import CPU, LINK, TINY, node

POINT = Point("cpu", TINY, 1, 2, 64, 2, precision=Precision.FP32)
CLUSTER = Cluster("here", (node("here", CPU, 2),), LINK)

GPT = replace(TINY, norm="layernorm", gated=False, mlp_bias=True, position_rows=256, dropout=True)


def never() -> bool:
    return False


def measure(python: str, point: Point, *, timeout_s: float = 120) -> Measurement:
    """Measure on this machine; enough time for a busy one."""
    lane = LocalRunner(python=python).open(CLUSTER, "cpu", on_state=lambda state: None, should_stop=never)
    return lane.measure(point, timeout_s=timeout_s, should_stop=never)


def peak(measurement: Measurement) -> int:
    assert measurement.outcome is Outcome.OK, measurement.detail
    assert measurement.peak_allocated_bytes is not None
    return measurement.peak_allocated_bytes


def test_a_stage_is_really_measured(torch_python: str) -> None:
    result = measure(torch_python, POINT)
    assert result.outcome is Outcome.OK, result.detail
    assert result.truth is Truth.CPU
    assert result.time_s is not None and result.time_s > 0
    assert len(result.repetitions_s) == 5
    assert result.optimizer_s is not None and result.optimizer_s > 0
    assert result.versions["torch"]
    # Weights and gradients alone are 8 bytes per parameter in fp32.
    assert peak(result) > 8 * 2 * TINY.layer.total


def test_held_micro_batches_recompute_and_head_show_in_the_measured_memory(torch_python: str) -> None:
    none, more = peak(measure(torch_python, POINT)), peak(measure(torch_python, replace(POINT, in_flight=4)))
    full = peak(measure(torch_python, replace(POINT, in_flight=4, recompute=Recompute.parse("full"))))
    head = peak(measure(torch_python, replace(POINT, head=True)))
    tokens, width = 2 * 64, TINY.hidden * 4
    assert more - none > 3 * 2 * 10 * tokens * width
    assert full < more
    # fp32 logits of 128 tokens by 512 padded words.
    assert head - none > 128 * 512 * 4


@pytest.mark.parametrize(
    "change",
    [
        {"recompute": Recompute.parse("selective"), "attention": Attention.UNFUSED},
        {"recompute": Recompute.parse("block:1"), "in_flight": 2},
        {"recompute": Recompute.parse("uniform:2")},
        {"embedding": True, "head": True, "model": GPT},
        {"model": replace(TINY, norms_per_layer=4, qk_norm=True, qkv_bias=True)},
        {"model": replace(TINY, parallel_block=True, norms_per_layer=1, gated=False)},
        {"precision": Precision.BF16},
    ],
)
def test_every_kind_of_stage_runs(torch_python: str, change: dict[str, object]) -> None:
    result = measure(torch_python, replace(POINT, **change))  # type: ignore[arg-type]  # existing fields by name
    assert result.outcome is Outcome.OK, result.detail


def test_two_ranks_do_real_collectives(torch_python: str) -> None:
    point = replace(POINT, tp=2, head=True, embedding=True)
    result = measure(torch_python, point)
    assert result.outcome is Outcome.OK, result.detail
    alone = LocalRunner(python=torch_python, collectives=False).open(
        CLUSTER, "cpu", on_state=lambda state: None, should_stop=never
    )
    shard = alone.measure(point, timeout_s=60, should_stop=never)
    assert result.time_s is not None and shard.time_s is not None
    assert result.time_s > shard.time_s


def test_too_large_is_an_oom_and_too_slow_a_timeout(torch_python: str) -> None:
    small = replace(CPU, memory_bytes=1 << 20)
    cluster = Cluster("here", (node("here", small, 1),), LINK)
    lane = LocalRunner(python=torch_python).open(cluster, "cpu", on_state=lambda state: None, should_stop=never)
    result = lane.measure(POINT, timeout_s=60, should_stop=never)
    assert result.outcome is Outcome.OOM
    assert "out of memory" in result.detail
    slow = measure(torch_python, replace(POINT, layers=4, in_flight=30, seq_len=256), timeout_s=1.0)
    assert slow.outcome is Outcome.TIMEOUT


def test_a_killed_probe_is_a_crash(torch_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = LocalRunner(python=torch_python, environment={"PYTHONFAULTHANDLER": "0"}).open(
        CLUSTER, "cpu", on_state=lambda state: None, should_stop=never
    )
    monkeypatch.setattr(
        "memx_engine.profile.runners.local.probe_arguments",
        lambda *_: [torch_python, "-c", "import os; print('working', flush=True); os.kill(os.getpid(), 9)"],
    )
    result = lane.measure(POINT, timeout_s=60, should_stop=never)
    assert result.outcome is Outcome.CRASHED
    assert "signal 9" in result.detail


def test_a_python_without_torch_is_named_with_what_to_do() -> None:
    runner = LocalRunner(python="/nonexistent/python")
    with pytest.raises(ProfileError, match="/nonexistent/python"):
        runner.open(CLUSTER, "cpu", on_state=lambda state: None, should_stop=never)


def test_self_check_names_device_and_versions(torch_python: str) -> None:
    done = subprocess.run([torch_python, str(PROBE_PATH), "--self-check"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout.split("MEMX-PROBE ", 1)[1])
    assert document["kind"].startswith(("cpu", "cuda", "xpu", "npu"))
    assert document["versions"]["torch"]


def test_a_newer_specification_is_refused(torch_python: str) -> None:
    spec = {**probe_spec(POINT, time_limit_s=5), "spec": 99}
    done = subprocess.run(
        [torch_python, str(PROBE_PATH), json.dumps(spec)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "spec version" in done.stderr


def test_the_probe_imports_nothing_but_torch_and_the_standard_library() -> None:
    import ast
    import sys

    tree = ast.parse(PROBE_PATH.read_text(encoding="utf-8"))
    names = {
        alias.name.split(".")[0]
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Import)
        for alias in statement.names
    } | {
        (statement.module or "").split(".")[0] for statement in ast.walk(tree) if isinstance(statement, ast.ImportFrom)
    }
    assert names - set(sys.stdlib_module_names) == {"torch"}
    assert os.path.basename(PROBE_PATH) == "probe.py"
