"""The dashboard: what ``memx-tui`` opens without a verb."""

from __future__ import annotations

from typing import Any

from memx_engine import InputError
from memx_tui.terminal import dashboard_problem, locale_is_utf8

_JOB_FLAGS = ("global_batch", "seq_len", "precision", "optimizer", "attention", "framework")


def run_dashboard(options: dict[str, Any]) -> None:
    """Open the dashboard with what the command line says.

    Raises:
        InputError: There is no terminal to draw on, or an input cannot be used.
    """
    problem = dashboard_problem()
    if problem is not None:
        raise InputError(problem)
    if "-" in (options["cluster"], options["model"], options["job_file"]):
        raise InputError("standard input is the keyboard here", where="-", hint="give a file")
    from memx_tui.commands.options import start_work

    start_work(options["workspace"], options["log_level"])
    from memx_engine import SearchOptions, load_cluster, load_model
    from memx_tui.app import MemxApp
    from memx_tui.session import Session

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
        options=SearchOptions(seed=options["seed"], threads=options["threads"]),
    )
    app = MemxApp(session, theme=options["theme"], ascii_only=options["ascii_only"] or not locale_is_utf8())
    app.run(mouse=not options["no_mouse"])
