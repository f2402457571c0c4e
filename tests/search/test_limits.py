"""The operator's limits: exact against brute force, and refused where they cannot hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memx_engine.errors import InputError, NoFeasiblePlanError
from memx_engine.inputs.cluster import Cluster, Link
from memx_engine.inputs.job import Attention, Framework, Job
from memx_engine.plan import FULL, NONE, Plan, Recompute, Skeleton
from memx_engine.search.limit_checks import checked_limits
from memx_engine.search.limit_words import parse_limits
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.objective import parse_weights
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.space import enumerate_space
from memx_engine.units import GIB
from tests.builders import H100, MI300X, make_cluster, make_job, make_model, make_node
from tests.search.brute import best_of, plain
from tests.search.fakes import OPTIONS, TableEstimator
from tests.search.instances import Held

CLUSTER, MODEL, JOB = make_cluster(H100, MI300X, gpus_per_node=2), make_model(layers=6), plain(make_job(8))
H, M = H100.name, MI300X.name


def run(
    limits: OperatorLimits, weights: str = "heterogeneous", cluster: Cluster = CLUSTER, job: Job = JOB
) -> SearchResult:
    options = SearchOptions(weights=parse_weights(weights), limits=limits, front=0)
    return search(cluster, MODEL, job, options=options, estimator=TableEstimator(cluster, MODEL, job))


def keeps(limits: OperatorLimits, plan: Plan) -> bool:
    """The meaning of every limit, for one finished plan."""
    types = [stage.gpu_type for stage in plan.stages]
    for target, n in limits.layers:
        if isinstance(target, int) and (target >= len(types) or plan.layers[target] != n):
            return False
        if any(name == target and have != n for name, have in zip(types, plan.layers, strict=True)):
            return False
    for goal, option in limits.recompute:
        if isinstance(goal, int) and (goal >= len(types) or plan.recompute[goal] != option):
            return False
        if any(goal in (None, name) and have != option for name, have in zip(types, plan.recompute, strict=True)):
            return False
    difference = max(plan.layers) - min(plan.layers)
    if limits.max_layer_difference is not None and difference > limits.max_layer_difference:
        return False
    if limits.type_order is not None:
        used = list(dict.fromkeys(types))
        if used != [name for name in limits.type_order if name in used]:
            return False
    return not set(types) & set(limits.forbidden)


def inner(limits: OperatorLimits, skeleton: Skeleton) -> Held | None:
    """The same limits for brute force inside a skeleton; None where they exclude it."""
    types = [placement.gpu_type for placement in skeleton.placements]
    if set(types) & set(limits.forbidden):
        return None
    if limits.type_order and list(dict.fromkeys(types)) != [t for t in limits.type_order if t in types]:
        return None
    layers: list[int | None] = [None] * len(types)
    recompute: list[int | None] = [None] * len(types)
    for target, n in limits.layers:
        if isinstance(target, int) and target >= len(types):
            return None
        for i, name in enumerate(types):
            if target in (i, name):
                if layers[i] not in (None, n):
                    return None
                layers[i] = n
    for goal, option in limits.recompute:
        if isinstance(goal, int) and goal >= len(types):
            return None
        for i, name in enumerate(types):
            if goal in (None, i, name):
                wanted = OPTIONS.index(option)
                if recompute[i] not in (None, wanted):
                    return None
                recompute[i] = wanted
    free = dict(limits.keep_free_bytes)
    reserve = tuple(free.get(name, free.get(None, 0.0)) for name in types)
    return Held(tuple(recompute), limits.max_layer_difference, layers=tuple(layers), reserve_bytes=reserve)


def least(limits: OperatorLimits, result: SearchResult) -> float:
    estimator = TableEstimator(CLUSTER, MODEL, JOB)
    found = float("inf")
    for skeleton in enumerate_space(CLUSTER, MODEL, JOB).skeletons():
        within = inner(limits, skeleton)
        if within is not None:
            found = min(found, best_of([skeleton], estimator, result.objective, within))
    return found


CASES = {
    "a stage's layers": OperatorLimits(layers=((0, 1),)),
    "two stages' layers": OperatorLimits(layers=((0, 2), (2, 1))),
    "a type's layers": OperatorLimits(layers=((H, 2),)),
    "stage and type": OperatorLimits(layers=((0, 2), (M, 2))),
    "recompute everywhere": OperatorLimits(recompute=((None, FULL),)),
    "a type's recompute": OperatorLimits(recompute=((H, NONE), (M, Recompute("block", 2)))),
    "a stage's recompute": OperatorLimits(recompute=((1, FULL),)),
    "a forbidden type": OperatorLimits(forbidden=(M,)),
    "memory free on all": OperatorLimits(keep_free_bytes=((None, 60 * GIB),)),
    "memory free on one": OperatorLimits(keep_free_bytes=((None, 1 * GIB), (M, 170 * GIB))),
    "like layers": OperatorLimits(max_layer_difference=1),
    "equal layers": OperatorLimits(max_layer_difference=0),
    "an order": OperatorLimits(type_order=(M, H)),
    "many": OperatorLimits(((0, 3),), ((M, FULL),), (), ((None, 50 * GIB),), 2, (H, M)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weights", ["heterogeneous", "1,0,0"])
def test_the_best_within_the_limits_is_that_of_brute_force(name: str, weights: str) -> None:
    limits = CASES[name]
    result = run(limits, weights)
    assert result.certificate.best == pytest.approx(least(limits, result), rel=1e-9)
    assert result.certificate.optimal
    free = dict(limits.keep_free_bytes)
    for row, plan in enumerate(result.table.plans):
        assert keeps(limits, plan), plan
        if free:
            for gpu in result.detail(row).estimate.gpus:
                kept = free.get(gpu.gpu_type, free.get(None, 0.0))
                assert gpu.peak_bytes <= gpu.capacity_bytes - kept
    assert result.limits == limits
    assert all(result.space[key] == value for key, value in limits.described().items())


def test_limits_never_improve_the_optimum() -> None:
    free = run(OperatorLimits())
    for name, limits in CASES.items():
        options = SearchOptions(objective=free.objective, limits=limits, front=0)
        result = search(CLUSTER, MODEL, JOB, options=options, estimator=TableEstimator(CLUSTER, MODEL, JOB))
        assert result.certificate.best >= free.certificate.best * (1 - 1e-12), name
        assert result.plans_covered <= free.plans_covered


def test_what_is_excluded_is_not_counted_as_pruned() -> None:
    result = run(OperatorLimits(forbidden=(M,)))
    counts = result.pruned
    assert result.skeletons == counts.placement + counts.memory + counts.time + result.feasible
    assert any(M in line and "forbidden" in line for line in result.assumed)
    assert result.space["type_order"] == (H,)


def test_all_orders_are_all_distinct_sequences_of_types() -> None:
    job = replace(JOB, tp_sizes=(1,), dp_sizes=(1,), micro_batch_sizes=(1,))
    space = enumerate_space(CLUSTER, MODEL, job, OperatorLimits(all_orders=True))
    orders = [tuple(p.gpu_type for p in layout.placements) for layout in space.layouts]
    assert len(orders) == len(set(orders))
    # Two of each: 4! / (2! 2!) = 6 orders of both types, and one of each alone.
    assert len(orders) == 8 and (H, M, M, H) in orders and (H, M, H, M) in orders
    for layout in space.layouts:
        ranks = [r for p in layout.placements for r in p.ranks]
        assert len(ranks) == len(set(ranks))


def test_all_orders_contain_the_contiguous_ones_and_are_never_worse() -> None:
    plain_result = run(OperatorLimits())
    options = SearchOptions(objective=plain_result.objective, limits=OperatorLimits(all_orders=True))
    result = search(CLUSTER, MODEL, JOB, options=options, estimator=TableEstimator(CLUSTER, MODEL, JOB))
    layouts = {layout.placements for layout in enumerate_space(CLUSTER, MODEL, JOB, options.limits).layouts}
    assert {layout.placements for layout in enumerate_space(CLUSTER, MODEL, JOB).layouts} <= layouts
    assert result.certificate.best <= plain_result.certificate.best * (1 + 1e-12)
    estimator = TableEstimator(CLUSTER, MODEL, JOB)
    skeletons = enumerate_space(CLUSTER, MODEL, JOB, options.limits).skeletons()
    assert result.certificate.best == pytest.approx(best_of(skeletons, estimator, result.objective), rel=1e-9)


def test_a_fixed_order_holds_over_several_sites() -> None:
    nodes = (
        replace(make_node("a", H100, 2), site="east"),
        replace(make_node("b", MI300X, 2), site="east"),
        replace(make_node("c", H100, 2), site="west"),
    )
    cluster = Cluster("sites", nodes, inter_node=Link(5e10, 5e-6), inter_site=Link(1e9, 1e-3))
    layouts = enumerate_space(cluster, MODEL, JOB, OperatorLimits(type_order=(M, H))).layouts
    assert layouts
    for layout in layouts:
        used = [p.gpu_type for p in layout.placements]
        assert used == sorted(used, key=(M, H).index)


def test_interleaved_plans_keep_limits_too() -> None:
    job = make_job(8)
    limits = OperatorLimits(recompute=((None, FULL),), max_layer_difference=2)
    result = run(limits, cluster=make_cluster(H100, gpus_per_node=4), job=job)
    assert any(plan.skeleton.virtual_stages > 1 for plan in result.table.plans)
    assert all(keeps(limits, plan) for plan in result.table.plans)


def test_megatron_keeps_its_one_setting_and_the_pin() -> None:
    job = replace(JOB, framework=Framework.MEGATRON)
    result = run(OperatorLimits(recompute=((0, FULL),)), job=job)
    assert all(set(plan.recompute) == {FULL} for plan in result.table.plans)


@pytest.mark.parametrize(
    ("limits", "where", "words"),
    [
        (OperatorLimits(layers=((0, 2), (0, 3))), "--pin-layers", "stage 0 is given 2 and 3"),
        (OperatorLimits(layers=((H, 2), (H, 3))), "--pin-layers", f"{H} is given 2 and 3"),
        (OperatorLimits(layers=((0, 0),)), "--pin-layers", "every stage needs at least 1"),
        (OperatorLimits(layers=((0, 7),)), "--pin-layers", "the model has 6"),
        (OperatorLimits(layers=((0, 4), (1, 3))), "--pin-layers", "4 (stage 0) + 3 (stage 1) = 7 layers"),
        (OperatorLimits(layers=((0, 3), (2, 3))), "--pin-layers", "at least 1 on each of the 1 stages between"),
        (OperatorLimits(layers=((9, 1),)), "--pin-layers", "9 stages between"),
        (OperatorLimits(layers=((0, 4), (1, 1)), max_layer_difference=2), "--max-layer-difference", "differ by 3"),
        (OperatorLimits(max_layer_difference=-1), "--max-layer-difference", "negative"),
        (OperatorLimits(recompute=((0, FULL), (0, NONE))), "--pin-recompute", "stage 0 is given full and none"),
        (OperatorLimits(recompute=((None, FULL), (H, NONE))), "--pin-recompute", "both cannot hold"),
        (OperatorLimits(((0, 2),), ((0, Recompute("block", 3)),)), "--pin-layers", "fewer layers"),
        (OperatorLimits(recompute=((0, Recompute("selective")),)), "--pin-recompute", "fused attention"),
        (OperatorLimits(recompute=((0, Recompute("uniform", 3)),)), "--pin-recompute", "uniform:3"),
        (OperatorLimits(forbidden=(H, M)), "--forbid", "every GPU type"),
        (OperatorLimits(forbidden=("t4",)), "--forbid", "no GPU type 't4'"),
        (OperatorLimits(layers=((H, 2),), forbidden=(H,)), "--forbid", "both cannot hold"),
        (OperatorLimits(keep_free_bytes=((None, 1.0), (None, 2.0))), "--keep-free", "all types is given"),
        (OperatorLimits(keep_free_bytes=((None, -1.0),)), "--keep-free", "negative"),
        (OperatorLimits(type_order=(H,)), "--type-order", M),
        (OperatorLimits(type_order=(H, M, H)), "--type-order", "twice"),
        (OperatorLimits(type_order=(H, M), all_orders=True), "--all-orders", "all of them"),
    ],
)
def test_limits_that_cannot_hold_are_refused_by_name(limits: OperatorLimits, where: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        run(limits)
    assert where in caught.value.where and words in caught.value.message
    assert caught.value.exit_code == 2


def test_the_framework_refuses_pins_it_cannot_run() -> None:
    two = OperatorLimits(recompute=((0, FULL), (1, NONE)))
    with pytest.raises(InputError, match="one recompute setting"):
        checked_limits(two, CLUSTER, MODEL, replace(JOB, framework=Framework.MEGATRON))
    selective = OperatorLimits(recompute=((None, Recompute("selective")),))
    unfused = replace(JOB, framework=Framework.FLAGSCALE, attention=Attention.UNFUSED)
    with pytest.raises(InputError, match="FlagScale"):
        checked_limits(selective, CLUSTER, MODEL, unfused)


def test_types_are_known_by_their_aliases_and_the_nearest_is_named() -> None:
    assert checked_limits(OperatorLimits(forbidden=("H100",)), CLUSTER, MODEL, JOB).forbidden == (H,)
    with pytest.raises(InputError) as caught:
        checked_limits(OperatorLimits(forbidden=("mi300",)), CLUSTER, MODEL, JOB)
    assert M in caught.value.hint


def test_too_many_orders_are_refused_with_what_would_narrow_them() -> None:
    cluster = make_cluster(H100, MI300X, gpus_per_node=10)
    with pytest.raises(InputError) as caught:
        enumerate_space(cluster, make_model(32), make_job(512), OperatorLimits(all_orders=True))
    assert "--all-orders" in caught.value.where and "--tp" in caught.value.hint


@pytest.mark.parametrize(
    ("limits", "words", "hint"),
    [
        (OperatorLimits(keep_free_bytes=((None, 189 * GIB),)), "GiB short", "without --keep-free 189"),
        (OperatorLimits(layers=((0, 1), (1, 5)), max_layer_difference=4), "", ""),
        # 6 layers in equal parts on at most 4 GPUs: 1, 2 or 3 stages; a fourth stage is pinned.
        (OperatorLimits(layers=((3, 1),), max_layer_difference=0), "keep all of these", "without --pin-layers 3:1"),
        # The cluster gives at most 4 stages.
        (OperatorLimits(layers=((4, 1),)), "can be placed", "--pin-layers 4:1"),
    ],
)
def test_limits_under_which_nothing_fits_say_which_to_drop(limits: OperatorLimits, words: str, hint: str) -> None:
    if not words:
        assert run(limits).plans[0].plan.layers == (1, 5)
        return
    with pytest.raises(NoFeasiblePlanError) as caught:
        run(limits)
    assert words in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_code == 3


def test_words_read_back_as_the_same_limits() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        limits = OperatorLimits(
            layers=((int(rng.integers(9)), int(rng.integers(1, 9))), ("a-b.c", 3)),
            recompute=(("t4", Recompute("block", int(rng.integers(1, 5)))), (3, FULL), (None, Recompute("uniform", 2))),
            forbidden=("x", "y"),
            keep_free_bytes=((None, float(rng.uniform(0, 1e11))), ("t4", 2.5 * GIB)),
        )
        words = {name: [str(v) for v in values] for name, values in limits.described().items()}
        assert parse_limits(**words) == limits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("pin_layers", "12"),
        ("pin_layers", "0:"),
        ("pin_layers", "0:many"),
        ("pin_layers", ":3"),
        ("pin_recompute", "sometimes"),
        ("pin_recompute", "0:block:0"),
        ("pin_recompute", "0:"),
        ("keep_free", "much"),
        ("keep_free", "-1"),
        ("keep_free", "nan"),
        ("keep_free", ":2"),
    ],
)
def test_words_that_are_none_name_their_flag(flag: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_limits(**{flag: [word]})  # type: ignore[arg-type]
    assert caught.value.where == "--" + flag.replace("_", "-") and caught.value.hint
