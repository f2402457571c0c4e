"""``memx-tui profile`` as the operator starts it, on real components: Slurm, sshd, a launch script, this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from memx_engine.inputs.model import TransformerSpec
from memx_engine.measurement import Measurement, Outcome, Truth
from memx_engine.workspace import Workspace
from tests.cli.processes import COMMAND, Done, environment, run
from tests.profile.conftest import Sshd
from tests.profile.slurm_cluster import SlurmCluster
from tests.profile.stand_in import logged, make_stand_in

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
CPUS = """\
schema: memx/cluster/v1
name: here
nodes:
  - name: here
    gpus: [{type: cpu, count: 1, overrides: {memory_gib: 4, fp32_tflops: 0.1, lacks: [bf16, fp16]}}]
"""
JOB = ("--seq-len", "1", "--global-batch", "8", "--mbs", "1")
FOUR = ("--repetitions", "4")
TYPES = {"a100-sxm-80g": "a100-0", "mi300x": "mi300x-0"}


@dataclass(frozen=True)
class Site:
    """A folder with the inputs, and how to run the tool on them."""

    folder: Path
    cluster: str
    runner: tuple[str, ...]
    more: dict[str, str]
    name: str = "my runs"

    @property
    def workspace(self) -> Path:
        return self.folder / self.name

    def arguments(self, verb: str, *more: str) -> list[str]:
        own = self.runner if verb == "profile" else ()
        return [
            verb, "--cluster", self.cluster, "--model", "config.json", *JOB, *own, "--workspace", str(self.workspace),
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
    runner = ("--runner", "slurm", "--probe-device", "cpu", "--python", torch_python, *FOUR)
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


def test_this_machine_gives_a_table_that_can_be_checked_by_hand(torch_python: str, tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        CPUS,
        ("--runner", "local", "--probe-device", "cpu", "--python", torch_python, "--precision", "fp32", *FOUR),
    )
    sums = document(site.run("profile", "--json"))
    rows = site.stored()
    assert sums["measured"] == len(rows) >= 4 and sums["failed"] == 0
    assert {m.outcome for m in rows} == {Outcome.OK} and {m.truth for m in rows} == {Truth.CPU}
    model = rows[0].point.model
    assert isinstance(model, TransformerSpec)
    # By hand: 4 x 32 x 32 of attention, 3 x 32 x 64 of the gated MLP, two norms of 32; fp32 weights and gradients.
    assert model.layer.total == 4 * 32 * 32 + 3 * 32 * 64 + 2 * 32
    for m in rows:
        ends = 128 * 32 if m.point.embedding or m.point.head else 0
        peak = m.peak_allocated_bytes or 0
        assert 8 * (model.layer.total + ends) < peak < 8 * (model.layer.total + ends) + (1 << 20)
    table = run(["profile", "--list", "--workspace", str(site.workspace)], tmp_path, COLUMNS="120")
    assert table.code == 0, table.err
    assert f"{len(rows)} rows" in table.out and "on CPUs" in table.out and "torch 2" in table.out
    for m in rows:
        assert m.time_s is not None and m.spread is not None and m.peak_allocated_bytes is not None
        figures = [f"{m.time_s * 1e3:.2f}", f"{m.spread:.1%}", "4", f"{m.peak_allocated_bytes / (1 << 20):.2f}"]
        assert any(" ".join(figures) in " ".join(line.split()) for line in table.out.splitlines()), figures
    assert document(site.run("profile", "--resume", "--json"))["measured"] == 0


def test_a_probe_that_is_killed_is_tried_again_and_one_without_a_result_is_recorded(tmp_path: Path) -> None:
    python = make_stand_in(tmp_path / "bin", first_seconds=20.0)
    site = make_site(tmp_path, CPUS, ("--runner", "local", "--python", str(python), "--precision", "fp32"))
    tool = site.start("--json")
    wait_until(lambda: bool(logged(python.parent)))
    process, key = logged(python.parent)[0]
    os.kill(process, signal.SIGKILL)
    out, err = tool.communicate(timeout=60)
    assert tool.returncode == 0, err
    assert "crashed, retry 1 of 2: the probe was killed by signal 9" in err
    assert json.loads(out)["failed"] == 0
    assert Counter(m.point.key for m in site.stored())[key] == 1
    assert [k for _, k in logged(python.parent)].count(key) == 2

    # Now one that dies on a single kind of point, after the banner of a vendor: kept as a failure, the others go on.
    code = python.read_text()
    banner = 'print("WARNING'
    dies = 'spec["head"] and (print("vendor: {bad", flush=True), os._exit(3))'
    assert banner in code
    python.write_text(code.replace(banner, f"{dies}\n{banner}"))
    other = replace(site, name="other")
    sums = document(other.run("profile", "--json", "--retries", "1"))
    failed = [m for m in other.stored() if m.outcome is Outcome.CRASHED]
    assert sums["failed"] == len(failed) > 0 and all(m.point.head for m in failed)
    assert "the probe printed no result" in failed[0].detail
    python.write_text(code)
    again = document(other.run("profile", "--resume", "--json"))
    assert again["failed"] == 0 and again["cached"] == sums["measured"]


def test_ssh_from_the_command_line_with_a_python_of_a_hostile_name(sshd: Sshd, tmp_path: Path) -> None:
    python = make_stand_in(tmp_path / "a b;$(touch ran)'\"")
    arguments = [word for argument in sshd.arguments for word in ("--ssh-arg", argument)]
    hosts = [word for name in TYPES for word in ("--ssh-host", f"{name}=127.0.0.1")]
    runner = ("--runner", "ssh", "--probe-device", "cpu", "--python", str(python), *hosts)
    # An argument that begins with a dash needs the form with "=".
    joined = [f"{flag}={value}" for flag, value in zip(arguments[::2], arguments[1::2], strict=True)]
    site = make_site(tmp_path, MIXED, (*runner, *joined))
    done = site.run("profile", "--json")
    sums, rows = document(done), site.stored()
    assert sums["measured"] == len(rows) == len(logged(python.parent)) > 0
    assert {(m.point.gpu_type, m.node) for m in rows} == set(TYPES.items())
    assert "ready on a100-0" in done.err
    assert not list(tmp_path.rglob("ran")) and not (Path.home() / "ran").exists()
    assert document(site.run("profile", "--resume", "--json"))["measured"] == 0


SCRIPT = """\
import json, sys
with open(sys.argv[1], "a") as log:
    log.write(json.dumps(sys.argv[2:]) + chr(10))
