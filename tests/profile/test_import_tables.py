from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.errors import CancelledError, InputError
from memx_engine.profile.importers.columns import ITERATION_COLUMNS, LAYER_COLUMNS, Kind
from memx_engine.profile.importers.exporting import export_table, measurement_columns, write_rows
from memx_engine.profile.importers.reading import BATCH, SHOWN, FileImport, import_document, import_file
from memx_engine.profile.store import MemoryStore
from memx_engine.workspace import Workspace
from tests.profile.tables import LAYER, ROW, megatron_log, table


def read(path: Path, **options: Any) -> tuple[FileImport, list[dict[str, Any]]]:
    store = MemoryStore()
    made = import_file(path, store, **options)
    assert made.kind is not None
    return made, [row.document for row in store.imported(made.kind.value)]


def test_a_row_becomes_its_columns_with_numbers_as_numbers(tmp_path: Path) -> None:
    made, rows = read(table(tmp_path / "runs.csv", ROW, {**ROW, "ref": "run 2", "dp": "2.0", "recompute": ""}))
    assert (made.added, made.duplicates, made.rejected.total, made.not_judgeable.total) == (2, 0, 0, 0)
    assert rows[0] == ROW
    assert rows[1]["dp"] == 2 and "recompute" not in rows[1]


@pytest.mark.parametrize(
    ("separator", "end", "mark"), [(",", "\r\n", "\ufeff"), (";", "\n", ""), ("\t", "\r\n", "\ufeff"), (",", "\r", "")]
)
def test_byte_order_marks_line_ends_and_separators(tmp_path: Path, separator: str, end: str, mark: str) -> None:
    path = table(tmp_path / "runs.csv", ROW, separator=separator, end=end)
    path.write_bytes(mark.encode() + path.read_bytes())
    _, rows = read(path)
    assert rows == [ROW]


def test_quoted_cells_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('tp,pp,iter_time_s,notes\n1,1,2.5,"a, ""b""\nc"\n1,1,0,x\n')
    made, rows = read(path)
    assert rows[0]["notes"] == 'a, "b"\nc'
    # The first row takes two lines of the file, so the second one starts on line 4.
    assert made.rejected.first == [(4, "iter_time_s is 0, which cannot be")]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": ""}, "no layout: tp missing"),
        ({"pp": "nan"}, "no layout: pp missing"),
        ({"iter_time_s": "NaN", "peak_mem_gib": "n/a"}, "no result: neither time, rate, memory nor out of memory"),
        ({"iter_time_s": "20.5 s"}, "iter_time_s is '20.5 s', not a number; the column is in seconds"),
        ({"peak_mem_gib": "41 GiB"}, "peak_mem_gib is '41 GiB', not a number; the column is in GiB"),
        ({"iter_time_s": "-1"}, "iter_time_s is -1, which cannot be"),
        ({"iter_time_s": "inf"}, "iter_time_s is inf, which cannot be"),
        ({"tp": "two"}, "tp is 'two', not a number"),
        ({"mbs": "1.5"}, "mbs is 1.5, not a whole number of at least 1"),
        ({"num_gpus": "0"}, "num_gpus is 0, not a whole number of at least 1"),
        ({"peak_mem_gib": "1,5"}, "18 cells where the header has 17: a separator that is not quoted?"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_the_rest_is_imported(
    tmp_path: Path, cells: dict[str, str], reason: str
) -> None:
    made, rows = read(table(tmp_path / "runs.csv", ROW, {**ROW, **cells}, {**ROW, "ref": "run 3"}))
    assert made.rejected.first == [(3, reason)]
    assert [row["ref"] for row in rows] == ["run 1", "run 3"]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "my-own"}, "layers, hidden, heads not stated, and no preset is called 'my-own'"),
        ({"gpu_type": "qpu-9"}, "GPU type 'qpu-9' is not in the catalogue"),
        ({"gbs": ""}, "gbs not stated"),
        ({"gbs": 63}, "the global batch 63 is no multiple of dp x mbs = 2"),
        ({"dp": 4}, "tp x pp x dp is 16, but num_gpus is 8"),
        ({"dp": "", "num_gpus": ""}, "dp is not stated and does not follow from num_gpus"),
        ({"precision": "fp8"}, "the precision fp8 is outside the cost model"),
        ({"recompute": "some"}, "recompute 'some' is not known"),
        ({"recompute": "block:20"}, "block:20 recomputes more than the 16 layers that are there"),
        ({"model": "Mixtral-8x7B"}, "mixtures of experts are outside the cost model"),
        ({"model": "llama2-7b (LoRA)"}, "only a part of the parameters is trained (LoRA)"),
        # Units: 20.5 s written as milliseconds, as hours, and 41 GiB written in MiB.
        ({"iter_time_s": 20500}, "iter_time_s 20500 means 0.00021 of the devices' peak: in another unit?"),
        ({"iter_time_s": 0.0057}, "iter_time_s 0.0057 means 7.4e+02 of the devices' peak: in another unit?"),
        ({"peak_mem_gib": 42240}, "peak_mem_gib 42240 is more than the device's 80 GiB: in another unit?"),
    ],
)
def test_rows_the_cost_model_cannot_judge_are_kept_with_the_reason(
    tmp_path: Path, cells: dict[str, Any], reason: str
) -> None:
    made, rows = read(table(tmp_path / "runs.csv", {**ROW, **cells}))
    assert made.not_judgeable.first == [(2, reason)]
    assert len(rows) == 1 and made.rejected.total == 0


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ({"cp": 2}, "context parallelism is outside the cost model"),
        ({"ep": 8}, "expert parallelism is outside the cost model"),
        ({"zero_stage": 3}, "ZeRO-3 shards gradients or weights too, which is outside the cost model"),
        ({"vp": 3}, "3 virtual stages do not divide the layers, or pp not the micro-batches"),
        ({"stages": "a100-sxm-80g:20:full|a100-sxm-80g:10"}, "the column stages places 30 layers on 2 stages; "
         "the row says 32 layers, pp 2"),
        ({"stages": "a100-sxm-80g"}, "the stage 'a100-sxm-80g' is not TYPE:layers[:recompute]"),
    ],
)  # fmt: skip
def test_layouts_outside_the_cost_model_are_kept_with_the_reason(
    tmp_path: Path, column: dict[str, Any], cells: str
) -> None:
    made, _ = read(table(tmp_path / "runs.csv", {**ROW, **column}))
    assert made.not_judgeable.first == [(2, cells)]


