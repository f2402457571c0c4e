from __future__ import annotations

import json
from pathlib import Path

import pytest

from memx_engine import load_cluster, load_model
from memx_tui.app import MemxApp
from memx_tui.config import load_config
from memx_tui.profile_state import ProfileSettings
from memx_tui.remembering import WRITE_AFTER_S, capture, restore, weights_text
from memx_tui.runners import RunnerSettings
from memx_tui.session import Session
from memx_tui.session_file import SessionState, load_session, save_session
from tests.builders import make_result
from tests.tui.harness import make_app, make_paths, make_session, screen_text


def again(root: Path, *, fresh: bool = False) -> tuple[MemxApp, list[str]]:
    """The app as the next start builds it, and what it complains of."""
    paths = make_paths(root)
    state, problem = load_session(paths.session_file, fresh=fresh)
    session = Session()
    problems = [problem] if problem else []
    problems += restore(session, state)
    app = MemxApp(session, theme=state.theme, paths=paths, problems=problems, remember=True)
    return app, [str(p) for p in problems]


async def test_check_29_cluster_view_marks_screen_and_theme_come_back(tmp_path: Path) -> None:
    result = make_result(12)
    session = make_session(result, marks={"A": 0, "B": 3})
    session.cluster, session.cluster_source = load_cluster("a800x8"), "a800x8"
    session.model, session.model_source = load_model("llama3-8b"), "llama3-8b"
    session.view.sort, session.view.descending, session.view.filter_text = "time", True, "tp<=4"
    session.job_overrides = {"global_batch": 256, "tp_sizes": (1, 2)}
    app = make_app(tmp_path, session, remember=True)
    keys = session.marked_keys()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.choose_theme("memx-light")
        app.open_mode("compare")
        await pilot.pause(WRITE_AFTER_S + 0.5)
        assert json.loads(app.paths.session_file.read_text())["theme"] == "memx-light"
    app, problems = again(tmp_path)
    assert problems == []
    back = app.session
    assert back.cluster_source == "a800x8" and back.cluster == load_cluster("a800x8")
    assert back.model is not None and back.model.name == load_model("llama3-8b").name
    assert (back.view.sort, back.view.descending, back.view.filter_text) == ("time", True, "tp<=4")
    assert back.pending_marks == dict(keys) and back.mode == "compare" and app.theme == "memx-light"
    assert back.job_overrides == {"global_batch": 256, "tp_sizes": (1, 2)}


def test_check_29_fresh_starts_from_nothing(tmp_path: Path) -> None:
    save_session(make_paths(tmp_path).session_file, SessionState(cluster="a800x8", theme="memx-light", sort="time"))
    app, _ = again(tmp_path, fresh=True)
    assert app.session.cluster is None and app.session.view.sort == "rank" and app.theme != "memx-light"


