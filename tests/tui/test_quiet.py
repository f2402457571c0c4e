"""Keys that arrive together act in their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import Input

from memx_tui.screens.export import ExportDialog
from memx_tui.screens.help import HelpDialog
from memx_tui.screens.limits import LimitsDialog
from memx_tui.screens.nodes import NodesDialog
from memx_tui.screens.pick import Item, PickDialog
from memx_tui.screens.prompt import PromptDialog
from memx_tui.widgets.yaml_editor import YamlEditor
from tests.tui.harness import empty_session, make_app, screen_text
from tests.tui.test_jobs_and_errors import until


def at_once(*keys: str) -> list[Key]:
    """The events of keys that one read of the terminal gave."""
    return [Key(key, key if len(key) == 1 else None) for key in keys]


@pytest.mark.parametrize(
    ("keys", "value"),
    [(("backspace", "2"), "12"), (("ctrl+u", "7"), "7"), (("home", "9"), "913"), (("left", "delete", "4"), "14")],
)
async def test_an_editing_key_and_a_digit_in_a_field(keys: tuple[str, ...], value: str, tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        dialog = PromptDialog("Number", "13", check=lambda text: text)
        app.push_screen(dialog)
        await until(pilot, lambda: app.screen is dialog)
        await pilot.press("end")
        for event in at_once(*keys):
            app.post_message(event)
        await pilot.pause(0.1)
        assert dialog.query_one(Input).value == value


async def test_an_editing_key_and_a_letter_in_the_editor(tmp_path: Path) -> None:
    app = make_app(tmp_path, empty_session(mode="cluster"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("v")
        editor = app.screen.query_one(YamlEditor)
        await until(pilot, lambda: editor.has_focus)
        first = editor.text.splitlines()[0]
        editor.move_cursor((0, len(first)))
        for event in at_once("backspace", "z"):
            app.post_message(event)
        await pilot.pause(0.1)
        assert editor.text.splitlines()[0] == f"{first[:-1]}z"


async def test_an_arrow_and_enter_choose_the_line_that_the_arrow_reached(tmp_path: Path) -> None:
    chosen: list[str | None] = []
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        dialog = PickDialog("Choose", [Item(word, (word,)) for word in ("one", "two")])
        app.push_screen(dialog, chosen.append)
        await until(pilot, lambda: app.screen is dialog)
        for event in at_once("down", "enter"):
            app.post_message(event)
        await until(pilot, lambda: chosen == ["two"])


async def test_escape_and_a_letter_that_came_as_one_key_are_two(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        app.post_message(Key("alt+n", "n"))
        await until(pilot, lambda: isinstance(app.screen, NodesDialog))
        app.post_message(Key("alt+shift+w", "W"))
        await until(pilot, lambda: type(app.screen).__name__ == "SensitivityDialog")


async def test_help_opens_over_a_dialog_and_a_question_mark_is_typed_in_a_field(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ExportDialog))
        dialog = app.screen
        path = dialog.query_one(Input)
        before = path.value
        await pilot.press("question_mark")
        assert path.value == f"{before}?" and app.screen is dialog
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog) and "Close without writing" in screen_text(app))
        await pilot.press("f1", "escape")
        await until(pilot, lambda: app.screen is dialog)
        await pilot.press("tab", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        assert path.value == f"{before}?"
