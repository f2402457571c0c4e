from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Attention
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.inputs.parallelism import legal_tp
from memx_engine.measurement import Measurement, Outcome, Point
from memx_engine.plan import Recompute
from memx_engine.profile.costs import PointCosts
from memx_engine.profile.design import ProfileDesign, TypeDesign, design_document, design_profile
from memx_engine.profile.parameters import exhaustive_count, parameters_of, point_of, spaced, sparse_count, three
from memx_engine.testbed.testbed import Testbed
from tests.builders import H100, V100, make_cluster, make_job, make_model
from tests.profile.fakes import ok

CASES = (("paper-20gpu", "llama2-7b"), ("h100-mi300x", "llama3-70b"), ("paper-small", "llama2-7b"))


def design_of(cluster_name: str, model_name: str) -> tuple[Cluster, ProfileDesign]:
    cluster, model = load_cluster(cluster_name), load_model(model_name)
    return cluster, design_profile(cluster, model, resolve_job(cluster, model))


def answered(answer: Callable[[Point], Measurement]) -> Callable[[Point], Measurement | None]:
    return lambda point: answer(point)


def test_the_papers_five_dimensional_example() -> None:
    # MemX paper, section 3.2.1: 10 values in 5 dimensions are 100,000 points, three points each are 243.
    assert exhaustive_count([10] * 5) == 100_000
    assert sparse_count(5) == 243


def test_llama2_7b_on_the_20_gpu_cluster_takes_at_most_300_points_per_type() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")
    assert [t.gpu_type for t in design.types] == ["a100-sxm-80g", "vendor-b", "vendor-c"]
    for t in design.types:
        points = t.expected()
        purposes = Counter(p.purpose for p in points)
        assert len(points) <= 300
        assert len({p.point.key for p in points}) == len(points)
        assert purposes["ablation"] == 17  # the default and two further levels of seven parameters, both ends
        assert purposes["cross"] == 243 - 11  # the default and ten ablation points are part of the cross
    assert design.representative == "a100-sxm-80g"  # the most memory
    assert design.types[0].linearity and not design.types[1].linearity


@pytest.mark.parametrize("case", CASES)
def test_every_point_of_a_design_is_legal(case: tuple[str, str]) -> None:
    cluster, design = design_of(*case)
    for t in design.types:
        first = cluster.nodes[cluster.gpus[cluster.ranks_by_type[t.gpu_type][0]].node_index]
        for planned in t.expected():
            p = planned.point
            assert p.gpu_type == t.gpu_type
            assert p.tp in legal_tp(p.model, kv_replication=True) and p.tp <= first.gpu_count
            assert p.seq_len % p.tp == 0 and p.seq_len <= t.job.seq_len
            assert 1 <= p.layers <= t.model.layers
            assert p.recompute.kind != "block" or p.recompute.n < p.layers
            assert p.model.heads % p.model.kv_heads == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_point_that_would_have_fitted_is_skipped(case: tuple[str, str], seed: int) -> None:
    cluster, design = design_of(*case)
    bed = Testbed(cluster, seed=seed)
    skipped = 0
    for t in design.types:
        for planned in t.expected():
            why = t.costs.cannot_fit(planned.point)
            skipped += bool(why)
            if why:
                assert bed.measure(planned.point).outcome is Outcome.OOM, (planned.point.label, why)
                assert "GiB" in why
    assert skipped > 0


def test_points_near_the_limit_run() -> None:
    cluster, design = design_of("paper-20gpu", "llama2-7b")
    bed = Testbed(cluster)
    tried_in_vain = [
        p
        for t in design.types
        for p in t.expected()
        if not t.costs.cannot_fit(p.point) and bed.measure(p.point).outcome is Outcome.OOM
    ]
    assert 0 < len(tried_in_vain) < 40


def test_the_bound_is_below_the_estimate_and_grows_with_the_stage() -> None:
    cluster, design = design_of("paper-20gpu", "llama2-7b")
    t = design.types[1]
    costs = PointCosts(cluster, t.job)
    for planned in t.expected():
        assert 0 < costs.lower_bound_bytes(planned.point) < costs.peak_bytes(planned.point)
    small, large = t.point(layers=2), t.point(layers=8)
    assert costs.lower_bound_bytes(small) < costs.lower_bound_bytes(large)
    assert costs.seconds(small) < costs.seconds(large)
    assert costs.work_s(small, 5) > 5 * costs.seconds(small)


