"""The log: a rotating file in the state folder. Nothing is ever logged to the terminal, which is the screen."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from memx_engine import OutputError

LEVELS = ("debug", "info", "warning", "error")
MAX_BYTES = 1_000_000
BACKUPS = 3
_LOGGERS = ("memx_engine", "memx_tui")
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _QuietRotatingFileHandler(RotatingFileHandler):
    """Drops a record that cannot be written (full disk) instead of printing a traceback over the screen."""

    def handleError(self, record: logging.LogRecord) -> None:
        del record


def start_logging(file: Path, level: str = "info") -> OutputError | None:
    """Send the records of both packages to ``file``, replacing an earlier destination.

    Args:
        file: The log; its folder is created.
        level: One of ``LEVELS``.

    Returns:
        Why nothing can be logged, or None when logging works.
    """
    handler: logging.Handler
    problem: OutputError | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = _QuietRotatingFileHandler(file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8")
    except OSError as error:
        problem = OutputError(
            f"the log cannot be written: {error.strerror or error}",
            where=str(file),
            hint="set MEMX_HOME to a folder that you may write to",
        )
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in logger.handlers[:]:
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        # Without this, records would also reach the root logger, whose last resort is standard error.
        logger.propagate = False
    return problem
