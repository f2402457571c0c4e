from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memx_engine import workspace as workspace_module
from memx_engine.inputs.job import Precision
from memx_engine.inputs.model import TransformerSpec
from memx_engine.lockfile import LockedError
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.plan import Recompute
from memx_engine.workspace import FILE_NAME, LOCK_NAME, MIGRATIONS, ImportedRow, StorageError, Workspace

MODEL = TransformerSpec("tiny", "llama", 4, 256, 688, 8, 4, 32, 1000, 512, assumed=("x",))


def measurement(layers: int = 2, *, outcome: Outcome = Outcome.OK) -> Measurement:
    point = Point("a100", MODEL, 2, 1, 128, layers, recompute=Recompute.parse("block:1"), precision=Precision.FP16)
    return Measurement(
        point,
        outcome,
        Truth.TESTBED,
        "testbed:0",
        forward_s=0.1,
        backward_s=0.2,
        repetitions_s=(0.3, 0.31),
        versions={"torch": "2.1"},
        node="n 0; $(x)",
    )


def test_what_is_stored_comes_back_equal_and_repetitions_are_all_kept(tmp_path: Path) -> None:
    items = [measurement(), measurement(), measurement(3, outcome=Outcome.OOM)]
    with Workspace(tmp_path / "new" / "w") as w:
        for item in items:
            w.add(item)
    with Workspace(tmp_path / "new" / "w", read_only=True) as w:
        assert list(w.measurements()) == items
        assert w.finished_points() == {
            ("testbed:0", items[0].point.key): "ok",
            ("testbed:0", items[2].point.key): "oom",
        }


def test_the_latest_result_of_a_point_is_found_per_ground_and_counted(tmp_path: Path) -> None:
    crashed, ok, other = measurement(outcome=Outcome.CRASHED), measurement(), measurement(3)
    with Workspace(tmp_path) as w:
        for item in (crashed, ok, other):
            w.add(item)
        many = [ok.point.key, *(f"missing-{i}" for i in range(1200))]
        assert w.latest("testbed:0", many) == {ok.point.key: ok}
        assert w.latest("testbed:1", [ok.point.key]) == {}
        assert w.counts() == {("testbed:0", "a100", "crashed"): 1, ("testbed:0", "a100", "ok"): 2}


def test_a_second_writer_is_refused_and_told_by_whom_while_readers_go_on(tmp_path: Path) -> None:
    with Workspace(tmp_path) as w:
        w.add(measurement())
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on "):
            Workspace(tmp_path)
        with Workspace(tmp_path, read_only=True) as reader:
            assert len(list(reader.measurements())) == 1
            assert reader.writer is not None and reader.writer.pid == os.getpid()
    Workspace(tmp_path).close()


def test_a_killed_writer_loses_nothing_and_its_lock_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from memx_engine.workspace import Workspace;"
        "from tests.profile.test_workspace import measurement;"
        "w = Workspace(Path(sys.argv[1])); w.add(measurement()); print('stored', flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None and process.stdout.readline() == b"stored\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / LOCK_NAME).exists()
    with Workspace(tmp_path) as w:
        assert "is gone" in w.notices[0]
        assert list(w.measurements()) == [measurement()]


def kill_in_the_middle_of_a_write(folder: Path) -> None:
    """Leave half a transaction on disk, as kill -9 at the wrong moment does."""
    code = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA cache_size = 1'); db.execute('BEGIN IMMEDIATE');"
        "db.execute('UPDATE measurement SET document = document || document || document');"
        "db.execute('DELETE FROM measurement WHERE id % 2'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder / FILE_NAME)], check=False)
    assert (folder / f"{FILE_NAME}-journal").stat().st_size > 0


def test_a_reader_comes_after_a_session_that_died_in_the_middle_of_a_write(tmp_path: Path) -> None:
    items = [measurement(layers) for layers in range(1, 100)]
    with Workspace(tmp_path) as w:
        for item in items:
            w.add(item)
    kill_in_the_middle_of_a_write(tmp_path)
    with Workspace(tmp_path, read_only=True) as w:
        assert list(w.measurements()) == items
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE_NAME]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting read-only needs root")
def test_half_a_write_on_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    with Workspace(folder) as w:
        for layers in range(1, 100):
            w.add(measurement(layers))
    kill_in_the_middle_of_a_write(folder)
    if subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system does not let root bind-mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(StorageError, match="killed in the middle of a write") as caught:
            Workspace(folder, read_only=True)
        assert "nothing stored is lost" in caught.value.hint
    finally:
        subprocess.run(["umount", str(folder)], check=False)
    with Workspace(folder, read_only=True) as w:
        assert sum(1 for _ in w.measurements()) == 99


def test_a_lock_of_another_host_is_respected_and_named(tmp_path: Path) -> None:
    holder = {"host": "elsewhere", "pid": 1, "taken_at": time.time(), "process_started_at": 0.0}
    (tmp_path / LOCK_NAME).write_text(json.dumps(holder))
    with pytest.raises(LockedError, match="elsewhere") as caught:
        Workspace(tmp_path)
    assert str(tmp_path / LOCK_NAME) in caught.value.hint


