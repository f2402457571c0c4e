"""Errors meant for people.

Every failure a user can cause or meet derives from :class:`MemxError` and answers three questions: what is wrong
(``message``), where (``where``: ``file:line``, a key, a stage), and what to do (``hint``).
"""

from __future__ import annotations


class MemxError(Exception):
    """Base of every error that is shown to a person.

    Args:
        message: What is wrong, one sentence.
        where: Where it is wrong (``file:line: key``), empty when there is no place to name.
        hint: What to do about it, empty when nothing useful can be said.
    """

    exit_code = 1
    title = "Something went wrong"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head


class InputError(MemxError):
    """A file, flag or value that the operator gave cannot be used."""

    exit_code = 2
    title = "This input cannot be used"


class UnsupportedModelError(InputError):
    """The model's architecture is known to be outside what the cost model describes (MoE, MLA, encoder-decoder)."""

    title = "This model is not supported"


class NoFeasiblePlanError(MemxError):
    """No plan fits; the message names the binding constraint and the hint the smallest change that would fit."""

    exit_code = 3
    title = "No plan fits"


class OutputError(InputError):
    """A result cannot be written where the operator asked for it."""

    title = "The result cannot be written"


class CancelledError(MemxError):
    """The operator stopped the work."""

    exit_code = 130
    title = "Stopped"
