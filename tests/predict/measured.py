"""Measurements made up from the cost model itself times known factors, for tests of what is fitted to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.job import Job
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import FULL, NONE
from memx_engine.predict.points import point_estimate
from tests.cost.shapes import A100_40G, A800, LLAMA2_7B, nodes_of

CLUSTER = nodes_of(A800, A100_40G)
SMALL = replace(LLAMA2_7B, layers=12)
JOB = Job(64, 2048)
FIRST = FirstPrinciples(CLUSTER, SMALL, JOB)


def points(gpu_type: str = A800.name, **changes: Any) -> list[Point]:
    """Twelve points: three TP sizes, two micro-batches, with and without recompute."""
    return [
        replace(Point(gpu_type, SMALL, tp, mbs, 2048, 4, recompute=recompute, in_flight=2), **changes)
        for tp in (1, 2, 4)
        for mbs in (1, 2)
        for recompute in (NONE, FULL)
    ]


def measured(
    point: Point,
    *,
    time: float = 1.0,
    activations: float = 1.0,
    reserved: float = 1.08,
    context: float = 1.0,
    truth: Truth = Truth.GPU,
    name: str = "gpu",
    **changes: Any,
) -> Measurement:
    """``point`` as a device would measure it whose times and activations are so many times those predicted.

    Args:
        reserved: Reserved over allocated memory; first principles says 1.08.
    """
    said = point_estimate(FIRST, point)
    allocated = said.memory.weights + said.memory.gradients + activations * said.dynamic_bytes
    whole = Measurement(
        point,
        Outcome.OK,
        truth,
        name,
        forward_s=time * said.forward_s,
        backward_s=time * said.backward_s,
        peak_allocated_bytes=round(allocated),
        peak_reserved_bytes=round(reserved * allocated),
        outside_bytes=round(context * said.memory.context),
    )
    return replace(whole, **changes)
