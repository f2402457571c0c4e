"""The Plans screen through textual's pilot: one selection, keys, layouts, honest words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from textual.widgets import Input

from memx_engine import Explanation, Gap, PlanRequest, SearchOptions, Verdict, resolve_job
from memx_engine import search_plans as search
from memx_tui.app import MemxApp
from memx_tui.messages import RequestExplained
from memx_tui.plan_list import sort_order
from memx_tui.screens.plans import PlansScreen
from memx_tui.screens.why_not import WhyNotDialog
from memx_tui.session import SORT_KEYS
from memx_tui.widgets.chrome import FooterBar
from tests.builders import H100, make_cluster, make_model, make_result
from tests.tui.harness import empty_session, make_app, make_columns, make_session, screen_lines, screen_text


def plans_screen(app: MemxApp) -> PlansScreen:
    assert isinstance(app.screen, PlansScreen)
    return app.screen


async def test_one_selection_moves_table_memory_plot_and_reasons(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("down", "down")
        await pilot.pause(0.1)
        screen = plans_screen(app)
        assert screen.table.selected == screen.plot.selected == 2
        assert screen.bars.gpus == app.session.detail(2).estimate.gpus
        text = screen_text(app)
        assert "Memory GiB, plan #3" in text and "Why plan #3" in text and "◉ #3" in text
        assert any(line.split()[:2] == ["▶", "3"] for line in screen_lines(app))


async def test_check_11_two_hundred_moves_update_the_panes_once(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session(make_result(300)))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(0.1)
        screen = plans_screen(app)
        before = screen.updates, screen.plot.draws
        for _ in range(200):
            screen.table.action_move(1)
        await pilot.pause(0.2)
        assert screen.table.selected == screen.plot.selected == 200
        assert screen.updates - before[0] == 1
        assert screen.plot.draws - before[1] == 1


async def test_check_10_thirty_thousand_plans_need_no_more_work_to_draw_than_thirty(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    n = 30_000
    columns = make_columns(
        rng.gamma(3, 2, n) + 6, rng.gamma(2, 20, n) + 10, worst=rng.random(n), recompute=rng.integers(0, 5, n)
    )
    session = make_session(make_result(12))
    assert session.result is not None
    small, times = session.result.table, n // 12
    table = replace(
        small, plans=small.plans * times, phi=np.tile(small.phi, times), pareto=np.tile(small.pareto, times)
    )
    session.result = replace(session.result, table=table)
    session.columns = columns
    app = make_app(tmp_path, session)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(0.1)
        screen = plans_screen(app)
        drawn: list[int] = []
        original = screen.table._row
        screen.table._row = lambda index, width: (drawn.append(index), original(index, width))[1]  # type: ignore[method-assign]  # counts the rows that are drawn
        screen.set_sort("worst")
        await pilot.pause(0.1)
        assert len(drawn) <= 3 * screen.table.size.height
        worst = columns.worst[screen.table.order]
        assert len(worst) == n and bool((np.diff(worst) >= 0).all())
        drawn.clear()
        await pilot.press("down")
        await pilot.pause(0.1)
        assert 0 < len(drawn) <= 2 * screen.table.size.height


async def test_sorting_by_every_column_and_both_ways(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = plans_screen(app)
        for key in SORT_KEYS:
            screen.set_sort(key, False)
            rising = screen.table.order.tolist()
            await pilot.press("I")
            assert app.session.view.descending and sorted(screen.table.order.tolist()) == sorted(rising)
        await pilot.press("less_than_sign")
        assert app.session.view.sort == SORT_KEYS[-2]
        await pilot.press("greater_than_sign")
        assert app.session.view.sort == SORT_KEYS[-1]


async def test_the_cursor_stays_on_its_plan_when_the_order_changes(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(*["down"] * 5)
        screen = plans_screen(app)
        assert screen.table.selected == 5
        screen.set_sort("time")
        await pilot.pause(0.1)
        assert screen.table.selected == 5 and "Why plan #6" in screen_text(app)


async def test_a_click_on_a_column_title_sorts_and_again_inverts(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(0.1)
        screen = plans_screen(app)
        line = next(n for n, text in enumerate(screen_lines(app)) if "worst GPU" in text)
        column = screen_lines(app)[line].index("time s")
        await pilot.click(offset=(column, line))
        assert (app.session.view.sort, app.session.view.descending) == ("time", False)
        await pilot.click(offset=(column, line))
        assert (app.session.view.sort, app.session.view.descending) == ("time", True)
        await pilot.click("#plan-table", offset=(10, 5))
        assert screen.table.cursor == 4


async def test_the_sort_menu_lists_every_column(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await pilot.pause()
        await pilot.press(*"spread", "enter")
        await pilot.pause()
        assert app.session.view.sort == "spread"


async def test_filter_is_live_marks_bad_tokens_and_esc_clears(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("slash")
        screen = plans_screen(app)
        screen.query_one(Input).value = "tp<=4 foo"
        await pilot.pause(0.1)
        columns = app.session.columns
        assert columns is not None
        assert screen.table.order.tolist() == np.flatnonzero(columns.tp <= 4).tolist()
        assert "foo: not a word of the filter" in screen_text(app)
        await pilot.press("enter")
        assert screen.focused is screen.table and app.session.view.filter_text == "tp<=4 foo"
        await pilot.press("escape")
        assert app.session.view.filter_text == "" and len(screen.table.order) == 20


async def test_check_16_a_filter_that_empties_the_list_explains_itself(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        plans_screen(app).query_one(Input).value = "time<0.001 tp<=8"
        await pilot.press("enter")
        await pilot.pause(0.1)
        text = screen_text(app)
        assert "None of 20 plans passes the filter." in text
        assert "time<0.001 removes 20 of 20; without it 20 would be left" in text and "esc clears" in text


async def test_fits_and_frontier_toggles(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        screen = plans_screen(app)
        columns = app.session.columns
        assert columns is not None
        assert screen.table.order.tolist() == np.flatnonzero(columns.pareto).tolist()
        assert "p frontier only" in screen_text(app)
        await pilot.press("p", "f")
        assert screen.table.order.tolist() == np.flatnonzero(columns.worst <= 0.9).tolist()


async def test_marks_go_from_a_to_d_and_no_further(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(5):
            await pilot.press("space", "down")
        assert app.session.marks == {"A": 0, "B": 1, "C": 2, "D": 3}
        await pilot.press("up", "up", "up", "up", "space")
        assert app.session.marks == {"A": 0, "C": 2, "D": 3}
        assert "4 Compare(3)" in screen_text(app)


async def test_m_chooses_a_model_and_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(tmp_path)
    started: list[str] = []
    monkeypatch.setattr(MemxApp, "start_search", lambda self: started.append(self.session.model.name))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await pilot.pause()
        await pilot.press(*"llama3-8b", "enter")
        await pilot.pause(0.1)
        assert started == ["llama3-8b"] and app.session.model_source == "llama3-8b"


async def test_axes_cycle(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "time s x worst peak GiB" in screen_text(app)
        await pilot.press("x")
        await pilot.pause()
        assert "time s x memory spread GiB" in screen_text(app)


async def test_enter_unfolds_every_gpu_and_esc_folds_again(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("tab", "enter")
        await pilot.pause()
        screen = plans_screen(app)
        assert len(screen.bars.rows) == 16 and "r0" in screen_text(app)
        await pilot.press("escape")
        assert len(screen.bars.rows) < 16


async def test_the_lower_pane_turns_with_tab_on_a_small_screen(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        for words in ("Memory GiB, plan #1", "Pareto, time s", "Why plan #1", "Memory GiB, plan #1"):
            await pilot.pause()
            assert words in screen_text(app)
            await pilot.press("tab")
        await pilot.press("shift+tab")


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (40, 12)])
async def test_z_gives_one_pane_the_screen_and_back(tmp_path: Path, size: tuple[int, int]) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=size) as pilot:
        await pilot.press("tab")
        await pilot.pause()
        screen = plans_screen(app)
        await pilot.press("z")
        await pilot.pause(0.1)
        assert screen.plot.size.height >= size[1] - 5 and screen.table.size.height == 0
        await pilot.press("tab")
        await pilot.pause(0.1)
        assert screen.bars.size.height >= size[1] - 5 or screen.why.size.height >= size[1] - 5
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert screen.table.size.height > 0 and screen.plot.size.height < size[1] - 5


async def test_the_provenance_and_the_counts_are_always_there(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session(make_result(30)))
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("3", "4", "1"):
            await pilot.press(key)
            await pilot.pause(0.1)
            title = screen_lines(app)[0]
            assert "uncalibrated" in title and "30 of 90 fit" in title


async def test_changed_inputs_turn_the_result_stale_in_words(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        app.set_model(make_model(layers=16, name="other"), "other")
        await pilot.pause()
        assert "STALE" in screen_lines(app)[0]


async def test_words_without_inputs_say_what_to_do(tmp_path: Path) -> None:
    app = make_app(tmp_path, replace(empty_session(), cluster=None, model=None))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "1 opens the Cluster screen" in screen_text(app)
        app.set_cluster(make_cluster())
        await pilot.pause()
        assert "m chooses one" in screen_text(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (40, 12)])
async def test_moving_to_the_edges(tmp_path: Path, size: tuple[int, int]) -> None:
    app = make_app(tmp_path, make_session(make_result(60)))
    async with app.run_test(size=size) as pilot:
        screen = plans_screen(app)
        await pilot.press("G")
        await pilot.pause(0.1)
        assert screen.table.cursor == 59
        assert any(line.split()[:2] == ["▶", "60"] for line in screen_lines(app))
        await pilot.press("pageup", "ctrl+u", "ctrl+d", "pagedown", "g")
        assert screen.table.cursor == 0
        await pilot.press("k")
        assert screen.table.cursor == 0


async def test_check_14_brackets_show_literally_everywhere(tmp_path: Path) -> None:
    odd = replace(H100, name="a[/x]")
    cluster = make_cluster(odd, odd, name="[tp=2]")
    node = replace(cluster.nodes[0], name="n[bold]0")
    cluster = replace(cluster, nodes=(node, cluster.nodes[1]))
    result = make_result(8, cluster=cluster, model=make_model(name="[red]m[/]"))
    app = make_app(tmp_path, make_session(result))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await pilot.press("space", "down", "space")
        await pilot.pause(0.1)
        text = screen_text(app)
        assert "[tp=2]" in text and "[red]m[/]" in text and "a[/x]" in text and "n[bold]0" in text
        await pilot.press("4")
        await pilot.pause(0.1)
        assert "a[/x]" in screen_text(app) and "n[bold]0" in screen_text(app)
        app.say("saved [tp=2]/a[/x].yaml")
        await pilot.pause(0.1)
        assert "saved [tp=2]/a[/x].yaml" in screen_text(app)
        await pilot.press("3", "slash")
        plans_screen(app).query_one(Input).value = "[tp=2] a[/x]"
        await pilot.pause(0.1)
        assert "[tp=2] a[/x]" in screen_text(app)
        await pilot.press("escape", "w")
        await pilot.pause(0.1)
        app.show_error(ValueError("broken [b]here[/nope]"), doing="reading a[/x]")
        await pilot.pause(0.1)
        assert "broken [b]here[/nope]" in screen_text(app) and "reading a[/x]" in screen_text(app)


async def test_check_15_over_the_limit_is_the_word_oom(tmp_path: Path) -> None:
    session = make_session(make_result(6))
    ranked = session.detail(0)
    gpus = tuple(replace(gpu, capacity_bytes=int(gpu.peak_bytes / 1.2)) for gpu in ranked.estimate.gpus)
    session._details[0] = replace(ranked, estimate=replace(ranked.estimate, gpus=gpus))
    assert session.columns is not None
    worst = session.columns.worst.copy()
    worst[0] = 1.2
    session.columns = replace(session.columns, worst=worst)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause(0.1)
        lines = screen_lines(app)
        assert any("OOM" in line and line.split()[:2] == ["▶", "1"] for line in lines)
        assert any("OOM" in line and "120%" in line for line in lines)
        assert any("OOM" in line and "too much" in line for line in lines)


def test_sorting_keeps_the_ranking_among_equals_and_puts_nan_last() -> None:
    columns = make_columns([3.0, float("nan"), 1.0, 3.0], [1, 1, 1, 1])
    rows = np.arange(4)
    assert sort_order(columns, rows, "time", False).tolist() == [2, 0, 3, 1]
    assert sort_order(columns, rows, "time", True).tolist() == [0, 3, 2, 1]
    assert sort_order(columns, rows, "rank", True).tolist() == [3, 2, 1, 0]


async def test_the_footer_starts_with_help_and_is_never_cut(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        shown = app.screen.query_one(FooterBar).shown
        assert shown[0].key == "?" and 4 <= len(shown) <= 8
        assert {"w", "W"} < {hint.key for hint in shown} and shown[-1].label == "Quit"
        app.open_mode("cluster")
        await pilot.pause()
        shown = app.screen.query_one(FooterBar).shown
        assert {"?", "a", "t", "r", "q"} < {hint.key for hint in shown} and len(shown) <= 8


async def test_why_not_says_rank_and_distance_and_asks_with_layers_and_recompute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(tmp_path)
    result = app.session.result
    assert result is not None
    asked: list[PlanRequest] = []

    def answer(self: MemxApp, request: PlanRequest, asker: WhyNotDialog) -> None:
        asked.append(request)
        listed = result.plans[4]
        gap = Gap(0.6, 0.5, 0.2, None, 0.25, 4)
        asker.post_message(RequestExplained(Explanation(Verdict.FITS, (), listed, gap)))

    monkeypatch.setattr(MemxApp, "explain", answer)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w", "enter")
        await pilot.pause(0.1)
        assert asked[0].layers == "auto" and asked[0].recompute is None
        assert isinstance(app.screen, WhyNotDialog)
        text = "\n".join(app.screen.answer)
        assert "It is #5 of 20 in the list." in text and "against #1: Φ 0.6000 (+20.0%), iteration time +25.0%" in text
        assert "4 plans in the list are better" in text
        await pilot.press("tab", "tab", "tab", "tab", *"8,8", "tab", *"none", "enter")
        await pilot.pause(0.1)
        assert asked[1].layers == (8, 8) and [str(r) for r in asked[1].recompute or ()] == ["none"]
        await pilot.press(*"x", "enter")
        await pilot.pause(0.1)
        assert len(asked) == 2 and "'nonex' is not known" in screen_text(app)


async def test_why_not_asks_with_the_plan_s_own_schedule_and_with_another(tmp_path: Path) -> None:
    cluster, model, job = make_cluster(), make_model(), resolve_job(make_cluster(), make_model(), global_batch=64)
    result = search(cluster, model, job, options=SearchOptions(front=0))
    row = next(i for i, plan in enumerate(result.table.plans) if plan.skeleton.virtual_stages == 2)
    plan = result.table.plans[row]
    session = make_session(result, job_overrides={"global_batch": 64})
    app = make_app(tmp_path, session)
    async with app.run_test(size=(120, 40)) as pilot:

        async def answer() -> str:
            dialog = app.screen
            assert isinstance(dialog, WhyNotDialog)
            await pilot.press("enter")
            await app.workers.wait_for_complete()
            await pilot.pause(0.1)
            return "\n".join(dialog.answer)

        app.push_screen(WhyNotDialog(result.detail(row)))
        await pilot.pause()
        fields = {name: app.screen.query_one(f"#ask-{name}", Input) for name in ("layers", "recompute", "schedule")}
        assert fields["schedule"].value == "interleaved:2"
        fields["layers"].value = ",".join(map(str, plan.layers))
        fields["recompute"].value = ",".join(map(str, plan.recompute))
        assert f"It is #{row + 1:,} of {len(result.table):,} in the list." in await answer()
        fields["schedule"].value = "interleaved:3"
        assert "does not divide into 3 equal chunks" in await answer()
        fields["schedule"].value = "interleaved:4"
        fields["layers"].value = fields["recompute"].value = "auto"
        said = await answer()
        assert "not in the list" in said and "proved" not in said and "interleaved:4 is not among 1f1b" in said
        fields["schedule"].value = "1f1b"
        assert "interleaved" not in await answer()
        fields["schedule"].value = "zigzag"
        await pilot.press("enter")
        await pilot.pause()
        assert "schedule 'zigzag' is not known" in screen_text(app)
