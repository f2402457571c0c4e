from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memx_engine.cost.composition import Transfers, compose, stage_chunks
from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.cost.pipeline import additive_time, interleaved_estimate
from memx_engine.errors import InputError
from memx_engine.inputs.job import Attention, Framework, Job, Optimizer
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import FULL, NONE, SELECTIVE, Plan, Provenance, Recompute, Skeleton
from tests.cost.shapes import A100_40G, A800, GPT2_LARGE, LLAMA2_7B, gpu_type, nodes_of, plan, skeleton

CLUSTER = nodes_of(A800, A100_40G)
SMALL = replace(LLAMA2_7B, layers=12)
SIZES: dict[str, Any] = {"micro_batch": 1, "seq_len": 2048, "global_batch": 64}
LAYOUTS = [(1, 2, 8), (2, 4, 2), (8, 2, 1), (4, 1, 4), (2, 8, 1), (1, 4, 4)]


def parts_of(made: Plan, estimator: FirstPrinciples) -> tuple[list[float], list[float]]:
    estimate = estimator.estimate(made)
    peaks = {gpu.stage: gpu.peak_bytes for gpu in estimate.gpus}
    times = [f + b for f, b in zip(estimate.stage_forward_s, estimate.stage_backward_s, strict=True)]
    return times, [peaks[i] for i in range(made.skeleton.pp)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from([1, 2]),
    st.sampled_from(list(Attention)),
    st.booleans(),
    st.sampled_from(list(Optimizer)),
    st.sampled_from([SMALL, replace(GPT2_LARGE, layers=12, heads=16, kv_heads=16, head_dim=80)]),
    st.data(),
)
def test_a_plan_costs_what_the_table_says(
    layout: tuple[int, int, int],
    v: int,
    attention: Attention,
    sequence_parallel: bool,
    optimizer: Optimizer,
    model: TransformerSpec,
    data: st.DataObject,
) -> None:
    tp, pp, dp = layout
    v = v if pp > 1 and 12 // pp >= v else 1
    job = Job(64, 1024, attention=attention, sequence_parallel=sequence_parallel, optimizer=optimizer)
    estimator = FirstPrinciples(CLUSTER, model, job)
    made = skeleton(CLUSTER, tp, pp, dp, micro_batch=1, seq_len=1024, global_batch=64, v=v)
    table = estimator.stage_table(made)
    layers, left = [], 12 // v
    for i in range(pp):
        n = left if i == pp - 1 else data.draw(st.integers(1, left - (pp - 1 - i)))
        layers.append(n * v)
        left -= n
    picks = [data.draw(st.sampled_from(range(len(table.options)))) for _ in range(pp)]
    picks = [r if np.isfinite(table.memory_bytes[i, layers[i], r]) else 0 for i, r in enumerate(picks)]
    chosen = plan(made, layers, [table.options[r] for r in picks])
    estimate = estimator.estimate(chosen)
    times, peaks = parts_of(chosen, estimator)
    for i, r in enumerate(picks):
        assert times[i] == pytest.approx(table.time_s[i, layers[i], r], rel=1e-12)
        assert estimate.stage_forward_s[i] == pytest.approx(table.forward_s[i, layers[i], r], rel=1e-12)
        assert peaks[i] == pytest.approx(table.memory_bytes[i, layers[i], r], rel=1e-12)
        assert estimate.tail_s[i] == pytest.approx(table.tail_s[i, layers[i]], rel=1e-12)
    assert estimate.p2p_s == pytest.approx(table.p2p_s.tolist())
    if v == 1:
        additive = additive_time(
            times,
            table.micro_batches,
            p2p_s=table.p2p_s,
            tails_s=[table.tail_s[i, n] for i, n in enumerate(layers)],
            fixed_s=table.fixed_s,
        )
        assert estimate.additive_time_s == pytest.approx(additive)
    assert estimate.lower_bound_s <= estimate.iteration_time_s
    assert sum(estimate.time_breakdown_s.values()) == pytest.approx(estimate.iteration_time_s, rel=1e-12)
    assert min(estimate.time_breakdown_s.values()) >= 0
    assert estimate.peak_bytes == max(peaks)
    for gpu in estimate.gpus:
        assert gpu.breakdown.total == pytest.approx(gpu.peak_bytes)
    weighted = np.repeat(peaks, [len(p.ranks) for p in made.placements])
    assert estimate.memory_variance_bytes2 == pytest.approx(weighted.var())


