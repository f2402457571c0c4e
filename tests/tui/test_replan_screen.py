"""What if a node fails: two keys ask, the answer says what moves, and Enter takes it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

import memx_engine
from memx_engine import (
    InputError,
    NoFeasiblePlanError,
    OperatorLimits,
    SearchOptions,
    Weights,
    plan_file,
    save_plan,
    without_nodes,
)
from memx_tui.remembering import capture, restore
from memx_tui.replanning import Hand, Leaving, hand_of_file, hand_of_result, inputs_of
from memx_tui.screens.export import ExportDialog
from memx_tui.screens.nodes import NodesDialog, parse_percent
from memx_tui.screens.pick import PickDialog
from memx_tui.screens.replan import ReplanDialog
from memx_tui.session import Session
from memx_tui.session_file import load_session, save_session
from memx_tui.widgets.chrome import FooterBar
from tests.builders import H100, MI300X, make_cluster, make_node, make_result
from tests.tui.harness import make_app, make_session, screen_lines, screen_text
from tests.tui.test_jobs_and_errors import until

CLUSTER = replace(
    make_cluster(),
    nodes=(make_node("alpha", H100, 4), make_node("beta", H100, 4), make_node("gamma", MI300X, 8)),
)
RESULT = make_result(20, cluster=CLUSTER)
FILED = next(ranked for ranked in RESULT.plans if ranked.plan.skeleton.tp <= 4 and ranked.rank > 1)
"""One that a file may hold: no tensor-parallel group spans two nodes."""


class FakeSearch:
    """Stands in for the engine's search: plans for whatever cluster it is given, once it is released."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.release, self.stopped = error, threading.Event(), threading.Event()
        self.asked: list[tuple[Any, Any, Any, SearchOptions]] = []

    def __call__(self, cluster: Any, model: Any, job: Any, **named: Any) -> Any:
        self.asked.append((cluster, model, job, named["options"]))
        while not self.release.wait(0.01):
            if named["should_stop"]():
                self.stopped.set()
                break
        if self.error is not None:
            raise self.error
        return make_result(9, cluster=cluster, model=model, job=job)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeSearch, *, release: bool = True) -> FakeSearch:
    monkeypatch.setattr(memx_engine, "search_plans", fake, raising=False)
    if release:
        fake.release.set()
    return fake


async def open_nodes(pilot: Any) -> NodesDialog:
    await pilot.press("n")
    await until(pilot, lambda: isinstance(pilot.app.screen, NodesDialog))
    assert isinstance(pilot.app.screen, NodesDialog)
    return pilot.app.screen


async def test_two_keys_answer_what_if_a_node_fails_and_enter_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch())
    session = make_session(RESULT)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        assert "[ ] alpha" in screen_text(app) and "8x mi300x" in screen_text(app)
        assert "from plan #1, within 2 % of the best" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "enter Take these plans" in screen_text(app))
        dialog = app.screen
        assert isinstance(dialog, ReplanDialog) and dialog.found is not None and dialog.found.replan is not None
        assert [node.name for node in fake.asked[0][0].nodes] == ["beta", "gamma"]
        text = " ".join(" ".join(dialog.answer).split())
        moved = dialog.found.replan.migration
        receiving = sum(move.received_bytes > 0 for move in moved.ranks)
        assert "12 GPUs are left" in text and "gone: alpha" in text and "s per iteration instead of" in text
        assert f"{moved.moved_layers} layers move" in text
        assert f"received by {receiving} of {len(moved.ranks)} GPUs" in text
        assert session.result is RESULT, "nothing changes before it is taken"
        chosen = dialog.found.chosen
        await pilot.press("enter")
        await until(pilot, lambda: session.result is not RESULT)
        assert session.without == ("alpha",) and not session.stale
        await until(pilot, lambda: "without alpha" in screen_lines(app)[2])
        plans = app.screen
        row = session.selected_row
        assert session.detail(row).plan == chosen.plan and plans.table.selected == row  # type: ignore[attr-defined]  # the Plans screen
        await pilot.press("space")
        assert session.marks == {"A": row}, "it can be marked and compared like any plan"
        await pilot.press("r")
        await until(pilot, lambda: len(fake.asked) == 2 and not session.searching)
        assert [node.name for node in fake.asked[1][0].nodes] == ["beta", "gamma"], "the next search is without it too"


async def test_the_answer_is_exported_without_taking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeSearch())
    session = make_session(RESULT)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "enter Take these plans" in screen_text(app))
        dialog = app.screen
        assert isinstance(dialog, ReplanDialog) and dialog.found is not None
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, ExportDialog))
        export = app.screen
        assert isinstance(export, ExportDialog)
        assert "alpha" not in {node.name for node in memx_engine.export.plan_file.parse_plan(export.text).cluster.nodes}
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not isinstance(app.screen, (ReplanDialog, ExportDialog)))
        assert session.result is RESULT and session.without == ()


