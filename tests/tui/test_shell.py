"""What holds on every screen: sizes, keys, ASCII, resizing, and no growth over time."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import psutil
import pytest
from textual.app import App
from textual.binding import Binding
from textual.screen import Screen
from textual.widget import Widget

import memx_tui.screens
import memx_tui.widgets
from memx_tui.app import MemxApp
from memx_tui.glyphs import to_ascii
from memx_tui.modes import MODE_TABLE
from memx_tui.screens.plans import PlansScreen
from memx_tui.widgets.chrome import FooterBar
from tests.builders import make_result
from tests.tui.harness import empty_session, make_app, make_session, screen_lines

WIDTHS = (40, 60, 80, 100, 120, 160, 200)
HEIGHTS = (12, 18, 24, 36, 50)


@pytest.mark.parametrize("mode", [mode.name for mode in MODE_TABLE])
@pytest.mark.parametrize("filled", [True, False], ids=["results", "empty"])
async def test_check_05_every_screen_at_every_size(tmp_path: Path, mode: str, filled: bool) -> None:
    session = make_session(make_result(30), mode=mode) if filled else empty_session(mode=mode)
    if filled:
        session.marks = {"A": 0, "B": 4, "C": 9}
    else:
        session.cluster = None
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        for width in WIDTHS:
            for height in HEIGHTS:
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                lines = screen_lines(app)
                assert len(lines) == height
                footer = app.screen.query_one(FooterBar)
                shown = footer.shown
                assert shown[0].key == "?", (width, height)
                last = lines[-1].rstrip()
                assert last.endswith(f"{shown[-1].key} {shown[-1].label}"), (width, height, last)
                if width <= 80:
                    assert len(shown) <= 8
                if width >= 80:
                    assert len(shown) >= 5


async def test_check_07_resizing_keeps_selection_and_scroll_while_a_search_runs(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session(make_result(100)))
    app.session.searching = True
    async with app.run_test(size=(160, 50)) as pilot:
        screen = app.screen
        assert isinstance(screen, PlansScreen)
        await pilot.press("G", *["up"] * 30)
        await pilot.pause(0.1)
        top = screen.table.scroll_offset.y
        for size in ((80, 24), (40, 12), (80, 24), (160, 50)):
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
            assert screen.table.selected == 69
            assert screen.table.scroll_offset.y <= 69 < screen.table.scroll_offset.y + screen.table.size.height - 1
            assert any(line.split()[:2] == ["▶", "70"] for line in screen_lines(app)), size
        assert abs(screen.table.scroll_offset.y - top) < screen.table.size.height


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_check_08_ascii_draws_nothing_above_0x7f(tmp_path: Path, size: tuple[int, int]) -> None:
    session = make_session(make_result(40))
    session.marks = {"A": 0, "B": 4}
    app = make_app(tmp_path, session, ascii_only=True)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause(0.1)
        app.say("a notice")
        for keys in (["down"], ["tab"], ["tab"], ["slash", "x", "enter"], ["escape"], ["s"], ["escape"], ["w"]):
            await pilot.press(*keys)
            await pilot.pause(0.05)
            assert "\n".join(screen_lines(app)).isascii(), keys
        await pilot.press("escape")
        for key in ("4", "1", "question_mark", "escape"):
            await pilot.press(key)
            await pilot.pause(0.05)
            assert "\n".join(screen_lines(app)).isascii(), key
        app.show_error(ValueError("reason"))
        await pilot.pause(0.05)
        assert "\n".join(screen_lines(app)).isascii()


def test_what_people_typed_is_not_translated() -> None:
    assert to_ascii("│ Модель ▓▒ 木") == "| Модель =~ 木"


def _classes() -> list[type[Screen[object] | Widget | App[object]]]:
    found: dict[str, type] = {"MemxApp": MemxApp}
    for package in (memx_tui.screens, memx_tui.widgets):
        for info in iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{info.name}")
            for name, value in vars(module).items():
                if inspect.isclass(value) and issubclass(value, Widget) and value.__module__ == module.__name__:
                    found[name] = value
    return list(found.values())


@pytest.mark.parametrize("owner", _classes(), ids=lambda c: c.__name__)
def test_check_27_every_binding_has_an_id_and_a_tooltip_and_keys_are_unique(owner: type) -> None:
    seen: dict[str, str] = {}
    bindings = [b for b in vars(owner).get("BINDINGS", ())]
    for binding in bindings:
        assert isinstance(binding, Binding)
        assert binding.id and binding.tooltip and binding.description, binding
        for key in binding.key.split(","):
            assert key.strip() not in seen, f"{owner.__name__}: {key} is {seen.get(key)} and {binding.id}"
            seen[key.strip()] = binding.id


def test_check_27_one_id_means_one_thing_over_the_whole_program() -> None:
    meanings: dict[str, str] = {}
    for owner in _classes():
        for binding in vars(owner).get("BINDINGS", ()):
            assert meanings.setdefault(binding.id, binding.description) == binding.description, binding.id


@pytest.mark.parametrize("mode", [mode.name for mode in MODE_TABLE])
async def test_check_27_no_screen_takes_a_key_of_the_app(tmp_path: Path, mode: str) -> None:
    app = make_app(tmp_path, make_session(make_result(10), mode=mode))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        own = {key.strip(): b for b in type(app.screen).BINDINGS if isinstance(b, Binding) for key in b.key.split(",")}
        everywhere = {key.strip() for b in app.bindings() for key in b.key.split(",")}
        assert not everywhere & set(own)


async def test_check_32_selection_changes_with_plot_redraw_do_not_grow(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session(make_result(200)))
    process = psutil.Process()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, PlansScreen)

        async def change(times: int) -> None:
            for i in range(times):
                screen.table.move_to((i * 7 + 1) % 200)
                screen.show_selection()
                if i % 20 == 0:
                    await pilot.pause()

        await change(300)  # fills the caches of details and styles
        before, draws = process.memory_info().rss, screen.plot.draws
        await change(300)
        await pilot.pause(0.1)
        grown = process.memory_info().rss - before
        assert screen.plot.draws > draws
        # 2,000 changes may grow by less than 10 MiB; 300 therefore by far less, and allocators round up.
        assert grown < 6 * 2**20
