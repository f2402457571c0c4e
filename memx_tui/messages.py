"""What jobs tell the app, in the past tense. Progress collapses: only the last report of a flood is handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from memx_engine import Explanation, SearchProgress, SearchResult
    from memx_tui.columns import PlanColumns


@dataclass
class SearchProgressed(Message):
    """Counts of the running search."""

    progress: SearchProgress

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SearchProgressed)


@dataclass
class SearchFinished(Message):
    """A search ended with plans; ``inputs`` names what it was computed from."""

    result: SearchResult
    columns: PlanColumns
    inputs: tuple[object, ...]


@dataclass
class SearchCancelled(Message):
    """A search was stopped before it had any plan."""


@dataclass
class JobFailed(Message):
    """A job raised; ``doing`` completes the sentence "while ..."."""

    error: BaseException
    doing: str


@dataclass
class RequestExplained(Message):
    """The answer to "why is this plan not in the list"."""

    explanation: Explanation
