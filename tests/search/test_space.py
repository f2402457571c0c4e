from __future__ import annotations

from dataclasses import replace

import pytest

from memx_engine.inputs.cluster import Cluster, GpuGroup, Link
from memx_engine.inputs.job import Framework, Precision
from memx_engine.search.space import Placer, enumerate_space, even_split, idle_gpus, schedule_problem
from tests.builders import H100, MI300X, V100, make_cluster, make_job, make_model, make_node


def test_even_split_drops_no_layer() -> None:
    assert even_split(30, 4) == (8, 8, 7, 7)
    assert even_split(32, 4) == (8, 8, 8, 8)
    assert even_split(30, 4, 2) == (8, 8, 8, 6)


def test_every_skeleton_keeps_the_rules() -> None:
    cluster, model, job = make_cluster(), make_model(), make_job(global_batch=96)
    space = enumerate_space(cluster, model, job)
    skeletons = list(space.skeletons())
    assert skeletons and len(set(skeletons)) == len(skeletons)
    for skeleton in skeletons:
        assert len(skeleton.placements) == skeleton.pp
        assert job.global_batch % (skeleton.dp * skeleton.micro_batch) == 0
        ranks = [rank for placement in skeleton.placements for rank in placement.ranks]
        assert len(set(ranks)) == len(ranks)
        if skeleton.virtual_stages > 1:
            assert skeleton.micro_batches % skeleton.pp == 0
        for placement in skeleton.placements:
            assert {cluster.gpus[r].gpu_type.name for r in placement.ranks} == {placement.gpu_type}
            for start in range(0, len(placement.ranks), skeleton.tp):
                group = placement.ranks[start : start + skeleton.tp]
                assert len({cluster.gpus[r].node_index for r in group}) == 1
        order = skeleton.type_order
        assert len(set(order)) == len(order)  # contiguous blocks


def test_counts_are_the_whole_product() -> None:
    # TP {1,2,4,8} x DP {1,2,4,8}, tp*dp <= 8: 10 pairs; orders of 2 types and single types: 4; 1F1B or interleaved.
    cluster, model = make_cluster(), make_model()
    job = make_job(global_batch=8)
    space = enumerate_space(cluster, model, job)
    sizes = {dp: sum(8 % (dp * b) == 0 for b in space.micro_batches) for dp in (1, 2, 4, 8)}
    pairs = [(tp, dp) for tp in (1, 2, 4, 8) for dp in (1, 2, 4, 8) if tp * dp <= 8]
    assert len(list(space.skeletons())) + space.placement_pruned == sum(4 * 2 * sizes[dp] for _, dp in pairs)


def test_types_can_be_left_out_and_leftovers_are_reported() -> None:
    cluster = make_cluster(H100, MI300X)
    space = enumerate_space(cluster, make_model(), make_job())
    alone = next(s for s in space.skeletons() if s.type_order == ("mi300x",))
    assert idle_gpus(cluster, alone) == {"h100-sxm-80g": 8}


def test_a_type_without_the_precision_is_left_out_with_its_reason() -> None:
    cluster = make_cluster(H100, V100)
    space = enumerate_space(cluster, make_model(), make_job())
    assert space.excluded_types == {"v100-sxm-32g": "v100-sxm-32g lacks bf16"}
    assert all(s.type_order == ("h100-sxm-80g",) for s in space.skeletons())
    fp16 = enumerate_space(cluster, make_model(), replace(make_job(), precision=Precision.FP16))
    assert not fp16.excluded_types


def test_tp_groups_stay_inside_islands() -> None:
    node = replace(make_node("n", H100, 8), island_size=4)
    placer = Placer(Cluster("islands", (node,), inter_node=Link(1e10, 1e-5)))
    assert placer.groups("h100-sxm-80g", 4) == (tuple(range(8)),)
    # Groups of 3: one in each island, where consecutive ranks would straddle.
    assert placer.groups("h100-sxm-80g", 3) == ((0, 1, 2, 4, 5, 6),)
    assert placer.groups("h100-sxm-80g", 8) == (tuple(range(8)),)


def test_two_types_in_one_box_never_share_a_tp_group() -> None:
    node = replace(make_node("box", H100, 2), groups=(GpuGroup(H100, 2), GpuGroup(MI300X, 2)))
    cluster = Cluster("desk", (node,), inter_node=Link(1e10, 1e-5))
    space = enumerate_space(cluster, make_model(), make_job())
    assert max(space.tp_sizes) == 2


def test_sites_are_crossed_once() -> None:
    nodes = tuple(replace(make_node(f"n{i}", H100, 8), site="west" if i < 2 else "east") for i in range(4))
    cluster = Cluster("sites", nodes, inter_node=Link(5e10, 5e-6), inter_site=Link(1e9, 1e-3))
    space = enumerate_space(cluster, make_model(), make_job())
    both = 0
    for layout in space.layouts:
        homes = [{cluster.nodes[cluster.gpus[r].node_index].site for r in p.ranks} for p in layout.placements]
        if layout.tp * layout.dp <= 16:
            assert all(len(home) == 1 for home in homes)
            assert sum(a != b for a, b in zip(homes, homes[1:], strict=False)) <= 1
            both += len(set().union(*homes)) == 2
    assert both


def test_pp_sizes_trim_the_pipeline() -> None:
    job = replace(make_job(), pp_sizes=(3,))
    space = enumerate_space(make_cluster(), make_model(), job)
    assert {s.pp for s in space.skeletons()} == {3}


def test_frameworks_without_interleaving() -> None:
    job = replace(make_job(), framework=Framework.FLAGSCALE)
    assert enumerate_space(make_cluster(), make_model(), job).virtual_stages == (1,)


@pytest.mark.parametrize(
    ("layers", "pp", "micro_batches", "v", "problem"),
    [
        (32, 4, 8, 1, None),
        (32, 4, 8, 2, None),
        (3, 4, 8, 1, "cannot fill"),
        (32, 4, 6, 2, "multiple of PP 4"),
        (32, 1, 8, 2, "at least 2"),
        (6, 4, 8, 2, "cannot fill"),
        (33, 4, 8, 2, "equal chunks"),
    ],
)
def test_schedule_rules(layers: int, pp: int, micro_batches: int, v: int, problem: str | None) -> None:
    said = schedule_problem(layers, pp, micro_batches, v)
    assert (said is None) if problem is None else (said is not None and problem in said)
