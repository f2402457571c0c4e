"""What changes of the cluster would buy: exact, never worse, and on the cluster that was meant."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from memx_engine.inputs.cluster import Cluster, Link, LinkClass
from memx_engine.inputs.cluster_file import load_cluster, sample_clusters
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import parse_weights
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.sensitivity import Change, changes_of, find_sensitivity, link_classes
from memx_engine.search.space import enumerate_space
from memx_engine.units import GIB
from tests.builders import H100, MI300X, make_cluster, make_job, make_model, make_node
from tests.search.brute import best_of, plain
from tests.search.fakes import TableEstimator

CLUSTER, MODEL, JOB = make_cluster(H100, MI300X, gpus_per_node=2), make_model(layers=6), plain(make_job(8))
SITES = Cluster(
    "sites",
    (
        replace(make_node("a", H100, 4), island_size=2, numa_size=4),
        replace(make_node("b", MI300X, 4), site="west", island_size=1, numa_size=2, uplink=Link(2e10, 5e-6)),
        make_node("c", H100, 1),
    ),
    inter_node=Link(5e10, 5e-6, shared=True),
    inter_site=Link(1e9, 1e-3),
    site_links={"west": Link(3e10, 5e-6)},
    host=Link(1.2e10, 2e-5),
)


def changes(cluster: Cluster) -> dict[tuple[str, str], Change]:
    return {(change.kind, change.subject): change for change in changes_of(cluster)}


def test_every_gain_is_the_best_of_brute_force_on_the_changed_cluster() -> None:
    result = search(CLUSTER, MODEL, JOB, estimator=TableEstimator(CLUSTER, MODEL, JOB, memory_scale=3.0))
    found = find_sensitivity(result)
    assert [g.change.kind for g in found.gains] == ["memory"] * 2 + ["link"] * 3 + ["node"] * 2
    # The fake's event time is the additive time less 1 % on every plan.
    events = 0.99**result.objective.weights.time
    for gain in found.gains:
        assert gain.phi_change <= 1e-12, gain.change.words
        assert gain.plan.phi == pytest.approx(result.plans[0].phi * (1 + gain.phi_change))
        if gain.change.kind == "node":
            continue
        changed = TableEstimator(gain.change.cluster, MODEL, JOB, memory_scale=3.0)
        skeletons = enumerate_space(gain.change.cluster, MODEL, JOB).skeletons()
        assert gain.plan.phi == pytest.approx(events * best_of(skeletons, changed, result.objective), rel=1e-9)
        assert gain.proven


@pytest.mark.parametrize("free", [40, 52])
def test_memory_helps_where_it_binds_and_the_limits_stay(free: int) -> None:
    limits = OperatorLimits(forbidden=(MI300X.name,), keep_free_bytes=((H100.name, free * GIB),))
    options = SearchOptions(weights=parse_weights("1,0,0"), limits=limits)
    estimator = TableEstimator(CLUSTER, MODEL, JOB, memory_scale=3.0)
    result = search(CLUSTER, MODEL, JOB, options=options, estimator=estimator)
    gains = find_sensitivity(result).gains
    by_type = {g.change.subject: g.phi_change for g in gains if g.change.kind == "memory"}
    assert by_type[H100.name] < -0.01 and by_type[MI300X.name] == pytest.approx(0.0)
    for gain in gains:
        for gpu in gain.plan.estimate.gpus:
            assert gpu.gpu_type == H100.name and gpu.peak_bytes <= gpu.capacity_bytes - free * GIB


def test_the_plan_in_hand_stays_where_nothing_helps() -> None:
    result = search(CLUSTER, MODEL, JOB, estimator=TableEstimator(CLUSTER, MODEL, JOB))
    memory = [g for g in find_sensitivity(result).gains if g.change.kind == "memory"]
    assert all(g.same_plan and g.phi_change == pytest.approx(0.0) for g in memory)


def test_stopping_keeps_the_gains_that_are_done() -> None:
    result = search(CLUSTER, MODEL, JOB, estimator=TableEstimator(CLUSTER, MODEL, JOB))
    seen: list[tuple[int, int, str]] = []
    asked = count()
    stopped = find_sensitivity(
        result,
        on_progress=lambda done, total, words: seen.append((done, total, words)),
        should_stop=lambda: next(asked) > 400,
    )
    whole = find_sensitivity(result)
    assert stopped.cancelled and len(stopped.gains) < len(whole.gains)
    assert [g.phi_change for g in stopped.gains] == [g.phi_change for g in whole.gains][: len(stopped.gains)]
    assert [done for done, _, _ in seen] == list(range(len(seen))) and {total for _, total, _ in seen} == {7}


def test_more_memory_is_on_every_gpu_of_the_type_alone() -> None:
    for gpu, grown in zip(SITES.gpus, changes(SITES)["memory", H100.name].cluster.gpus, strict=True):
        more = GIB if gpu.gpu_type.name == H100.name else 0
        assert grown.capacity_bytes == gpu.capacity_bytes + more


def test_one_class_of_links_is_faster_and_the_others_stay() -> None:
    known = changes(SITES)
    assert link_classes(SITES) == (
        LinkClass.ISLAND,
        LinkClass.NODE,
        LinkClass.NUMA,
        LinkClass.INTER_NODE,
        LinkClass.INTER_SITE,
    )
    for link_class in link_classes(SITES):
        faster = known["link", str(link_class)].cluster
        for a in range(len(SITES.gpus)):
            for b in range(a):
                factor = 2.0 if SITES.link_class(a, b) is link_class else 1.0
                assert faster.link(a, b).bandwidth_bytes_s == factor * SITES.link(a, b).bandwidth_bytes_s
    hosts = known["link", "host"].cluster.host_link(0, 5)
    assert hosts is not None and hosts.bandwidth_bytes_s == 2.4e10


@pytest.mark.parametrize("name", [sample.name for sample in sample_clusters()])
def test_the_classes_are_those_that_pairs_of_the_samples_have(name: str) -> None:
    cluster = load_cluster(name)
    if len(cluster.gpus) > 64:
        pytest.skip("too many pairs")
    pairs = {cluster.link_class(a, b) for a in range(len(cluster.gpus)) for b in range(a)}
    assert set(link_classes(cluster)) == pairs


def test_a_node_more_leaves_every_rank_where_it_was() -> None:
    grown = changes(SITES)["node", H100.name].cluster
    assert grown.nodes[:3] == SITES.nodes and grown.nodes[3].name == "a-2"
    assert grown.gpus[: len(SITES.gpus)] == SITES.gpus and len(grown.gpus) == len(SITES.gpus) + 4
