from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from memx_engine import gib, load_cluster, load_model, parse_cluster
from memx_tui.app import MemxApp
from memx_tui.cluster_draft import UNDO_LIMIT, ClusterDraft
from memx_tui.cluster_view import Target
from memx_tui.screens.cluster import CHECK_AFTER_S, ClusterScreen
from memx_tui.screens.error import ErrorDialog
from memx_tui.screens.export import ExportDialog
from memx_tui.screens.pick import PickDialog
from memx_tui.screens.prompt import ConfirmDialog, PromptDialog
from memx_tui.session import Session
from memx_tui.widgets.chrome import FooterBar
from memx_tui.widgets.cluster_tree import ClusterTree
from memx_tui.widgets.fields import FieldList
from memx_tui.widgets.summary import Summary
from memx_tui.widgets.yaml_editor import YamlEditor
from tests.tui.harness import make_app, screen_text
from tests.tui.test_jobs_and_errors import until

FILE = """\
# kept comment
schema: memx/cluster/v1
name: west
nodes:
  - name: n0
    gpus: [{type: a100-sxm-80g, count: 4}]
  - name: n1
    gpus: [{type: v100-sxm2-32g, count: 8}]
links: {inter_node: infiniband-hdr}
"""


def start(root: Path, source: str = "", model: str = "") -> MemxApp:
    session = Session(
        cluster=load_cluster(source) if source else None,
        cluster_source=source,
        model=load_model(model) if model else None,
        model_source=model,
        mode="cluster",
    )
    return make_app(root, session)


def cluster_screen(app: MemxApp) -> ClusterScreen:
    screen = next(s for s in app.screen_stack if isinstance(s, ClusterScreen))
    return screen


