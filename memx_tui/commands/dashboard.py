"""The dashboard: what ``memx-tui`` opens without a verb."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memx_engine import CancelledError, InputError, MemxError
from memx_tui.output import emit
from memx_tui.terminal import dashboard_problem, is_terminal, locale_is_utf8

if TYPE_CHECKING:
    from memx_tui.app import MemxApp

_JOB_FLAGS = ("global_batch", "seq_len", "precision", "optimizer", "attention", "framework")


def run_dashboard(options: dict[str, Any]) -> None:
    """Open the dashboard with what the command line says.

    Raises:
        InputError: There is no terminal to draw on, or an input cannot be used.
    """
    problem = dashboard_problem()
    if problem is not None:
        if is_terminal(sys.stdout) and not is_terminal(sys.stderr):
            # The message below goes where standard error goes; the operator is looking here.
            emit(f"memx-tui: {problem}")
        raise InputError(problem)
    if "-" in (options["cluster"], options["model"], options["job_file"]):
        raise InputError("standard input is the keyboard here", where="-", hint="give a file")
    app, mouse = build_app(options)
    app.run(mouse=mouse)
    if app.failure is not None:
        raise app.failure
    if app.ended_by_signal:
        raise CancelledError("ended from outside; every finished point and the session are kept")
    if app.return_code:
        raise RuntimeError(f"the dashboard stopped with code {app.return_code}")


def build_app(options: dict[str, Any]) -> tuple[MemxApp, bool]:
    """The app with what flags, configuration and the last session say, in this order; and whether it takes the mouse.

    What is wrong with configuration or session is shown by the app; what is wrong with a flag is an InputError.
    """
    from memx_engine import SearchOptions, load_cluster, load_model
    from memx_tui.app import MemxApp
    from memx_tui.commands.options import start_work
    from memx_tui.config import load_config
    from memx_tui.paths import find_paths
    from memx_tui.profile_state import ProfileSettings
    from memx_tui.remembering import restore
    from memx_tui.runners import RunnerSettings
    from memx_tui.session import Session
    from memx_tui.session_file import load_session

    paths = find_paths()
    config, config_problems = load_config(paths.config_file)
    problems: list[MemxError] = list(config_problems)
    start_work(options["workspace"], options["log_level"] or config.log_level, only_reads=True)
    check_theme(options["theme"])
    overrides = {name: options[name] for name in _JOB_FLAGS if options[name] is not None}
    if options["mbs"] is not None:
        overrides["micro_batch_sizes"] = options["mbs"]
    session = Session(
        cluster=load_cluster(options["cluster"]) if options["cluster"] else None,
        cluster_source=options["cluster"] or "",
        model=load_model(options["model"]) if options["model"] else None,
        model_source=options["model"] or "",
        job_file=options["job_file"],
        job_overrides=overrides,
    )
    session.profile.settings = ProfileSettings(
        RunnerSettings(seed=options["seed"]), Path(options["workspace"]) if options["workspace"] else None
    )
    state, problem = load_session(paths.session_file, fresh=options["fresh"])
    if problem is not None:
        problems.append(problem)
    problems.extend(restore(session, state))
    session.options = replace(session.options or SearchOptions(), seed=options["seed"], threads=options["threads"])
    app = MemxApp(
        session,
        theme=options["theme"] or state.theme or config.theme,
        ascii_only=options["ascii_only"] or (not locale_is_utf8() if config.ascii is None else config.ascii),
        paths=paths,
        config=config,
        problems=problems,
        remember=True,
    )
    return app, config.mouse and not options["no_mouse"]


def check_theme(name: str | None) -> None:
    """Raise InputError when the command line names a theme that is not there."""
    if name is None:
        return
    from memx_tui.paths import find_paths
    from memx_tui.settings import nearest
    from memx_tui.themes import load_themes

    themes, _ = load_themes(find_paths().themes)
    if name not in themes:
        raise InputError(f"no theme is called {name!r}", where="--theme", hint=nearest(name, themes))
