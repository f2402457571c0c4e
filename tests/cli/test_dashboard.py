"""Opening the dashboard: what flags, configuration and the last session give it, and what a fault of its own gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memx_engine import InputError
from memx_tui import cli
from memx_tui.commands import dashboard

OPTIONS: dict[str, Any] = {
    "cluster": None,
    "model": None,
    "job_file": None,
    "theme": None,
    "fresh": False,
    "ascii_only": False,
    "no_mouse": False,
    "workspace": None,
    "log_level": None,
    "seed": 0,
    "threads": 2,
    "mbs": None,
    **{name: None for name in ("global_batch", "seq_len", "precision", "optimizer", "attention", "framework")},
}


def build(**options: Any) -> Any:
    return dashboard.build_app(OPTIONS | options)


def test_flags_reach_the_session(tmp_path: Path) -> None:
    app, mouse = build(
        cluster="a800x8",
        model="llama3-8b",
        global_batch=64,
        mbs=(1, 2),
        seed=7,
        threads=1,
        no_mouse=True,
        theme="memx-light",
    )
    session = app.session
    assert session.cluster.name == "a800x8" and session.model.name == "llama3-8b"
    assert session.job().global_batch == 64 and session.job().micro_batch_sizes == (1, 2)
    assert session.options.seed == 7 and session.options.threads == 1
    assert app.theme == "memx-light"
    assert not mouse


def test_a_flag_that_is_wrong_is_an_error_before_the_screen_opens() -> None:
    with pytest.raises(InputError, match="paper-20gp"):
        build(cluster="paper-20gp")
    with pytest.raises(InputError, match="no theme is called 'memx-drak'") as caught:
        build(theme="memx-drak")
    assert "memx-dark" in caught.value.hint


def test_the_configuration_counts_where_no_flag_does(own_folders: Path) -> None:
    config = own_folders / "config" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("theme: memx-light\nascii: true\nmouse: false\n")
    app, mouse = build()
    assert app.theme == "memx-light" and app.ascii_only and not mouse
    app, _ = build(theme="memx-dark")
    assert app.theme == "memx-dark"


def test_a_broken_configuration_is_shown_not_fatal(own_folders: Path) -> None:
    config = own_folders / "config" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("tehme: memx-light\n")
    app, _ = build()
    assert any("tehme" in str(problem) for problem in app._problems)


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "dashboard_problem", lambda: None)


@pytest.mark.usefixtures("on_a_terminal")
def test_standard_input_is_the_keyboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--cluster", "-"]) == 2
    assert "keyboard" in capsys.readouterr().err


@pytest.mark.usefixtures("on_a_terminal")
def test_a_fault_of_the_dashboard_is_one_line_and_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        failure: Exception | None = None
        return_code = 1

        def run(self, *, mouse: bool) -> None:
            self.failure = ZeroDivisionError("division by zero")

    monkeypatch.setattr(dashboard, "build_app", lambda options: (Broken(), True))
    assert cli.run([]) == 1
    message = capsys.readouterr().err
    assert "ZeroDivisionError" in message and len(message.splitlines()) == 1


async def test_an_unhandled_fault_leaves_no_traceback_on_the_terminal() -> None:
    app, _ = build(fresh=True)
    with pytest.raises(ZeroDivisionError):
        async with app.run_test() as pilot:
            try:
                raise ZeroDivisionError("division by zero")
            except ZeroDivisionError as error:
                app._handle_exception(error)
            await pilot.pause()
    assert isinstance(app.failure, ZeroDivisionError)
    assert not app._exit_renderables
