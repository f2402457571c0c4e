from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from memx_engine import load_cluster, load_model, sample_clusters
from memx_tui.app import MemxApp
from memx_tui.config import Config
from memx_tui.keys import binding_ids, declared, entries
from memx_tui.palette import commands
from memx_tui.screens.error import ErrorDialog
from memx_tui.screens.help import HelpDialog
from memx_tui.session import SORT_KEYS, Session
from memx_tui.widgets.fields import FieldList
from tests.tui.harness import make_app, make_session, screen_text

MODES = ("cluster", "plans", "compare")


def own_classes() -> Iterator[type[DOMNode]]:
    """Every class of the interface that declares bindings."""
    binding_ids()  # imports every screen and widget
    waiting: list[type[DOMNode]] = [DOMNode]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("memx_tui.") and "BINDINGS" in vars(cls):
            yield cls


async def on_mode(app: MemxApp, pilot: Any, mode: str) -> Screen[Any]:
    app.open_mode(mode)
    await pilot.pause()
    await pilot.pause()
    return app.screen


def working(root: Path) -> MemxApp:
    session = make_session(marks={"A": 0, "B": 1})
    session.recent = ("/a/b[c].yaml",)
    return make_app(root, session)


def test_check_27_every_binding_has_an_id_and_a_tooltip() -> None:
    missing = []
    count = 0
    for cls in own_classes():
        for binding in vars(cls)["BINDINGS"]:
            count += 1
            assert isinstance(binding, Binding), (cls, binding)
            if not binding.id or not binding.tooltip or not binding.description:
                missing.append((cls.__name__, binding.key))
    assert missing == [] and count > 40


@pytest.mark.parametrize("mode", MODES)
async def test_check_27_no_two_bindings_of_a_screen_share_a_key(tmp_path: Path, mode: str) -> None:
    app = working(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_mode(app, pilot, mode)
        taken: dict[str, str] = {}
        for node in (screen, app):
            for binding in declared(node):
                for key in binding.key.split(","):
                    assert taken.setdefault(key.strip(), str(binding.id)) == binding.id, key
        for widget in screen.walk_children(Widget):
            if isinstance(widget, Input) or widget.query(Input):
                continue  # a line that is being typed in has the keyboard to itself
            pane = dict(taken)
            for binding in declared(widget):
                for key in binding.key.split(","):
                    # A pane may give a screen's action a place of its own, but not another meaning to its key.
                    assert pane.setdefault(key.strip(), str(binding.id)) == binding.id, (widget, key)


@pytest.mark.parametrize("mode", MODES)
async def test_check_27_help_lists_every_binding(tmp_path: Path, mode: str) -> None:
    app = working(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await on_mode(app, pilot, mode)
        expected = {b.id for node in (screen, app) for b in declared(node)}
        expected |= {b.id for w in screen.walk_children(Widget) if w.display for b in declared(w)}
        await pilot.press("f1")
        await pilot.pause()
        assert isinstance(app.screen, HelpDialog)
        assert {entry.binding_id for entry in entries(screen)} == expected
        assert {item.value.binding_id for item in app.screen.shown_items} == expected
        assert all(item.value.keys for item in app.screen.shown_items)


async def test_help_puts_the_focused_pane_first_and_runs_a_line(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(cluster=load_cluster("a800x8"), cluster_source="a800x8", mode="cluster"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.screen.query_one("#job", FieldList).focus()
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpDialog)
        assert app.screen.shown_items[0].value.section == "This pane"
        await pilot.press(*"yaml", "enter")
        await pilot.pause()
        await pilot.pause()
        assert app.screen.has_class("-yaml")


async def test_help_marks_what_cannot_run_now(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="cluster"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        await pilot.press(*"duplicate")
        await pilot.pause()
        assert "not now" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, HelpDialog)


async def test_check_27_palette_offers_everything(tmp_path: Path) -> None:
    app = working(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await on_mode(app, pilot, "plans")
        titles = [command.title for command in commands(app, screen)]
        assert {f"Open {sample.name}" for sample in sample_clusters()} <= set(titles)
        assert "Open /a/b[c].yaml" in titles
        assert {f"Theme {name}" for name in app.themes} <= set(titles)
        assert len([t for t in titles if t.startswith("Sort by")]) == len(SORT_KEYS)
        for entry in entries(screen):
            if entry.enabled and entry.binding_id not in ("help", "palette"):
                assert any(t.startswith(entry.label) for t in titles), entry
        await pilot.press("colon")
        await pilot.pause()
        await pilot.press(*"memx-light", "enter")
        await pilot.pause()
        assert app.theme == "memx-light"


@pytest.mark.parametrize("mode", MODES)
async def test_check_27_each_palette_entry_runs(tmp_path: Path, mode: str) -> None:
    app = working(tmp_path)
    app.session.model = load_model("gpt2-large")
    exits: list[object] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.exit = lambda *args, **options: exits.append(args)  # type: ignore[method-assign, assignment]  # the test goes on after "Quit"
        screen = await on_mode(app, pilot, mode)
        # Clusters, themes and orders are the same over every screen: they are run over one of them.
        titles = [c.title for c in commands(app, screen) if mode == "cluster" or c.section == "Actions"]
        for title in titles:
            screen = await on_mode(app, pilot, mode)
            command = next((c for c in commands(app, screen) if c.title == title), None)
            if command is None:
                continue  # an earlier entry has made this one impossible (a mark was taken off)
            app.call_later(command.run)
            await pilot.pause()
            await pilot.pause()
            if isinstance(app.screen, ErrorDialog) and "b[c].yaml" not in title:
                raise AssertionError((title, app.screen.report))
            while app.screen.is_modal:
                app.pop_screen()
                await pilot.pause()
            app.cancel_search()
            await app.workers.wait_for_complete()
            app.session.unsaved = ""
    assert exits


async def test_keymap_rebinds_and_unknown_ids_name_the_nearest(tmp_path: Path) -> None:
    config = Config(keymap={"cluster.opn": "f7", "cluster.open": "f8"}, places={"cluster.opn": "config.yaml:2: x"})
    app = make_app(tmp_path, Session(mode="cluster"), config=config)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "config.yaml:2: x" in text and "cluster.open" in text
        await pilot.press("f8")
        await pilot.pause()
        assert "Open a cluster" in screen_text(app)