async def test_several_nodes_are_chosen_with_space_and_found_by_typing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(80, 24)) as pilot:
        dialog = await open_nodes(pilot)
        await pilot.press("space", "down", "space", "space", *"gam", "space")
        assert dialog.toggled == ("alpha", "gamma")
        await until(pilot, lambda: "enter Plan without 2" in screen_text(app) and "[x] gamma" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: bool(fake.asked))
        assert [node.name for node in fake.asked[0][0].nodes] == ["beta"]


async def test_asked_again_it_starts_from_the_plan_that_ran_and_every_node_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch())
    session = make_session(RESULT)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "enter Take these plans" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: session.without == ("alpha",))
        dialog = await open_nodes(pilot)
        assert "left out now" in screen_text(app)
        assert dialog.asked.hand is not None and dialog.asked.hand.before.cluster == CLUSTER
        await pilot.press(*"every", "enter")
        await until(pilot, lambda: "enter Take these plans" in screen_text(app))
        assert fake.asked[1][0] == CLUSTER
        await pilot.press("enter")
        await until(pilot, lambda: session.without == () and not session.stale)
        assert "without" not in screen_lines(app)[2]


async def test_closing_stops_the_search_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, FakeSearch(), release=False)
    session = make_session(RESULT)
    app = make_app(tmp_path, session)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: bool(fake.asked))
        await pilot.press("enter")
        assert isinstance(app.screen, ReplanDialog), "there is nothing to take yet"
        await pilot.press("escape")
        await until(pilot, fake.stopped.is_set)
        assert session.result is RESULT and session.without == () and session.hand is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoFeasiblePlanError("nothing fits within --pin-layers", hint="drop --pin-layers 0:30"), '"pin layers" 0:30'),
        (InputError("this cannot be planned", hint="plan something else"), "plan something else"),
    ],
)
async def test_what_goes_wrong_is_said_in_the_dialog(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, FakeSearch(error))
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: words in screen_text(app) and "log: " in screen_text(app))
        await pilot.press("enter", "e")
        assert isinstance(app.screen, ReplanDialog)


async def test_no_node_may_be_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeSearch())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_nodes(pilot)
        await pilot.press("space", "down", "space", "down", "space", "enter")
        await until(pilot, lambda: "no node is left" in screen_text(app))
        assert "leave at least one node to plan with" in screen_text(app) and not fake.asked


async def test_the_plan_in_hand_may_be_a_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeSearch())
    save_plan(plan_file(RESULT, FILED), tmp_path / "mine.yaml")
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(120, 36)) as pilot:
        dialog = await open_nodes(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.screen is not dialog)
        filter_line = app.screen.query_one(Input)
        filter_line.value = str(tmp_path / "other.yaml")
        await until(pilot, lambda: "no such file" in screen_text(app))
        await pilot.press("enter")
        assert isinstance(app.screen, PickDialog) and app.screen is not dialog, "a path that is not there is not taken"
        filter_line.value = str(tmp_path / "mine.yaml")
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is dialog)
        assert "from mine.yaml, within 2 %" in screen_text(app)
        await pilot.press("ctrl+t")
        await until(pilot, lambda: app.screen is not dialog)
        await pilot.press(*"lots", "enter")
        await until(pilot, lambda: "not a percentage" in screen_text(app))
        await pilot.press("ctrl+u", *"7.5%", "enter")
        await until(pilot, lambda: app.screen is dialog)
        assert "from mine.yaml, within 7.5 % of the best" in screen_text(app)
        hand = dialog.asked.hand
        assert hand is not None and hand.before.plan == FILED.plan and dialog.asked.tolerance == 0.075
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.screen is not dialog)
        await pilot.press(*"nothing", "enter")
        await until(pilot, lambda: app.screen is dialog)
        assert "from nothing in hand" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "enter Take these plans" in screen_text(app))
        answer = app.screen
        assert isinstance(answer, ReplanDialog) and answer.found is not None and answer.found.replan is None
        assert answer.found.chosen.rank == 1 and fake.asked[0][3].objective is None
        assert "Moving from" not in " ".join(answer.answer)


async def test_a_file_that_is_no_plan_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1,\n")
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(120, 36)) as pilot:
        dialog = await open_nodes(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.screen is not dialog)
        app.screen.query_one(Input).value = str(tmp_path / "bad.yaml")
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: "the text ends too early" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is dialog)
        assert dialog.asked.hand is not None and dialog.asked.hand.name == "plan #1"