def test_illegal_entries_are_infinite_everywhere() -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    table = estimator.stage_table(skeleton(CLUSTER, 2, 4, 2, **SIZES))
    block5 = table.options.index(Recompute("block", 5))
    most = SMALL.layers - 3  # the other three stages hold a layer each
    for array in (table.forward_s, table.backward_s, table.memory_bytes):
        assert np.isinf(array[:, 0]).all()
        assert np.isinf(array[:, :5, block5]).all()
        assert np.isfinite(array[:, 5 : most + 1, block5]).all()
        assert np.isinf(array[:, most + 1 :]).all()
    interleaved = estimator.stage_table(skeleton(CLUSTER, 2, 4, 2, **SIZES, v=2))
    assert np.isinf(interleaved.memory_bytes[:, 1::2]).all()
    most = SMALL.layers - 3 * 2  # or a chunk's layer for each of their two chunks
    assert np.isfinite(interleaved.memory_bytes[:, 2 : most + 1 : 2, 0]).all()
    assert np.isinf(interleaved.memory_bytes[:, most + 1 :]).all()


def test_recompute_trades_time_for_memory_in_steps() -> None:
    table = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).stage_table(skeleton(CLUSTER, 2, 2, 4, **SIZES))
    order = [table.options.index(r) for r in (NONE, *(Recompute("block", k) for k in range(1, 6)), FULL)]
    assert (np.diff(table.time_s[0, 6, order]) > 0).all()
    # The first recomputed layer also needs its work space; from then on every one saves.
    assert (np.diff(table.memory_bytes[0, 6, order[1:]]) < 0).all()
    assert table.memory_bytes[0, 6, order[-1]] < table.memory_bytes[0, 6, order[0]]
    # A third of forward plus backward is repeated, but not the collectives of the backward pass.
    assert 1.25 < table.time_s[0, 6, order[-1]] / table.time_s[0, 6, order[0]] < 1.36


def test_earlier_stages_hold_more_micro_batches() -> None:
    table = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).stage_table(skeleton(CLUSTER, 1, 4, 4, **SIZES))
    middle = table.memory_bytes[1, 3, 0], table.memory_bytes[2, 3, 0]
    assert middle[0] > middle[1]


def test_interleaving_shortens_the_bubble_and_costs_memory() -> None:
    estimator = FirstPrinciples(nodes_of(A800), SMALL, Job(16, 2048))
    sizes = {"micro_batch": 1, "seq_len": 2048, "global_batch": 16}
    cluster = nodes_of(A800)
    plain = estimator.estimate(plan(skeleton(cluster, 2, 4, 1, **sizes), [3, 3, 3, 3]))
    six = skeleton(cluster, 2, 2, 2, **sizes)
    interleaved = estimator.estimate(plan(replace(six, virtual_stages=3), [6, 6]))
    whole = estimator.estimate(plan(six, [6, 6]))
    assert interleaved.iteration_time_s < whole.iteration_time_s
    assert interleaved.time_breakdown_s["bubble"] < whole.time_breakdown_s["bubble"]
    assert interleaved.gpus[0].breakdown.activations > whole.gpus[0].breakdown.activations
    assert plain.iteration_time_s > 0


def test_an_interleaved_table_gives_the_estimated_time_of_its_plan() -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    made = skeleton(CLUSTER, 2, 4, 2, **SIZES, v=3)
    table = estimator.stage_table(made)
    assert table.wrap_s > 0
    stage, r = np.arange(4), table.options.index(NONE)
    time_s = interleaved_estimate(
        table.time_s[stage, 3, r],
        table.micro_batches,
        3,
        p2p_s=table.p2p_s,
        wrap_s=table.wrap_s,
        tails_s=table.tail_s[stage, 3],
        fixed_s=table.fixed_s,
    )
    assert time_s == pytest.approx(estimator.estimate(plan(made, [3, 3, 3, 3])).additive_time_s)


