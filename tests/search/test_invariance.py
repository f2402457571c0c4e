"""How the answer must move, or not move, when the inputs change; references are held fixed where Phi is compared."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.errors import InputError, NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster
from memx_engine.plan import FULL, NONE, SELECTIVE, Plan
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import PROFILES, Objective, References, Weights
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from tests.search.exhaustive import close, with_memory
from tests.search.random_instances import (
    OPTIONS,
    Instance,
    RandomTables,
    physical_instance,
    random_instance,
    without_type,
)

_HAIR = 1 + 1e-9


def fixed_objective(k: int) -> Objective:
    profile = sorted(PROFILES)[k % 3]
    return Objective(Weights(profile, *PROFILES[profile]), References(1.0, 4e9, (1e9) ** 2, (4e8) ** 2))


def instances(
    first: int, count: int, *, types: int = 1, nodes: int = 1
) -> Iterator[tuple[int, Instance, RandomTables]]:
    k = first * 1000
    given = 0
    while given < count:
        k += 1
        rng = np.random.default_rng([2031, k])
        instance = random_instance(rng, most_plans=4000)
        if len(instance.cluster.gpu_types) >= types and len(instance.cluster.nodes) >= nodes:
            given += 1
            yield k, instance, RandomTables(instance, k, rough=k % 2 == 0, tightness=rng.uniform(0, 2))


def optimum(instance: Instance, tables: Estimator, options: SearchOptions) -> float:
    """Least additive Phi of the 1F1B plans, infinite where there is none."""
    try:
        result = search(instance.cluster, instance.model, instance.job, options=options, estimator=tables)
    except NoFeasiblePlanError:
        return float("inf")
    plain = any(plan.skeleton.virtual_stages == 1 for plan in result.table.plans)
    assert result.certificate.lower_bound is not None or not plain
    return result.certificate.best if plain else float("inf")


def tables_like(tables: RandomTables, instance: Instance, **changes: object) -> RandomTables:
    """The same random stages for other inputs."""
    fields = {"rough": tables.rough, "tightness": tables.tightness} | changes
    return RandomTables(instance, tables.seed, **fields)  # type: ignore[arg-type]  # whatever the caller changes


def test_more_memory_on_a_type_never_worsens_the_optimum() -> None:
    gained = 0
    for k, instance, tables in instances(1, 16):
        options = SearchOptions(objective=fixed_objective(k))
        before = optimum(instance, tables, options)
        name = instance.cluster.gpu_types[k % len(instance.cluster.gpu_types)].name
        for extra in (10**8, 10**9, 10**10):
            roomier = replace(instance, cluster=with_memory(instance.cluster, {name: extra}))
            after = optimum(roomier, tables_like(tables, roomier), options)
            assert after <= before * _HAIR, f"instance {k}"
            gained += after < before
            before = after
    assert gained > 5


def test_keeping_memory_free_never_improves_the_optimum() -> None:
    lost = 0
    for k, instance, tables in instances(2, 14):
        before = optimum(instance, tables, SearchOptions(objective=fixed_objective(k)))
        smallest = min(t.memory_bytes for t in instance.cluster.gpu_types)
        for share in (0.3, 0.8):
            limits = OperatorLimits(keep_free_bytes=((None, share * smallest),))
            after = optimum(instance, tables, SearchOptions(objective=fixed_objective(k), limits=limits))
            assert after >= before / _HAIR, f"instance {k}"
            lost += after > before
            before = after
    assert lost > 3


def test_a_type_less_never_improves_the_optimum_forbidden_or_gone() -> None:
    lost = 0
    for k, instance, tables in instances(3, 14, types=2):
        before = optimum(instance, tables, SearchOptions(objective=fixed_objective(k)))
        for gpu_type in instance.cluster.gpu_types:
            limits = OperatorLimits(forbidden=(gpu_type.name,))
            forbidden = optimum(instance, tables, SearchOptions(objective=fixed_objective(k), limits=limits))
            assert forbidden >= before / _HAIR, f"instance {k}"
            gone = replace(instance, cluster=without_type(instance.cluster, gpu_type.name))
            removed = optimum(gone, tables_like(tables, gone), SearchOptions(objective=fixed_objective(k)))
            assert close(removed, forbidden), f"instance {k}"
            lost += forbidden > before * _HAIR
    assert lost > 10


def test_one_more_recompute_option_never_worsens_the_optimum() -> None:
    gained = 0
    for k, instance, tables in instances(4, 14):
        options = SearchOptions(objective=fixed_objective(k))
        values = [
            optimum(instance, tables_like(tables, instance, options=kept), options)
            for kept in ((NONE,), (NONE, FULL), (NONE, SELECTIVE, FULL), OPTIONS)
        ]
        for fewer, more in zip(values, values[1:], strict=False):
            assert more <= fewer * _HAIR, f"instance {k}"
            gained += more < fewer
    assert gained > 10


def test_one_more_limit_never_improves_the_optimum() -> None:
    for k, instance, tables in instances(5, 15):
        name = instance.cluster.gpu_types[0].name
        chain = OperatorLimits(max_layer_difference=3)
        values = [optimum(instance, tables, SearchOptions(objective=fixed_objective(k)))]
        values.append(optimum(instance, tables, SearchOptions(objective=fixed_objective(k), limits=chain)))
        for more in ({"max_layer_difference": 1}, {"recompute": ((name, FULL),)}, {"layers": ((0, 2),)}):
            chain = replace(chain, **more)  # type: ignore[arg-type]  # one field each
            try:
                values.append(optimum(instance, tables, SearchOptions(objective=fixed_objective(k), limits=chain)))
            except InputError:
                break
        assert all(b >= a / _HAIR for a, b in zip(values, values[1:], strict=False)), f"instance {k}: {values}"


def test_scaling_all_times_scales_the_time_and_keeps_the_plans() -> None:
    for k, instance, tables in instances(6, 12):
        profile = sorted(PROFILES)[k % 3]
        own = SearchOptions(weights=Weights(profile, *PROFILES[profile]))
        try:
            before = search(instance.cluster, instance.model, instance.job, options=own, estimator=tables)
        except NoFeasiblePlanError:
            continue
        held = SearchOptions(objective=before.objective)
        for factor in (0.25, 8.0):  # powers of two, so that not a bit of any comparison changes
            slower = tables_like(tables, instance, time_scale=factor)
            after = search(instance.cluster, instance.model, instance.job, options=own, estimator=slower)
            assert after.table.plans == before.table.plans, f"instance {k}"
            assert after.table.time_s.tolist() == (factor * before.table.time_s).tolist(), f"instance {k}"
            assert after.table.phi == pytest.approx(before.table.phi, rel=1e-12)
            assert after.objective.references.time_s == factor * before.objective.references.time_s
            fixed = search(instance.cluster, instance.model, instance.job, options=held, estimator=slower)
            assert fixed.plans[0].plan == before.plans[0].plan
            scale = factor**before.objective.weights.time
            assert fixed.certificate.best == pytest.approx(scale * before.certificate.best, rel=1e-9)


def signature(plan: Plan) -> tuple[object, ...]:
    """A plan without the numbers of its ranks."""
    s = plan.skeleton
    types = tuple(stage.gpu_type for stage in plan.stages)
    return s.tp, s.pp, s.dp, s.micro_batch, s.virtual_stages, types, plan.layers, tuple(map(str, plan.recompute))


def renamed(cluster: Cluster, order: np.ndarray) -> Cluster:
    """The nodes in another order and all under other names."""
    nodes = tuple(replace(cluster.nodes[i], name=f"host-{97 * int(i)}") for i in order)
    return replace(cluster, name="elsewhere", nodes=nodes)


def in_order(result: SearchResult) -> list[tuple[float, tuple[object, ...]]]:
    """(Phi to nine digits, plan) sorted, so that plans of equal Phi may change places."""
    return sorted(
        (float(f"{phi:.9g}"), signature(p)) for phi, p in zip(result.table.phi, result.table.plans, strict=True)
    )


def test_order_and_names_of_nodes_do_not_matter() -> None:
    moved = 0
    for k, instance, tables in instances(7, 20, nodes=2):
        # Memory in use on single GPUs makes nodes differ, and stages that straddle nodes are then not the same.
        nodes = tuple(
            replace(node, groups=tuple(replace(group, memory_used_bytes=0) for group in node.groups))
            for node in instance.cluster.nodes
        )
        plain = replace(instance, cluster=replace(instance.cluster, nodes=nodes))
        order = np.random.default_rng(k).permutation(len(nodes))
        other = replace(instance, cluster=renamed(plain.cluster, order))
        # Closing by incumbents depends on which of equal plans came first: N is large enough that nothing is closed.
        options = SearchOptions(objective=fixed_objective(k), top=1000)
        results = []
        for one in (plain, other):
            try:
                results.append(
                    search(one.cluster, one.model, one.job, options=options, estimator=tables_like(tables, one))
                )
            except NoFeasiblePlanError:
                results.append(None)
        a, b = results
        assert (a is None) == (b is None), f"instance {k}"
        if a is None or b is None:
            continue
        moved += bool((order != np.arange(len(nodes))).any())
        assert a.plans_covered == b.plans_covered and a.skeletons == b.skeletons and a.pruned == b.pruned
        assert in_order(a) == in_order(b), f"instance {k}"
        assert close(a.certificate.best, b.certificate.best)
    assert moved > 5


def test_names_alone_change_nothing_with_the_cost_model() -> None:
    for k in range(12):
        instance = physical_instance(np.random.default_rng([2032, k]))
        other = renamed(instance.cluster, np.arange(len(instance.cluster.nodes)))
        results = []
        for cluster in (instance.cluster, other):
            try:
                results.append(
                    search(
                        cluster, instance.model, instance.job,
                        estimator=FirstPrinciples(cluster, instance.model, instance.job),
                    )
                )  # fmt: skip
            except NoFeasiblePlanError as error:
                results.append(str(error).replace("elsewhere", "random"))
        a, b = results
        if isinstance(a, str) or isinstance(b, str):
            assert a == b
            continue
        assert a.table.plans == b.table.plans
        assert a.table.phi.tolist() == b.table.phi.tolist()
        assert a.predictor_fingerprint == b.predictor_fingerprint
        assert a.certificate == b.certificate


_DIGEST = """
import sys
import numpy as np
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.table import Estimator
from memx_engine.errors import NoFeasiblePlanError
from memx_engine.search.run import SearchOptions, search
from tests.search.random_instances import RandomTables, physical_instance, random_instance
from tests.search.test_invariance import digest
for k in range(6):
    rng = np.random.default_rng([2033, k])
    instance = physical_instance(rng) if k % 2 else random_instance(rng)
    make = FirstPrinciples if k % 2 else lambda c, m, j: RandomTables(instance, k)
    estimator = make(instance.cluster, instance.model, instance.job)
    options = SearchOptions(threads=int(sys.argv[1]), top=3)
    try:
        print(digest(search(instance.cluster, instance.model, instance.job, options=options, estimator=estimator)))
    except NoFeasiblePlanError as error:
        print(error)
