"""Import of large tables. Aims on two cores: 100,000 rows in 5 s, and memory that does not grow with the table.

Run: pytest tests/benchmarks/bench_import.py (the figures are printed with -s).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.cli.processes import COMMAND, environment
from tests.profile.tables import ROW


def write(path: Path, rows: int) -> Path:
    """Distinct rows of a plausible sweep; one in a thousand is broken."""
    with path.open("w") as stream:
        stream.write(",".join(ROW) + ",notes\n")
        for n in range(rows):
            changes = {"ref": f"run {n}", "tp": 2 ** (n % 3), "num_gpus": 2 ** (n % 3 + 2), "iter_time_s": 20 + n % 977}
            changes |= {"mbs": 2 ** (n % 4), "tp": "" if n % 1000 == 999 else changes["tp"]}
            stream.write(",".join(str(value) for value in (ROW | changes).values()) + ",from a sweep\n")
    return path


def run_to_end(arguments: list[str], home: Path) -> int:
    """Run, and return the peak resident memory in bytes."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(home), cwd=home
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.parametrize("rows", [100_000, 1_000_000])
def test_import(benchmark: BenchmarkFixture, tmp_path: Path, rows: int) -> None:
    file = write(tmp_path / "sweep.csv", rows)
    arguments = ["import", str(file), "--workspace", str(tmp_path / "work")]
    peak = benchmark.pedantic(run_to_end, (arguments, tmp_path), rounds=1)
    print(f"\n{rows:,} rows: {benchmark.stats.stats.max:.1f} s, peak memory {peak / 1e6:.0f} MB")
    assert peak < 250e6
    if rows == 100_000:
        assert benchmark.stats.stats.max < 5.0
