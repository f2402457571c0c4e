"""What the terminal around the process can do: is there one, does it take Unicode and colour, how wide is it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TextIO

MIN_WIDTH = 70
DEFAULT_WIDTH = 100
HEADLESS = "memx-tui plan --cluster FILE --model NAME"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether ``stream`` is an open terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def dashboard_problem() -> str | None:
    """Why the dashboard cannot be drawn, as one line that names the command to use instead; None when it can."""
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        name = "standard output" if is_terminal(sys.stdin) else "standard input"
        return f"the dashboard needs a terminal and {name} is not one; without a terminal use: {HEADLESS}"
    if not is_terminal(sys.stderr):
        return (
            "standard error is the dashboard's screen and is redirected; leave it on the terminal "
            f"(messages are in the log, see: memx-tui paths), or use: {HEADLESS}"
        )
    if os.environ.get("TERM", "") in ("", "dumb"):
        return f"the dashboard needs a terminal that can move its cursor and TERM says none; use: {HEADLESS}"
    return None


def locale_is_utf8(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the operator's locale is UTF-8.

    Python itself exports ``LC_CTYPE=C.UTF-8`` when started in the C locale (PEP 538), so that value says nothing
    about the terminal when ``LANG`` does not agree.
    """
    env = os.environ if environ is None else environ
    words = [env.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if not words[0] and words[1] == "C.UTF-8" and words[2] in ("", "C", "POSIX"):
        return False
    chosen = next((word for word in words if word), "")
    return "utf" in chosen.lower()


def wants_unicode(stream: TextIO) -> bool:
    """Whether bars and marks on ``stream`` may use more than ASCII."""
    return locale_is_utf8() and (stream.encoding or "").lower().replace("-", "") == "utf8"


def wants_colour(stream: TextIO) -> bool:
    """Colour only on a terminal that has it, and never when ``NO_COLOR`` is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def text_width(stream: TextIO) -> int:
    """Columns to lay text out in: the terminal's (``COLUMNS`` overrides), at least 70; 100 without a terminal."""
    if is_terminal(stream) or os.environ.get("COLUMNS"):
        return max(MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)
    return DEFAULT_WIDTH