def test_the_bound_is_the_state_and_most_of_the_activations() -> None:
    # One Llama-2-7B layer has 202,383,360 parameters; 6 bytes each in bf16 with fp32 gradients (method: Megatron's
    # table). Activations without dropout: (12 + 4 kv/heads + 6 ffn/hidden) s b h = 32.1 s b h bytes per layer.
    cluster, design = design_of("paper-20gpu", "llama2-7b")
    t = design.types[0]
    point = t.point(tp=1, micro_batch=1, layers=2, in_flight=3)
    activations = (12 + 4 + 6 * 11008 / 4096) * 4096 * 4096
    expected = 2 * 202_383_360 * 6 + 0.8 * 3 * 2 * activations
    assert t.costs.lower_bound_bytes(point) == pytest.approx(expected, rel=0.02)


def test_what_is_crossed_follows_the_measured_ablation() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")
    t = design.types[1]

    def only_tp_and_sequence_matter(point: Point) -> Measurement:
        seconds = point.seq_len / point.tp
        return replace(ok(point), forward_s=seconds, backward_s=seconds, peak_allocated_bytes=1000)

    closing = t.closing(answered(only_tp_and_sequence_matter))
    verdicts = {i.parameter: i for i in closing.impacts}
    assert {name for name, i in verdicts.items() if i.high} == {"tp", "seq_len"}
    assert {name for name, i in verdicts.items() if i.crossed} == {"tp", "seq_len"}
    assert verdicts["layers"].note == "kept at its default"
    # 3 x 3 crossed, less the default and the four ablation points.
    assert len(closing.points) == 9 - 5
    assert {(p.point.tp, p.point.seq_len) for p in closing.points} == {(a, b) for a in (1, 8) for b in (1024, 2048)}


def test_nothing_of_high_impact_leaves_the_ablation_alone() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")
    same = replace(ok(design.types[1].point()), forward_s=1.0, backward_s=1.0, peak_allocated_bytes=10)
    closing = design.types[1].closing(answered(lambda point: replace(same, point=point)))
    assert closing.points == ()
    assert not any(i.high or i.crossed for i in closing.impacts)


def test_the_cost_model_answers_for_what_was_not_measured_and_says_so() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")

    def no_long_sequences(point: Point) -> Measurement | None:
        return None if point.seq_len < 4096 else ok(point)

    verdicts = {i.parameter: i for i in design.types[1].closing(no_long_sequences).impacts}
    assert verdicts["seq_len"].predicted and verdicts["seq_len"].high
    assert not verdicts["tp"].predicted


@pytest.mark.parametrize("limit", [10, 60, 120, 300, 2000])
def test_the_limit_is_kept_and_what_it_cuts_is_said(limit: int) -> None:
    cluster, model = load_cluster("paper-20gpu"), load_model("llama2-7b")
    design = design_profile(cluster, model, resolve_job(cluster, model), max_points=limit)
    for t in design.types:
        closing = t.predicted_closing()
        opening = t.opening()
        assert len(opening) + len(closing.points) <= max(limit, len(opening))
        dropped = [i for i in closing.impacts if i.high and not i.crossed and i.note.startswith("not crossed: needs")]
        assert bool(dropped) == (limit < 1000)
        if limit >= 60:
            # A plan's own dimensions are crossed before the job's, the largest amplitude first.
            assert {i.parameter for i in closing.impacts if i.crossed} & {"layers", "micro_batch", "tp"}


def test_defaults_are_lowered_until_they_fit() -> None:
    small = replace(V100, name="small", memory_bytes=8 << 30)
    cluster = make_cluster(small, H100)
    model, job = make_model(), replace(make_job(), precision=make_job().precision.FP16)
    small_design, large_design = design_profile(cluster, model, job).types
    assert small_design.base["micro_batch"] == 1 and large_design.base["micro_batch"] == 2
    assert small_design.costs.peak_bytes(small_design.point()) < 8 << 30
    assert int(small_design.base["kv_heads"]) == model.kv_heads