for number, ms in enumerate((900.0, 41.0, 40.0, 42.0), 1):
    print(f" iteration {number}/ 10 | elapsed time per iteration (ms): {ms} | global batch size: 1 |")
print("[Rank 0] (after 1 iterations) memory (MB) | allocated: 9.0 | max allocated: 100.0 | reserved: 9.0 |"
      " max reserved: 128.0")
"""


def test_the_operators_command_from_the_command_line_with_a_hostile_name(tmp_path: Path) -> None:
    name = "launch 1; touch ran $(touch ran) '\".py"
    (tmp_path / name).write_text(SCRIPT)
    command = (
        f"python3 {shlex.quote(name)} log {{node}} {{layers}} {{tp}} {{recompute}} --mbs={{micro_batch}} '$(touch ran)'"
    )
    site = make_site(tmp_path, MIXED, ("--runner", "command", "--command", command))
    done = site.run("profile", "--json")
    sums, rows = document(done), site.stored()
    assert sums["measured"] == len(rows) > 0 and sums["provenance"] == "measured"
    for m in rows:
        # The first iteration warms up; one micro-batch is in flight.
        assert m.time_s == pytest.approx(0.041) and m.node == TYPES[m.point.gpu_type]
        assert m.peak_allocated_bytes == 100 << 20 and m.peak_reserved_bytes == 128 << 20
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(told) == len(rows) and {words[0] for words in told} == set(TYPES.values())
    assert all(words[1:3] == ["1", "1"] and words[4:] == ["--mbs=1", "$(touch ran)"] for words in told)
    assert not (tmp_path / "ran").exists()
    assert document(site.run("profile", "--resume", "--json"))["measured"] == 0


def test_a_node_name_that_a_shell_would_run_is_refused_with_its_line(tmp_path: Path) -> None:
    site = make_site(tmp_path, MIXED.replace("name: a100-0", "name: 'a; $(touch ran)'"), ("--runner", "ssh"))
    done = site.run("profile")
    assert done.code == 2 and "cluster.yaml:4: nodes[0].name" in done.err
    assert not (tmp_path / "ran").exists()


def test_this_machines_gpu_is_never_measured_as_another(tmp_path: Path) -> None:
    python = make_stand_in(tmp_path / "bin", device="NVIDIA A100-SXM4-80GB")
    site = make_site(tmp_path, MIXED, ("--runner", "local", "--python", str(python)))
    done = site.run("profile")
    assert done.code == 0, done.err
    assert "this machine has NVIDIA A100-SXM4-80GB, which is not mi300x" in done.err and "--types" in done.err
    rows = site.stored()
    assert {(m.point.gpu_type, m.truth) for m in rows} == {("a100-sxm-80g", Truth.GPU)}
