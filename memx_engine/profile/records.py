"""Measurements as plain JSON documents and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from memx_engine.errors import InputError
from memx_engine.inputs.job import Attention, Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Recompute

_AMOUNTS = (
    "forward_s", "backward_s", "optimizer_s", "whole_s", "peak_allocated_bytes", "peak_reserved_bytes",
    "outside_bytes", "capacity_bytes", "stragglers",
)  # fmt: skip


def point_to_document(point: Point) -> dict[str, Any]:
    """Plain values of a point; the model by its fields, so that the document stands alone."""
    document = asdict(point)
    document["recompute"] = str(point.recompute)
    document["model"] = {k: v for k, v in asdict(point.model).items() if k != "assumed"}
    return document


def point_from_document(document: dict[str, Any]) -> Point:
    """The point of a document; InputError when a field is missing or not known."""
    try:
        values = dict(document)
        return Point(
            **{
                **values,
                "model": TransformerSpec(**values["model"]),
                "recompute": Recompute.parse(str(values["recompute"])),
                "precision": Precision(values["precision"]),
                "attention": Attention(values["attention"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a stored point cannot be read: {error}") from error


def measurement_to_document(measurement: Measurement) -> dict[str, Any]:
    """Plain values of a measurement, its point included."""
    document = {f.name: getattr(measurement, f.name) for f in fields(measurement)}
    document["point"] = point_to_document(measurement.point)
    document["repetitions_s"] = list(measurement.repetitions_s)
    document["versions"] = dict(measurement.versions)
    return document


def measurement_from_document(document: dict[str, Any]) -> Measurement:
    """The measurement of a document; InputError when a field is missing or not known."""
    try:
        for name in _AMOUNTS:
            value = document.get(name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value <= 2**62):
                raise ValueError(f"{name} is {str(value)[:40]!r}")
        return Measurement(
            **{
                **document,
                "point": point_from_document(document["point"]),
                "outcome": Outcome(document["outcome"]),
                "truth": Truth(document["truth"]),
                "repetitions_s": tuple(float(r) for r in document["repetitions_s"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a stored measurement cannot be read: {error}") from error