def test_unequal_chunks_are_walked() -> None:
    cluster = nodes_of(A800)
    made = replace(skeleton(cluster, 2, 2, 2, micro_batch=1, seq_len=2048, global_batch=16), virtual_stages=2)
    base = plan(made, [6, 6])
    uneven = replace(
        base, stages=(replace(base.stages[0], chunk_layers=(4, 2)), replace(base.stages[1], chunk_layers=(2, 4)))
    )
    estimator = FirstPrinciples(cluster, SMALL, Job(16, 2048))
    equal, walked = estimator.estimate(base), estimator.estimate(uneven)
    assert walked.gpus[0].breakdown.weights == equal.gpus[0].breakdown.weights
    assert walked.gpus[0].breakdown.activations > equal.gpus[0].breakdown.activations
    assert sum(walked.time_breakdown_s.values()) == pytest.approx(walked.iteration_time_s)


def test_a_recompute_beyond_the_stages_layers_is_refused_in_words() -> None:
    made = plan(skeleton(CLUSTER, 2, 4, 2, **SIZES), [3, 3, 3, 3], [Recompute("block", 4), NONE, NONE, NONE])
    with pytest.raises(InputError, match="block:4 recomputes more layers than the 3") as caught:
        FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).estimate(made)
    assert caught.value.where == "stage 0"
    assert "block:3" in caught.value.hint


def test_selective_collapses_under_fused_attention_and_says_why() -> None:
    made = skeleton(CLUSTER, 2, 2, 4, **SIZES)
    fused = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    unfused = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048, attention=Attention.UNFUSED))
    assert SELECTIVE not in fused.recompute_options(made)
    assert "fused" in fused.collapsed_options(made)[SELECTIVE]
    assert SELECTIVE in unfused.recompute_options(made)
    # A plan that asks for it anyway is costed: it saves nothing but costs the core again.
    plain = fused.estimate(plan(made, [6, 6]))
    selective = fused.estimate(plan(made, [6, 6], [SELECTIVE, SELECTIVE]))
    assert selective.peak_bytes == plain.peak_bytes
    assert selective.iteration_time_s > plain.iteration_time_s


def test_uniform_groups_collapse_without_micro_batches_in_flight() -> None:
    cluster = nodes_of(A800)
    estimator = FirstPrinciples(cluster, SMALL, Job(64, 2048))
    alone = skeleton(cluster, 1, 1, 8, **SIZES)
    assert Recompute("uniform", 4) in estimator.collapsed_options(alone)
    assert set(estimator.recompute_options(alone)).isdisjoint(estimator.collapsed_options(alone))


@pytest.mark.parametrize(("framework", "one"), [("any", False), ("megatron", True), ("flagscale", False)])
def test_frameworks_limit_what_may_be_chosen(framework: str, one: bool) -> None:
    job = Job(64, 2048, framework=Framework(framework), attention=Attention.UNFUSED)
    estimator = FirstPrinciples(CLUSTER, SMALL, job)
    assert estimator.one_recompute_for_all is one
    options = estimator.recompute_options(skeleton(CLUSTER, 2, 2, 4, **SIZES))
    assert (SELECTIVE in options) is (framework != "flagscale")


def test_exchange_rates_are_per_type_and_order_the_strategies() -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    rates = estimator.exchange_rates(skeleton(CLUSTER, 4, 2, 2, **SIZES))
    assert {rate.gpu_type for rate in rates} == {"a800-sxm-80g", "a100-sxm-40g"}
    full = next(rate for rate in rates if rate.recompute == FULL and rate.stage == 0)
    assert full.rho_s_per_byte is not None and full.extra_s > 0 and full.saved_bytes > 0
    assert full.rho_s_per_byte == full.extra_s / full.saved_bytes
    selective = next(rate for rate in rates if rate.recompute == SELECTIVE)
    assert selective.rho_s_per_byte is None


