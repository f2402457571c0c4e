"""Standard output and standard error of the command line: results go to the first, everything else to the second."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from memx_engine import OutputError


class ReaderGoneError(Exception):
    """The reader of standard output went away (``| head``): nothing is wrong, and nothing more is written."""


def emit(text: str) -> None:
    """Write ``text`` and a newline to standard output and flush it.

    Raises:
        ReaderGoneError: The reader closed the pipe.
        OutputError: The write failed, on a full disk for example.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise ReaderGoneError from None
    except UnicodeEncodeError as error:
        raise OutputError(
            f"the terminal's encoding {error.encoding} cannot show {error.object[error.start]!r}",
            where="standard output",
            hint="set PYTHONIOENCODING=utf-8, or use --json",
        ) from None
    except (OSError, ValueError) as error:
        silence_stdout()
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot be written: {reason}", where="standard output") from None


def emit_json(document: Mapping[str, Any]) -> None:
    """Write one JSON object to standard output."""
    emit(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Write a message for the operator to standard error; a closed standard error is no reason to fail."""
    try:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def let_go_of_dead_streams() -> None:
    """Where a terminal or a reader is gone, keep the interpreter's last flush from turning the exit code into 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            try:
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream.fileno())
                os.close(devnull)
            except (OSError, ValueError, AttributeError):
                continue


def silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # lives until the process ends
