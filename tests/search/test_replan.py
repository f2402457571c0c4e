"""Planning again: what moves is counted against single parameters, and the plan that moves least is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster, Link
from memx_engine.inputs.job import Job, Optimizer, Precision
from memx_engine.inputs.job_file import resolve_job
from memx_engine.plan import FULL, Plan
from memx_engine.search.limits import OperatorLimits
from memx_engine.search.migration import Migration, ModelState, migration
from memx_engine.search.replan import Before, ranks_before, replan, without_nodes
from memx_engine.search.result import SearchResult
from memx_engine.search.run import SearchOptions, search
from tests.builders import H100, MI300X, make_cluster, make_job, make_model, make_node, make_plan
from tests.search.brute import plain
from tests.search.fakes import TableEstimator

MODEL = make_model(layers=8)
CLUSTER = Cluster(
    "four", tuple(make_node(f"n{i}", H100 if i < 2 else MI300X, 4) for i in range(4)), inter_node=Link(5e10, 5e-6)
)
JOB = plain(make_job(8))
SHAPES = [
    (1, 1, (8,)),
    (2, 1, (4, 4)),
    (1, 2, (3, 5)),
    (2, 2, (8,)),
    (4, 1, (2, 6)),
    (1, 1, (1, 1, 2, 4)),
    (2, 2, (5, 3)),
]


def plan_of(shape: tuple[int, int, tuple[int, ...]], cluster: Cluster = CLUSTER, **more: int) -> Plan:
    tp, dp, layers = shape
    return make_plan(cluster, tp=tp, dp=dp, layers=layers, job=JOB, **more)  # type: ignore[arg-type]


def small_state(model_tied: bool = False) -> ModelState:
    """Pieces of few parameters, which TP 1, 2, 4 and DP 1, 2 divide."""
    state = ModelState(replace(MODEL, tied_embeddings=model_tied), JOB)
    state._sizes = {
        "layer": (16.0, 4.0),
        "tokens": (32.0, 0.0),
        "positions": (0.0, 8.0),
        "output": (32.0, 0.0),
        "bias": (0.0, 0.0),
        "final": (0.0, 4.0),
    }
    return state


def counted(state: ModelState, plan: Plan, sharded: bool, tied: bool) -> dict[int, tuple[set[object], set[object]]]:
    """(weights, optimizer states) of every rank, parameter by parameter."""
    out: dict[int, tuple[set[object], set[object]]] = {}
    starts = np.cumsum([0, *plan.layers])
    for i, stage in enumerate(plan.stages):
        names = ["tokens", "positions"] if i == 0 else []
        names += [f"layer:{k}" for k in range(starts[i], starts[i + 1])]
        if i == len(plan.stages) - 1:
            names += (["output"] if not tied else ["tokens"] if i else []) + ["final"]
        for position, rank in enumerate(stage.ranks):
            d, t = divmod(position, stage.tp)
            flat: list[object] = []
            for name in names:
                divided, whole = (int(n) for n in state._sizes[name.partition(":")[0]])
                width = divided // stage.tp
                flat += [(name, "divided", t * width + n) for n in range(width)]
                flat += [(name, "whole", n) for n in range(whole)]
            part = len(flat) // stage.dp
            assert part * stage.dp == len(flat)
            out[rank] = (set(flat), set(flat[d * part : (d + 1) * part] if sharded else flat))
    return out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_what_moves_is_what_single_parameters_say(sharded: bool, tied: bool) -> None:
    state = small_state(tied)
    for before in SHAPES:
        for after in SHAPES:
            old, new = plan_of(before), plan_of(after)
            # Rank 0 is gone, the others stay, each at the number before: rank r was r + 1.
            stay = {rank: rank + 1 for rank in range(15)}
            moved = migration(state, state.held(old, sharded), new, sharded=sharded, rank_before=stay)
            had, needs = counted(state, old, sharded, tied), counted(state, new, sharded, tied)
            empty: tuple[set[object], set[object]] = (set(), set())
            received_w = received_o = kept = 0.0
            layers = set()
            for rank, (weights, optimizer) in needs.items():
                mine = had.get(stay.get(rank, -1), empty)
                received_w += len(weights - mine[0]) * state.weight_bytes
                received_o += len(optimizer - mine[1]) * state.optimizer_bytes
                kept += len(weights & mine[0]) * state.weight_bytes + len(optimizer & mine[1]) * state.optimizer_bytes
                layers |= {p[0] for p in weights - mine[0] if p[0].startswith("layer")}  # type: ignore[index]
            stayed = [had[r] for r in stay.values() if r in had]
            for k, lost in ((0, moved.lost_weights_bytes), (1, moved.lost_optimizer_bytes)):
                wanted = set().union(*(need[k] for need in needs.values()))
                there: set[object] = set().union(*(held[k] for held in stayed))
                assert lost == pytest.approx(len(wanted - there) * (state.weight_bytes, state.optimizer_bytes)[k])
            assert sum(m.weights_bytes for m in moved.ranks) == pytest.approx(received_w)
            assert sum(m.optimizer_bytes for m in moved.ranks) == pytest.approx(received_o)
            assert moved.kept_bytes == pytest.approx(kept)
            assert moved.moved_layers == len(layers)


@pytest.mark.parametrize("shape", SHAPES)
def test_from_nothing_everything_is_received_as_the_cost_model_counts_it(
    shape: tuple[int, int, tuple[int, ...]],
) -> None:
    # A vocabulary that needs no padding, so that both count the same parameters.
    model = replace(MODEL, vocab=128 * 1024)
    plan = plan_of(shape)
    moved = migration(ModelState(model, JOB), {}, plan, sharded=True, rank_before={})
    estimate = FirstPrinciples(CLUSTER, model, JOB).estimate(plan)
    for move, gpu in zip(moved.ranks, estimate.gpus, strict=True):
        assert (move.rank, move.stage, move.kept_bytes) == (gpu.rank, gpu.stage, pytest.approx(0.0, abs=1.0))
        assert move.weights_bytes == pytest.approx(gpu.breakdown.weights)
        assert move.optimizer_bytes == pytest.approx(gpu.breakdown.optimizer)
    assert moved.moved_layers == 8


def test_the_same_plan_moves_nothing_and_chunks_are_layers_in_the_models_order() -> None:
    state = ModelState(MODEL, JOB)
    plan = plan_of((2, 1, (4, 4)), virtual_stages=2)
    same = {rank: rank for rank in range(16)}
    held = state.held(plan, True)
    moved = migration(state, held, plan, sharded=True, rank_before=same)
    assert moved.received_bytes == 0.0 and moved.moved_layers == 0 and moved.lost_optimizer_bytes == 0.0
    assert {name for name, _ in held[0].weights if name.startswith("layer")} == {f"layer:{n}" for n in (0, 1, 4, 5)}


def searched(cluster: Cluster, job: Job = JOB, **options: object) -> SearchResult:
    chosen = SearchOptions(front=0, **options)  # type: ignore[arg-type]
    return search(cluster, MODEL, job, options=chosen, estimator=TableEstimator(cluster, MODEL, job))


@pytest.fixture(scope="module")
def before() -> Before:
    return Before(CLUSTER, MODEL, JOB, searched(CLUSTER).plans[0].plan)


def moves(result: SearchResult, before: Before, plan: Plan) -> Migration:
    state = ModelState(MODEL, JOB)
    stay = ranks_before(before.cluster, result.cluster)
    return migration(state, state.held(before.plan, True), plan, sharded=True, rank_before=stay)


@pytest.mark.parametrize("gone", [("n0",), ("n1",), ("n3",), ("n1", "n2")])
@pytest.mark.parametrize("tolerance", [0.0, 0.05, 1.0])
def test_the_plan_that_moves_least_within_the_tolerance_is_taken(
    gone: tuple[str, ...], tolerance: float, before: Before
) -> None:
    cluster = without_nodes(CLUSTER, gone)
    result = searched(cluster)
    again = replan(result, before, tolerance=tolerance)
    assert again.gone == gone and again.added == ()
    assert again.chosen.phi <= again.best.phi * (1 + tolerance) + 1e-12
    slowest_s = again.best.estimate.iteration_time_s * (1 + tolerance)
    assert again.chosen.estimate.iteration_time_s <= slowest_s
    assert again.migration == moves(result, before, again.chosen.plan)
    for ranked in result.plans:
        if ranked.phi <= again.best.phi * (1 + tolerance) and ranked.estimate.iteration_time_s <= slowest_s:
            assert again.migration.received_bytes <= moves(result, before, ranked.plan).received_bytes + 1.0
    assert again.chosen.phi == pytest.approx(result.objective.phi_of(result.estimator.estimate(again.chosen.plan)))
    ranks = [rank for stage in again.chosen.plan.stages for rank in stage.ranks]
    assert len(ranks) == len(set(ranks))
    for stage in again.chosen.plan.stages:
        assert {cluster.gpus[rank].gpu_type.name for rank in stage.ranks} == {stage.gpu_type}


def test_a_plan_as_good_by_phi_but_slower_is_not_taken_for_moving_less(before: Before) -> None:
    result = searched(CLUSTER)
    slow = next(r for r in result.plans[1:] if r.plan != before.plan and r.plan.skeleton.pp != 2)
    # In hand is a plan of the same Phi as the best, 10 % slower.
    estimate = replace(slow.estimate, iteration_time_s=1.1 * result.plans[0].estimate.iteration_time_s)
    others = tuple(r for r in result.plans if r.plan != slow.plan)
    listed = replace(result, plans=(*others[:1], replace(slow, phi=others[0].phi, estimate=estimate), *others[1:]))
    in_hand = replace(before, plan=slow.plan)
    assert replan(listed, in_hand, tolerance=0.2).chosen.plan == slow.plan
    assert replan(listed, in_hand, tolerance=0.02).chosen.plan != slow.plan


def test_a_wider_tolerance_never_moves_more(before: Before) -> None:
    result = searched(without_nodes(CLUSTER, ("n1",)))
    moved = [replan(result, before, tolerance=t).migration.received_bytes for t in (0.0, 0.02, 0.1, 0.5, 2.0)]
    assert moved == sorted(moved, reverse=True)


def test_where_nothing_changed_the_plan_in_hand_stays(before: Before) -> None:
    again = replan(searched(CLUSTER), before)
    assert again.unchanged and again.migration.received_bytes == 0.0
    assert again.chosen.plan == before.plan


def test_the_plan_in_hand_competes_even_where_the_search_lists_another_split(before: Before) -> None:
    assert before.plan.skeleton.pp == 2
    stages = tuple(
        replace(stage, chunk_layers=(stage.layers + more,))
        for stage, more in zip(before.plan.stages, (-1, 1), strict=True)
    )
    slower = replace(before, plan=replace(before.plan, stages=stages))
    result = searched(CLUSTER)
    assert slower.plan not in result.table.plans
    assert replan(result, slower, tolerance=10.0).chosen.plan == slower.plan
    assert replan(result, slower, tolerance=0.0).chosen.plan != slower.plan
    # Recompute moves nothing: what differs in it alone is free to become the best.
    first = replace(before.plan.stages[0], recompute=FULL)
    other = replace(before, plan=replace(before.plan, stages=(first, *before.plan.stages[1:])))
    again = replan(result, other)
    assert again.chosen.plan == before.plan and again.migration.received_bytes == 0.0 and not again.unchanged


def test_limits_hold_for_what_is_kept(before: Before) -> None:
    limits = OperatorLimits(recompute=((None, FULL),))
    result = searched(CLUSTER, limits=limits)
    again = replan(result, before, tolerance=100.0)
    assert set(again.chosen.plan.recompute) == {FULL} and not again.unchanged


def test_a_picked_plan_is_told_about_and_nothing_is_chosen(before: Before) -> None:
    result = searched(without_nodes(CLUSTER, ("n2",)))
    again = replan(result, before, only=result.plans[3])
    assert again.chosen == result.plans[3] and again.considered == 1
    assert again.migration == moves(result, before, result.plans[3].plan)


def test_a_node_that_comes_and_one_that_is_renumbered(before: Before) -> None:
    cluster = replace(CLUSTER, nodes=(make_node("new", H100, 4), *CLUSTER.nodes[1:]))
    assert ranks_before(CLUSTER, cluster) == {rank: rank for rank in range(4, 16)}
    swapped = replace(CLUSTER, nodes=CLUSTER.nodes[::-1])
    assert ranks_before(CLUSTER, swapped)[0] == 12
    again = replan(searched(cluster), before)
    assert again.gone == ("n0",) and again.added == ("new",)
    # In another order of the same nodes everything can stay.
    assert replan(searched(swapped), before).migration.received_bytes == 0.0


def test_another_model_or_precision_keeps_nothing(before: Before) -> None:
    result = searched(CLUSTER)
    with pytest.raises(InputError, match="nothing of it can stay"):
        replan(result, replace(before, model=make_model(9, "other")))
    with pytest.raises(InputError, match="trains in fp16"):
        replan(result, replace(before, job=replace(JOB, precision=Precision.FP16)))
    with pytest.raises(InputError, match="tolerance"):
        replan(result, before, tolerance=-0.1)


def test_nodes_to_leave_out_are_known_and_not_all() -> None:
    assert [n.name for n in without_nodes(CLUSTER, ("n1", "n1")).nodes] == ["n0", "n2", "n3"]
    with pytest.raises(InputError, match="no node 'n9'"):
        without_nodes(CLUSTER, ("n9",))
    with pytest.raises(InputError, match="no node is left"):
        without_nodes(CLUSTER, ("n0", "n1", "n2", "n3"))


def test_a_job_over_an_earlier_one_keeps_what_is_not_given() -> None:
    cluster = make_cluster(H100)
    base = resolve_job(cluster, MODEL, global_batch=64, optimizer="replicated", tp_sizes=(2,))
    assert resolve_job(cluster, MODEL, base=base) == base
    assert resolve_job(cluster, MODEL, base=base).assumed == base.assumed
    changed = resolve_job(cluster, MODEL, base=base, seq_len=512)
    assert (changed.global_batch, changed.seq_len, changed.optimizer) == (64, 512, Optimizer.REPLICATED)
    assert changed.tp_sizes == (2,)
    assert not any(line.startswith("sequence length") for line in changed.assumed)
    assert any(line.startswith("precision") for line in changed.assumed)
