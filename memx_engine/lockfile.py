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
    """Who holds a lock. ``process_started_at`` tells a living process from another that got its number."""

    host: str
    pid: int
    taken_at: float
    process_started_at: float

    @classmethod
    def myself(cls) -> Holder:
        return cls(socket.gethostname(), os.getpid(), time.time(), psutil.Process().create_time())

    @property
    def words(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.taken_at))
        return f"process {self.pid} on {self.host} since {when}"

    def is_dead(self) -> bool | None:
        """Whether the holder is certainly gone; None where it runs on another host and nobody here can know."""
        if self.host != socket.gethostname():
            return None
        try:
            return abs(psutil.Process(self.pid).create_time() - self.process_started_at) > 2.0
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock at ``path``; None when nobody does or the file is unreadable."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Holder(
            str(document["host"]),
            int(document["pid"]),
            float(document["taken_at"]),
            float(document["process_started_at"]),
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
