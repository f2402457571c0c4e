"""What real components the profiling tests can use here: a Python with torch, a Slurm, an sshd.

``MEMX_TEST_TORCH_PYTHON`` names a Python with torch; ``MEMX_TEST_REQUIRE`` (comma-separated: torch, slurm, sshd) turns
an absent component from a skip into a failure.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memx_engine.inputs.cluster import Cluster, GpuGroup, GpuType, Link, Node
from memx_engine.inputs.model import TransformerSpec
from tests.profile import slurm_cluster
from tests.profile.slurm_cluster import SlurmCluster

GIB = 1 << 30
LINK = Link(1e10, 1e-6)
TINY = TransformerSpec("tiny", "llama", 4, 128, 344, 8, 4, 16, 500, 256)
A100 = GpuType("a100-sxm-80g", "NVIDIA", "A100", 80 * GIB, 312e12, 312e12, 19.5e12, 2039e9, aliases=("a100",))
MI300X = GpuType("mi300x", "AMD", "MI300X", 192 * GIB, 1307e12, 1307e12)
CPU = GpuType("cpu", "generic", "CPU", 4 * GIB, None, None, 1e11)


def absent(component: str, reason: str) -> None:
    """Skip, or fail where the component is required."""
    if component in os.environ.get("MEMX_TEST_REQUIRE", "").split(","):
        pytest.fail(f"{component} is required here, but {reason}")
    pytest.skip(f"{component}: {reason}")


def node(name: str, gpu_type: GpuType, count: int = 4) -> Node:
    return Node(name, (GpuGroup(gpu_type, count),), count, count, LINK, LINK, LINK)


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python that has torch."""
    python = os.environ.get("MEMX_TEST_TORCH_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode != 0:
        absent("torch", f"{python} has no torch")
    return python


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A running Slurm with one node of A100s and one of MI300Xs."""
    reason = slurm_cluster.missing()
    if reason:
        absent("slurm", reason)
    # munged runs as its own user and checks the way to its socket: pytest's private folders are closed to it.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def mixed_cluster() -> Cluster:
    """What the pretended Slurm holds."""
    return Cluster("mixed", (node("a100-0", A100), node("mi300x-0", MI300X)), LINK)


@dataclass(frozen=True)
class Sshd:
    """A loopback sshd with a key of its own: the arguments ssh needs to reach it."""

    arguments: tuple[str, ...]
    log: Path


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd on loopback that accepts a key made here and nothing else."""
    daemon = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(daemon).exists() or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        absent("sshd", "ssh, ssh-keygen or sshd is not installed")
    folder = tmp_path_factory.mktemp("sshd")
    folder.chmod(0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized_keys").write_bytes((folder / "user.pub").read_bytes())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nUsePAM no\n"
        f"PidFile {folder}/pid\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([daemon, "-D", "-e", "-f", str(config)], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 15
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                absent("sshd", f"sshd did not come up: {log.read_text()[-300:]}")
            time.sleep(0.05)
        yield Sshd(
            (
                "-F", "none", "-p", str(port), "-i", str(folder / "user"), "-o", "IdentitiesOnly=yes",
                "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder}/known",
            ),
            log,
        )  # fmt: skip
    finally:
        process.terminate()
        process.wait()
