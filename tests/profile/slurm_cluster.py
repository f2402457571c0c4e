"""A real Slurm on one machine that pretends to be a mixed cluster: one slurmd per node, GPUs that are device nodes.

Needs root, ``slurm-wlm`` and ``munge``. Configured after Slurm's documentation of multiple slurmd per host
(https://slurm.schedmd.com/programmer_guide.html#multiple_slurmd_support) and of gres.conf.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

_MUNGED = shutil.which("munged") or "/usr/sbin/munged"
_CTLD = shutil.which("slurmctld") or "/usr/sbin/slurmctld"
_SLURMD = shutil.which("slurmd") or "/usr/sbin/slurmd"


def missing() -> str:
    """Why a real Slurm cannot run here; empty when it can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [path for path in (_MUNGED, _CTLD, _SLURMD) if not Path(path).exists()]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class SlurmCluster:
    """Two nodes by default: ``a100-0`` with four ``a100`` and ``mi300x-0`` with four ``mi300x``."""

    folder: Path
    nodes: dict[str, tuple[str, int]] = field(
        default_factory=lambda: {"a100-0": ("a100", 4), "mi300x-0": ("mi300x", 4)}
    )
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ctld_port: int = field(default_factory=_free_port)

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to talk to this cluster."""
        return {"SLURM_CONF": str(self.config)}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle; RuntimeError with the logs' tails otherwise."""
        self.folder.chmod(0o755)
        self._munge()
        self._write_config()
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            states = self.client("sinfo", "-h", "-N", "-o", "%N %t").stdout.split("\n")
            if sum("idle" in line for line in states) == len(self.nodes):
                return
            time.sleep(0.5)
        logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted(self.folder.glob("*.log")))
        raise RuntimeError(f"Slurm did not come up:\n{logs}")

    def _munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        user = pwd.getpwnam("munge")
        for path in (folder, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        command = [
            _MUNGED, "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/socket",
            f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed",
        ]  # fmt: skip
        self.processes["munged"] = subprocess.Popen(
            command, user=user.pw_uid, group=user.pw_gid, extra_groups=[], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while not (folder / "socket").exists():
            if time.monotonic() > deadline:
                raise RuntimeError("munged did not come up")
            time.sleep(0.05)

    def _write_config(self) -> None:
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool", "devices"):
            (self.folder / name).mkdir(exist_ok=True)
        lines = [
            "ClusterName=pretended", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={self.ctld_port}",
            "AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge/socket", "CredType=cred/munge",
            "SlurmUser=root", "SlurmdUser=root", f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n", f"SlurmctldPidFile={self.folder}/ctld.pid",
            f"SlurmdPidFile={self.folder}/%n.pid", f"SlurmctldLogFile={self.folder}/ctld.log",
            f"SlurmdLogFile={self.folder}/%n.log", "SlurmdParameters=config_overrides",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "GresTypes=gpu",
            "ReturnToService=2", "MpiDefault=none", "SwitchType=switch/none",
            "AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none", "InactiveLimit=0",
            "KillWait=2", "MinJobAge=30", "SlurmdTimeout=30", "MessageTimeout=4",
            "SchedulerParameters=sched_min_interval=1,batch_sched_delay=1",
        ]  # fmt: skip
        gres = []
        for name, (gpu_type, count) in self.nodes.items():
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs=16 RealMemory=4096"
                f" Gres=gpu:{gpu_type}:{count} State=UNKNOWN"
            )
            for index in range(count):
                device = self.folder / "devices" / f"{name}-{index}"
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
                gres.append(f"NodeName={name} Name=gpu Type={gpu_type} File={device}")
        lines.append(f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP")
        self.config.write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _spawn(self, name: str, *command: str) -> None:
        self.processes[name] = subprocess.Popen(
            command, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def start_controller(self) -> None:
        self._spawn(
            "slurmctld",
            _CTLD,
            "-D",
            "-c" if not any((self.folder / "state").iterdir()) else "-i",
            "-f",
            str(self.config),
        )

    def start_node(self, name: str) -> None:
        self._spawn(name, _SLURMD, "-D", "-N", name, "-f", str(self.config))

    def kill(self, name: str) -> None:
        """kill -9 of the controller or of one node's daemon."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def client(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60, check=False
        )

    def stop(self) -> None:
        self.client("scancel", "--user", "root")
        for process in reversed(list(self.processes.values())):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
