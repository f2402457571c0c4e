"""README and docs/usage.md say only what is so: commands that exist, and the two commands that CI and readers run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from memx_tui import cli

REPOSITORY = Path(__file__).parent.parent.parent
README = (REPOSITORY / "README.md").read_text()
USAGE = (REPOSITORY / "docs" / "usage.md").read_text()
PROFILING = (REPOSITORY / "docs" / "profiling.md").read_text()
TEXTS = pytest.mark.parametrize("text", [README, USAGE, PROFILING], ids=["README", "usage", "profiling"])


def known_flags() -> set[str]:
    context = click.Context(cli.cli)
    commands = [cli.cli, *(cli.cli.get_command(context, verb) for verb in cli.VERBS)]
    return {flag for command in commands if command for param in command.params for flag in param.opts} | {"--help"}


def fences(text: str) -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_first_screen_has_the_two_commands() -> None:
    first, second = fences("\n".join(README.splitlines()[:30]))
    assert "memx-tui plan --cluster paper-20gpu --model llama2-7b" in first
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt .")
    after = README[README.index("<!-- tests -->\n") + len("<!-- tests -->\n") :]
    assert fences(after)[0] == second
    assert second.strip().endswith(".venv/bin/pytest -n 2 --dist loadfile")


@TEXTS
def test_every_flag_that_is_written_about_exists(text: str) -> None:
    others = {"--no-deps", "--gres", "--qos", "--dist"}  # of pip, Slurm and pytest
    written = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", text))
    assert written - known_flags() - others == set()


@TEXTS
def test_every_command_that_is_written_about_has_its_verb(text: str) -> None:
    for line in "\n".join(fences(text)).replace("\\\n", "").splitlines():
        match = re.match(r"(?:\$ )?memx-tui (.*)", line)
        if match:
            words = shlex.split(match[1])
            assert words[0] in cli.VERBS or words[0].startswith("--"), line


def test_usage_names_every_verb() -> None:
    for verb in cli.VERBS:
        assert f"`{verb}`" in USAGE


@pytest.mark.parametrize("verb", ["plan", "profile"])
def test_usage_names_every_flag(verb: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), verb)
    assert command is not None
    for param in command.params:
        assert any(re.search(rf"{flag}(?![\w-])", USAGE) for flag in param.opts), param.opts