async def test_the_runner_of_profiling_and_its_settings_come_back(tmp_path: Path) -> None:
    session = Session(cluster=load_cluster("a800x8"), cluster_source="a800x8", mode="profile")
    app = make_app(tmp_path, session, remember=True)
    wanted = ProfileSettings(
        RunnerSettings("slurm", partition="gpu", python="/opt/torch/bin/python", gres_names={"a800": "a100"}),
        tmp_path / "runs",
        ("a800",),
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.set_profile_settings(wanted)
        await pilot.pause(WRITE_AFTER_S + 0.5)
        assert json.loads(app.paths.session_file.read_text())["profile"]["partition"] == "gpu"
    app, problems = again(tmp_path)
    assert problems == [] and app.session.profile.settings == wanted


def test_workspace_and_types_belong_to_their_cluster_and_flags_win() -> None:
    state = SessionState(
        cluster="a800x8", profile={"name": "slurm", "partition": "gpu", "folder": "/w", "types": "a800", "seed": "3"}
    )
    other = Session(cluster=load_cluster("paper-20gpu"), cluster_source="paper-20gpu")
    assert restore(other, state) == []
    assert other.profile.settings == ProfileSettings(RunnerSettings("slurm", partition="gpu", seed=3))
    same = Session()
    same.profile.settings = ProfileSettings(RunnerSettings(seed=5), Path("/flag"))
    assert restore(same, state) == []
    assert same.profile.settings == ProfileSettings(
        RunnerSettings("slurm", partition="gpu", seed=5), Path("/flag"), ("a800",)
    )


def test_what_is_gone_is_said_and_the_rest_comes_back(tmp_path: Path) -> None:
    state = SessionState(cluster=str(tmp_path / "gone.yaml"), model="llama3-8b", weights="0.5,0.5,x", sort="nonsense")
    session = Session()
    problems = restore(session, state)
    assert len(problems) == 2 and "gone.yaml" in str(problems[0])
    assert session.cluster is None and session.model is not None and session.view.sort == "rank"


@pytest.mark.parametrize("text", ["auto", "heterogeneous", "safety", "throughput", "0.5,0.3,0.2", "1,0,0"])
def test_weights_survive_a_round_trip(text: str) -> None:
    session = Session()
    assert restore(session, SessionState(weights=text)) == []
    assert weights_text(session.options.weights if session.options else None) == text
    assert capture(session, None).weights == text


async def test_check_25_corrupt_files_start_the_app_with_one_message_each(tmp_path: Path) -> None:
    paths = make_paths(tmp_path)
    for file, content in (
        (paths.config_file, "keymap: ["),
        (paths.session_file, '{"version": 1,'),
        (paths.themes / "mine.yaml", "name: mine\ncolours: {}\n"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    config, config_problems = load_config(paths.config_file)
    state, problem = load_session(paths.session_file)
    assert problem is not None
    app = MemxApp(Session(), paths=paths, config=config, problems=[*config_problems, problem], theme=state.theme)
    async with app.run_test(size=(160, 50), notifications=True) as pilot:
        await pilot.pause(0.3)
        notes = [note.message for note in app._notifications]
        assert len(notes) == 3
        for file, line in ((paths.config_file, 1), (paths.session_file, 1), (paths.themes / "mine.yaml", 2)):
            assert sum(f"{file}:{line}" in note for note in notes) == 1, (file, notes)
        assert "no cluster yet" in screen_text(app)
    assert paths.config_file.read_text() == "keymap: ["
    assert (paths.session_file.parent / "session.json.bad").is_file()
    assert (paths.themes / "mine.yaml").is_file()


async def test_a_session_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    app = make_app(tmp_path, Session(), remember=True)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        for sort in ("time", "phi"):
            app.session.view.sort = sort
            app.publish("view")
            await pilot.pause(WRITE_AFTER_S + 0.3)
        assert len([n for n in app._notifications if "not saved" in n.message]) == 1


async def test_a_cluster_that_was_never_saved_comes_back_unsaved_after_a_kill(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="cluster"), remember=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n", "plus")
        await pilot.pause(WRITE_AFTER_S + 0.5)
        # No leave(): a killed process writes nothing more.
        built = app.session.cluster
        assert built is not None and len(built.gpus) == 9
        written = json.loads(app.paths.session_file.read_text())
        assert "count: 9" in written["draft"] and written["draft_source"] == ""
    app, problems = again(tmp_path)
    assert problems == [] and app.session.cluster == built
    assert app.session.unsaved and app.workspace_folder().name == "my-cluster"
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "cluster new *" in screen_text(app)
        await pilot.press("q")
        await pilot.pause()
        assert "come back at the next start" in " ".join(screen_text(app).replace("│", " ").split())


async def test_unsaved_changes_of_a_file_come_back_on_that_file(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    text = "schema: memx/cluster/v1\nname: lab\nnodes:\n  - {name: n0, gpus: [{type: a100-sxm-80g, count: 4}]}\n"
    file.write_text(text)
    changed = text.replace("count: 4", "count: 8")
    state = SessionState(cluster=str(file), draft=changed, draft_source=str(file), screen="cluster")
    save_session(make_paths(tmp_path).session_file, state)
    app, problems = again(tmp_path)
    assert problems == [] and app.session.cluster is not None and len(app.session.cluster.gpus) == 8
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "lab.yaml *" in screen_text(app)
        await pilot.press("u")
        await pilot.pause()
        assert app.session.draft == "" and app.session.unsaved == "" and len(app.session.cluster.gpus) == 4
    assert file.read_text() == text


def test_a_flag_wins_over_an_unsaved_cluster_which_is_kept() -> None:
    state = SessionState(draft="name: lost", draft_source="")
    session = Session(cluster=load_cluster("a800x8"), cluster_source="a800x8")
    assert restore(session, state) == []
    assert session.draft == "" and session.cluster == load_cluster("a800x8")
    assert capture(session, None).draft == "name: lost"
