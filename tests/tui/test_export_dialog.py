from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from memx_engine import OutputError, load_plan, plan_file, plan_text
from memx_tui.app import MemxApp
from memx_tui.screens import export
from memx_tui.screens.export import ExportDialog, Format, plan_export
from tests.builders import make_result
from tests.tui.harness import make_app, make_session, screen_text

TEXT = "schema: x\n# [tp=2] a[/x]\nvalue: 1\n"


async def open_dialog(app: MemxApp, folder: Path, *formats: Format) -> ExportDialog:
    forms = formats or (Format("plan YAML", "plan.yaml", lambda: TEXT),)
    dialog = ExportDialog("Export plan 1", forms, folder=folder)
    await app.push_screen(dialog)
    return dialog


async def test_check_18_preview_is_the_file_to_the_byte(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        dialog = await open_dialog(app, tmp_path)
        await pilot.pause()
        assert str(dialog.query_one(".export-text", Static).content) == TEXT
        assert "# [tp=2] a[/x]" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert (tmp_path / "plan.yaml").read_bytes() == TEXT.encode()
        (note,) = app._notifications
        assert note.message == f"saved {tmp_path}/plan.yaml" and not note.markup


async def test_check_18_existing_file_needs_o(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("mine")
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        dialog = await open_dialog(app, tmp_path)
        await pilot.pause()
        assert "exists" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is dialog and "press o to replace it" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert (tmp_path / "plan.yaml").read_text() == "mine"
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is dialog and dialog.query_one(Input).has_focus
        await pilot.press("o")
        assert dialog.query_one(Input).value == "plan.yamlo", "an o typed into the path is a letter"
        await pilot.press("backspace", "enter")
        await pilot.pause()
        await pilot.press("o")
        await pilot.pause()
        assert (tmp_path / "plan.yaml").read_text() == TEXT and app.screen is not dialog


async def test_check_18_read_only_folder_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, whom no permission stops, so the refusal is the system's own error, raised by hand.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("memx_tui.files.tempfile.mkstemp", refuse)
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        dialog = await open_dialog(app, tmp_path)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is dialog
        assert "Permission denied" in screen_text(app) and "choose a folder" in screen_text(app)
        assert not (tmp_path / "plan.yaml").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_check_18_a_real_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        dialog = await open_dialog(app, folder)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is dialog and "Permission denied" in screen_text(app)


async def test_copy_instead_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    app = make_app(tmp_path)
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await open_dialog(app, tmp_path)
        await pilot.press("ctrl+y")
        await pilot.pause()
        assert copied == [TEXT] and "OSC 52" in screen_text(app)
        assert not (tmp_path / "plan.yaml").exists()


async def test_formats_turn_with_their_own_file_names(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        one, two = Format("plan YAML", "a.yaml", lambda: "a\n"), Format("script", "b.sh", lambda: "b\n")
        dialog = await open_dialog(app, tmp_path, one, two)
        await pilot.press("ctrl+f")
        await pilot.pause()
        assert dialog.query_one(Input).value == "b.sh" and dialog.text == "b\n"
        await pilot.press("enter")
        await pilot.pause()
        assert (tmp_path / "b.sh").read_text() == "b\n"


async def test_check_18_an_exported_plan_reads_back_the_same(tmp_path: Path) -> None:
    result = make_result(12)
    ranked = result.plans[2]
    app = make_app(tmp_path, make_session(result))
    async with app.run_test(size=(120, 36)) as pilot:
        dialog = plan_export(result, ranked)
        await app.push_screen(dialog)
        await pilot.pause()
        dialog.query_one(Input).value = str(tmp_path / "out" / "p.yaml")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
    written = tmp_path / "out" / "p.yaml"
    assert written.read_text() == plan_text(plan_file(result, ranked))
    assert load_plan(str(written)).plan == ranked.plan


def test_default_name_has_no_odd_letters(tmp_path: Path) -> None:
    result = make_result(12)
    dialog = plan_export(result, result.plans[0])
    assert set(dialog.format.default) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert dialog.format.default.endswith(".yaml")


def test_write_errors_are_output_errors(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        export.write_text(tmp_path, "x")
