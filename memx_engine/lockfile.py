"""One writer at a time on a shared file system: a lock file that names host, process and time.

``O_EXCL`` creation is atomic on NFS version 3 and later and on Lustre, unlike ``flock`` there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from memx_engine.errors import MemxError


class LockedError(MemxError):
    """Somebody else writes to this workspace."""

    exit_code = 2
    title = "The workspace is in use"


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        process_started_at: Tells a living process from another that got its number: seconds since ``boot``, or since
            the epoch where that is empty.
        boot: Which start of the machine it was, where that can be known; the wall clock may be set at any time.
    """

    host: str
    pid: int
    taken_at: float
    process_started_at: float
    boot: str = ""

    @classmethod
    def myself(cls) -> Holder:
        boot = _boot()
        started = _started_at(os.getpid(), since_boot=bool(boot))
        return cls(socket.gethostname(), os.getpid(), time.time(), started or 0.0, boot)

    @property
    def words(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.taken_at))
        return f"process {self.pid} on {self.host} since {when}"

    def is_dead(self) -> bool | None:
        """Whether the holder is certainly gone; None where it runs on another host and nobody here can know."""
        if self.host != socket.gethostname():
            return None
        if self.pid < 1 or (self.boot and self.boot != _boot()):
            return True
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # it lives and belongs to somebody else
        started = _started_at(self.pid, since_boot=bool(self.boot))
        return started is not None and abs(started - self.process_started_at) > 2.0


def _boot() -> str:
    """The identity of this start of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started_at(pid: int, *, since_boot: bool) -> float | None:
    """When process ``pid`` started; None where that cannot be known.

    Not psutil's time where Linux has its own: psutil adds the start of the machine by the wall clock, which moves
    with it, and a process would seem to be another after the clock was set.
    """
    try:
        if since_boot:
            # proc(5): the 22nd field is the start in clock ticks after boot; the second may hold spaces and brackets.
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return psutil.Process(pid).create_time()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock at ``path``; None when nobody does or the file is unreadable."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Holder(
            str(document["host"]),
            int(document["pid"]),
            float(document["taken_at"]),
            float(document["process_started_at"]),
            str(document.get("boot", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


class LockFile:
    """The lock of one workspace; use as a context manager or call :meth:`release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = False

    def acquire(self) -> str:
        """Take the lock.

        Returns:
            Words about a dead process's lock that was taken over, empty otherwise.

        Raises:
            LockedError: A living process here, or any process on another host, holds it.
        """
        takeover = ""
        for _ in range(3):
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                holder = read_holder(self.path)
                if holder is not None and not holder.is_dead():
                    other = holder.is_dead() is None
                    raise LockedError(
                        f"the workspace is being written by {holder.words}",
                        where=str(self.path.parent),
                        hint=(
                            f"if that process is gone, remove {self.path}"
                            if other
                            else "wait for it, or use another folder with --workspace"
                        ),
                    ) from None
                takeover = (
                    f"took over the lock of {holder.words}, which is gone" if holder else "took over a broken lock"
                )
                self._remove_if_unchanged(holder)
                continue
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(Holder.myself().__dict__, file)
                file.flush()
                os.fsync(file.fileno())
            self._held = True
            return takeover
        raise LockedError("the lock changes hands too often", where=str(self.path), hint="try again")

    def _remove_if_unchanged(self, seen: Holder | None) -> None:
        """Remove a dead lock, but not one that another process took over in the meantime."""
        if read_holder(self.path) == seen:
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        if self._held:
            self._held = False
            self.path.unlink(missing_ok=True)
