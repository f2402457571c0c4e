"""The form of where to profile: what is typed becomes settings, or is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from memx_engine import InputError
from memx_tui.profile_form import FORM, changed, form_fields, settings_of, settings_words, shown, stepped
from memx_tui.profile_state import ProfileSettings
from memx_tui.runners import RUNNERS, RunnerSettings
from memx_tui.screens.runner import RunnerDialog
from memx_tui.session import Session
from tests.tui.harness import make_app, screen_text

SLURM = ProfileSettings(RunnerSettings("slurm"))


@pytest.mark.parametrize("runner", RUNNERS)
def test_each_runner_shows_its_own_fields_and_no_other(runner: str) -> None:
    keys = [field.key for field in form_fields(ProfileSettings(RunnerSettings(runner)), Path("/w"))]
    assert keys[:3] == ["name", "folder", "types"]
    for key, spec in FORM.items():
        assert (key in keys) == (not spec.runners or runner in spec.runners), key
    assert len(keys) <= 13, "the dialog must fit 24 rows"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("partition", "gpu [a]", "gpu [a]"),
        ("gres_names", "mi300x=amd, a100=a100-80", {"mi300x": "amd", "a100": "a100-80"}),
        ("gres_names", "'big gpu=a, b',x='$(c)#;'", {"big gpu": "a, b", "x": "$(c)#;"}),
        ("ssh_hosts", "h100=root@[::1]", {"h100": "root@[::1]"}),
        ("slurm_arguments", "--qos='very high' --x", ("--qos=very high", "--x")),
        ("repetitions", "9", 9),
    ],
)
def test_what_is_typed_is_kept_and_shown_again(key: str, text: str, value: object) -> None:
    settings = changed(SLURM, key, text)
    assert getattr(settings.runner, key) == value
    assert getattr(changed(settings, key, shown(settings, key)).runner, key) == value
    assert changed(settings, key, "") == SLURM


def test_settings_beside_the_runner() -> None:
    settings = changed(changed(SLURM, "types", "h100, a100,h100"), "point_timeout_s", "12.5")
    assert (settings.types, settings.point_timeout_s) == (("h100", "a100"), 12.5)
    assert changed(settings, "folder", "~/w").folder == Path.home() / "w"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("name", "pbs"),
        ("seed", "-1"),
        ("seed", "1e3"),
        ("pace", "nan"),
        ("pace", "-0.5"),
        ("point_timeout_s", "0"),
        ("gres_names", "mi300x"),
        ("gres_names", "=x"),
        ("slurm_arguments", "'open"),
        ("command", "run {nonsense}"),
        ("repetitions", "0"),
    ],
)
def test_what_cannot_be_used_is_refused(key: str, text: str) -> None:
    with pytest.raises(InputError):
        changed(SLURM, key, text)


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_setting_survives_a_round_trip_through_words(runner: str) -> None:
    settings = ProfileSettings(
        RunnerSettings(
            runner, seed=7, pace=0.25, repetitions=3, python="/opt/my torch/bin/python", device="cpu", threads=2,
            partition="gpu [a]", account="x;y", time_limit="00:10:00", slurm_arguments=("--qos=very high", "--x"),
            gres_names={"mi300x": "amd,1"}, ssh_hosts={"h100": "a b", "t4": "c"}, ssh_arguments=("-p", "22"),
            command="./run.sh {node} '{tp}' \"x y\"",
        ),
        Path("/tmp/w x"), ("h100", "t4"), 12.5, 4,
    )  # fmt: skip
    words = settings_words(settings)
    assert settings_of(words) == (settings, [])
    assert all(isinstance(word, str) for word in words.values())
    assert settings_words(ProfileSettings()) == {} and settings_of({}) == (ProfileSettings(), [])


def test_the_testbeds_hard_form_survives_too_and_is_not_forced_on_others() -> None:
    hard = ProfileSettings(RunnerSettings("testbed:hard"))
    assert settings_of(settings_words(hard)) == (hard, [])
    assert changed(SLURM, "world", "hard") == SLURM


def test_a_remembered_word_that_cannot_be_used_any_more_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("")
    settings, problems = settings_of({"name": "slurm", "partition": "gpu", "folder": str(file), "retries": "many"})
    assert settings == ProfileSettings(RunnerSettings("slurm", partition="gpu"))
    assert [problem.message.partition(":")[0] for problem in problems] == ["workspace", "retries"]


def test_a_file_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="this is a file"):
        changed(SLURM, "folder", str(tmp_path / "f"))


def test_stepping_turns_words_and_counts_numbers() -> None:
    settings = ProfileSettings()
    assert (
        stepped(settings, "name", 1).runner.kind == "local" and stepped(settings, "name", -1).runner.kind == "command"
    )
    assert stepped(settings, "world", 1).runner.name == "testbed:hard"
    assert stepped(settings, "seed", 1).runner.seed == 1 and stepped(settings, "seed", -1) == settings
    assert stepped(settings, "folder", 1) == settings


def test_the_testbed_is_called_simulated_and_the_others_measured() -> None:
    assert ProfileSettings().where_words() == "simulated by testbed:0"
    assert ProfileSettings(RunnerSettings("testbed:hard:7")).where_words() == "simulated by testbed:hard:7"
    assert ProfileSettings(RunnerSettings("local", device="cpu")).where_words() == "measured by local on CPUs"


async def test_the_dialog_edits_uses_and_leaves(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="profile"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await pilot.pause(0.1)
        assert isinstance(app.screen, RunnerDialog) and "simulated: no device is touched" in screen_text(app)
        await pilot.press("plus", "plus")
        await pilot.pause(0.1)
        assert "partition" in screen_text(app)
        await pilot.press("escape")
        assert app.session.profile.settings == ProfileSettings()
        await pilot.press("o", "plus", "plus", "down", "down", "down", "enter", *"g[pu", "enter", "s")
        await pilot.pause(0.1)
        assert app.session.profile.settings == ProfileSettings(RunnerSettings("slurm", partition="g[pu"))
        assert "measured by slurm" in screen_text(app)