def test_an_out_of_memory_run_is_a_result(tmp_path: Path) -> None:
    failed = {**ROW, "iter_time_s": "", "peak_mem_gib": "", "notes": "OOM on rank 3"}
    made, rows = read(table(tmp_path / "runs.csv", failed))
    assert made.added == 1 and made.rejected.total == 0 and made.not_judgeable.total == 0
    assert rows[0]["notes"] == "OOM on rank 3"


def test_tflops_alone_are_kept_but_compare_with_nothing(tmp_path: Path) -> None:
    made, _ = read(table(tmp_path / "runs.csv", {**ROW, "iter_time_s": "", "peak_mem_gib": "", "tflops_per_gpu": 160}))
    assert made.added == 1
    assert "whose counting differs" in made.not_judgeable.first[0][1]


def test_other_names_and_units_are_converted_and_said(tmp_path: Path) -> None:
    row = {k: v for k, v in ROW.items() if k not in ("iter_time_s", "peak_mem_gib", "gbs", "precision")}
    row |= {"iter_ms": 20500, "peak_mem_mib_rank0": 40960, "peak_mem_mib_rank1": 42240, "gbs_inferred": "64.0"}
    made, rows = read(table(tmp_path / "runs.csv", {**row, "dtype": "bf16"}))
    assert rows[0]["iter_time_s"] == pytest.approx(20.5)
    assert rows[0]["peak_mem_gib"] == pytest.approx(41.25)
    assert (rows[0]["gbs"], rows[0]["precision"]) == (64, "bf16")
    assert "iter_ms is read as iter_time_s" in made.notes
    assert made.not_judgeable.total == 0


def test_equal_rows_are_kept_once_whatever_file_they_come_from(tmp_path: Path) -> None:
    store = MemoryStore()
    first = import_file(table(tmp_path / "a.csv", ROW, ROW, {**ROW, "ref": "run 2"}), store)
    assert (first.added, first.duplicates) == (2, 1)
    again = import_file(table(tmp_path / "b.csv", ROW, {**ROW, "iter_time_s": 20.6}), store)
    # The same run measured again is a row of its own.
    assert (again.added, again.duplicates) == (1, 1)


