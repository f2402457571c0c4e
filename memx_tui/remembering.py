"""Between the running session and its file: put the last one back, write changes a second after they happen."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memx_engine import InputError, MemxError
from memx_tui.limit_form import LIMIT_FORM, form_texts, read_form
from memx_tui.session import AXES, NEW_CLUSTER, SORT_KEYS, Change, Session, ViewOptions
from memx_tui.session_file import SessionState, save_session

if TYPE_CHECKING:
    from textual.timer import Timer

    from memx_engine import Weights
    from memx_tui.app import MemxApp

log = logging.getLogger(__name__)

WRITE_AFTER_S = 1.0


def weights_text(weights: Weights | None) -> str:
    """The weights as the operator would type them."""
    if weights is None:
        return "auto"
    numbers = f"{weights.time:g},{weights.peak:g},{weights.variance:g}"
    return numbers if weights.profile in ("", "custom") else weights.profile


def restore(session: Session, state: SessionState) -> list[MemxError]:
    """Put the last session back into ``session``; what is already set there stays.

    Returns:
        One problem for each thing that is no longer there or no longer valid.
    """
    from memx_engine import SearchOptions, load_cluster, load_model, parse_weights

    problems: list[MemxError] = []

    def attempt(load: Any, source: str) -> Any:
        try:
            return load(source) if source else None
        except MemxError as error:
            problems.append(error)
            return None

    session.recent = state.recent
    flagged = session.cluster is not None
    if session.cluster is None and (cluster := attempt(load_cluster, state.cluster)) is not None:
        session.cluster, session.cluster_source = cluster, state.cluster
    _restore_draft(session, state, flagged)
    if session.model is None and (model := attempt(load_model, state.model)) is not None:
        session.model, session.model_source = model, state.model
    if session.job_file is None and not session.job_overrides:
        if state.job_file is None or Path(state.job_file).is_file():
            session.job_file = state.job_file
        session.job_overrides = dict(state.job)
    if session.options is None and state.weights != "auto":
        weights = attempt(parse_weights, state.weights)
        session.options = SearchOptions(weights=weights) if weights is not None else None
    _restore_limits(session, state, problems)
    if session.cluster is not None and session.cluster_source == state.cluster:
        there = {node.name for node in session.cluster.nodes}
        session.without = tuple(name for name in state.without if name in there)
    session.view = ViewOptions(
        sort=state.sort if state.sort in SORT_KEYS else "rank",
        descending=state.descending,
        filter_text=state.filter,
        fits_only=state.fits_only,
        frontier_only=state.frontier_only,
        axes=state.axes if state.axes in AXES else AXES[0],
    )
    session.pending_marks = dict(state.marks)
    session.mode = session.mode or state.screen
    _restore_profile(session, state, problems)
    return problems


def _restore_draft(session: Session, state: SessionState, flagged: bool) -> None:
    """The cluster with changes that no file has. A cluster that the command line names is shown instead of it."""
    from memx_engine import parse_cluster

    if flagged:
        session.draft_aside = (state.draft, state.draft_source)
    if not state.draft or flagged:
        return
    session.draft, session.draft_source = state.draft, state.draft_source
    session.unsaved = Path(state.draft_source).name or NEW_CLUSTER
    try:
        session.cluster = parse_cluster(state.draft, session.unsaved)
        session.cluster_source = state.draft_source
    except MemxError:
        # The Cluster screen shows what is wrong with it; until then the last valid one is worked on.
        return


def _restore_limits(session: Session, state: SessionState, problems: list[MemxError]) -> None:
    """What every plan keeps; a limit that cannot be read any more is told and left out."""
    if not state.limits:
        return
    asked, wrong = read_form(state.limits)
    problems += [
        InputError(f"{LIMIT_FORM[key].label}: {error.message}", hint="the limit is left out")
        for key, error in wrong.items()
    ]
    session.options, session.free = asked.options(session.options), dict(asked.free)


def _restore_profile(session: Session, state: SessionState, problems: list[MemxError]) -> None:
    """How to profile; what belongs to one cluster comes back with that cluster only, and a flag wins."""
    from memx_tui.profile_form import settings_of

    given = session.profile.settings
    own = ("folder", "types") if session.cluster_source != state.cluster else ()
    settings, found = settings_of({key: text for key, text in state.profile.items() if key not in own})
    problems += found
    if given.folder is not None:
        settings = replace(settings, folder=given.folder)
    if given.runner.seed:
        settings = replace(settings, runner=replace(settings.runner, seed=given.runner.seed))
    session.profile.settings = settings


def capture(session: Session, theme: str | None) -> SessionState:
    """What the session file should say now."""
    from memx_tui.profile_form import settings_words

    view = session.view
    draft, draft_source = (session.draft, session.draft_source) if session.draft else session.draft_aside
    return SessionState(
        cluster=session.cluster_source,
        model=session.model_source,
        recent=tuple(session.recent),
        job_file=session.job_file,
        job={key: value for key, value in session.job_overrides.items() if value is not None},
        weights=weights_text(session.options.weights if session.options else None),
        limits=form_texts(session.options, session.free),
        without=session.without,
        screen=session.mode,
        sort=view.sort,
        descending=view.descending,
        filter=view.filter_text,
        fits_only=view.fits_only,
        frontier_only=view.frontier_only,
        axes=view.axes,
        marks=dict(session.marked_keys()),
        draft=draft,
        draft_source=draft_source,
        theme=theme,
        profile=settings_words(session.profile.settings),
    )


class SessionKeeper:
    """Writes the session file a second after the last change, and at the end.

    Args:
        app: Whose session is kept.
        file: Where.
    """

    def __init__(self, app: MemxApp, file: Path) -> None:
        self._app = app
        self._file = file
        self._timer: Timer | None = None
        self._written: SessionState | None = None
        self._told = False

    def changed(self, change: Change) -> None:
        """Something in the session is different; progress of a job is not worth a write."""
        if change not in ("search", "profile") and self._timer is None:
            self._timer = self._app.set_timer(WRITE_AFTER_S, self.write)

    def write(self) -> None:
        """Write now, if there is anything new; a failure is said once."""
        self._timer = None
        state = capture(self._app.session, self._app.chosen_theme)
        if state == self._written:
            return
        try:
            save_session(self._file, state)
        except MemxError as error:
            log.warning("session not saved: %s", error)
            if not self._told:
                self._told = True
                self._app.say(f"the session is not saved: {error}", warning=True)
        else:
            self._written = state