def test_tied_ends_cost_an_all_reduce_unless_untied_or_between_vendors() -> None:
    tied = replace(SMALL, tied_embeddings=True)
    estimator = FirstPrinciples(CLUSTER, tied, Job(64, 2048))
    made = skeleton(CLUSTER, 2, 2, 4, **SIZES)
    assert not estimator.must_untie(made)
    kept, untied = estimator.estimate(plan(made, [6, 6])), estimator.estimate(replace(plan(made, [6, 6]), untied=True))
    matrix_bytes = 32000 / 2 * 4096 * 4
    # Over InfiniBand, a card per GPU: the sum of two ranks passes each way once.
    difference = kept.time_breakdown_s["fixed"] - untied.time_breakdown_s["fixed"]
    assert difference == pytest.approx(matrix_bytes / 24e9, rel=0.02)
    assert estimator.stage_table(made).fixed_s == pytest.approx(kept.time_breakdown_s["fixed"])

    other = nodes_of(A800, gpu_type("other", vendor="Other"))
    across = FirstPrinciples(other, tied, Job(64, 2048))
    assert across.must_untie(skeleton(other, 2, 2, 4, **SIZES))
    assert not across.must_untie(skeleton(other, 8, 1, 2, **SIZES))
    assert not FirstPrinciples(other, SMALL, Job(64, 2048)).must_untie(skeleton(other, 2, 2, 4, **SIZES))


def test_transfers_divide_by_tp_and_gather_without_sequence_parallelism() -> None:
    made = skeleton(CLUSTER, 4, 2, 2, **SIZES)
    split = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).stage_table(made).p2p_s[0]
    whole = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048, sequence_parallel=False)).stage_table(made).p2p_s[0]
    assert split == pytest.approx(10e-6 + 2048 * 4096 * 2 / 4 / 24e9)
    assert whole > split


def test_fingerprint_follows_what_can_change_a_number() -> None:
    job = Job(64, 2048)
    base = FirstPrinciples(CLUSTER, SMALL, job).fingerprint
    assert FirstPrinciples(CLUSTER, replace(SMALL, name="other name"), replace(job, assumed=("x",))).fingerprint == base
    others = [
        FirstPrinciples(nodes_of(A800), SMALL, job),
        FirstPrinciples(CLUSTER, LLAMA2_7B, job),
        FirstPrinciples(CLUSTER, SMALL, replace(job, attention=Attention.UNFUSED)),
    ]
    assert len({base, *(other.fingerprint for other in others)}) == 4
    assert FirstPrinciples(CLUSTER, SMALL, job).provenance is Provenance.UNCALIBRATED


def test_stage_signatures_are_computed_once() -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    made = skeleton(CLUSTER, 1, 4, 4, **SIZES)
    estimator.stage_table(made)
    misses = estimator.misses
    assert misses <= made.pp
    estimator.stage_table(replace(made, virtual_stages=2))
    estimator.estimate(plan(made, [3, 3, 3, 3]))
    assert estimator.misses == misses
    assert estimator.hits >= 2 * made.pp


def test_assumptions_are_said() -> None:
    bare = gpu_type("x", memory_bandwidth_bytes_s=None)
    cluster = replace(nodes_of(A800, replace(bare, vendor="Other")), host=None)
    said = FirstPrinciples(cluster, SMALL, Job(64, 2048)).assumed
    assert any("1560 GB/s" in line for line in said)
    assert any("host link" in line for line in said)
    assert any("overlap" in line for line in said)


def test_memory_in_use_is_taken_from_the_capacity() -> None:
    cluster = nodes_of(A800)
    node = cluster.nodes[0]
    used = replace(cluster, nodes=(replace(node, groups=(replace(node.groups[0], memory_used_bytes=4 << 30),)),))
    made: Skeleton = skeleton(used, 1, 1, 8, **SIZES)
    estimator = FirstPrinciples(used, SMALL, Job(64, 2048))
    assert estimator.stage_table(made).capacity_bytes.tolist() == [76 << 30]
    assert {gpu.capacity_bytes for gpu in estimator.estimate(plan(made, [12])).gpus} == {76 << 30}


def test_the_fingerprint_changes_with_a_constant_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    base = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).fingerprint
    for name, value in (("compute.LAUNCH_S", 30e-6), ("memory.FRAGMENTATION", 0.1), ("stage.DP_OVERLAP", 0.4)):
        with monkeypatch.context() as patch:
            patch.setattr(f"memx_engine.cost.{name}", value)
            assert FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).fingerprint != base
    assert FirstPrinciples(CLUSTER, SMALL, Job(64, 2048)).fingerprint == base


