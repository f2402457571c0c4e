"""Splits that balance the stages' times, against the skeletons' own tables."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.search.bounds import as_1f1b, figures, weighted_variance
from memx_engine.search.sketch_bounds import balanced_splits
from tests.search.spaces import Ground


@pytest.mark.parametrize("kind", ["bytes", "utilization"])
@pytest.mark.parametrize(
    ("cluster", "model", "step"), [("paper-20gpu", "llama2-7b", 7), ("two-sites", "llama2-13b", 31)]
)
def test_a_balanced_split_is_a_plan_that_fits_and_measures_what_it_says(
    cluster: str, model: str, step: int, kind: str
) -> None:
    ground = Ground.of(cluster, model)
    fitting = ground.fitting(step, kind)
    sketches = [sketch for sketch in fitting.sketches if sketch is not None]
    made = balanced_splits(sketches, variance_kind=kind)
    faster = judged = 0
    schedules = set()
    for skeleton, split, even_s in zip(fitting.skeletons, made, fitting.even_time_s, strict=True):
        if split is None:
            continue
        given = ground.estimator.stage_table(skeleton)
        table, v, stage = as_1f1b(given), skeleton.virtual_stages, np.arange(skeleton.pp)
        assert sum(split.layers) == ground.model.layers and all(n >= v and n % v == 0 for n in split.layers)
        units = tuple(n // v for n in split.layers)
        options = tuple(given.options.index(option) for option in split.recompute)
        memory = table.memory_bytes[stage, units, options]
        assert (memory <= table.capacity_bytes).all()
        lightest = (table.memory_bytes[stage, units] <= table.capacity_bytes[:, None]).argmax(axis=1)
        assert options == tuple(lightest.tolist())
        expected = figures(table, units, options, kind)
        assert split.time_s == pytest.approx(expected.time_s, rel=1e-9)
        assert split.peak_bytes == pytest.approx(expected.peak_bytes, rel=1e-9)
        assert split.variance_bytes2 == pytest.approx(expected.variance_bytes2, rel=1e-6, abs=1e-9)
        assert split.spread_bytes2 == pytest.approx(weighted_variance(memory, table.gpus), rel=1e-6, abs=1.0)
        used = memory / table.whole_bytes
        assert split.worst_fraction == pytest.approx(used.max(), rel=1e-9)
        assert used[split.worst_stage] == pytest.approx(used.max(), rel=1e-9)
        judged += 1
        faster += bool(split.time_s < even_s)
        schedules.add(v)
    assert judged > 20
    assert schedules == {1, 2} or cluster == "two-sites"
    if cluster == "paper-20gpu":  # unequal GPUs of fast links
        assert faster > judged / 2