def test_unknown_columns_are_kept_and_said(tmp_path: Path) -> None:
    made, rows = read(table(tmp_path / "runs.csv", {**ROW, "cooling": "water", "peak_mem_a100_gib": 40.5}))
    assert rows[0]["cooling"] == "water" and rows[0]["peak_mem_a100_gib"] == 40.5
    assert any("kept as they are: cooling" in note for note in made.notes)


def test_layer_rows(tmp_path: Path) -> None:
    whole = {k: v for k, v in LAYER.items() if k not in ("fwd_ms", "bwd_ms")} | {"fwd_ms": "", "fwd_bwd_ms": 26.5}
    made, rows = read(table(tmp_path / "layers.csv", LAYER, {**LAYER, "precision": ""}, {**LAYER, "fwd_ms": 0.0}))
    assert made.kind is Kind.LAYER and made.added == 3
    assert rows[0]["fwd_ms"] == 8.25 and rows[2]["fwd_ms"] == 0.0
    assert [reason for _, reason in made.not_judgeable.first] == [
        "precision not stated",
        "no time of forward and backward",
    ]
    made, _ = read(table(tmp_path / "whole.csv", whole, {**whole, "fwd_bwd_ms": ""}))
    assert made.added == 1 and made.rejected.first == [(3, "no result: neither times nor memory")]


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "this file is empty", ""),
        (b"  \n\n", "this file is empty", ""),
        (gzip.compress(b"tp,pp,iter_time_s\n1,1,2\n", mtime=0), "this file is compressed", "gunzip runs.csv"),
        (b"PK\x03\x04 an xlsx file", "this file is compressed", "unzip runs.csv"),
        ("tp,pp,iter_time_s\n1,1,2\n".encode("utf-16"), "this file is UTF-16", "save it as UTF-8"),
        (b"\x7fELF\x00\x00\x01", "this is a binary file", ""),
        (b"tp,pp,tp,iter_time_s\n1,1,1,2\n", "the column 'tp' stands twice", ""),
        (b"just some text\nand more of it\n", "the header lacks tp, pp", "a table of iterations has tp, pp"),
        (b"tp,pp,dp,mbs\n1,1,1,1\n", "the header lacks one of iter_time_s", "a table of iterations"),
        (b"tp,pipeline,gbs,iter_time\n1,1,1,1\n", "the header lacks pp", "'iter_time' looks like iter_time_s"),
        (b"TP,PP,iter_time_s,mbs,gbs\n1,1,1,1,1\n", "the header lacks tp, pp", "'TP' looks like tp"),
        (b'{"tp": 1, "pp": 1}\n', "the header lacks", ""),
        (b"tp,pp,iter_time_s\n1,1," + b"9" * (1 << 20) + b"\n", "this line is longer than 1 MiB", ""),
    ],
)
def test_files_that_are_no_tables_are_refused_in_words(tmp_path: Path, content: bytes, message: str, hint: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_file(path, MemoryStore())
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert str(path) in caught.value.where


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        import_file(tmp_path / "none.csv", MemoryStore())
    with pytest.raises(InputError, match="this is a folder"):
        import_file(tmp_path, MemoryStore())


def test_bytes_that_are_not_utf8_cost_their_row_only(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", {**ROW, "notes": "fine"}, {**ROW, "notes": "MARK"})
    path.write_bytes(path.read_bytes().replace(b"MARK", b"caf\xe9"))
    made, rows = read(path)
    assert made.rejected.first == [(3, "not UTF-8 text")]
    assert len(rows) == 1


def test_a_quote_that_is_never_closed_costs_what_it_swallows(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"1,1,{number + 1},{'x' * 70}\n" for number in range(4000)]
    rows[2000] = '1,1,2001,"open\n'
    path.write_text("tp,pp,iter_time_s,notes\n" + "".join(rows))
    made, found = read(path)
    assert made.rejected.total >= 1
    assert made.rejected.first[0][0] == 2002 and "never closed" in made.rejected.first[0][1]
    assert len(found) >= 2000


def test_thousands_of_bad_rows_are_counted_not_listed(tmp_path: Path) -> None:
    rows = [{"tp": "", "pp": 1, "iter_time_s": 2}] * 300 + [
        {"tp": f"x{n}", "pp": 1, "iter_time_s": 2} for n in range(300)
    ]
    made, _ = read(table(tmp_path / "runs.csv", *rows))
    assert made.rejected.total == 600
    assert len(made.rejected.first) == SHOWN
    assert made.rejected.counts["no layout: tp missing"] == 300
    assert len(made.rejected.counts) <= 101 and sum(made.rejected.counts.values()) == 600
    assert made.rejected.first_line["tp is 'x0', not a number"] == 302


def test_a_long_table_arrives_in_batches_and_can_be_stopped(tmp_path: Path) -> None:
    lines = "".join(f"1,1,{number + 1}\n" for number in range(2 * BATCH + 5))
    path = tmp_path / "runs.csv"
    path.write_text("tp,pp,iter_time_s\n" + lines)
    store, told = MemoryStore(), []
    made = import_file(path, store, on_progress=told.append)
    assert told == [BATCH, 2 * BATCH, 2 * BATCH + 5] and made.added == 2 * BATCH + 5
    half = MemoryStore()
    with pytest.raises(CancelledError, match=f"{BATCH} rows of runs.csv are stored"):
        import_file(path, half, should_stop=lambda: True)
    assert sum(1 for _ in half.imported("iteration")) == BATCH


@given(
    st.lists(
        st.fixed_dictionaries(
            {"tp": st.integers(1, 64), "pp": st.integers(1, 64), "iter_time_s": st.floats(1e-6, 1e6)},
            optional={
                "model": st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=6),
                "notes": st.sampled_from(["a, b", 'say "x"', "two\nlines", "ünï", "semi;colon"]),
                "peak_mem_gib": st.floats(0.1, 100),
                "stages": st.sampled_from(["a100-sxm-80g:16:full|a100-sxm-80g:16", "vendor-b:8"]),
                "mine": st.sampled_from(["x", "1.50"]),
            },
        ),
        min_size=1,
        max_size=20,
    )
)
def test_export_and_import_are_inverse(rows: list[dict[str, Any]]) -> None:
    import tempfile

    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.csv"
        with path.open("w", encoding="utf-8", newline="") as stream:
            assert write_rows(rows, Kind.ITERATION, stream) == len(rows)
        made = import_file(path, store)
    assert made.rejected.total == 0
    back = [row.document for row in store.imported("iteration")]
    unique: list[dict[str, Any]] = []
    for row in rows:
        if row not in unique:
            unique.append(row)
    assert back == unique


def test_an_exported_table_has_the_columns_of_the_format(tmp_path: Path) -> None:
    store = MemoryStore()
    import_file(table(tmp_path / "runs.csv", {**ROW, "cooling": "water"}), store)
    import_file(table(tmp_path / "layers.csv", LAYER), store)
    for what, columns in (("iteration", (*ITERATION_COLUMNS, "cooling")), ("layer", LAYER_COLUMNS)):
        text = io.StringIO()
        assert export_table(store, what, text) == 1
        assert text.getvalue().splitlines()[0] == ",".join(columns)


def test_a_workspace_keeps_rows_and_finds_repeats_after_reopening(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", *({**ROW, "ref": f"run {n}"} for n in range(2500)))
    with Workspace(tmp_path / "work") as store:
        assert import_file(path, store).added == 2500
    with Workspace(tmp_path / "work") as store:
        again = import_file(path, store)
        assert (again.added, again.duplicates) == (0, 2500)
        assert [row.document["ref"] for row in store.imported("iteration")] == [f"run {n}" for n in range(2500)]


def test_the_document_of_an_import(tmp_path: Path) -> None:
    made, _ = read(table(tmp_path / "runs.csv", ROW, {**ROW, "tp": ""}, {**ROW, "gbs": ""}))
    document = import_document([made, FileImport("gone.csv", error="cannot be read")], tmp_path)
    assert document["schema"] == "memx/import/v1"
    assert (document["added"], document["rejected"], document["not_judgeable"]) == (2, 1, 1)
    first = document["files"][0]
    assert first["rejected"]["first"] == [{"line": 3, "reason": "no layout: tp missing"}]
    assert first["not_judgeable"]["reasons"] == {"gbs not stated": 1}
    assert document["files"][1]["error"] == "cannot be read" and document["files"][1]["kind"] is None


def test_a_log_is_an_iteration_row(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(megatron_log())
    made, rows = read(path, gpu_type="a100-sxm-80g")
    assert made.log and made.added == 1 and made.not_judgeable.total == 0
    expected = {
        "tp": 2, "pp": 2, "dp": 2, "num_gpus": 8, "mbs": 1, "gbs": 64, "seq_len": 4096, "layers": 32, "hidden": 4096,
        "heads": 32, "ffn": 11008, "vocab": 32000, "precision": "bf16", "recompute": "uniform:1", "zero_stage": 1,
        "gpu_type": "a100-sxm-80g", "source": "train.log", "cp": 1,
    }  # fmt: skip
    assert rows[0].items() >= expected.items()
    # The first iteration holds the warm-up and is left out; 42,240 MiB are 41.25 GiB.
    assert rows[0]["iter_time_s"] == pytest.approx(20.5)
    assert rows[0]["peak_mem_gib"] == pytest.approx(41.25)


@pytest.mark.parametrize(
    ("changes", "column", "value"),
    [
        ({"recompute_granularity": "None"}, "recompute", "none"),
        ({"recompute_granularity": "selective"}, "recompute", "selective"),
        ({"recompute_method": "block", "recompute_num_layers": "3"}, "recompute", "block:3"),
        ({"group_query_attention": "True", "num_query_groups": "8"}, "kv_heads", 8),
        ({"virtual_pipeline_model_parallel_size": "2"}, "vp", 2),
        ({"bf16": "False", "fp16": "True"}, "precision", "fp16"),
        ({"bf16": "False"}, "precision", "fp32"),
        ({"use_distributed_optimizer": "False"}, "zero_stage", 0),
        ({"num_experts": "8"}, "model", "moe"),
        ({"swiglu": "False"}, "model", "GPT"),
    ],
)
def test_a_logs_arguments_become_columns(tmp_path: Path, changes: dict[str, str], column: str, value: Any) -> None:
    path = tmp_path / "train.log"
    path.write_text(megatron_log(**changes))
    _, rows = read(path)
    assert rows[0][column] == value


def test_logs_with_trouble(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(megatron_log(()) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    made, rows = read(path)
    assert made.added == 1 and rows[0]["notes"].startswith("OOM") and "iter_time_s" not in rows[0]
    assert any("--gpu-type" in note for note in made.notes)

    path.write_text("\n".join(line for line in megatron_log().splitlines() if "..." not in line))
    made = import_file(path, MemoryStore())
    assert made.kept == 0 and "the log's list of arguments is needed" in made.rejected.first[0][1]

    path.write_text(megatron_log((20000.0,)).replace("20000.0", "soon"))
    made, _ = read(path)
    assert made.rejected.total == 1 and "cannot be read" in made.rejected.first[0][1]

    path.write_text("[Rank 0] starting\n iteration one\n")
    with pytest.raises(InputError, match="neither a measurement table nor a training log"):
        import_file(path, MemoryStore())


def test_a_measured_point_is_exported_as_a_layer_row_that_names_its_ground() -> None:
    from memx_engine.measurement import Outcome, Point, Truth
    from memx_engine.profile.importers.layouts import layer_measurement
    from tests.cost.shapes import LLAMA2_7B, nodes_of
    from tests.predict.measured import measured, points

    point = points(model=LLAMA2_7B)[0]
    assert isinstance(point, Point)
    for truth, name in ((Truth.TESTBED, "testbed:3"), (Truth.GPU, "gpu")):
        made = measured(point, truth=truth, name=name)
        columns = measurement_columns(made)
        assert columns is not None
        back = layer_measurement(columns, "out.csv", nodes_of())
        # What was simulated stays so through a file; what was measured comes back as a table.
        assert back.truth is (Truth.TESTBED if truth is Truth.TESTBED else Truth.TABLE)
        assert back.time_s == pytest.approx(made.time_s)
        assert (back.point.layers, back.point.tp, back.point.in_flight) == (4, 1, 2)
        assert back.point.model.fingerprint == LLAMA2_7B.fingerprint
    from dataclasses import replace

    assert measurement_columns(replace(measured(point), outcome=Outcome.OOM)) is None