@pytest.mark.parametrize("v", (1, 2))
@pytest.mark.parametrize("layers", ([6, 6], [2, 10], [10, 2], [2, 4, 2, 4]))
def test_parts_of_the_time_mean_what_they_say(layers: list[int], v: int) -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    made = plan(skeleton(CLUSTER, 2, len(layers), 8 // len(layers), **SIZES, v=v), layers)
    estimate = estimator.estimate(made)
    parts, i = estimate.time_breakdown_s, estimate.slowest_stage
    assert sum(parts.values()) == pytest.approx(estimate.iteration_time_s, rel=1e-12)
    own = estimate.stage_forward_s[i] + estimate.stage_backward_s[i]
    busy = made.skeleton.micro_batches * own
    assert parts["compute"] + parts["recompute"] + parts["tp_comm"] == pytest.approx(busy)
    if layers == [10, 2]:
        # A first stage much slower than the others never waits for a transfer, and for micro-batches at the end alone.
        assert i == 0 and parts["pp_comm"] == 0.0 and parts["bubble"] < own
    else:
        assert parts["pp_comm"] > 0 and parts["bubble"] > 0
    if i > 0:
        assert parts["bubble"] >= estimate.stage_forward_s[0] / v * (1 - 1e-9)


def test_without_transfers_nothing_is_booked_on_them() -> None:
    made = plan(skeleton(CLUSTER, 2, 4, 2, **SIZES), [3, 3, 3, 3])
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    costs = [k.cost for k in estimator._stages(made.skeleton, estimator.network.place(made.skeleton.placements))]
    chunks = [stage_chunks(i, stage) for i, stage in enumerate(made.stages)]
    free = compose(made, costs, chunks, Transfers((0.0, 0.0, 0.0), 0.0, 0.0))
    slow = compose(made, costs, chunks, Transfers((0.1, 0.1, 0.1), 0.0, 0.0))
    assert free.breakdown_s["pp_comm"] == 0.0 and free.breakdown_s["bubble"] > 0
    assert slow.breakdown_s["bubble"] == pytest.approx(free.breakdown_s["bubble"])
    assert slow.breakdown_s["pp_comm"] == pytest.approx(slow.iteration_s - free.iteration_s)


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.FLAGSCALE])
@pytest.mark.parametrize("tied", [False, True])
def test_times_alone_are_those_of_complete_estimates(framework: Framework, tied: bool) -> None:
    cluster = nodes_of(A800, A100_40G)
    model = replace(SMALL, tied_embeddings=tied)
    estimator = FirstPrinciples(cluster, model, Job(64, 2048, framework=framework))
    plans = [
        replace(plan(skeleton(cluster, tp, pp, dp, **SIZES, v=v), layers, [option] * pp), untied=untied)
        for tp, pp, dp in LAYOUTS
        for v, layers in _splits(pp)
        for option in (NONE, FULL, Recompute("block", 1))
        for untied in ({False, tied} if pp > 1 else {False})
    ]
    assert any(p.skeleton.virtual_stages > 1 for p in plans)
    expected = [estimator.estimate(p).iteration_time_s for p in plans]
    assert estimator.iteration_times(plans).tolist() == expected
    assert FirstPrinciples(cluster, model, estimator.job).iteration_times(plans[::-1]).tolist() == expected[::-1]


def test_times_alone_refuse_what_estimates_refuse() -> None:
    estimator = FirstPrinciples(CLUSTER, SMALL, Job(64, 2048))
    made = plan(skeleton(CLUSTER, 2, 2, 4, **SIZES), (8, 4), [Recompute("block", 6)] * 2)
    with pytest.raises(InputError, match="recomputes more layers"):
        estimator.iteration_times([made])


def _splits(pp: int) -> list[tuple[int, tuple[int, ...]]]:
    even, uneven = (12 // pp,) * pp, (13 - pp, *(1,) * (pp - 1))
    return [(1, even), (1, uneven), *([(2, even)] if 12 % (2 * pp) == 0 and pp > 1 else [])]
