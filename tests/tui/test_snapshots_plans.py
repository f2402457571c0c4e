"""Pictures of Plans, Compare and their dialogs; `pytest --snapshot-update` accepts a change that was looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from memx_engine import Explanation, InputError, NoFeasiblePlanError, PlanRequest, Reason, Verdict
from memx_tui.app import MemxApp
from memx_tui.messages import RequestExplained
from memx_tui.paths import Paths
from memx_tui.screens.why_not import WhyNotDialog
from memx_tui.session import Session
from tests.builders import make_result
from tests.tui.harness import empty_session, make_session

SIZES = [pytest.param((80, 24), id="80x24"), pytest.param((120, 36), id="120x36")]
ROOT = Path("/home/operator/.local/state/memx-tui")
PATHS = Paths(ROOT, ROOT, ROOT, ROOT)


def app_on(session: Session, **options: Any) -> MemxApp:
    """An app whose paths are those of nobody, so that the picture is the same everywhere; it writes nothing."""
    return MemxApp(session, paths=PATHS, **options)


def marked_session() -> Session:
    session = make_session(make_result(60))
    session.marks = {"A": 0, "B": 4, "C": 9}
    return session


def steps(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Press keys, then wait until the panes have followed."""

    async def run(pilot: Pilot[None]) -> None:
        await pilot.pause(0.15)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.15)
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False
        await pilot.pause(0.15)

    return run


@pytest.mark.parametrize("size", SIZES)
def test_check_34_plans(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps("down", "down"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_plans_in_ascii(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(marked_session(), ascii_only=True), terminal_size=size, run_before=steps("down"))


@pytest.mark.parametrize("keys", [["tab"], ["tab", "tab"], ["enter"]], ids=["pareto", "why", "detail"])
def test_check_34_lower_panes(snap_compare: Any, keys: list[str]) -> None:
    assert snap_compare(app_on(marked_session()), terminal_size=(80, 24), run_before=steps(*keys))


def test_check_34_plans_on_a_tiny_terminal(snap_compare: Any) -> None:
    assert snap_compare(app_on(marked_session()), terminal_size=(40, 12), run_before=steps("down"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_filter_with_a_bad_token(snap_compare: Any, size: tuple[int, int]) -> None:
    keys = ("slash", *("t", "p", "less_than_sign", "equals_sign", "4", "space"), *"worstt")
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps(*keys))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_plans_over_the_limit(snap_compare: Any, size: tuple[int, int]) -> None:
    session = marked_session()
    ranked = session.detail(0)
    gpus = tuple(
        replace(gpu, capacity_bytes=int(gpu.peak_bytes / (1.2 if gpu.stage == 0 else 0.93)))
        for gpu in ranked.estimate.gpus
    )
    session._details[0] = replace(ranked, estimate=replace(ranked.estimate, gpus=gpus))
    assert session.columns is not None
    worst = session.columns.worst.copy()
    worst[:2] = 1.2, 0.95
    session.columns = replace(session.columns, worst=worst)
    assert snap_compare(app_on(session), terminal_size=size, run_before=steps())


@pytest.mark.parametrize("size", SIZES)
def test_check_34_no_plan_fits(snap_compare: Any, size: tuple[int, int]) -> None:
    session = empty_session()
    session.model = None
    session.failure = NoFeasiblePlanError(
        "stage 0 on v100-sxm-32g misses 3.1 GiB even with full recompute",
        hint="micro-batch 1 with TP 4 would fit by 2.2 GiB",
    )
    assert snap_compare(app_on(session), terminal_size=size, run_before=steps())


@pytest.mark.parametrize("size", SIZES)
def test_check_34_compare(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps("4", "l"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_compare_without_marks(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(make_session()), terminal_size=size, run_before=steps("4"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_why_not(snap_compare: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason(
        "heads", "TP 8 does not divide the 28 attention heads; legal: {1,2,4,7,14,28}", None, None, "use TP 4 or TP 7"
    )

    def answer(app: MemxApp, request: PlanRequest, asker: WhyNotDialog) -> None:
        asker.post_message(RequestExplained(Explanation(Verdict.INVALID, (reason,), None)))

    monkeypatch.setattr(MemxApp, "explain", answer)
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps("w", "enter"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_limits(snap_compare: Any, size: tuple[int, int]) -> None:
    typed = ("l", *"0:12,x9:3", "down", *"full", "down", *"mi300")
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps(*typed))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_nodes(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=steps("n", "down", "space"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_error(snap_compare: Any, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, MemxApp)
        await steps()(pilot)
        app.show_error(
            InputError(
                "global batch 512 is not divisible by DP 3 x micro-batch 1",
                where="job.yaml:4: dp_sizes",
                hint="use DP sizes that divide 512",
            )
        )
        await steps()(pilot)

    assert snap_compare(app_on(marked_session()), terminal_size=size, run_before=before)


@pytest.mark.parametrize("theme", ["memx-light", "memx-ansi-dark", "memx-ansi-light"])
def test_check_34_plans_in_other_themes(snap_compare: Any, theme: str) -> None:
    assert snap_compare(app_on(marked_session(), theme=theme), terminal_size=(120, 36), run_before=steps("down"))
