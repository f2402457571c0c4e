"""Predictors that are trained once, kept as checked files, and planned with; and what bad measurements lead to."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memx_engine.errors import InputError
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job import Optimizer
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.measurement import Measurement, Outcome
from memx_engine.plan import Provenance, Verdict
from memx_engine.predict.calibrated import LEAST_TO_LEARN, Calibrated
from memx_engine.predict.iteration_features import reference_plan
from memx_engine.predict.predicted import Predicted
from memx_engine.predict.predictor_file import load_predictor, parse_predictor, predictor_text
from memx_engine.predict.soundness import sound
from memx_engine.predict.stage_model import StageModel, fit_stages
from memx_engine.predict.trained import KEPT, trained_stages, training_fingerprint
from memx_engine.profile.loop import run_profile
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore
from memx_engine.search.space import enumerate_space

CLUSTER = load_cluster("a800x8")
MODEL = load_model("llama3-8b")
JOB = resolve_job(CLUSTER, MODEL)
INPUTS = (CLUSTER, MODEL, JOB)
SKELETONS = list(enumerate_space(*INPUTS).skeletons())
TYPE = CLUSTER.gpu_types[0].name


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    store = MemoryStore()
    run_profile(*INPUTS, TestbedRunner(seed=3), store)
    return [m for m in store.measurements() if m.outcome is Outcome.OK]


@pytest.fixture(scope="module")
def stages(measured: list[Measurement]) -> StageModel:
    made = fit_stages(*INPUTS, measured)
    assert made is not None
    return made


def times(stages: StageModel) -> list[float]:
    estimator = Predicted(*INPUTS, stages)
    plans = [reference_plan(s, MODEL.layers) for s in SKELETONS[::9]]
    return [estimator.estimate(plan).iteration_time_s for plan in plans if min(plan.layers) > 0]


def test_a_file_gives_the_same_predictor(stages: StageModel, tmp_path: Path) -> None:
    text = predictor_text(stages, "abc")
    again, trained_from = parse_predictor(text)
    assert trained_from == "abc" and again.digest == stages.digest
    assert times(again) == times(stages)
    assert predictor_text(again, "abc") == text


def test_what_is_no_sound_file_is_refused_with_words(stages: StageModel, tmp_path: Path) -> None:
    text = predictor_text(stages, "abc")
    document = json.loads(text)
    bad: dict[str, str] = {
        "cut short": text[: len(text) // 2],
        "no predictor file": "[1, 2]",
        "newer release": json.dumps({**document, "schema": "memx/predictor/v2", "version": 2}),
        "checksum": json.dumps({**document, "predictor": {**document["predictor"], "between": 0.1}}),
    }
    for words, content in bad.items():
        path = tmp_path / "predictor.json"
        path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load_predictor(path)
        assert caught.value.where == str(path) and caught.value.hint
    with pytest.raises(InputError, match="cannot be read"):
        load_predictor(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\x80\x04pickle\xff")
    with pytest.raises(InputError, match="cannot be read"):
        load_predictor(tmp_path / "binary.json")


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["tp"]},
        {"booster": {"trees": "AAAA", "centre": [0, 0], "known": [True, True]}},
        {"booster": {"trees": "!", "centre": [0, 0], "known": [True, True]}},
        {"factors": [math.inf, 0]},
        {"times": {"x": {"layers": "fast"}}},
        {"widths": []},
    ],
)
def test_a_right_checksum_does_not_make_wrong_contents_right(stages: StageModel, change: dict[str, Any]) -> None:
    from memx_engine.predict.predictor_file import _checksum

    document = json.loads(predictor_text(stages, "abc"))
    document["predictor"] |= change
    document["checksum"] = _checksum("abc", document["predictor"])
    with pytest.raises(InputError):
        parse_predictor(json.dumps(document))


def test_trained_once_and_again_only_when_measurements_change(
    measured: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "predictors"
    some = measured[:60]
    first = trained_stages(*INPUTS, some, folder)
    again = trained_stages(*INPUTS, some, folder)
    assert first.stages is not None and again.stages is not None
    assert not first.reused and again.reused and again.stages.digest == first.stages.digest
    slower = replace(some[0], forward_s=2 * (some[0].forward_s or 0))
    own = training_fingerprint(CLUSTER, JOB, some)
    assert training_fingerprint(CLUSTER, JOB, [slower, *some[1:]]) != own
    assert training_fingerprint(CLUSTER, replace(JOB, optimizer=Optimizer.REPLICATED), some) != own
    assert training_fingerprint(load_cluster("paper-20gpu"), JOB, some) != own
    # Another batch or another model needs no other predictor.
    assert training_fingerprint(CLUSTER, replace(JOB, global_batch=2 * JOB.global_batch), some) == own
    other = load_model("llama2-7b")
    assert trained_stages(CLUSTER, other, resolve_job(CLUSTER, other), some, folder).reused
    # A damaged file is told and replaced.
    path = next(folder.glob("*.json"))
    path.write_text(path.read_text()[:1000])
    third = trained_stages(*INPUTS, some, folder)
    assert not third.reused and "cut short" in third.note and third.stages is not None
    assert trained_stages(*INPUTS, some, folder).reused
    # Old ones go, and a folder that cannot be written is told.
    monkeypatch.setattr("memx_engine.predict.trained.fit_stages", lambda *_, **__: first.stages)
    (folder / "notes.json").write_text("{}")
    os.utime(folder / "notes.json", (0, 0))
    for count in range(40, 40 + KEPT + 2):
        trained_stages(*INPUTS, measured[:count], folder)
    assert len(list(folder.glob("*.json"))) == KEPT + 1 and (folder / "notes.json").exists()
    (tmp_path / "file").write_text("")
    assert "not kept" in trained_stages(*INPUTS, some, tmp_path / "file" / "predictors").note
    assert os.path.getsize(tmp_path / "file") == 0


def test_enough_points_are_learned_from_with_intervals_and_probabilities(measured: list[Measurement]) -> None:
    estimator = Calibrated.fit(*INPUTS, measured)
    assert estimator.provenance is Provenance.SIMULATED and estimator.importances
    plan = next(p for s in SKELETONS if min((p := reference_plan(s, MODEL.layers)).layers) > 0 and s.micro_batch == 1)
    made = estimator.estimate(plan)
    assert made.interval_s is not None and made.half_width is not None
    assert made.interval_s[0] < made.iteration_time_s < made.interval_s[1]
    assert made.certainty.startswith("simulated ±") and made.oom_risk is not None
    assert any("predictor learned from" in words for words in estimator.assumed)
    assert not any("median" in words for words in estimator.assumed)


def test_a_second_run_asks_the_trees_nothing(measured: list[Measurement], tmp_path: Path) -> None:
    folder = tmp_path / "predictors"
    made = []
    for _ in range(2):
        estimator = Calibrated.fit(*INPUTS, measured[::4], keep=folder)
        tables = [estimator.stage_table(s) for s in SKELETONS[:30]]
        estimator.remember()
        made.append((estimator.misses, [float(np.nanmin(table.time_s)) for table in tables]))
    (first, before), (second, after) = made
    assert first > 0 and second == 0 and before == after
    # Another model shape is another signature.
    longer = replace(MODEL, ffn=MODEL.ffn + 128)
    other = Calibrated.fit(*INPUTS, measured[::4], keep=folder).derive(CLUSTER, longer, JOB)
    other.stage_table(SKELETONS[0])
    assert other.misses > 0
    # What is damaged is predicted again.
    next(folder.glob("*.npz")).write_bytes(b"PK")
    assert Calibrated.fit(*INPUTS, measured[::4], keep=folder).stage_table(SKELETONS[0]).stages


def test_outside_the_measured_range_plans_are_marked_and_intervals_wider(measured: list[Measurement]) -> None:
    few = [m for m in measured if m.point.micro_batch <= 2][::2]
    estimator = Calibrated.fit(*INPUTS, few)
    widths = {}
    for s in SKELETONS:
        plan = reference_plan(s, MODEL.layers)
        if (s.tp, s.pp, s.dp, s.virtual_stages) == (2, 2, 2, 1):
            made = estimator.estimate(plan)
            assert made.half_width is not None
            widths[s.micro_batch] = made.half_width
            assert ("micro_batch" in made.extrapolated) == (s.micro_batch > 2)
            assert ("extrapolated in micro batch" in made.basis) == (s.micro_batch > 2)
    assert widths[2] < widths[4] < widths[8] < widths[32]


def test_a_plan_fits_only_when_every_gpu_is_sure_enough(stages: StageModel) -> None:
    estimator = Predicted(*INPUTS, stages)
    seen = set()
    for s in SKELETONS:
        plan = reference_plan(s, MODEL.layers)
        if min(plan.layers) < 1:
            continue
        made = estimator.estimate(plan)
        over = any(gpu.peak_bytes > gpu.capacity_bytes for gpu in made.gpus)
        risky = (made.oom_risk or 0.0) > 0.05
        expected = Verdict.DOES_NOT_FIT if over else Verdict.TIGHT if risky else Verdict.FITS
        assert made.verdict is expected
        seen.add(expected)
    assert seen >= {Verdict.DOES_NOT_FIT, Verdict.FITS}


@pytest.mark.parametrize("count", [1, 3, LEAST_TO_LEARN - 1])
def test_few_points_give_a_factor_and_no_interval(measured: list[Measurement], count: int) -> None:
    estimator = Calibrated.fit(*INPUTS, measured[:count])
    made = estimator.estimate(reference_plan(SKELETONS[0], MODEL.layers))
    assert made.interval_s is None and made.oom_risk is None and made.certainty == "simulated"
    assert any(f"fewer than {LEAST_TO_LEARN} points" in words for words in estimator.assumed)


def test_numbers_that_are_none_are_left_out_and_told(measured: list[Measurement]) -> None:
    bad = [replace(measured[0], forward_s=math.nan), replace(measured[1], backward_s=math.inf)]
    kept, said = sound([*measured, *bad, replace(measured[2], forward_s=-1.0, backward_s=0.5)])
    assert kept == measured and len(said) == 1 and said[0].startswith("3 measurements")
    estimator = Calibrated.fit(*INPUTS, [*measured[:40], *bad], learn=False)
    assert any("no positive number" in words for words in estimator.assumed)
    assert np.isfinite(estimator.estimate(reference_plan(SKELETONS[0], MODEL.layers)).iteration_time_s)


def test_the_same_time_at_all_sizes_is_not_believed(measured: list[Measurement]) -> None:
    constant = [replace(m, forward_s=0.1, backward_s=0.2) for m in measured]
    estimator = Calibrated.fit(*INPUTS, constant)
    assert estimator.provenance is Provenance.UNCALIBRATED and not estimator.calibrated
    assert any("took the same time" in words for words in estimator.assumed)
    flat = [replace(m, peak_reserved_bytes=1 << 33, peak_allocated_bytes=1 << 33) for m in measured[::3]]
    estimator = Calibrated.fit(*INPUTS, flat)
    made = estimator.estimate(reference_plan(SKELETONS[0], MODEL.layers))
    assert made.interval_s is not None and made.oom_risk is None
    assert any("reserved the same" in words for words in estimator.assumed)


def test_contradicting_repeats_widen_the_interval_and_are_told(measured: list[Measurement]) -> None:
    some = measured[::3]
    repeats = [replace(m, forward_s=3 * (m.forward_s or 0), backward_s=3 * (m.backward_s or 0)) for m in some[::3]]
    plain, torn = Calibrated.fit(*INPUTS, some), Calibrated.fit(*INPUTS, [*some, *repeats])
    plan = next(p for s in SKELETONS if min((p := reference_plan(s, MODEL.layers)).layers) > 0)
    narrow, wide = plain.estimate(plan).half_width, torn.estimate(plan).half_width
    assert narrow is not None and wide is not None and wide > 2 * narrow
    assert any("measured again" in words for words in torn.assumed)