def test_a_reused_process_number_does_not_hold_the_lock(tmp_path: Path) -> None:
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "taken_at": 0.0, "process_started_at": 1.0}
    (tmp_path / LOCK_NAME).write_text(json.dumps(holder))
    with Workspace(tmp_path) as w:
        assert "is gone" in w.notices[0]


@pytest.mark.parametrize("jump_s", [-86400.0, 3600.0])
def test_a_lock_is_held_and_taken_over_whatever_the_wall_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    with Workspace(tmp_path):
        now, started = time.time, psutil.Process.create_time
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        # Linux derives the start of the machine from the wall clock, and psutil a process's start from that.
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: started(process) + jump_s)
        with pytest.raises(LockedError, match=f"process {os.getpid()}"):
            Workspace(tmp_path)
        lock = json.loads((tmp_path / LOCK_NAME).read_text())
    (tmp_path / LOCK_NAME).write_text(json.dumps({**lock, "pid": 2**22 + 7}))
    with Workspace(tmp_path) as w:
        assert "is gone" in w.notices[0]


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="needs Linux")
def test_a_lock_from_before_the_machine_was_restarted_is_taken_over(tmp_path: Path) -> None:
    with Workspace(tmp_path):
        lock = json.loads((tmp_path / LOCK_NAME).read_text())
    (tmp_path / LOCK_NAME).write_text(json.dumps({**lock, "boot": "an earlier one"}))
    with Workspace(tmp_path) as w:
        assert "is gone" in w.notices[0]


def test_a_broken_lock_file_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("{")
    with Workspace(tmp_path) as w:
        assert w.notices == ("took over a broken lock",)


def test_a_newer_schema_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.execute("CREATE TABLE x (y)")
    db.commit()
    db.close()
    with pytest.raises(StorageError, match="newer release"):
        Workspace(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / FILE_NAME).write_bytes(b"not a database at all, but long enough to look like a file" * 40)
    with pytest.raises(StorageError, match="not a database") as caught:
        Workspace(other)
    assert "aside" in caught.value.hint
    assert not (other / LOCK_NAME).exists()


def test_every_released_schema_migrates_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path) as w:
        w.add(measurement())

    def next_version(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE measurement ADD COLUMN extra TEXT NOT NULL DEFAULT ''")

    monkeypatch.setattr(workspace_module, "MIGRATIONS", (*MIGRATIONS, next_version))
    with Workspace(tmp_path) as w:
        assert list(w.measurements()) == [measurement()]
    db = sqlite3.connect(tmp_path / FILE_NAME)
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    db.close()


def test_a_failed_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path) as w:
        w.add(measurement())

    def broken(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM measurement")
        raise sqlite3.OperationalError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(workspace_module, "MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(StorageError, match="full"):
            Workspace(tmp_path)
    with Workspace(tmp_path) as w:
        assert list(w.measurements()) == [measurement()]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_a_message_and_keeps_what_was_stored(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this system does not let root mount a tmpfs")
    try:
        with Workspace(small) as w:
            w.add(measurement())
            with pytest.raises(StorageError, match="full") as caught:
                for _ in range(1000):
                    w.add(measurement())
            assert "nothing stored is lost" in caught.value.hint
            assert next(iter(w.measurements())) == measurement()
    finally:
        subprocess.run(["umount", str(small)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting read-only needs root")
def test_a_read_only_folder_is_a_message_and_can_still_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    with Workspace(folder) as w:
        w.add(measurement())
    bind = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(bind, capture_output=True, check=False).returncode != 0:
        pytest.skip("this system does not let root bind-mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(StorageError) as caught:
            Workspace(folder)
        assert "--workspace" in caught.value.hint
        with Workspace(folder, read_only=True) as w:
            assert list(w.measurements()) == [measurement()]
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def test_imported_rows_are_kept_once(tmp_path: Path) -> None:
    rows = [ImportedRow("table.csv", "iteration", {"tp": i}, f"digest{i % 2}") for i in range(4)]
    with Workspace(tmp_path) as w:
        assert w.add_imported(rows) == 2
        assert w.add_imported(rows) == 0
        assert [r.document["tp"] for r in w.imported("iteration")] == [0, 1]
        assert list(w.imported("layer")) == []


def test_notes_are_kept_and_replaced(tmp_path: Path) -> None:
    with Workspace(tmp_path) as w:
        assert w.note("design") is None
        w.set_note("design", {"a": 1})
        w.set_note("design", {"a": 2})
    with Workspace(tmp_path) as w:
        assert w.note("design") == {"a": 2}


def test_reading_while_the_workspace_is_being_made(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE_NAME).close()
    (tmp_path / FILE_NAME).touch()
    with pytest.raises(StorageError, match="just being made"):
        Workspace(tmp_path, read_only=True)


def test_reading_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no workspace"):
        Workspace(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()
