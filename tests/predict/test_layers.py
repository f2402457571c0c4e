"""Stages corrected by tables of single layers that are made up from the cost model, so that the answers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.predict.layers import LayerCorrections, read_layers
from memx_engine.predict.points import PointEstimator
from memx_engine.profile.importers.layouts import Layout, layer_point, row_layout
from memx_engine.units import MIB

KINDS = {"first layer (embedding)": 1, "transformer layer": 8, "last layer (head)": 1}


def run(micro_batch: int) -> Layout:
    values = {"layers": 8, "hidden": 1024, "heads": 16, "seq_len": 1024, "gpu_type": "a100-sxm-80g", "num_gpus": 2}
    return row_layout(
        {**values, "tp": 2, "pp": 1, "mbs": micro_batch, "gbs": 16, "precision": "bf16", "iter_time_s": 1}
    )


def layer_rows(
    batches: tuple[int, ...], time: float = 1.7, head: float = 0.5, memory: float = 1.3
) -> list[dict[str, Any]]:
    """Layers that take ``time`` and heads that take ``head`` of what is predicted, on top of 100 MiB of states."""
    layout = run(1)
    estimator = PointEstimator(FirstPrinciples(layout.cluster, layout.model, layout.job))
    rows = []
    for kind, count in KINDS.items():
        for mbs in batches:
            row: dict[str, Any] = {
                "layer_kind": kind, "layer_count": count, "hidden": 1024, "heads": 16, "seq_len": 1024, "vocab": 50257,
                "gpu_type": "a100-sxm-80g", "precision": "bf16", "tp": 2, "mbs": mbs,
            }  # fmt: skip
            made = estimator.estimate(layer_point(row))
            held = made.memory.activations + (made.memory.logits if "head" in kind else 0.0)
            factor = head if "head" in kind else time
            size = 100 + memory * held / MIB
            rows.append({**row, "fwd_bwd_ms": 1e3 * factor * made.time_s, "layer_mem_mib": size})
    return rows


def test_measured_layers_give_their_own_factors() -> None:
    layout = run(4)
    known = LayerCorrections(read_layers(layer_rows((1, 2, 4, 8))))
    found = known.corrections(layout.cluster, layout.model, layout.job, 2, 4)["a100-sxm-80g"]
    assert found.time == pytest.approx(1.7, rel=0.01)
    assert found.time * found.head == pytest.approx(0.5, rel=0.01)
    # The states' 100 MiB do not grow with the micro-batch and so are not taken for activations.
    assert found.activations == pytest.approx(1.3, rel=0.02)
    assert found.activations * found.logits == pytest.approx(1.3, rel=0.02)


def test_between_two_sizes_lies_what_is_between() -> None:
    rows = layer_rows((1, 4), time=1.0) + layer_rows((16, 64), time=2.0)
    known = LayerCorrections(read_layers(rows))
    layout = run(8)
    factors = [
        known.corrections(layout.cluster, layout.model, layout.job, 2, b)["a100-sxm-80g"].time for b in (4, 8, 16)
    ]
    assert factors[0] == pytest.approx(1.0, rel=0.05) and factors[2] == pytest.approx(2.0, rel=0.05)
    assert factors[0] < factors[1] < factors[2]


def test_of_repeats_the_fastest_counts() -> None:
    rows = layer_rows((1, 2, 4)) + layer_rows((1, 2, 4), time=2.4, head=0.9)
    found = LayerCorrections(read_layers(rows))
    layout = run(2)
    assert found.corrections(layout.cluster, layout.model, layout.job, 2, 2)["a100-sxm-80g"].time == pytest.approx(
        1.7, rel=0.01
    )


def test_other_devices_and_widths_are_left_alone() -> None:
    layout = run(2)
    other = [{**row, "gpu_type": "h100-sxm-80g"} for row in layer_rows((1, 2))]
    wide = [{**row, "precision": "fp32"} for row in layer_rows((1, 2))]
    known = LayerCorrections(read_layers(other + wide))
    assert known.corrections(layout.cluster, layout.model, layout.job, 2, 2) == {}


def test_one_micro_batch_tells_nothing_of_memory() -> None:
    rows = read_layers(layer_rows((2,)))
    assert all(row.slope_bytes is None for row in rows)
    layout = run(2)
    found = LayerCorrections(rows).corrections(layout.cluster, layout.model, layout.job, 2, 2)["a100-sxm-80g"]
    assert found.activations == 1.0 and found.time == pytest.approx(1.7, rel=0.01)


def test_conventions_are_asked_for_as_the_job_says() -> None:
    """Under another attention kernel predictions differ and the layers do not, so the factors differ."""
    known = LayerCorrections(read_layers(layer_rows((1, 2, 4))))
    layout = run(4)
    from memx_engine.inputs.job import Attention

    job = replace(layout.job, attention=Attention.UNFUSED)
    unfused = known.corrections(layout.cluster, layout.model, job, 2, 4)["a100-sxm-80g"]
    assert unfused.time < 1.7 and unfused.activations < 1.3
