from __future__ import annotations

from pathlib import Path

import pytest

from memx_tui.config import Config, load_config
from memx_tui.session_file import MAX_RECENT, SessionState, add_recent, load_session, save_session

STATE = SessionState(
    cluster="paper-20gpu",
    model="llama2-7b",
    recent=("paper-20gpu", "/a/[b]/c.yaml"),
    job_file="/a/job.yaml",
    job={"global_batch": 512, "precision": "fp16", "tp_sizes": (2, 4)},
    weights="auto",
    screen="plans",
    sort="tokens",
    descending=True,
    filter="tp<=4 pp>=2",
    fits_only=True,
    frontier_only=True,
    axes="time-spread",
    marks={"A": "tp4 pp2", "C": "tp2 pp4"},
    theme="memx-light",
)


def test_missing_config_is_the_default(tmp_path: Path) -> None:
    assert load_config(tmp_path / "config.yaml") == (Config(), ())


def test_config_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("theme: memx-light\nascii: yes\nmouse: off\nkeymap:\n  plans.mark: x\n")
    config, problems = load_config(file)
    assert problems == ()
    assert config == Config(theme="memx-light", ascii=True, mouse=False, keymap={"plans.mark": "x"})


def test_config_keeps_what_is_good_and_reports_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("them: x\nmouse: perhaps\ntheme: memx-light\nlog_level: inf\n")
    config, problems = load_config(file)
    assert config.theme == "memx-light" and config.mouse is True
    assert [p.where for p in problems] == [f"{file}:1: them", f"{file}:2: mouse", f"{file}:4: log_level"]
    assert "theme" in problems[0].hint and "info" in problems[2].hint


def test_unknown_binding_id_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("keymap:\n  plans.mrk: x\n  plans.mark: y\n")
    config, _ = load_config(file)
    (problem,) = config.keymap_problems(["plans.mark", "app.quit"])
    assert problem.where == f"{file}:2: keymap.plans.mrk"
    assert "plans.mark" in problem.hint


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", b"- a\n- b\n", b"", b"a: &x 1\n" * 40_000, b"[" * 50_000])
def test_check_25_corrupt_config_is_one_message_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    config, problems = load_config(file)
    assert config == Config()
    assert len(problems) == 1 and str(file) in problems[0].where
    assert file.read_bytes() == content


def test_check_29_session_round_trips(tmp_path: Path) -> None:
    file = tmp_path / "state" / "session.json"
    save_session(file, STATE)
    assert load_session(file) == (STATE, None)
    assert [p.name for p in file.parent.iterdir()] == ["session.json"]


def test_check_29_fresh_ignores_the_session_and_keeps_the_file(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    save_session(file, STATE)
    assert load_session(file, fresh=True) == (SessionState(), None)
    assert load_session(file)[0] == STATE


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"version": 1,\n "sort": ', ":2"),
        (b'{"version": 1,\n "cluster": 7}', ":2: cluster"),
        (b'{"version": 1, "marks": "abc"}', ":1: marks"),
        (b'{"version": 1, "job": {"a": [1, "x"]}}', ":1: job"),
        (b'{"version": 9}', ":1: version"),
        (b"[]", ":1: version"),
        (b"\xff\xfe\x00", ":1"),
        (b"[" * 200_000, ":1"),
    ],
)
def test_check_25_corrupt_session_is_set_aside_and_reported(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "session.json"
    file.write_bytes(content)
    state, problem = load_session(file)
    assert state == SessionState()
    assert problem is not None and problem.where.startswith(f"{file}{line}")
    assert not file.exists()
    assert (tmp_path / "session.json.bad").read_bytes() == content


def test_recent_clusters_are_few_and_newest_first() -> None:
    recent: tuple[str, ...] = ()
    for n in range(MAX_RECENT + 5):
        recent = add_recent(recent, f"c{n}")
    recent = add_recent(recent, "c12")
    assert recent[:3] == ("c12", "c14", "c13") and len(recent) == MAX_RECENT