async def test_nodes_are_in_the_footer_and_in_help_and_wait_for_a_search(tmp_path: Path) -> None:
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert ("n", "Nodes") in {(hint.key, hint.label) for hint in app.screen.query_one(FooterBar).shown}
        app.session.searching = True
        await pilot.press("n")
        assert not isinstance(app.screen, NodesDialog)
        app.session.searching = False
        await pilot.press("question_mark", *"fails")
        await until(pilot, lambda: "What if a node fails" in screen_text(app))


@pytest.mark.parametrize("size", [(60, 12), (40, 20), (200, 50)])
async def test_the_dialogs_at_other_sizes(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, FakeSearch())
    app = make_app(tmp_path, make_session(RESULT))
    async with app.run_test(size=size) as pilot:
        await open_nodes(pilot)
        assert "[ ] alpha" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "enter Take" in screen_text(app))
        assert "GPUs are left" in screen_text(app)


@pytest.mark.parametrize(("text", "value"), [("2", 2.0), ("0", 0.0), ("7.5%", 7.5), ("1e2", 100.0)])
def test_percentages(text: str, value: float) -> None:
    assert parse_percent(text) == value


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1001", "two"])
def test_no_percentages(text: str) -> None:
    with pytest.raises(InputError, match="not a percentage"):
        parse_percent(text)


def hand() -> Hand:
    return hand_of_result(RESULT, RESULT.plans[0])


def test_weights_and_references_are_those_of_the_plan_in_hand_unless_others_are_asked_for() -> None:
    session = make_session(RESULT)
    asked = Leaving(("alpha",), hand())
    cluster, model, job, options = inputs_of(session, asked)
    assert cluster == without_nodes(CLUSTER, ("alpha",)) and model == RESULT.model
    assert (job.global_batch, job.seq_len) == (RESULT.job.global_batch, RESULT.job.seq_len)
    assert options.objective == RESULT.objective
    session.job_overrides = {"global_batch": 1024, "tp_sizes": (2,)}
    _, _, job, options = inputs_of(session, asked)
    assert (job.global_batch, job.tp_sizes) == (1024, (2,)) and options.objective is not None
    assert options.objective.references.time_s == pytest.approx(2 * RESULT.objective.references.time_s)
    session.options = SearchOptions(weights=Weights("custom", 1.0, 0.0, 0.0))
    assert inputs_of(session, asked)[3].objective is None
    session.options = SearchOptions(variance_kind="utilization")
    assert inputs_of(session, asked)[3].objective is None


def test_limits_that_speak_of_a_type_that_is_gone_are_dropped_and_aliases_are_kept() -> None:
    session = make_session(RESULT)
    limits = OperatorLimits(layers=(("h100", 4), ("mi300x", 8)), keep_free_bytes=((None, 1.0),))
    session.options = SearchOptions(limits=limits)
    kept = inputs_of(session, Leaving(("gamma",)))[3].limits
    assert kept == OperatorLimits(layers=(("h100-sxm-80g", 4),), keep_free_bytes=((None, 1.0),))
    assert session.options.limits == limits, "with every node they count again"


def test_the_model_of_a_combination_is_kept_while_it_is_in_hand() -> None:
    other = replace(RESULT.model, heads=16, kv_heads=16, head_dim=256)
    result = make_result(5, cluster=CLUSTER, model=other)
    session = make_session(result)
    session.model = RESULT.model
    session.free = {"heads": (16, 32)}
    assert inputs_of(session, Leaving(("alpha",), hand_of_result(result, result.plans[0])))[1] == other


def test_a_plan_file_gives_its_job(tmp_path: Path) -> None:
    file = plan_file(RESULT, RESULT.plans[1])
    file = replace(file, job=replace(file.job, global_batch=256))
    taken = hand_of_file(file, "x.yaml")
    assert inputs_of(make_session(RESULT), Leaving((), taken))[2].global_batch == 256
    assert taken.iteration_time_s == file.estimate.iteration_time_s


def test_nodes_that_are_left_out_come_back_with_the_session(tmp_path: Path) -> None:
    session = Session(cluster=memx_engine.load_cluster("paper-20gpu"), cluster_source="paper-20gpu")
    session.without = ("vendor-b", "gone since")
    save_session(tmp_path / "s.json", capture(session, None))
    state, problem = load_session(tmp_path / "s.json")
    again = Session()
    assert problem is None and restore(again, state) == [] and again.without == ("vendor-b",)
    other = Session(cluster=memx_engine.load_cluster("a800x8"), cluster_source="a800x8")
    assert restore(other, state) == [] and other.without == ()


def test_a_changed_cluster_keeps_only_the_nodes_that_it_has(tmp_path: Path) -> None:
    session = make_session(RESULT)
    session.without = ("alpha", "gamma")
    app = make_app(tmp_path, session)
    app.set_cluster(without_nodes(CLUSTER, ("alpha",)))
    assert session.without == ("gamma",) and session.stale
