"""Tables that teach little or nothing: a clear message or a stated fallback, never a confident number."""

from __future__ import annotations

from pathlib import Path

import pytest

from memx_engine.errors import InputError
from memx_engine.evaluate.accuracy import AccuracyOptions
from memx_engine.evaluate.command import evaluate
from tests.evaluate.test_accuracy import ONE_SEED, made_runs, write


def test_no_measurements(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("layers,hidden,heads,seq_len,gpu_type,num_gpus,tp,pp,mbs,gbs,iter_time_s\n")
    with pytest.raises(InputError, match="no row of the test tables can be judged"):
        evaluate([str(path)], options=ONE_SEED)


def test_learning_from_nothing_is_first_principles_without_an_interval(tmp_path: Path) -> None:
    runs = made_runs(3)
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(runs[0]) + "\n")
    plain, direct, ours = evaluate(
        train=[str(empty)], test=[str(write(tmp_path / "t.csv", runs))], options=ONE_SEED
    ).rows
    assert ours["time_mape_pct"] == plain["time_mape_pct"] and ours["coverage_95_pct"] is None
    assert direct["n_time"] == 0 and direct["time_mape_pct"] is None


def test_three_measurements_give_a_wide_interval(tmp_path: Path) -> None:
    plain, _, ours = evaluate([str(write(tmp_path / "three.csv", made_runs(3)))], options=ONE_SEED).rows
    assert ours["n"] == 3 and ours["time_mape_pct"] < plain["time_mape_pct"]
    # Two runs are learned from at a time: what they leave of each other, and half of that more.
    assert ours["interval_width_pct"] > 5


def test_one_measurement_cannot_be_judged_on_itself(tmp_path: Path) -> None:
    rows = evaluate([str(write(tmp_path / "one.csv", made_runs(1)))], options=ONE_SEED).rows
    assert rows[2]["time_mape_pct"] == rows[0]["time_mape_pct"] and rows[2]["coverage_95_pct"] is None


def test_another_gpu_type_than_the_learned_one_is_extrapolated(tmp_path: Path) -> None:
    known = write(tmp_path / "a100.csv", made_runs(14))
    asked = write(tmp_path / "h100.csv", [{**run, "gpu_type": "h100-sxm-80g"} for run in made_runs(6)])
    same = write(tmp_path / "same.csv", [{**run, "layers": 20} for run in made_runs(6)])
    far = evaluate(train=[str(known)], test=[str(asked)], options=ONE_SEED).rows[2]
    near = evaluate(train=[str(known)], test=[str(same)], options=ONE_SEED).rows[2]
    assert far["interval_width_pct"] > near["interval_width_pct"]


def test_a_constant_target(tmp_path: Path) -> None:
    runs = [{**run, "iter_time_s": 2.0} for run in made_runs(12)]
    ours = evaluate([str(write(tmp_path / "flat.csv", runs))], options=ONE_SEED).rows[2]
    assert ours["n_time"] == 12 and ours["spearman_time"] is None and ours["time_mape_pct"] < 100


@pytest.mark.parametrize("cell", ["inf", "-1", "0", "1e-9", "fast"])
def test_times_that_cannot_be_are_skipped_by_name(tmp_path: Path, cell: str) -> None:
    runs = made_runs(4)
    runs[1]["iter_time_s"] = cell
    document = evaluate([str(write(tmp_path / "odd.csv", runs))], options=ONE_SEED).document
    assert [item["row"] for item in document["skipped"]] == ["odd.csv:3"]
    assert "iter_time_s" in document["skipped"][0]["reason"]
    assert document["rows"][0]["n"] == 3


def test_a_time_that_is_no_number_leaves_the_memory(tmp_path: Path) -> None:
    runs = made_runs(4)
    runs[1]["iter_time_s"] = "nan"
    row = evaluate([str(write(tmp_path / "nan.csv", runs))], options=ONE_SEED).rows[0]
    assert (row["n"], row["n_time"], row["n_memory"]) == (4, 3, 4)


def test_contradictory_repeats_widen_the_interval(tmp_path: Path) -> None:
    runs = made_runs(12)
    torn = [{**run, "iter_time_s": factor * float(str(run["iter_time_s"]))} for run in runs for factor in (0.6, 1.6)]
    options = AccuracyOptions(folds=4, seeds=(0,))
    calm = evaluate([str(write(tmp_path / "calm.csv", runs))], options=options).rows[2]
    wide = evaluate([str(write(tmp_path / "torn.csv", torn))], options=options).rows[2]
    assert wide["n"] == 24
    assert wide["interval_width_pct"] > 50 and wide["interval_width_pct"] > calm["interval_width_pct"]
