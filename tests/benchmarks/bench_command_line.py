"""Start-up, the main job cold, and memory, as an operator meets them: whole processes.

Aims on two cores: --help and --version 0.15 s, first paint 0.8 s, the 20-GPU plan 2 s, the 1,024-GPU plan 30 s, and
400 MB resident. Run: pytest tests/benchmarks/bench_command_line.py (the memory figures are printed with -s).
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.cli.processes import COMMAND, environment

MAIN_JOB = ["plan", "--cluster", "paper-20gpu", "--model", "llama2-7b", "--global-batch", "512"]


def run_to_end(arguments: list[str], home: Path) -> int:
    """Run, and return the peak resident memory in bytes."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(home), cwd=home
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def first_paint(arguments: list[str], home: Path) -> None:
    """Start the dashboard on a terminal and wait for the footer of its first screen."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(home), start_new_session=True
    )
    os.close(slave)
    received = b""
    deadline = time.monotonic() + 30
    while b"Help" not in received and time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            received += os.read(master, 65536)
    process.kill()
    process.wait()
    os.close(master)
    assert b"Help" in received


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "--help"]], ids=" ".join)
def test_bench_start(benchmark: BenchmarkFixture, arguments: list[str], tmp_path: Path) -> None:
    benchmark.pedantic(run_to_end, args=(arguments, tmp_path), rounds=10, warmup_rounds=1)


def test_bench_first_paint(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.pedantic(first_paint, args=(["--fresh"], tmp_path), rounds=5, warmup_rounds=1)


def test_bench_plan_cold(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    peak = benchmark.pedantic(run_to_end, args=(MAIN_JOB, tmp_path), rounds=3)
    print(f"peak resident memory: {peak / 1e6:.0f} MB")


def test_bench_plan_1024_gpus(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    arguments = ["plan", "--cluster", "thousand-gpus", "--model", "llama2-70b"]
    peak = benchmark.pedantic(run_to_end, args=(arguments, tmp_path), rounds=1)
    print(f"peak resident memory: {peak / 1e6:.0f} MB")