"""


def digest(result: SearchResult) -> str:
    """Of everything a search says but the seconds it took."""
    text = repr(
        (
            result.table.plans,
            result.table.phi.tolist(),
            result.table.time_s.tolist(),
            result.plans,
            result.pareto,
            result.time_optimal,
            result.certificate,
            result.pruned,
            result.plans_covered,
            result.objective,
            sorted(result.space),
            tuple(result.space.values()),
            result.assumed,
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_every_process_hash_seed_and_thread_count_gives_the_same_result() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    outputs = set()
    for seed, threads in (("0", "1"), ("1", "1"), ("77", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, "-c", _DIGEST, threads], env=env, cwd=root, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) >= 6


class TablesOnly:
    """The cost model without what it offers to bound many skeletons at once."""

    def __init__(self, base: FirstPrinciples) -> None:
        self.base, self.provenance, self.fingerprint, self.assumed = (
            base,
            base.provenance,
            base.fingerprint,
            base.assumed,
        )
        self.stage_table, self.estimate, self.derive = base.stage_table, base.estimate, base.derive


def test_an_estimator_that_was_used_or_has_tables_only_gives_the_same_result() -> None:
    compared = 0
    for k in range(24):
        instance = physical_instance(np.random.default_rng([2034, k]))
        where = (instance.cluster, instance.model, instance.job)
        used = FirstPrinciples(*where)
        options = SearchOptions(top=(2, 1000)[k % 2], variance_kind=("bytes", "utilization")[k // 2 % 2])
        results = []
        for estimator in (FirstPrinciples(*where), used, used, TablesOnly(FirstPrinciples(*where))):
            try:
                results.append(search(*where, options=options, estimator=estimator))
            except NoFeasiblePlanError as error:
                results.append(str(error))
            if estimator is used and len(results) == 2:
                search_otherwise(instance, used)
        fresh, *others = results
        if isinstance(fresh, str):
            assert all(other == fresh for other in others)
            continue
        compared += 1
        for other in others:
            assert other.table.plans == fresh.table.plans, f"instance {k}"
            assert other.table.phi == pytest.approx(fresh.table.phi, rel=1e-12), f"instance {k}"
            assert (other.pruned, other.plans_covered) == (fresh.pruned, fresh.plans_covered), f"instance {k}"
            assert close(other.certificate.best, fresh.certificate.best, 1e-12)
            assert [r.plan for r in other.pareto] == [r.plan for r in fresh.pareto], f"instance {k}"
    assert compared > 12


def search_otherwise(instance: Instance, estimator: FirstPrinciples) -> None:
    """Fill whatever the estimator keeps with another question's answers."""
    limits = OperatorLimits(keep_free_bytes=((None, 1e8),))
    try:
        search(
            instance.cluster, instance.model, instance.job, estimator=estimator,
            options=SearchOptions(limits=limits, weights=Weights("time", 1.0, 0.0, 0.0)),
        )  # fmt: skip
    except NoFeasiblePlanError:
        pass


def test_more_memory_never_worsens_the_optimum_of_the_cost_model() -> None:
    gained = 0
    for k in range(24):
        instance = physical_instance(np.random.default_rng([2035, k]))
        options = SearchOptions(objective=fixed_objective(k))
        name = instance.cluster.gpu_types[k % len(instance.cluster.gpu_types)].name
        before = float("inf")
        for extra in (0, 2 * 10**8, 10**9, 10**10):
            roomier = replace(instance, cluster=with_memory(instance.cluster, {name: extra}))
            estimator = FirstPrinciples(roomier.cluster, roomier.model, roomier.job)
            after = optimum(roomier, estimator, options)
            assert after <= before * _HAIR, f"instance {k}"
            gained += after < before < float("inf")
            before = after
    assert gained > 2
