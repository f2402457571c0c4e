"""Pictures of the Cluster screen and its dialogs; `pytest --snapshot-update` accepts a change that was looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from memx_engine import load_cluster, load_model
from memx_tui.app import MemxApp
from memx_tui.cluster_view import Target
from memx_tui.screens.cluster import CHECK_AFTER_S, ClusterScreen
from memx_tui.screens.export import ExportDialog, Format
from memx_tui.session import Session
from memx_tui.widgets.cluster_tree import ClusterTree
from memx_tui.widgets.yaml_editor import YamlEditor
from tests.tui.harness import make_app

SIZES = [pytest.param((80, 24), id="80x24"), pytest.param((120, 36), id="120x36")]
PLAN = "# Training plan [tp=2]\nschema: memx/plan/v1\nname: a\n" + "".join(f"row_{n}: {n}\n" for n in range(40))


def app_on(root: Path, source: str = "paper-20gpu", **options: Any) -> MemxApp:
    """An app on the Cluster screen; the model is set after the start, so that no search runs into the picture."""
    session = Session(mode="cluster")
    if source:
        session.cluster, session.cluster_source = load_cluster(source), source
    return make_app(root, session, **options)


def steps(*keys: str, model: str = "llama2-7b", at: Target | None = None) -> Callable[[Pilot[None]], Awaitable[None]]:
    """What is done before the picture is taken."""

    async def run(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, MemxApp)
        if model:
            app.set_model(load_model(model), model)
        await pilot.pause()
        screen = app.screen
        if at is not None and isinstance(screen, ClusterScreen):
            screen.query_one(ClusterTree).go_to(at)
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        for field in app.screen.query(Input):
            field.cursor_blink = False
        for editor in app.screen.query(YamlEditor):
            editor.cursor_blink = False
        await pilot.pause(2 * CHECK_AFTER_S)

    return run


@pytest.mark.parametrize("size", SIZES)
def test_check_34_cluster(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=steps(at=Target(1)))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_cluster_first_start(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(tmp_path, ""), terminal_size=size, run_before=steps(model=""))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_cluster_text_with_a_problem(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    before = steps("v", "down", "end", "backspace", "up", at=Target(1))
    assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_check_34_open_dialog(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    # From an empty folder: the dialog also lists the YAML files that lie there.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=steps("o"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_help(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=steps("question_mark", at=Target(1)))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_palette(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=steps("ctrl+p", *"theme"))


@pytest.mark.parametrize("size", SIZES)
def test_check_34_export(tmp_path: Path, snap_compare: Any, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        form = Format("plan YAML", "plan.yaml", lambda: PLAN)
        await pilot.app.push_screen(ExportDialog("Export plan 1", [form], folder=Path("/data/plans")))
        await steps(model="")(pilot)

    assert snap_compare(app_on(tmp_path), terminal_size=size, run_before=before)


@pytest.mark.parametrize("theme", ["memx-dark", "memx-light", "memx-ansi-dark", "memx-ansi-light"])
def test_check_28_every_shipped_theme(tmp_path: Path, snap_compare: Any, theme: str) -> None:
    app = app_on(tmp_path, theme=theme)
    assert snap_compare(app, terminal_size=(80, 24), run_before=steps("down", at=Target(1)))
