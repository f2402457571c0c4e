"""Reproduce the table of docs/accuracy.md: every figure, by the command of that figure.

    python -m tests.benchmarks.accuracy FOLDER [NAME...]

FOLDER holds the tables (see docs/accuracy.md); NAME picks rows, all of them when left out. What each command prints as
JSON is summed up in one line: rows, time and memory errors, ranks and coverage of three methods. An hour on one core.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAYERS = ("profile_sailor_perlayer", "profile_sailor_metisfmt_perlayer_mem")

COMMANDS: dict[str, tuple[str, ...]] = {
    "testbed": ("--truth", "testbed"),
    "testbed-hard": ("--truth", "testbed:hard"),
    "testbed-40": ("--truth", "testbed", "--cluster", "paper-40gpu", "--measured-on", "paper-20gpu"),
    "testbed-60": ("--truth", "testbed", "--cluster", "paper-60gpu", "--measured-on", "paper-20gpu"),
    "vtrain-folds": ("--truth", "vtrain_single", "--folds", "5"),
    "vtrain-200": ("--truth", "vtrain_single", "--train-rows", "200"),
    "vtrain-60": ("--truth", "vtrain_single", "--train-rows", "60"),
    "vtrain-nodes": ("--train", "vtrain_single", "--test", "vtrain_multi"),
    "vtrain-nodes-4": ("--train", "vtrain_single", "--test", "vtrain_multi", "--calibrate", "4"),
    "bigscience-folds": ("--truth", "bigscience_a100_80g", "--folds", "99"),
    "bigscience-3": ("--truth", "bigscience_a100_80g", "--calibrate", "3"),
    "sailor": ("--train", *LAYERS, "--test", "sailor_e2e", "--calibrate", "2"),
    "hetero": ("--truth", "memx_hetero_20gpu", "--folds", "5"),
    "single-node": ("--truth", "memx_singlenode_sample", "--folds", "5"),
    "cpu": ("--truth", "cpu"),
}

FIGURES = (
    ("time", "time_mape_pct"), ("max", "time_max_pct"), ("rho", "spearman_time"), ("tau", "kendall_time"),
    ("memory", "memory_mape_pct"), ("covers", "coverage_95_pct"), ("of memory", "memory_coverage_95_pct"),
)  # fmt: skip


def arguments(name: str, folder: Path) -> list[str]:
    """The command line of one row; words that name a table become its path."""
    tables = {path.stem: str(path) for path in folder.glob("*.csv")}
    return ["evaluate", *(tables.get(word, word) for word in COMMANDS[name]), "--json"]


def main(folder: Path, names: list[str]) -> int:
    """Run the commands one after another and print a line per method."""
    failed = 0
    for name in names or list(COMMANDS):
        command = ["memx-tui", *arguments(name, folder)]
        print(f"{name}: {' '.join(command)}", flush=True)
        start = "from memx_tui.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", start, *command[1:]], capture_output=True, text=True, check=False)
        if done.returncode:
            print("  " + done.stderr.strip()[-300:], flush=True)
            failed += 1
            continue
        document = json.loads(done.stdout)
        for row in document["rows"]:
            told = [f"{label} {row[key]:.4g}" for label, key in FIGURES if row.get(key) is not None]
            print(f"  {row['method']:<18}{row['n']:>5} rows  {', '.join(told)}", flush=True)
        if document.get("disturbed"):
            print(f"  disturbed: {', '.join(item['row'] for item in document['disturbed'])}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
