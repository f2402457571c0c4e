"""Hints of the engine in the dashboard name the dashboard's fields, not the command line's flags."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from memx_engine import ProfileError
from memx_tui.commands.plan import command as plan
from memx_tui.commands.profile import command as profile
from memx_tui.field_words import JOB_FIELDS, PROFILE_FIELDS, in_fields
from memx_tui.job_form import SPECS
from memx_tui.profile_form import FORM
from tests.tui.harness import make_app, screen_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name a Python there that has torch with --python", 'with "python" (2 Profile, o)'),
        ("name one with --gres-name a100=NAME", 'name one with "GRES names" a100=NAME (2 Profile, o)'),
        ("with --runner slurm, and name it with --types", 'with "runner" slurm, and name it with "GPU types" (2 Pro'),
        ("scores; --attention unfused says so", 'scores; "attention" unfused says so (1 Cluster, training)'),
        ("narrow it with --seq-len or --python", 'with "sequence" or "python" (1 Cluster, training; 2 Profile, o)'),
        ("the same command with --resume goes on from them", "r on 2 Profile goes on from them"),
        ("add --resume to go on", "add --resume to go on"),
        ("a-name--python stays, and so does sinfo -N --json", "a-name--python stays, and so does sinfo -N --json"),
        ("", ""),
    ],
)
def test_flags_become_fields_and_what_has_no_field_stays(text: str, words: str) -> None:
    assert words in in_fields(text)
    assert text or in_fields(text) == ""


def test_every_flag_is_one_of_the_command_line_and_every_field_is_there() -> None:
    def flags(command: click.Command) -> set[str]:
        return {name for option in command.params for name in option.opts}

    assert set(PROFILE_FIELDS) <= flags(profile) and set(PROFILE_FIELDS.values()) <= set(FORM)
    assert set(JOB_FIELDS) <= flags(plan) and set(JOB_FIELDS.values()) <= set(SPECS)


async def test_the_error_dialog_says_it_so(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        app.show_error(ProfileError("no Python at /opt/py", where="--runner", hint="name one with --python"))
        await pilot.pause(0.1)
        words = " ".join(screen_text(app).split())
        assert 'name one with "python" (2 Profile, o)' in words and "--" not in words.replace("---", "")
