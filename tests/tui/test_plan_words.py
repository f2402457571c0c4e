"""Whether a plan fits, in a word on its row and for the selected one with its grounds; ``Y``, ``[`` and ``]``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine import Estimate, InputError, load_plan
from memx_tui.files import write_new
from memx_tui.plan_list import chosen_words, fit_word
from memx_tui.screens.error import ErrorDialog
from memx_tui.widgets.chrome import TitleBar
from tests.builders import make_result
from tests.tui.harness import make_app, make_session, screen_lines, screen_text


def estimate(used: float, risk: float | None) -> Estimate:
    """With one GPU that is full to ``used``."""
    found = make_result(1, calibrated=True).plans[0].estimate
    gpu = replace(found.gpus[0], peak_bytes=used * 100.0, capacity_bytes=100, oom_probability=risk)
    return replace(found, gpus=(gpu,))


@pytest.mark.parametrize(
    ("used", "risk", "word"),
    [
        (0.5, None, "fits"),
        (0.95, None, "tight"),
        (0.95, 0.01, "fits"),  # what is measured knows better than a share of the capacity
        (0.85, 0.20, "tight"),
        (1.01, 0.60, "OOM"),
    ],
)
def test_the_word_follows_the_probability_where_it_is_known(used: float, risk: float | None, word: str) -> None:
    assert fit_word(estimate(used, risk)) == word


def test_what_does_not_fit_in_the_title_is_left_out_part_by_part() -> None:
    found = replace(estimate(0.85, 0.2), extrapolated=("seq_len",))
    words = chosen_words(2, found)
    assert words[0].startswith("#3 tight, OOM risk 20%, ") and words[0].endswith("extrapolated in seq len")
    assert words[-1] == "#3 tight" and sorted(map(len, words), reverse=True) == [len(w) for w in words]
    assert "OOM" not in chosen_words(0, estimate(0.5, None))[0]


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (40, 12)])
async def test_check_06_every_row_and_the_selected_plan_say_whether_they_fit(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    result = make_result(20, calibrated=True)
    app = make_app(tmp_path, make_session(result))
    async with app.run_test(size=size) as pilot:
        await pilot.press("down")
        await pilot.pause(0.2)
        lines = screen_lines(app)
        assert result.detail(0).estimate.certainty in lines[0] and "±" in lines[0]
        assert f"#2 {fit_word(result.detail(1).estimate)}" in lines[2]
        if size[0] >= 80:
            assert result.detail(1).estimate.certainty in lines[2]
        for row in range(4):
            words = lines[4 + row].split()
            assert fit_word(result.detail(row).estimate) in words, lines[4 + row]
        assert lines[5].split()[0] == "▶"


async def test_brackets_move_the_selection_while_a_lower_pane_is_zoomed(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("z", "right_square_bracket", "right_square_bracket", "left_square_bracket")
        await pilot.pause(0.2)
        assert app.session.selected_row == 1 and "plan #2" in screen_text(app)
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert app.session.selected_row == 0


async def test_capital_y_writes_the_plan_to_a_new_file_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(tmp_path / "home")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("Y", "down", "Y", "up", "Y")
        await pilot.pause(0.1)
    names = sorted(file.name for file in tmp_path.glob("*.yaml"))
    assert [name.rpartition("-plan")[2] for name in names] == ["1-2.yaml", "1.yaml", "2.yaml"]
    assert load_plan(str(tmp_path / names[1])).plan == app.session.detail(0).plan
    assert (tmp_path / names[0]).read_text() == (tmp_path / names[1]).read_text()


async def test_where_nothing_can_be_written_a_dialog_says_so_and_its_text_can_be_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(tmp_path / "home")
    async with app.run_test(size=(80, 24)) as pilot:
        monkeypatch.setattr("memx_tui.files.write_text", refused)
        await pilot.press("Y")
        await pilot.pause(0.1)
        assert isinstance(app.screen, ErrorDialog) and "cannot be written" in screen_text(app)
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        await pilot.press("Y")
    assert "cannot be written" in (tmp_path / "memx-message.txt").read_text()


def refused(*args: object, **named: object) -> Path:
    raise InputError("cannot be written: Read-only file system")


def test_a_new_file_never_replaces_one(tmp_path: Path) -> None:
    for text in "abc":
        write_new(tmp_path / "x.txt", text)
    assert [(tmp_path / name).read_text() for name in ("x.txt", "x-2.txt", "x-3.txt")] == ["a", "b", "c"]


def test_in_the_title_row_what_all_rests_on_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = TitleBar()
    bar._right = [("profiling 57% ~2m", False), ("STALE", True), ("606 of 1,800 fit", False), ("simulated", False)]
    assert [word for word, _ in bar._right_words(80)] == ["profiling 57% ~2m", "STALE", "606 of 1,800 fit", "simulated"]
    assert [word for word, _ in bar._right_words(40)] == ["profiling 57% ~2m", "STALE", "simulated"]
    assert [word for word, _ in bar._right_words(33)] == ["STALE", "simulated"]
    assert [word for word, _ in bar._right_words(5)] == ["STALE", "simulated"]
