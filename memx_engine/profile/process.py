"""Run one command as an argument vector, feed it, watch it, and stop it with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from memx_engine.errors import CancelledError

OUTPUT_LIMIT_BYTES = 4 << 20
_GRACE_S = 2.0


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


def _tail(stream: IO[bytes], limit_bytes: int) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - limit_bytes, 0))
    return stream.read().decode("utf-8", errors="replace")


def run(
    arguments: Sequence[str],
    *,
    stdin: str = "",
    timeout_s: float | None,
    should_stop: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
) -> Finished:
    """Run ``arguments`` (never through a shell) and wait, checking ``should_stop`` ten times a second.

    Raises CancelledError once ``should_stop`` is true and the command is gone; OSError when the command cannot be
    started.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile() as fed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fed.write(stdin.encode())
        fed.seek(0)
        process = subprocess.Popen(
            list(arguments),
            stdin=fed,
            stdout=out,
            stderr=err,
            env={**os.environ, **environment} if environment else None,
            start_new_session=True,
        )
        timed_out = False
        try:
            while True:
                try:
                    process.wait(0.1)
                    break
                except subprocess.TimeoutExpired:
                    pass
                if should_stop():
                    raise CancelledError("stopped by the operator")
                if timeout_s is not None and time.monotonic() - start > timeout_s:
                    timed_out = True
                    break
        finally:
            if process.poll() is None:
                _end(process)
        output, errors = _tail(out, output_limit_bytes), _tail(err, OUTPUT_LIMIT_BYTES)
    return Finished(process.returncode, output, errors, timed_out, time.monotonic() - start)