def test_types_without_the_precision_are_left_out_and_named() -> None:
    design = design_profile(make_cluster(V100, H100), make_model(), make_job())
    assert dict(design.excluded) == {"v100-sxm-32g": "it lacks bf16"}
    assert [t.gpu_type for t in design.types] == ["h100-sxm-80g"]
    with pytest.raises(InputError, match="it lacks bf16"):
        design_profile(make_cluster(V100), make_model(), make_job())


def test_types_can_be_chosen_and_unknown_ones_are_refused() -> None:
    cluster = make_cluster()
    design = design_profile(cluster, make_model(), make_job(), types=["mi300x"])
    assert [t.gpu_type for t in design.types] == ["mi300x"] and design.types[0].linearity
    with pytest.raises(InputError, match="'mi250'") as caught:
        design_profile(cluster, make_model(), make_job(), types=["mi250"])
    assert "h100-sxm-80g" in caught.value.hint and "mi300x" in caught.value.hint


def test_the_centre_of_recompute_is_selective_only_where_attention_keeps_scores() -> None:
    cluster, model, job = make_cluster(H100), make_model(), make_job()

    def centre(attention: Attention) -> Recompute:
        t = design_profile(cluster, model, replace(job, attention=attention)).types[0]
        return t.ablation()["recompute"][1].recompute

    assert centre(Attention.UNFUSED) == Recompute("selective")
    assert centre(Attention.FUSED).kind == "block"


def test_job_limits_hold_for_the_design() -> None:
    cluster, model = make_cluster(H100), make_model()
    job = replace(make_job(), tp_sizes=(2, 4), micro_batch_sizes=(1, 3))
    levels = {p.name: p.levels for p in parameters_of(cluster, model, job, "h100-sxm-80g")}
    assert levels["tp"] == (2, 4)
    assert levels["micro_batch"] == (1, 3)


@pytest.mark.parametrize(("layers", "gpus"), [(1, 1), (2, 1), (4, 2), (126, 8)])
def test_tiny_and_deep_models_have_designs_too(layers: int, gpus: int) -> None:
    cluster = make_cluster(H100, gpus_per_node=gpus)
    design = design_profile(cluster, make_model(layers), make_job(8, 64))
    (t,) = design.types
    points = [p.point for p in t.expected()]
    assert points and all(1 <= p.layers <= layers and p.tp <= gpus and p.micro_batch <= 8 for p in points)
    assert all(p.in_flight <= max(gpus, 1) for p in points)
    assert len(points) <= 300


def test_half_of_one_layer_is_full_recompute() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")
    t = design.types[0]
    setting = {**t.base, "layers": 1, "recompute": "half"}
    assert point_of(t.gpu_type, t.model, t.job, setting).recompute == Recompute("full")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40, unique=True))
def test_three_points_hold_the_ends_and_a_centre(values: list[int]) -> None:
    ordered = sorted(values)
    chosen = three(ordered)
    assert chosen[0] == ordered[0] and chosen[-1] == ordered[-1]
    assert len(chosen) == min(3, len(ordered)) and set(chosen) <= set(ordered)


@given(st.integers(1, 50), st.integers(0, 200), st.integers(5, 9))
def test_dense_values_hold_the_levels_and_stay_inside(low: int, width: int, count: int) -> None:
    high = low + width
    keep = sorted({low, (low + high) // 2, high})
    values = spaced(low, high, count, keep)
    assert set(keep) <= set(values) and len(values) <= count
    assert values == tuple(sorted(set(values))) and values[0] == low and values[-1] == high


def test_the_dry_run_document_adds_up() -> None:
    _, design = design_of("paper-20gpu", "llama2-7b")
    document = design_document(design, {"vendor-b": 7})
    assert document["planned"] == sum(t["planned"] for t in document["types"]) == 819
    assert document["cached"] == 7
    for t in document["types"]:
        assert sum(t["by_purpose"].values()) == t["planned"]
        assert t["exhaustive"] > 1_000_000 and t["seconds"] > 60
    assert isinstance(design.types[0], TypeDesign)
