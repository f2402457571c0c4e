"""Running ``memx-tui`` as the process it will be: with pipes, on a pseudo-terminal, with signals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
COMMAND = (sys.executable, "-m", "memx_tui.cli")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    seconds: float


def environment(home: Path, **more: str) -> dict[str, str]:
    """A bare environment whose tool folders are under ``home``; values in ``more`` that are empty are removed."""
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "MEMX_HOME": str(home / "memx"),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    env.update(more)
    return {name: value for name, value in env.items() if value}


def run(arguments: Sequence[str], home: Path, *, stdin: str | None = None, cwd: Path | None = None, **env: str) -> Done:
    """Run with pipes; standard input is ``stdin`` or nothing."""
    start = time.monotonic()
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd or home,
        env=environment(home, **env),
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def run_on_terminal(
    arguments: Sequence[str], home: Path, *, redirect: Mapping[str, int] | None = None, keys: bytes = b"", **env: str
) -> Done:
    """Run on a pseudo-terminal; ``redirect`` gives other file descriptors for ``stdin``, ``stdout`` or ``stderr``.

    ``out`` is everything that the terminal received.
    """
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave, **(redirect or {})}
    start = time.monotonic()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=streams["stdin"],
        stdout=streams["stdout"],
        stderr=streams["stderr"],
        cwd=home,
        env=environment(home, **env),
        start_new_session=True,
    )
    os.close(slave)
    if keys:
        os.write(master, keys)
    received = bytearray()
    while time.monotonic() - start < 60:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            received += chunk
        elif process.poll() is not None:
            break
    code = process.wait(timeout=10)
    os.close(master)
    return Done(code, received.decode("utf-8", "replace"), "", time.monotonic() - start)
