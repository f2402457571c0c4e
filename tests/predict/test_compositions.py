from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.inputs.job import Job, Precision
from memx_engine.measurement import Truth
from memx_engine.plan import Provenance
from memx_engine.predict.calibrated import Calibrated
from memx_engine.predict.compositions import MOST_RUNS, find_runs, fit_compositions, layer_measurements
from memx_engine.profile.importers.layouts import row_layout
from memx_engine.profile.store import ImportedRow, MemoryStore
from memx_engine.search.bounds import compute_bounds
from memx_engine.search.sketch_bounds import sketched_bounds
from tests.cost.shapes import A100_40G, A800, LLAMA2_7B, plan, skeleton
from tests.predict.measured import CLUSTER, JOB, SMALL, measured, points
from tests.profile.tables import LAYER, ROW

OWN = {**ROW, "gpu_type": A800.name}


def stored(row: dict[str, Any], number: int = 0, source: str = "runs.csv") -> ImportedRow:
    kind = "layer" if "layer_kind" in row else "iteration"
    return ImportedRow(source, kind, row, f"{number:032x}")


def timed(times: float, **changes: Any) -> dict[str, Any]:
    """A row whose time is so many times what first principles says of it."""
    from memx_engine.cost.first_principles import FirstPrinciples

    row = {**OWN, **changes}
    made = row_layout(row, CLUSTER)
    seconds = FirstPrinciples(made.cluster, made.model, made.job).estimate(made.plan).iteration_time_s
    return {**row, "iter_time_s": times * seconds}


def fit(*rows: dict[str, Any], measurements: Any = ()) -> Calibrated:
    runs = find_runs(CLUSTER, JOB, [stored(row, n) for n, row in enumerate(rows)])
    return Calibrated.fit(CLUSTER, SMALL, JOB, measurements, runs)


def shape_of(tp: int, pp: int, dp: int) -> Any:
    return skeleton(CLUSTER, tp, pp, dp, micro_batch=1, seq_len=2048, global_batch=64)


def test_runs_give_one_factor_per_type() -> None:
    estimator = fit(timed(1.5), timed(1.5, tp=4, dp=1), timed(1.5, mbs=2))
    factor = estimator.compositions[A800.name].factor
    assert factor.points == 3 and factor.value == pytest.approx(1.5**0.75)
    assert estimator.estimate(plan(shape_of(2, 4, 1), [3] * 4)).provenance is Provenance.MEASURED
    assert estimator.provenance is Provenance.UNCALIBRATED
    said = " ".join(estimator.assumed)
    assert "iteration times corrected by 3 imported layouts of runs.csv (3): x1.36" in said
    assert f"{A800.name}: no single stage is measured" in said
    assert f"{A100_40G.name}: nothing is measured" in said


def test_repeats_of_a_layout_count_once() -> None:
    estimator = fit(timed(1.5), *(timed(1.5, ref=f"again {n}") for n in range(5)))
    assert estimator.compositions[A800.name].factor.points == 1


def test_tables_and_estimates_are_scaled_alike() -> None:
    estimator = fit(timed(2.0), timed(2.0, tp=4, dp=1))
    plain = Calibrated.fit(CLUSTER, SMALL, JOB, [])
    both = shape_of(4, 4, 1)
    # Half of the skeleton's GPUs are of the known type: the geometric mean of its factor and 1.
    expected = math.sqrt(2.0 ** (2 / 3))
    before, after = plain.stage_table(both), estimator.stage_table(both)
    for name in ("forward_s", "backward_s", "tail_s", "p2p_s"):
        finite = np.isfinite(getattr(before, name))
        assert getattr(after, name)[finite] == pytest.approx(expected * getattr(before, name)[finite])
    assert after.fixed_s == pytest.approx(expected * before.fixed_s)
    assert (after.memory_bytes == before.memory_bytes).all()
    made = plan(both, [3] * 4)
    a, b = plain.estimate(made), estimator.estimate(made)
    assert b.iteration_time_s == pytest.approx(expected * a.iteration_time_s)
    assert b.additive_time_s == pytest.approx(expected * a.additive_time_s)
    assert b.tokens_per_s == pytest.approx(a.tokens_per_s / expected)
    assert sum(b.time_breakdown_s.values()) == pytest.approx(b.iteration_time_s)
    assert b.lower_bound_s <= b.iteration_time_s
    assert b.peak_bytes == a.peak_bytes


def test_runs_are_held_against_what_the_corrected_stages_compose_to() -> None:
    # Stages are measured to be 1.5 times slower, and so are whole iterations: nothing is left to correct.
    slow = [measured(p, time=1.5) for p in points(model=LLAMA2_7B)]
    estimator = fit(timed(1.5), measurements=slow)
    stage = estimator.calibration.types[A800.name].factors["time"].value
    assert stage == pytest.approx(1.5 ** (12 / 13))
    assert estimator.compositions[A800.name].factor.value == pytest.approx(1.0, abs=0.05)


