"""``memx-tui profile`` as the operator starts it, on real components: Slurm, sshd, a launch script, this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memx_engine.measurement import Measurement, Outcome, Truth
from memx_engine.workspace import Workspace
from tests.cli.processes import COMMAND, Done, environment, run
from tests.profile.slurm_cluster import SlurmCluster

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
MIXED = """\
schema: memx/cluster/v1
name: mixed
nodes:
  - name: a100-0
    gpus: [{type: a100-sxm-80g, count: 4}]
  - name: mi300x-0
    gpus: [{type: mi300x, count: 4}]
links:
  inter_node: {bandwidth_gb_s: 12, latency_us: 30, shared: true}
"""
JOB = ("--seq-len", "1", "--global-batch", "8", "--mbs", "1", "--repetitions", "4")
TYPES = {"a100-sxm-80g": "a100-0", "mi300x": "mi300x-0"}


@dataclass(frozen=True)
class Site:
    """A folder with the inputs, and how to run the tool on them."""

    folder: Path
    cluster: str
    runner: tuple[str, ...]
    more: dict[str, str]

    @property
    def workspace(self) -> Path:
        return self.folder / "my runs"

    def arguments(self, verb: str, *more: str) -> list[str]:
        own = self.runner if verb == "profile" else ()
        job = JOB if verb == "profile" else JOB[:-2]
        return [
            verb, "--cluster", self.cluster, "--model", "config.json", *job, *own, "--workspace", str(self.workspace),
            *more,
        ]  # fmt: skip

    def run(self, verb: str, *more: str) -> Done:
        return run(self.arguments(verb, *more), self.folder, **self.more)

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *self.arguments("profile", *more)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment(self.folder, **self.more),
        )

    def stored(self) -> list[Measurement]:
        if not Workspace.exists(self.workspace):
            return []
        with Workspace(self.workspace, read_only=True) as store:
            return list(store.measurements())


def make_site(folder: Path, cluster: str, runner: tuple[str, ...], **more: str) -> Site:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "cluster.yaml").write_text(cluster)
    return Site(folder, "cluster.yaml", runner, more)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def document(done: Done) -> dict[str, object]:
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert isinstance(made, dict)
    return made


def test_two_types_are_measured_through_slurm_and_a_killed_session_is_resumed(
    slurm: SlurmCluster, torch_python: str, tmp_path: Path
) -> None:
    runner = ("--runner", "slurm", "--probe-device", "cpu", "--python", torch_python)
    site = make_site(tmp_path, MIXED, runner, **slurm.environment)
    first = site.start()
    wait_until(lambda: len(site.stored()) >= 3)
    first.send_signal(signal.SIGKILL)
    _, err = first.communicate()
    assert "a100-sxm-80g: ready on a100-0" in err and "mi300x: ready on mi300x-0" in err
    kept = site.stored()
    # The allocations end with the tool: the scheduler takes the nodes back.
    wait_until(lambda: slurm.client("squeue", "-h").stdout == "")

    second = site.run("profile", "--resume", "--json")
    sums = document(second)
    rows = site.stored()
    counts = Counter((m.point.gpu_type, m.point.key) for m in rows)
    assert set(counts.values()) == {1}
    assert sums["cached"] == len(kept) >= 3
    assert sums["measured"] == len(rows) - len(kept) > 0
    assert sums["planned"] == len(rows) and sums["failed"] == sums["skipped"] == 0
    assert sums["provenance"] == "measured"
    assert "took over the lock" in second.err and "points" in second.err
    for m in rows:
        assert m.outcome is Outcome.OK, m.detail
        assert (m.truth, m.node) == (Truth.CPU, TYPES[m.point.gpu_type])
        assert m.device and m.versions["torch"] and m.time_s and m.peak_allocated_bytes
        assert len(m.repetitions_s) == 4
    assert {m.point.gpu_type for m in rows} == TYPES.keys()

    third = document(site.run("profile", "--resume", "--json"))
    assert (third["measured"], third["cached"]) == (0, len(rows))
    assert slurm.client("squeue", "-h").stdout == ""
    plan = document(site.run("plan", "--json"))
    assert plan["provenance"] == "measured"