async def settle(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.pause(CHECK_AFTER_S * 2)


async def go_to(pilot: Pilot[None], app: MemxApp, target: Target) -> None:
    cluster_screen(app).query_one(ClusterTree).go_to(target)
    await pilot.pause()
    await pilot.pause()


def west(root: Path) -> str:
    file = root / "west.yaml"
    file.write_text(FILE)
    return str(file)


def rows(app: MemxApp) -> str:
    return "\n".join(f"{row.label} {row.text}" for row in cluster_screen(app).query_one(Summary).rows)


def fields(app: MemxApp, name: str) -> dict[str, str]:
    return {f.label: f.value for f in cluster_screen(app).query_one(f"#{name}", FieldList).shown}


async def test_first_start_says_what_to_do(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, ClusterScreen)
        text = screen_text(app)
        assert "open a sample or a" in text and "no cluster" in text


async def test_open_dialog_lists_samples_with_titles_and_opens_one(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="cluster"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("o")
        await pilot.pause()
        assert isinstance(app.screen, PickDialog)
        assert "The paper's cluster: 4 A100, 8 vendor-b, 8 vendor-c" in screen_text(app)
        await pilot.press(*"paper-20", "enter")
        await settle(pilot)
        assert app.session.cluster is not None and len(app.session.cluster.gpus) == 20
        assert app.session.cluster_source == "paper-20gpu" and app.session.recent == ("paper-20gpu",)
        # 4 x 80 GiB and 16 x 32 GiB, the paper's Table 3.
        assert "GPUs 20 in 3 nodes" in rows(app) and "memory 832 GiB in all" in rows(app)


async def test_open_dialog_takes_a_typed_path(tmp_path: Path) -> None:
    app = make_app(tmp_path, Session(mode="cluster"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("o")
        await pilot.pause()
        app.screen.query_one(Input).value = west(tmp_path)
        await pilot.pause()
        await pilot.press("enter")
        await settle(pilot)
        assert app.session.cluster is not None and app.session.cluster.name == "west"


async def test_tree_form_and_summary_follow_each_other(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(1))
        form = fields(app, "node")
        assert form["name"] == "n1" and form["GPU type"] == "v100-sxm2-32g" and form["count"] == "8"
        assert "no bf16" in rows(app)
        await pilot.press("minus", "minus")
        await settle(pilot)
        assert app.session.cluster is not None and len(app.session.cluster.gpus) == 10
        assert fields(app, "node")["count"] == "6"
        assert cluster_screen(app).draft.text == FILE.replace("count: 8", "count: 6")


async def test_nodes_are_added_copied_removed_and_undone(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        screen = cluster_screen(app)
        await go_to(pilot, app, Target(0))
        await pilot.press("d")
        await settle(pilot)
        assert screen.draft.doc is not None
        assert [e.name for e in screen.draft.doc.entries] == ["n0", "n2", "n1"]
        await pilot.press("a")
        await pilot.pause()
        await pilot.press(*"mi300x", "enter")
        await settle(pilot)
        assert app.session.cluster is not None
        assert [node.name for node in app.session.cluster.nodes] == ["n0", "n2", "n3", "n1"]
        assert app.session.cluster.nodes[2].groups[0].gpu_type.name == "mi300x"
        await pilot.press("x")
        await settle(pilot)
        assert len(app.session.cluster.nodes) == 3
        await pilot.press("u", "u", "u")
        await settle(pilot)
        assert screen.draft.text == FILE and not screen.draft.dirty and app.session.unsaved == ""
        await pilot.press("ctrl+r")
        await settle(pilot)
        assert screen.draft.dirty and "cluster west.yaml *" in screen_text(app)


def test_undo_keeps_a_hundred_steps() -> None:
    draft = ClusterDraft(FILE)
    for count in range(1, UNDO_LIMIT + 21):
        draft.change(FILE.replace("count: 8", f"count: {100 + count}"))
    for _ in range(UNDO_LIMIT):
        assert draft.undo()
    assert not draft.undo() and "count: 120" in draft.text
    for _ in range(UNDO_LIMIT):
        assert draft.redo()
    assert not draft.redo() and draft.text == FILE.replace("count: 8", "count: 220")


async def test_check_26_typing_a_wrong_key_names_line_key_and_the_nearest(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("v")
        editor = cluster_screen(app).query_one(YamlEditor)
        editor.load_text(FILE.replace("count: 8}", "count: 8, memory_used_gb: 2}"))
        await settle(pilot)
        problems = cluster_screen(app).draft.problems
        assert [(p.line, p.key.rpartition(".")[2]) for p in problems] == [(8, "memory_used_gb")]
        words = rows(app)
        assert "line 8" in words and "memory_used_gb" in words and "memory_used_gib" in words
        assert "summary: 1 problem" in screen_text(app)
        # The last valid cluster stays in use, and a search is refused.
        assert app.session.cluster is not None and len(app.session.cluster.gpus) == 12
        await pilot.press("escape", "r")
        await pilot.pause()
        assert not app.session.searching and isinstance(app.screen, ClusterScreen)
        # Enter on the problem goes to its line.
        cluster_screen(app).query_one(Summary).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert editor.has_focus and editor.cursor_location == (7, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE.replace("name: west", "name: !!python/object/apply:os.system [ls]"), "tag"),
        (FILE.replace("name: west", "name: &a west"), "anchor"),
        ("nodes: [", "ends too early"),
        (FILE.replace("a100-sxm-80g", "a100-sxm-80gb-x"), "a100-sxm-80g"),
    ],
)
async def test_check_26_bad_files_open_with_their_problems(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    app = make_app(tmp_path, Session(mode="cluster"))
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_cluster(str(file))
        await settle(pilot)
        assert words in rows(app)
        assert app.session.cluster is None
        assert cluster_screen(app).query_one(YamlEditor).text == text
        assert file.read_text() == text


@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"", b"#" * (1 << 20) + b"##"])
async def test_files_that_cannot_be_shown_are_refused_in_a_dialog(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "[odd].yaml"
    file.write_bytes(content)
    app = make_app(tmp_path, Session(mode="cluster"))
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_cluster(str(file))
        await settle(pilot)
        assert isinstance(app.screen, ErrorDialog)
        assert "[odd].yaml" in app.screen.where
        await pilot.press("escape")
        assert cluster_screen(app).draft.empty


async def test_check_14_brackets_stay_literal(tmp_path: Path) -> None:
    file = tmp_path / "a[tp=2].yaml"
    file.write_text(
        FILE.replace("name: west", 'name: "[tp=2] a[/x]"')
        .replace("    gpus:", "    site: 'a[/x]'\n    gpus:")
        .replace("type: v100-sxm2-32g", "type: 'g[b]'")
        + "gpu_types: {'g[b]': {base: t4}}\n"
    )
    app = start(tmp_path, str(file), "llama2-7b")
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(1))
        text = screen_text(app)
        assert "[tp=2] a[/x]" in text and "a[tp=2].yaml" in text
        assert fields(app, "node")["site"] == "a[/x]"
        app.say("saved a[/x] [tp=2]")
        await pilot.pause(0.2)
        assert "saved a[/x] [tp=2]" in screen_text(app)
        await pilot.press("o")
        await pilot.pause()
        assert "a[tp=2].yaml" in screen_text(app)
        await pilot.press("escape", "ctrl+p")
        await pilot.pause()
        await pilot.press(*"a[tp")
        await pilot.pause()
        assert "a[tp=2].yaml" in screen_text(app)
        await pilot.press("escape", "S")
        await pilot.pause()
        assert "a[tp=2].yaml" in screen_text(app)
        await pilot.press("escape")
        await go_to(pilot, app, Target(1))
        await pilot.press("t")
        await pilot.pause()
        await pilot.press(*"g[b")
        await pilot.pause()
        assert isinstance(app.screen, PickDialog) and "In this file" in screen_text(app)


async def test_saving_asks_before_it_replaces_and_clears_the_mark(tmp_path: Path) -> None:
    source = west(tmp_path)
    app = start(tmp_path, source)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(0))
        await pilot.press("plus")
        await settle(pilot)
        await pilot.press("S")
        await pilot.pause()
        assert isinstance(app.screen, ExportDialog)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ExportDialog) and Path(source).read_text() == FILE
        await pilot.press("o")
        await settle(pilot)
        assert Path(source).read_text() == FILE.replace("count: 4", "count: 5")
        assert not cluster_screen(app).draft.dirty and " *" not in screen_text(app).splitlines()[2]


async def test_leaving_unsaved_changes_is_asked(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(0))
        await pilot.press("plus", "q")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("n")
        await pilot.pause()
        cluster_screen(app).open_source("a800x8")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("y")
        await settle(pilot)
        assert app.session.cluster_source == "a800x8" and app.session.unsaved == ""


async def test_form_values_are_checked_before_they_are_taken(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(0))
        form = cluster_screen(app).query_one("#node", FieldList)
        form.focus()
        form.go_to("memory_used_gib")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, PromptDialog)
        await pilot.press(*"99", "enter")
        await pilot.pause()
        assert isinstance(app.screen, PromptDialog) and "leaves nothing" in screen_text(app)
        await pilot.press("backspace", "backspace", *"1.5", "enter")
        await settle(pilot)
        assert app.session.cluster is not None
        assert gib(app.session.cluster.gpus[0].memory_used_bytes) == 1.5
        form.go_to("memory_used_gib")
        await pilot.press("backspace")
        await settle(pilot)
        assert cluster_screen(app).draft.text == FILE


