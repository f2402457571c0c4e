"""Results belong to described devices: what is changed is measured anew, what only grows is not."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.model_file import load_model
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import FULL
from memx_engine.predict.calibrated import Calibrated
from memx_engine.profile.described import OfCluster, described
from memx_engine.profile.loop import ProfileOptions, refuse_without_resume, run_profile
from memx_engine.profile.records import measurement_to_document
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.workspace import FILE_NAME, MIGRATIONS, Workspace
from tests.builders import H100, MI300X, make_cluster, make_job, make_model

MODEL, JOB = make_model(), make_job()
OPTIONS = ProfileOptions(max_points=60, backoff_s=0.0, resume=True)
FAST, SLOW = Link(3e11, 1e-6), Link(3e10, 5e-6)


def cluster(gpu_type: GpuType = H100, *, nodes: int = 1, gpus: int = 4, link: Link = FAST, name: str = "c") -> Cluster:
    made = [Node(f"{name}-{i}", (GpuGroup(gpu_type, gpus),), gpus, gpus, link, link, link) for i in range(nodes)]
    return Cluster("same name", tuple(made), Link(2e10, 1e-5))


def profile(on: Cluster, store: MemoryStore) -> tuple[int, int]:
    """Measured and cached points of a run that goes on in ``store``."""
    result = run_profile(on, MODEL, JOB, TestbedRunner(), store, options=OPTIONS)
    return result.total("measured"), result.total("cached")


WITH_ANOTHER_TYPE = replace(cluster(), nodes=(*cluster().nodes, *make_cluster(MI300X).nodes))


@pytest.mark.parametrize("bigger", [cluster(nodes=3), cluster(gpus=8), cluster(name="other-rack"), WITH_ANOTHER_TYPE])
def test_a_larger_cluster_of_the_same_devices_measures_nothing_again(bigger: Cluster) -> None:
    store = MemoryStore()
    measured, _ = profile(cluster(), store)
    known = {m.point.key for m in store.measurements()}
    profile(bigger, store)
    later = [m.point.key for m in list(store.measurements())[len(known) :]]
    assert measured > 20 and not known.intersection(later)


@pytest.mark.parametrize(
    "changed",
    [
        replace(H100, memory_bytes=H100.memory_bytes // 2),
        replace(H100, bf16_flops=(H100.bf16_flops or 1.0) / 2),
        replace(H100, memory_bandwidth_bytes_s=1e12),
        replace(H100, vendor="AMD"),
        replace(H100, efficiency=0.3),
    ],
)
def test_another_device_of_the_same_name_shares_nothing_and_hides_nothing(changed: GpuType) -> None:
    store = MemoryStore()
    measured, _ = profile(cluster(), store)
    refuse_without_resume(store, cluster(changed), [H100.name])
    again, cached = profile(cluster(changed), store)
    assert again > 0 and cached == 0
    # Back on the first device its own results are there, though the other's are later.
    assert profile(cluster(), store) == (0, measured)
    with pytest.raises(InputError, match=f"already holds {measured} measurements"):
        refuse_without_resume(store, cluster(), [H100.name])


def test_other_links_only_concern_points_that_use_them() -> None:
    store = MemoryStore()
    profile(cluster(), store)
    rows = list(store.measurements())
    profile(cluster(link=SLOW), store)
    known = {m.point.key for m in rows}
    repeated = {m.point.tp for m in list(store.measurements())[len(rows) :] if m.point.key in known}
    assert repeated == {m.point.tp for m in rows if m.point.tp > 1 and m.outcome is not Outcome.SKIPPED}


def test_what_is_only_assumed_of_a_real_device_does_not_make_it_another() -> None:
    other = cluster(replace(H100, efficiency=0.3, context_bytes=1 << 30, notes=("quiet",)))
    assert described(cluster(), H100.name, 2, Truth.GPU) == described(other, H100.name, 2, Truth.GPU)
    assert described(cluster(), H100.name, 2, Truth.TESTBED) != described(other, H100.name, 2, Truth.TESTBED)


def test_planning_leaves_other_devices_out_and_says_so() -> None:
    store = MemoryStore()
    measured, _ = profile(cluster(), store)
    changed = cluster(replace(H100, memory_bytes=H100.memory_bytes // 2))
    assert Calibrated.of_store(cluster(), MODEL, JOB, store).calibrated
    estimator = Calibrated.of_store(changed, MODEL, JOB, store)
    assert not estimator.calibrated
    total = len(list(store.measurements()))
    assert f"{total} measurements of {H100.name} are left out" in estimator.assumed[0] and total >= measured
    # Of a type that the cluster does not have there is nothing to say.
    assert not any("left out" in line for line in Calibrated.of_store(make_cluster(MI300X), MODEL, JOB, store).assumed)


def old_measurement(capacity_bytes: int | None) -> Measurement:
    return Measurement(
        Point(H100.name, MODEL, 1, 1, 512, 2),
        Outcome.OK,
        Truth.GPU,
        "gpu",
        forward_s=0.01,
        backward_s=0.02,
        capacity_bytes=capacity_bytes,
    )


def make_version_1(folder: Path, *items: Measurement) -> None:
    """A workspace as schema 1 wrote it."""
    folder.mkdir(exist_ok=True)
    db = sqlite3.connect(folder / FILE_NAME)
    db.executescript(
        "CREATE TABLE measurement (id INTEGER PRIMARY KEY, point_key TEXT NOT NULL, gpu_type TEXT NOT NULL,"
        " truth_name TEXT NOT NULL, outcome TEXT NOT NULL, document TEXT NOT NULL);"
        "CREATE INDEX measurement_by_point ON measurement (truth_name, gpu_type, point_key);"
        "CREATE TABLE imported (id INTEGER PRIMARY KEY, source TEXT NOT NULL, digest TEXT NOT NULL UNIQUE,"
        " kind TEXT NOT NULL, document TEXT NOT NULL);"
        "CREATE TABLE note (name TEXT PRIMARY KEY, document TEXT NOT NULL);"
        "PRAGMA user_version = 1"
    )
    for m in items:
        document = measurement_to_document(m)
        del document["described"]
        row = (m.point.key, m.point.gpu_type, m.truth_name, m.outcome.value, json.dumps(document))
        db.execute("INSERT INTO measurement VALUES (NULL, ?, ?, ?, ?, ?)", row)
    db.commit()
    db.close()


def version(folder: Path) -> int:
    db = sqlite3.connect(folder / FILE_NAME)
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    db.close()
    return found


def test_a_workspace_of_schema_1_is_read_as_it_is_and_brought_up_to_date_by_a_writer(tmp_path: Path) -> None:
    old = old_measurement(80 << 30)
    make_version_1(tmp_path, old)
    with Workspace(tmp_path, read_only=True) as store:
        assert list(OfCluster(store, cluster()).measurements()) == [old]
    assert version(tmp_path) == 1
    with Workspace(tmp_path) as store:
        own = OfCluster(store, cluster())
        own.add(old_measurement(None))
        first, second = own.measurements()
    assert version(tmp_path) == len(MIGRATIONS) == 2
    assert (first.described, second.described) == ("", described(cluster(), H100.name, 1, Truth.GPU))


@pytest.mark.parametrize(("gib", "own"), [(80, True), (79, True), (75, True), (40, False), (141, False)])
def test_what_schema_1_stored_counts_where_the_devices_memory_agrees(gib: int, own: bool) -> None:
    assert OfCluster(MemoryStore(), cluster()).owns(old_measurement(gib << 30)) is own
    assert OfCluster(MemoryStore(), cluster()).owns(old_measurement(None))


def test_the_key_of_a_point_is_the_same_in_every_release() -> None:
    # Another key for the same point would make every stored measurement of it worthless.
    point = Point("mi300x", load_model("llama2-7b"), 4, 2, 4096, 8, embedding=True, recompute=FULL, in_flight=3)
    assert point.key == "9e8e33f4a7fa7bea7b9a"
