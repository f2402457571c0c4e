"""Ctrl-C in mid-search: the process ends with 130, says the best plan so far, and leaves nothing half-written."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import memx_engine
from memx_engine import CancelledError
from memx_tui import cli, start
from memx_tui.app import MemxApp
from memx_tui.commands import dashboard
from memx_tui.commands.interrupt import stop_on_interrupt
from tests.builders import make_result
from tests.cli.processes import COMMAND, environment


def test_ctrl_c_in_mid_search_is_130_and_leaves_nothing(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    arguments = ["plan", "--cluster", "thousand-gpus", "--model", "llama2-70b", "-o", "plan.yaml"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=slave,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 60
    while b" fit, " not in shown and time.monotonic() < deadline:
        shown += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # Linux reports a terminal whose last writer is gone as an error
        while chunk := os.read(master, 4096):
            shown += chunk
    os.close(master)
    out, _ = process.communicate(timeout=30)
    words = shown.decode("utf-8", "replace")
    assert process.returncode == 130, words
    assert out == ""
    assert "Traceback" not in words
    assert "best so far" in words or "before any plan was found" in words
    assert not [path for path in tmp_path.rglob("*") if "plan" in path.name]


@pytest.fixture
def interrupted_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A search that is interrupted from outside while it runs, and stops as it is asked to."""

    def search(*inputs: Any, should_stop: Any, **asked: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        return replace(make_result(5), cancelled=True)

    monkeypatch.setattr(memx_engine, "search_plans", search, raising=False)
    yield


@pytest.mark.usefixtures("interrupted_search")
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_an_interrupted_search_names_its_best_plan(
    json_flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.yaml"
    arguments = ["plan", "--cluster", "paper-20gpu", "--model", "llama2-7b", "-o", str(output), *json_flag]
    assert cli.run(arguments) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    best = make_result(5).plans[0].plan.skeleton
    assert f"best so far: tp {best.tp} pp {best.pp} dp {best.dp} mbs {best.micro_batch}, layers 16|16" in captured.err
    assert not output.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_any_plan_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(*args: Any, **kwargs: Any) -> Any:
        raise CancelledError("stopped before any plan was found")

    monkeypatch.setattr(memx_engine, "search_plans", search, raising=False)
    assert cli.run(["plan", "--cluster", "paper-20gpu", "--model", "llama2-7b"]) == 130
    assert "stopped before any plan was found" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_and_a_closed_terminal_ask_to_stop_as_ctrl_c_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(*inputs: Any, should_stop: Any, **asked: Any) -> Any:
        signal.raise_signal(number)
        assert should_stop()
        return replace(make_result(5), cancelled=True)

    monkeypatch.setattr(memx_engine, "search_plans", search, raising=False)
    assert cli.run(["plan", "--cluster", "paper-20gpu", "--model", "llama2-7b"]) == 130
    assert "best so far" in capsys.readouterr().err
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_interrupt() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_an_interrupt_while_python_still_reads_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    with pytest.raises(SystemExit) as caught:
        start.main()
    assert caught.value.code == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_dashboard_as_quitting_does(number: signal.Signals) -> None:
    app = MemxApp()
    async with app.run_test() as pilot:
        signal.raise_signal(number)
        await pilot.pause(0.1)
    assert app.ended_by_signal and app.failure is None


def test_a_dashboard_ended_by_a_signal_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "dashboard_problem", lambda: None)
    monkeypatch.setattr(MemxApp, "run", lambda self, **_: setattr(self, "ended_by_signal", True))
    assert cli.run(["--fresh"]) == 130
    assert "every finished point and the session are kept" in capsys.readouterr().err


def test_a_terminal_that_is_gone_does_not_change_the_exit_code(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "plan", "--cluster", "nowhere"],
            stdout=writer,
            stderr=writer,
            env=environment(tmp_path),
            timeout=60,
        )
    finally:
        os.close(writer)
    assert done.returncode == 2
