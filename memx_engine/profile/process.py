"""Run one command as an argument vector, feed it, watch it, and stop it with everything it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from memx_engine.errors import CancelledError

OUTPUT_LIMIT_BYTES = 4 << 20
_GRACE_S = 2.0
_POLL_S = 0.1
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True)
class Finished:
    """How a command ended. ``output`` is stdout, ``errors`` stderr, each cut to its end where it is very long."""

    returncode: int
    output: str
    errors: str
    timed_out: bool
    seconds: float


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the command's whole process group, politely first."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


@contextlib.contextmanager
def _end_of(process: subprocess.Popen[bytes]) -> Iterator[Callable[[float], bool]]:
    """A function that waits up to so many seconds for the end of ``process`` and says whether it came.

    ``Popen.wait`` with a time limit asks again and again, half a percent of a core for every GPU type that is measured;
    where the kernel tells of an end (Linux 5.3), waiting takes next to nothing.
    """

    def ask(seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None

    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        yield ask
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)

    def be_told(seconds: float) -> bool:
        if poll.poll(1000.0 * seconds):
            process.wait()
        return process.returncode is not None

    try:
        yield be_told
    finally:
        os.close(handle)


def _tail(stream: IO[bytes], limit_bytes: int) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - limit_bytes, 0))
    return without_controls(stream.read().decode("utf-8", errors="replace"))


def without_controls(text: str) -> str:
    """``text`` without the characters by which a program could drive the operator's terminal; lines stay lines."""
    return text.translate(_CONTROLS)


def run(
    arguments: Sequence[str],
    *,
    stdin: str = "",
    timeout_s: float | None,
    should_stop: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    tethered: bool = False,
) -> Finished:
    """Run ``arguments`` (never through a shell) and wait, checking ``should_stop`` ten times a second.

    Args:
        tethered: Keep the command's standard input open until this process is done with it: a command that watches it
            learns when this process is gone, even by kill -9. ``stdin`` is not fed then.

    Raises CancelledError once ``should_stop`` is true and the command is gone; OSError when the command cannot be
    started.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile() as fed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fed.write(stdin.encode())
        fed.seek(0)
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE if tethered else fed,
            stdout=out,
            stderr=err,
            env={**os.environ, **environment} if environment else None,
            start_new_session=True,
        )
        timed_out = False
        try:
            with _end_of(process) as ended:
                while not ended(_POLL_S):
                    if should_stop():
                        raise CancelledError("stopped by the operator")
                    if timeout_s is not None and time.monotonic() - start > timeout_s:
                        timed_out = True
                        break
        finally:
            if process.stdin is not None:
                process.stdin.close()
            if process.poll() is None:
                _end(process)
        output, errors = _tail(out, output_limit_bytes), _tail(err, OUTPUT_LIMIT_BYTES)
    return Finished(process.returncode, output, errors, timed_out, time.monotonic() - start)
