"""What every plan must keep: typed as on the command line, refused below its field, searched with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key

import memx_engine
from memx_engine import NoFeasiblePlanError, OperatorLimits, SearchOptions, load_cluster, load_model
from memx_engine.units import GIB
from memx_tui.field_words import in_fields
from memx_tui.limit_form import LIMIT_FORM, Asked, check_form, form_texts, read_form
from memx_tui.remembering import capture, restore
from memx_tui.screens.limits import LimitsDialog
from memx_tui.screens.pick import PickDialog
from memx_tui.session import Session
from memx_tui.session_file import SessionState, load_session, save_session
from memx_tui.widgets.chrome import FooterBar
from tests.builders import make_result
from tests.tui.harness import make_app, make_session, screen_lines, screen_text
from tests.tui.test_jobs_and_errors import FakeSearch, install, until

TEXTS = {
    "pin_layers": "0:2,vendor-b:4",
    "pin_recompute": "vendor-c:block:1",
    "forbid": "a100-sxm-80g",
    "keep_free": "2,vendor-b:1.5",
    "max_layer_difference": "3",
    "type_order": "vendor-c,vendor-b",
    "all_orders": "yes",
    "variance": "utilization",
    "global_batch": "256,512",
    "seq_len": "2048",
    "heads": "32",
    "kv_heads": "8,16",
}


def paper() -> Session:
    return Session(cluster=load_cluster("paper-20gpu"), model=load_model("llama2-7b"), mode="plans")


def test_what_is_typed_means_what_the_flags_mean_and_reads_back() -> None:
    asked, problems = read_form(TEXTS)
    assert problems == {} and list(TEXTS) == list(LIMIT_FORM)
    assert asked.limits == memx_engine.parse_limits(
        pin_layers=("0:2", "vendor-b:4"),
        pin_recompute=("vendor-c:block:1",),
        forbid=("a100-sxm-80g",),
        keep_free=("2", "vendor-b:1.5"),
        max_layer_difference=3,
        type_order="vendor-c,vendor-b",
        all_orders=True,
    )
    assert asked.limits.keep_free_bytes == ((None, 2 * GIB), ("vendor-b", 1.5 * GIB))
    assert asked.free == {"global_batch": (256, 512), "seq_len": (2048,), "heads": (32,), "kv_heads": (8, 16)}
    options = asked.options(SearchOptions(seed=7))
    assert (options.seed, options.limits, options.variance_kind) == (7, asked.limits, "utilization")
    assert form_texts(options, asked.free) == TEXTS


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("pin_layers", "0", "not a stage or GPU type and its layers"),
        ("pin_layers", "0:²", "not a stage or GPU type and its layers"),
        ("pin_layers", f"0:{'9' * 5000}", "not a stage or GPU type and its layers"),
        ("pin_layers", "0:40", "stage 0 is pinned to 40 layers, the model has 32"),
        ("pin_layers", "x9:4", "the cluster has no GPU type 'x9'"),
        ("pin_recompute", "selctive", "is not known"),
        ("pin_recompute", "full,block:2", "both cannot hold"),
        ("forbid", "a100-sxm-80g,vendor-b,vendor-c", "every GPU type of the cluster is forbidden"),
        ("keep_free", "vendor-b", "not a size in GiB"),
        ("keep_free", "nan", "not a size in GiB"),
        ("max_layer_difference", "-1", "not a whole number"),
        ("type_order", "vendor-b", "does not say where a100-sxm-80g, vendor-c come"),
        ("all_orders", "perhaps", "is not one of no, yes"),
        ("variance", "b2", "is not one of bytes, utilization"),
        ("global_batch", "256;512", "is not a list of whole numbers"),
        ("global_batch", "0", "out of bounds"),
        ("heads", "33", "33 heads do not divide the hidden size 4096"),
        ("kv_heads", "5", "none of the KV heads 5 divides"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(key: str, text: str, words: str) -> None:
    _, problems = check_form({key: text}, paper(), key)
    assert list(problems) == [key] and words in problems[key].message


def test_a_contradiction_is_shown_where_it_is_typed() -> None:
    texts = {"pin_layers": "vendor-b:4", "forbid": "vendor-b"}
    for editing in texts:
        _, problems = check_form(texts, paper(), editing)
        assert list(problems) == [editing] and "both cannot hold" in problems[editing].message


def test_hints_of_the_engine_name_the_fields_of_the_dialog() -> None:
    assert in_fields("drop --pin-layers 0:20") == 'drop "pin layers" 0:20 (3 Plans, l)'
    assert in_fields("drop --pin-layers 0:20", places=False) == 'drop "pin layers" 0:20'
    assert in_fields("--variance") == '"variance" (3 Plans, l)'


async def test_enter_searches_within_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = OperatorLimits(layers=((0, 12),), forbidden=("mi300x",))
    fake = install(monkeypatch, FakeSearch(replace(make_result(9), limits=limits)))
    seen: list[Any] = []
    monkeypatch.setattr(
        memx_engine,
        "search_plans",
        lambda *inputs, **named: (seen.append(named["options"]), fake(*inputs, **named))[1],
        raising=False,
    )
    fake.release.set()
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        await pilot.press(*"0:12", "down", "down", *"mi300x")
        text = screen_text(app)
        assert "pin layers" in text and "kv heads" in text and "enter Search again" in text and "esc Close" in text
        await pilot.press("enter")
        await until(pilot, lambda: app.session.result is fake.outcome)
        assert [options.limits for options in seen] == [limits] and seen[0].variance_kind == "bytes"
        await until(pilot, lambda: "within pin layers 0:12; forbid mi300x" in screen_lines(app)[2])
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        dialog = app.screen
        assert isinstance(dialog, LimitsDialog) and dialog.texts == {"pin_layers": "0:12", "forbid": "mi300x"}
        await pilot.press("ctrl+r", "enter")
        await until(pilot, lambda: len(seen) == 2)
        assert not seen[1].limits and app.session.limit_draft is None


async def test_errors_stand_below_their_fields_and_nothing_typed_is_lost(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        dialog = app.screen
        assert isinstance(dialog, LimitsDialog)
        await pilot.press("down", "down", *"mi300", "down", *"lots")
        await until(pilot, lambda: set(dialog.problems) == {"forbid", "keep_free"})
        await pilot.pause()
        lines = screen_lines(app)
        row = next(i for i, line in enumerate(lines) if "forbid" in line)
        assert "the cluster has no GPU type 'mi300'; did you mean" in lines[row + 1] and "mi300x?" in lines[row + 2]
        assert any("'lots' is not a size in GiB" in line for line in lines[row + 3 :])
        assert "enter Search again" in screen_text(app), "the keys stay in sight however many problems there are"
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is dialog and dialog.texts == {"forbid": "mi300", "keep_free": "lots"}
        assert dialog.focused is not None and dialog.focused.id == "limit-forbid"
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not dialog)
        assert app.session.options is None and not app.session.stale
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        again = app.screen
        assert isinstance(again, LimitsDialog) and again.texts == {"forbid": "mi300", "keep_free": "lots"}


async def test_space_turns_where_only_some_words_are_allowed(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        dialog = app.screen
        assert isinstance(dialog, LimitsDialog)
        await pilot.press(*["tab"] * 6, "space", "tab", "space")
        assert dialog.texts == {"all_orders": "yes", "variance": "utilization"}
        await pilot.press("space", "up", "space")
        assert read_form(dialog.texts)[0] == Asked(OperatorLimits())


async def test_a_running_search_gives_way_to_the_one_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(make_result(5, cancelled=True)))
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        app.start_search()
        await until(pilot, fake.started.is_set)
        fake.started.clear()
        app.search_within(Asked(OperatorLimits(forbidden=("mi300x",))))
        await until(pilot, lambda: fake.stopped and fake.started.is_set())
        assert app.session.searching
        fake.release.set()
        await until(pilot, lambda: not app.session.searching)
        assert not app.session.stale


async def test_nothing_fits_within_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = NoFeasiblePlanError("no plan fits within --pin-layers 0:30", hint="drop --pin-layers 0:30 and 12 plans fit")
    fake = install(monkeypatch, FakeSearch(error))
    fake.release.set()
    session = make_session()
    session.result = session.columns = None
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: session.failure is not None)
        await pilot.press("escape")
        await until(pilot, lambda: "l the limits" in screen_text(app))
        text = " ".join(screen_text(app).split())
        assert 'no plan fits within "pin layers" 0:30 (3 Plans, l)' in text and 'drop "pin layers" 0:30' in text


async def test_limits_are_in_the_footer_and_in_help(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert ("l", "Limits") in {(hint.key, hint.label) for hint in app.screen.query_one(FooterBar).shown}
        await pilot.press("question_mark", *"limits")
        await until(pilot, lambda: "What every plan must keep" in screen_text(app))


def test_limits_are_kept_in_the_session_file(tmp_path: Path) -> None:
    asked, _ = read_form(TEXTS)
    session = paper()
    session.options, session.free = asked.options(None), dict(asked.free)
    save_session(tmp_path / "s.json", capture(session, None))
    state, problem = load_session(tmp_path / "s.json")
    assert problem is None and state.limits == TEXTS
    again = Session()
    assert restore(again, state) == []
    assert again.options is not None and again.options.limits == asked.limits
    assert again.options.variance_kind == "utilization" and again.free == dict(asked.free)


def test_a_limit_that_cannot_be_read_any_more_is_told_and_left_out() -> None:
    session = Session()
    problems = restore(session, SessionState(limits={"pin_layers": "0", "forbid": "t4", "from the future": "1"}))
    assert [str(p).splitlines()[0] for p in problems] == ["pin layers: '0' is not a stage or GPU type and its layers"]
    assert session.options is not None and session.options.limits == OperatorLimits(forbidden=("t4",))


@pytest.mark.parametrize("size", [(60, 12), (40, 24), (200, 50)])
async def test_the_dialog_at_other_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=size) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        await pilot.press(*["down"] * 11, *"x")
        assert "kv heads" in screen_text(app) and "enter Search" in screen_text(app)


FREE = {"global_batch": (256, 512)}


async def test_free_values_give_a_list_of_combinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def search(cluster: Any, model: Any, job: Any, **named: Any) -> Any:
        searched.append(job.global_batch)
        result = make_result(6 if job.global_batch == 256 else 8)
        return replace(result, job=job)

    monkeypatch.setattr(memx_engine, "search_plans", search, raising=False)
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("v")
        assert not isinstance(app.screen, PickDialog), "nothing is free yet"
        app.search_within(Asked(OperatorLimits(), free=FREE))
        await until(pilot, lambda: app.session.free_search is not None)
        assert searched == [256, 512]
        free = app.session.free_search
        assert free is not None and app.session.result is free.result and not app.session.stale
        await until(pilot, lambda: "best of 2 (v)" in screen_lines(app)[2])
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, PickDialog))
        assert "batch 256, seq 4096" in screen_text(app) and "us/token" in screen_text(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: "one of 2 (v)" in screen_lines(app)[2])
        other = free.searched[1 - free.best].result
        assert app.session.result is other and not app.session.stale


def test_stopped_early_the_combinations_that_are_done_are_kept() -> None:
    from memx_engine import CancelledError, free_variants, resolve_job, search_variants

    session = paper()
    assert session.cluster is not None and session.model is not None
    job = resolve_job(session.cluster, session.model)
    variants = free_variants(session.cluster, session.model, job, global_batches=(256, 512, 1024))
    calls: list[int] = []

    def one(model: Any, its_job: Any, options: Any) -> Any:
        calls.append(its_job.global_batch)
        if len(calls) == 2:
            raise CancelledError("stopped")
        return make_result(3)

    found = search_variants(variants, SearchOptions(), one, should_stop=lambda: False)
    assert calls == [256, 512] and len(found.searched) == 1
    calls.clear()
    with pytest.raises(CancelledError):
        search_variants(variants, SearchOptions(), one)


async def test_keys_that_arrive_together_fill_the_fields_they_were_meant_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(make_result(9)))
    fake.release.set()
    app = make_app(tmp_path, make_session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LimitsDialog))
        keys = [*"9:9", "ctrl+r", *"0:130", "backspace", "down", "down", "down", *"25", "backspace", "4", "enter"]
        for key in keys:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: app.session.result is fake.outcome)
        assert form_texts(app.session.options, {}) == {"pin_layers": "0:13", "keep_free": "24"}