def test_real_runs_put_simulated_stages_aside() -> None:
    simulated = [measured(p, time=3.0, truth=Truth.TESTBED, name="testbed:0") for p in points()]
    estimator = fit(timed(1.2), measurements=simulated)
    assert not estimator.calibration.types
    assert estimator.compositions[A800.name].provenance is Provenance.MEASURED
    assert any("12 measurements of a800-sxm-80g from testbed:0 are left out" in line for line in estimator.assumed)


def test_simulated_runs_stay_simulated_and_yield_to_real_ones() -> None:
    simulated = timed(3.0, source="testbed:0")
    alone = fit(simulated)
    assert alone.compositions[A800.name].provenance is Provenance.SIMULATED
    both = fit(simulated, timed(1.5))
    assert both.compositions[A800.name].factor.value == pytest.approx(math.sqrt(1.5))
    assert both.compositions[A800.name].provenance is Provenance.MEASURED


def test_what_does_not_compare_is_left_out_and_counted() -> None:
    rows = [
        timed(1.5),
        {**OWN, "gpu_type": "b200"},
        {**OWN, "precision": "fp32"},
        {**OWN, "cp": 2, "ref": "2"},
        {k: v for k, v in OWN.items() if k != "iter_time_s"},
    ]
    estimator = fit(*rows)
    assert estimator.compositions[A800.name].factor.points == 1
    said = " ".join(estimator.assumed)
    assert "1 imported rows are left out: runs in fp32 while the job runs in bf16" in said
    assert "1 imported rows are left out: context parallelism is outside the cost model" in said


def test_a_large_table_is_sampled_alike_every_time() -> None:
    rows = [stored({**OWN, "ref": str(n)}, n * 7919 % 10007) for n in range(3 * MOST_RUNS)]
    first, second = find_runs(CLUSTER, JOB, rows), find_runs(CLUSTER, JOB, rows[::-1])
    assert len(first.used) == MOST_RUNS and first.matching == 3 * MOST_RUNS
    assert first.used == second.used
    assert any("a sample of 300" in line for line in first.left_out)


def test_mixed_runs_count_for_every_type() -> None:
    mixed = {"gpu_type": f"{A800.name}+{A100_40G.name}", "num_gpus": 16, "tp": 4, "dp": 1, "pp": 4, "model": "x",
             "layers": 12, "hidden": 4096, "heads": 32, "ffn": 11008}  # fmt: skip
    found = fit_compositions(find_runs(CLUSTER, JOB, [stored(timed(1.3, **mixed))]), FirstPrinciples)
    assert set(found) == {A800.name, A100_40G.name}
    assert [c.factor.value for c in found.values()] == pytest.approx([math.sqrt(1.3)] * 2)


def test_layer_tables_correct_the_time_of_stages() -> None:
    store = MemoryStore()
    own = {**LAYER, "gpu_type": A800.name}
    rows = [own, {**own, "tp": 2}, {**own, "layer_kind": "embedding", "vocab": 32000}, {**own, "gpu_type": "b200"}]
    rows += [{**own, "precision": "fp32"}, {k: v for k, v in own.items() if k != "seq_len"}]
    store.add_imported([stored(row, n, "layers.csv") for n, row in enumerate(rows)])
    assert len(layer_measurements(CLUSTER, store.imported("layer"))) == 4
    estimator = Calibrated.of_store(CLUSTER, SMALL, JOB, store)
    learned = estimator.calibration.types[A800.name]
    assert learned.truths == {"table layers.csv": 2} and learned.factors["time"].points == 2
    assert learned.provenance is Provenance.MEASURED
    assert learned.factors["activations"].points == 0
    single = Calibrated.of_store(CLUSTER, SMALL, Job(64, 2048, precision=Precision.FP32), store)
    assert single.calibration.types[A800.name].factors["time"].points == 1


def test_everything_in_a_store_counts() -> None:
    store = MemoryStore()
    for p in points():
        store.add(measured(p, time=1.2))
    store.add_imported([stored(timed(1.5))])
    estimator = Calibrated.of_store(CLUSTER, SMALL, JOB, store)
    assert estimator.calibration.types[A800.name].factors["time"].points == 12
    assert estimator.compositions[A800.name].factor.points == 1
    fingerprint = estimator.fingerprint
    store.add_imported([stored(timed(1.5, mbs=2), 1)])
    assert Calibrated.of_store(CLUSTER, SMALL, JOB, store).fingerprint != fingerprint


def test_rows_that_skeletons_share_are_scaled_as_the_tables_are() -> None:
    estimator = fit(timed(2.0), timed(2.0, tp=4, dp=1))
    for shape in (shape_of(2, 4, 1), shape_of(1, 2, 4)):
        sketch = estimator.sketch(shape)
        columns = sketched_bounds([sketch])
        made = columns.bounds(0, columns.even_of(0, sketch))
        expected = compute_bounds(estimator.stage_table(shape))
        assert made.time_s == pytest.approx(expected.time_s, rel=1e-9)
        assert made.even is not None and expected.even is not None
        assert made.even.time_s == pytest.approx(expected.even.time_s, rel=1e-9)
