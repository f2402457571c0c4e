"""The prepared measurement of one GPU, its whole path on the CPU with a tiny model."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from memx_engine.profile.importers.reading import import_file
from memx_engine.profile.store import MemoryStore
from memx_engine.resources import sample_clusters_dir

REPOSITORY = Path(__file__).parents[2]
SCRIPT = sample_clusters_dir() / "measurements" / "measure.py"
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_attention_heads": 8,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}


def run(folder: Path, python: str, *more: str) -> subprocess.CompletedProcess[str]:
    model = folder / "tiny"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(TINY))
    arguments = ["--out", str(folder), "--python", python, "--model", str(model), "--seq-len", "32,64", *more]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )


def test_the_whole_path_leaves_one_table_that_can_be_imported(tmp_path: Path, torch_python: str) -> None:
    few = ["--device", "cpu", "--tp", "1,2", "--mbs", "1", "--repetitions", "2"]
    first = run(tmp_path, torch_python, *few, "--only", "1")
    assert first.returncode == 0, first.stderr
    assert "0 points are there, 1 are measured" in first.stdout and "cpu, versions" in first.stdout
    again = run(tmp_path, torch_python, *few, "--only", "2")
    assert again.returncode == 0, again.stderr
    assert "1 points are there, 1 are measured" in again.stdout

    (table,) = tmp_path.glob("*.csv")
    assert re.fullmatch(r"tiny-cpu-\d{4}-\d\d-\d\d\.csv", table.name)
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["layer_kind"] for row in rows) == ["shard", "stage"]
    for row in rows:
        assert float(row["fwd_ms"]) > 0 and float(row["bwd_ms"]) > 0 and float(row["opt_update_ms"]) > 0
        assert row["layer_kind"].startswith("shard" if int(row["tp"]) > 1 else "stage")
        assert re.search(r"; python [\d.]+, torch [\w.+]+; \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["notes"])
    made = import_file(table, MemoryStore())
    assert made.added == 2 and made.rejected.total == 0
    assert [reason for _, reason in made.not_judgeable.first] == [
        "one rank of a TP group, measured without the group's communication"
    ]


def test_without_a_gpu_and_without_torch_it_says_what_to_do(tmp_path: Path) -> None:
    nothing = run(tmp_path, sys.executable, "--device", "auto")
    assert nothing.returncode == 1 and "Traceback" not in nothing.stderr
    assert "--python" in nothing.stderr or "--device cpu" in nothing.stderr
    assert not list(tmp_path.glob("*.csv"))