async def test_links_are_chosen_by_name_or_bandwidth(tmp_path: Path) -> None:
    app = start(tmp_path, west(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await go_to(pilot, app, Target(0))
        form = cluster_screen(app).query_one("#node", FieldList)
        form.focus()
        form.go_to("links.uplink")
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press(*"25", "enter")
        await settle(pilot)
        cluster = app.session.cluster
        assert cluster is not None and cluster.nodes[0].uplink is not None
        assert cluster.nodes[0].uplink.bandwidth_bytes_s == 25e9
        assert parse_cluster(cluster_screen(app).draft.text) == cluster


async def test_model_and_job_are_set_on_the_training_pane(tmp_path: Path) -> None:
    app = start(tmp_path, "a800x8")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("m")
        await pilot.pause()
        await pilot.press(*"llama3-8b", "enter")
        await settle(pilot)
        assert app.session.model is not None and app.session.model.parameters == 8_030_261_248
        form = cluster_screen(app).query_one("#job", FieldList)
        form.focus()
        form.go_to("global_batch")
        await pilot.press("plus")
        form.go_to("tp_sizes")
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press(*"1, 2", "enter")
        await settle(pilot)
        form.go_to("weights")
        await pilot.press("plus")
        await settle(pilot)
        job = app.session.job()
        assert job.global_batch == 1024 and job.tp_sizes == (1, 2)
        assert app.session.options is not None and app.session.options.weights is not None
        assert app.session.options.weights.profile == "heterogeneous"
        form.go_to("global_batch")
        await pilot.press("backspace")
        await settle(pilot)
        assert app.session.job().global_batch == 512 and "global_batch" not in app.session.job_overrides


async def test_a_job_that_cannot_be_planned_is_said_at_once(tmp_path: Path) -> None:
    app = start(tmp_path, "a800x8", "gpt2-xl")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        app.session.job_overrides["seq_len"] = 4096  # GPT-2's position table has 1024 rows
        app.publish("job")
        await settle(pilot)
        assert "job" in rows(app) and "1024" in rows(app).replace(",", "")


async def test_r_searches_and_shows_the_plans(tmp_path: Path) -> None:
    app = start(tmp_path, "desk-3090-4090", "gpt2-large")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.cancel_search()
        await app.workers.wait_for_complete()
        await pilot.press("r")
        await pilot.pause()
        assert app.session.mode == "plans"
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.session.result is not None and len(app.session.result.table) > 0


async def test_zoom_shows_one_pane(tmp_path: Path) -> None:
    app = start(tmp_path, "paper-20gpu")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("v", "escape")
        cluster_screen(app).query_one(YamlEditor).focus()
        await pilot.pause()
        cluster_screen(app).action_zoom()
        await pilot.pause()
        text = screen_text(app)
        assert "schema: memx/cluster/v1" in text and "summary" not in text
        await pilot.press("escape")
        await pilot.pause()
        assert "summary" in screen_text(app)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
async def test_check_05_every_size(tmp_path: Path, width: int) -> None:
    app = start(tmp_path, "two-sites")
    async with app.run_test(size=(width, 24)) as pilot:
        for height, key in ((12, "o"), (18, "question_mark"), (24, "S"), (36, "m"), (50, "v")):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = screen_text(app).splitlines()
            assert "two-sites" in lines[2] and "?" in lines[-1][:3]
            await pilot.press(key)
            await pilot.pause()
            await pilot.press("escape")
            await pilot.pause()
            if width == 80 and height == 24:
                assert screen_text(app).splitlines()[-1].rstrip().endswith("q Quit")


async def test_the_footer_names_plus_where_it_adds_or_steps(tmp_path: Path) -> None:
    app = start(tmp_path, "a800x8")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        footer = app.screen.query_one(FooterBar)
        assert ("+", "More GPUs") in {(hint.key, hint.label) for hint in footer.shown}
        app.screen.query_one("#job").focus()
        await until(pilot, lambda: ("+", "More") in {(hint.key, hint.label) for hint in footer.shown})
        await pilot.press("v")
        await until(pilot, lambda: "+" not in {hint.key for hint in footer.shown})
