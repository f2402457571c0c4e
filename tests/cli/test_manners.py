"""How the command line behaves towards shells, pipes and terminals, whatever it is asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import memx_engine
from memx_engine import MemxError
from memx_tui import cli
from tests.cli.processes import COMMAND, environment, run, run_on_terminal


def test_check_03_without_a_terminal_one_line_names_the_headless_verb(tmp_path: Path) -> None:
    done = run([], tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "memx-tui plan" in done.err
    assert "\x1b" not in done.err


def test_check_03_standard_output_piped_away_is_refused_without_escape_codes(tmp_path: Path) -> None:
    read, write = os.pipe()
    done = run_on_terminal([], tmp_path, redirect={"stdout": write})
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.read() == ""
    assert done.code == 2
    assert "\x1b" not in done.out
    assert "standard output" in done.out and "memx-tui plan" in done.out


def test_check_04_redirected_standard_error_is_refused_in_words(tmp_path: Path) -> None:
    log = tmp_path / "err.log"
    with log.open("w") as stream:
        done = run_on_terminal([], tmp_path, redirect={"stderr": stream.fileno()})
    assert done.code == 2
    assert "standard error is the dashboard's screen" in log.read_text()
    # The operator looks at the terminal, where standard error does not arrive.
    assert "standard error is the dashboard's screen" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_is_refused(tmp_path: Path, term: str) -> None:
    done = run_on_terminal([], tmp_path, TERM=term)
    assert done.code == 2 and "TERM" in done.out


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path), cwd=tmp_path
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


def test_a_full_disk_behind_standard_output_is_a_message(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "paths"], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), cwd=tmp_path
        )
    assert done.returncode == 2
    assert "standard output: cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pln"], "did you mean plan"),
        (["plan", "--clutser", "x"], "--cluster"),
        (["--thme", "x"], "--theme"),
        (["plan", "--mbs", "1,zero"], "whole numbers"),
        (["plan", "--mbs", "0"], "whole numbers"),
        (["plan", "--precision", "fp8"], "bf16"),
        (["plan", "--top", "0"], "--top"),
        (["plan", "--time-limit", "-3"], "--time-limit"),
        (["plan", "--global-batch", "many"], "--global-batch"),
        (["--theme", "memx-dark", "plan"], "put it after 'plan'"),
        (["compare", "one.yaml"], "2 to 4 plan files, 1 given"),
        (["completion", "tcsh"], "bash"),
        (["explain", "--layers", "a,b", "--tp", "1", "--pp", "1", "--dp", "1", "--mbs", "1"], "--layers"),
        (["explain", "--recompute", "some", "--tp", "1", "--pp", "1", "--dp", "1", "--mbs", "1"], "none, selective"),
        (["explain", "--schedule", "gpipe", "--tp", "1", "--pp", "1", "--dp", "1", "--mbs", "1"], "interleaved:V"),
        (["explain", "--tp", "1"], "--pp, --mbs, --dp"),
        (["explain", "plan.yaml", "--tp", "1"], "not both"),
        (["show"], "PLAN.yaml"),
    ],
)
def test_a_wrong_command_line_gets_one_message_and_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err and captured.err.startswith("memx-tui")


def test_an_internal_error_is_one_line_and_its_traceback_only_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMX_HOME", str(tmp_path))

    def explode(source: str) -> None:
        raise RuntimeError("wheel fell off\nsecond line")

    monkeypatch.setattr(memx_engine, "load_plan", explode, raising=False)
    assert cli.run(["show", "plan.yaml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "RuntimeError: wheel fell off" in captured.err and "Traceback" not in captured.err
    log = next(tmp_path.rglob("*.log"))
    assert str(log) in captured.err
    assert "Traceback" in log.read_text() and "second line" in log.read_text()


@pytest.mark.parametrize(("code", "title"), [(2, "input"), (3, "feasible"), (130, "cancelled")])
def test_errors_for_people_keep_their_exit_code(
    code: int, title: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = MemxError(title, where="a.yaml:3: key", hint="do this")
    error.exit_code = code

    def refuse(source: str) -> None:
        raise error

    monkeypatch.setattr(memx_engine, "load_plan", refuse, raising=False)
    assert cli.run(["show", "plan.yaml"]) == code
    assert capsys.readouterr().err == f"memx-tui: a.yaml:3: key: {title}\n  do this\n"


def test_an_interrupt_anywhere_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(source: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memx_engine, "load_plan", interrupt, raising=False)
    assert cli.run(["show", "plan.yaml"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_help_lists_every_verb_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in cli.VERBS:
        assert f"\n  {verb} " in text
    assert "130 interrupted" in text


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb, "--help"]) == 0
    assert f"memx-tui {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["completion", shell]) == 0
    assert "_MEMX_TUI_COMPLETE" in capsys.readouterr().out


def test_completion_answers_with_verbs(tmp_path: Path) -> None:
    done = run([], tmp_path, _MEMX_TUI_COMPLETE="bash_complete", COMP_WORDS="memx-tui ex", COMP_CWORD="1")
    assert done.out.strip() == "plain,explain"
