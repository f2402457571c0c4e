"""Profiling's targets on two cores: what the tool costs beside what it measures.

Per point 50 ms, resuming a store of 5,000 points 1 s, 1 % of a core while it waits for a device, 100,000 points of a
full grid against 243, and at most 300 points per GPU type for LLaMA2-7B on the paper's cluster. (Import of 100,000 rows
in 5 s: bench_import.py.)

Run: pytest tests/benchmarks/bench_profile.py -s (the figures are printed).
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from memx_engine import (
    CommandRunner,
    CommandTemplate,
    ProfileOptions,
    TestbedRunner,
    Workspace,
    exhaustive_count,
    load_cluster,
    load_model,
    resolve_job,
    run_profile,
    sparse_count,
)
from memx_engine.testbed.testbed import Testbed
from tests.cli.processes import COMMAND, environment

CLUSTER, MODEL = load_cluster("paper-20gpu"), load_model("llama2-7b")
JOB = resolve_job(CLUSTER, MODEL)
FIRST = CLUSTER.gpu_types[0].name
WAIT_S = 25.0


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_the_minimal_set_is_small() -> None:
    assert (exhaustive_count([10] * 5), sparse_count(5)) == (100_000, 243)
    for row in ProfileOptions().design(CLUSTER, MODEL, JOB).summary():
        print(f"\n{row.gpu_type}: {row.points} points ({dict(row.by_purpose)}) of a grid of {row.exhaustive:,}", end="")
        assert row.points <= 300


def test_overhead_per_point_on_the_testbed(tmp_path: Path) -> None:
    """Designing, storing each result durably and telling of it; the testbed's own computing counts as overhead."""
    told: list[float] = []
    with Workspace(tmp_path) as store:
        result = run_profile(
            CLUSTER, MODEL, JOB, TestbedRunner(), store, on_event=lambda event: told.append(event.progress.fraction)
        )
    measured = result.total("measured")
    each_s = result.seconds / measured
    print(f"\n{measured} points in {result.seconds:.2f} s: {each_s * 1e3:.1f} ms per point, {len(told)} events")
    assert measured > 300 and each_s < 0.050


def test_overhead_per_point_of_a_process(tmp_path: Path) -> None:
    """Starting the process, waiting for it, reading what it says: beyond the process's own 0.2 s."""
    line = "iteration 2/ 10 | elapsed time per iteration (ms): 20.0 | global batch size: 1 |"
    script = tmp_path / "launch.sh"
    script.write_text(f"#!/bin/sh\nsleep 0.2\necho '{line}'\n")
    script.chmod(0o755)
    own_s = min(timed(lambda: subprocess.run([script], check=True, capture_output=True)) for _ in range(10))
    runner = CommandRunner(CommandTemplate.parse(f"{script} {{tp}}"))
    options = ProfileOptions(types=(FIRST,), max_points=60)
    with Workspace(tmp_path / "work") as store:
        result = run_profile(CLUSTER, MODEL, JOB, runner, store, options=options)
    measured = result.total("measured")
    each_s = result.seconds / measured
    print(f"\n{measured} points, {each_s * 1e3:.1f} ms each, {own_s * 1e3:.1f} ms of it the process's own")
    assert measured > 30 and each_s - own_s < 0.050


def fill(folder: Path, rows: int) -> None:
    """A finished run, and other measurements of the same devices up to ``rows``."""
    with Workspace(folder) as store:
        run_profile(CLUSTER, MODEL, JOB, TestbedRunner(), store)
        kept = list(store.measurements())
        bed, made = Testbed(CLUSTER), len(kept)
        while made < rows:
            some = kept[made % len(kept)]
            store.add(replace(bed.measure(kept[0].point), point=replace(some.point, seq_len=8192 + made)))
            made += 1


def test_resuming_a_store_of_5000_points(tmp_path: Path) -> None:
    fill(tmp_path / "work", 5000)

    def resume() -> None:
        with Workspace(tmp_path / "work") as store:
            result = run_profile(CLUSTER, MODEL, JOB, TestbedRunner(), store, options=ProfileOptions(resume=True))
        assert result.total("measured") == 0 and result.total("cached") > 300

    arguments = ["profile", "--cluster", "paper-20gpu", "--model", "llama2-7b", "--workspace", str(tmp_path / "work")]

    def whole(*more: str, code: int = 0) -> Callable[[], None]:
        def run() -> None:
            done = subprocess.run(
                [*COMMAND, *arguments, *more], capture_output=True, check=False, env=environment(tmp_path), cwd=tmp_path
            )
            assert done.returncode == code, done.stderr

        return run

    inside_s = min(timed(resume) for _ in range(3))
    whole_s = min(timed(whole("--resume")) for _ in range(3))
    look_s = min(timed(whole("--dry-run")) for _ in range(3))
    refused_s = min(timed(whole(code=2)) for _ in range(3))
    print(
        f"\nresume {inside_s:.2f} s, the whole command {whole_s:.2f} s; --dry-run {look_s:.2f} s, refused without "
        f"--resume {refused_s:.2f} s"
    )
    assert inside_s < 1.0


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
@pytest.mark.parametrize("runner", ["testbed", "command"])
def test_waiting_takes_no_processor(tmp_path: Path, runner: str, terminal: bool) -> None:
    """The process's CPU time (not its children's) over a while in which one point per GPU type is being measured."""
    more = ["--runner", "command", "--command", f"{sys.executable} -c 'import time; time.sleep(600)' {{tp}}"]
    if runner == "testbed":
        more = ["--pace", "100"]
    arguments = ["profile", "--cluster", "paper-20gpu", "--model", "llama2-7b", "--workspace", str(tmp_path / "work")]
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=slave if terminal else subprocess.DEVNULL,
        env={**environment(tmp_path), "TERM": "xterm-256color"},
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(slave)
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: _read(master), b"")], daemon=True)
    drain.start()
    try:
        watched = psutil.Process(process.pid)
        time.sleep(6.0)
        assert process.poll() is None
        before, start = watched.cpu_times(), time.perf_counter()
        time.sleep(WAIT_S)
        after, wall_s = watched.cpu_times(), time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(30)
    share = (after.user + after.system - before.user - before.system) / wall_s
    print(f"\n{share:.2%} of a core over {wall_s:.0f} s")
    assert share <= 0.01


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:
        return b""
