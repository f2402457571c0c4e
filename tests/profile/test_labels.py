"""The words for a point: different points of a run must not look alike in its log."""

from __future__ import annotations

from dataclasses import replace

from memx_engine import (
    EventKind,
    MemoryStore,
    ProfileEvent,
    ProfileOptions,
    load_cluster,
    load_model,
    resolve_job,
    run_profile,
)
from memx_engine.measurement import Point
from tests.profile.conftest import TINY
from tests.profile.fakes import FakeRunner


def test_one_layer_is_singular_and_other_kv_heads_are_named() -> None:
    point = Point("a100", TINY, 2, 4, 512, 1, in_flight=3)
    assert point.label == "1 layer tp2 mbs4 seq512 none x3"
    assert (
        replace(point, layers=2, embedding=True, head=True).label == "embedding 2 layers head tp2 mbs4 seq512 none x3"
    )
    fewer = replace(point, model=replace(TINY, kv_heads=2))
    assert fewer.label_in(TINY) == "1 layer tp2 mbs4 seq512 kv2 none x3"
    assert fewer.label_in(fewer.model) == "1 layer tp2 mbs4 seq512 none x3"


def test_no_two_points_of_a_run_are_called_the_same() -> None:
    cluster, model = load_cluster("a800x8"), load_model("llama2-7b")
    called: dict[str, set[str]] = {}

    def hear(event: ProfileEvent) -> None:
        if event.kind is EventKind.MEASURED and event.measurement is not None:
            label = event.message.partition(": ")[0]
            called.setdefault(label, set()).add(event.measurement.point.key)

    run_profile(
        cluster,
        model,
        resolve_job(cluster, model),
        FakeRunner(),
        MemoryStore(),
        options=ProfileOptions(),
        on_event=hear,
    )
    assert len(called) > 100 and all(len(keys) == 1 for keys in called.values())
    own = f"kv{model.kv_heads} "
    assert any(" kv" in label for label in called) and not any(own in label for label in called)
