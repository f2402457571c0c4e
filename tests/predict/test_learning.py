"""Training as a piece of work: tuned, fitted, kept, and judged on what was held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import InputError
from memx_engine.inputs.cluster_file import load_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.predict.calibrated import Calibrated
from memx_engine.predict.learning import learn, learned_document
from memx_engine.predict.stage_model import STAGE_SETTINGS
from memx_engine.predict.tuned_settings import FILE, kept_settings, load_settings, save_settings
from memx_engine.predict.tuning import Trial, Tuned
from memx_engine.profile.loop import ProfileOptions, run_profile
from memx_engine.profile.runners.testbed import TestbedRunner
from memx_engine.profile.store import MemoryStore

CLUSTER = load_cluster("paper-small")
MODEL = replace(load_model("llama2-7b"), layers=6, hidden=1024, ffn=2816, heads=16, kv_heads=16)
JOB = resolve_job(CLUSTER, MODEL, seq_len=1024)
OTHER = replace(STAGE_SETTINGS, depth=3, rounds=60)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    found = MemoryStore()
    run_profile(CLUSTER, MODEL, JOB, TestbedRunner(seed=3), found, options=ProfileOptions(types=("v100-sxm2-32g",)))
    return found


def test_learning_says_how_good_it_is_and_keeps_what_it_learned(store: MemoryStore, tmp_path: Path) -> None:
    first = learn(CLUSTER, MODEL, JOB, store, keep=tmp_path)
    (only,) = first.types
    assert only.gpu_type == "v100-sxm2-32g" and only.points > 100 and only.provenance == "simulated"
    # Held-out points of this testbed are met within a few percent; an error of nothing would be no held-out one.
    assert only.time_error_pct is not None and 0.01 < only.time_error_pct < 6
    assert only.memory_error_pct is not None and 0.01 < only.memory_error_pct < 6
    assert only.time_width_pct is not None and only.time_width_pct > only.time_error_pct
    assert sum(first.importances.values()) == pytest.approx(1.0) and first.grew > 1.0
    assert {t.parameter for t in first.trends} >= {"layers", "micro_batch", "seq_len"}
    gains = first.estimator.dimension_gains
    assert set(gains) == {"tp", "micro_batch", "types"} and 0.0 < sum(gains.values()) <= 1.0
    assert first.tuned is None and not first.reused
    again = learn(CLUSTER, MODEL, JOB, store, keep=tmp_path)
    assert again.reused and again.estimator.fingerprint == first.estimator.fingerprint
    document = json.loads(json.dumps(learned_document(again), allow_nan=False))
    assert document["types"][0]["time_error_pct"] == only.time_error_pct


def test_tuned_settings_are_used_by_every_later_training(store: MemoryStore, tmp_path: Path) -> None:
    plain = Calibrated.of_store(CLUSTER, MODEL, JOB, store, keep=tmp_path).fingerprint
    save_settings(Tuned(OTHER, (Trial(STAGE_SETTINGS, 0.2), Trial(OTHER, 0.1)), "trials"), tmp_path)
    made = Calibrated.of_store(CLUSTER, MODEL, JOB, store, keep=tmp_path)
    assert made.fingerprint != plain and made.note == ""
    assert learn(CLUSTER, MODEL, JOB, store, keep=tmp_path).settings == OTHER


def test_tuning_reports_and_can_be_stopped(store: MemoryStore, tmp_path: Path) -> None:
    seen: list[int] = []
    made = learn(
        CLUSTER,
        MODEL,
        JOB,
        store,
        keep=tmp_path,
        trials=9,
        on_progress=lambda done, _total, _best: seen.append(done),
        should_stop=lambda: len(seen) >= 2,
    )
    assert made.tuned is not None and made.tuned.ended == "cancelled" and seen == [1, 2]
    assert (tmp_path / FILE).exists()
    assert learned_document(made)["tuning"]["trials"] == 2


def test_too_little_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too little to learn from: 0 points") as caught:
        learn(CLUSTER, MODEL, JOB, MemoryStore(), keep=tmp_path)
    assert "memx-tui profile" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"schema": "memx/tree-settings/v9"}', "no settings of this release"),
        ('{"schema": "memx/tree-settings/v1", "settings": {"depth": 99}}', "depth is 99, not within 2 to 8"),
        ('{"schema": "memx/tree-settings/v1", "settings": {"depth": true}}', "depth is True"),
        ('{"schema": "memx/tree-settings/v1", "settings": []}', "depth is None"),
    ],
)
def test_a_bad_settings_file_is_told_and_passed_over(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load_settings(tmp_path / FILE)
    settings, note = kept_settings(tmp_path)
    assert settings == STAGE_SETTINGS and "the default settings are used" in note


def test_settings_come_back_as_they_were_kept(tmp_path: Path) -> None:
    save_settings(Tuned(OTHER, (Trial(OTHER, 0.1),), "trials"), tmp_path / "new")
    assert kept_settings(tmp_path / "new") == (OTHER, "")
    assert kept_settings(tmp_path / "none") == (STAGE_SETTINGS, "")
