"""What jobs tell the app, in the past tense. Progress collapses: only the last report of a flood is handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from memx_engine import (
        Explanation,
        FreeSearch,
        Learned,
        ProfileProgress,
        ProfileResult,
        SearchProgress,
        SearchResult,
        Sensitivity,
    )
    from memx_tui.columns import PlanColumns
    from memx_tui.profile_state import ProfileSettings, Survey
    from memx_tui.replanning import Replanned


@dataclass
class SearchProgressed(Message):
    """Counts of the running search."""

    progress: SearchProgress

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SearchProgressed)


@dataclass
class SearchFinished(Message):
    """A search ended with plans; ``inputs`` names what it was computed from.

    ``free``: the searches of all combinations of free values, of which ``result`` is the best; None where one was.
    """

    result: SearchResult
    columns: PlanColumns
    inputs: tuple[object, ...]
    free: FreeSearch | None = None


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


@dataclass
class SensitivityProgressed(Message):
    """A change of the cluster is being searched: the ``done``-th of ``total``."""

    done: int
    total: int
    words: str

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SensitivityProgressed)


@dataclass
class SensitivityFound(Message):
    """What every change of the cluster would buy."""

    sensitivity: Sensitivity


@dataclass
class ReplanProgressed(Message):
    """Counts of the running search without some nodes."""

    progress: SearchProgress

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReplanProgressed)


@dataclass
class ReplanFound(Message):
    """The plans without some nodes, and what moving there takes."""

    answer: Replanned


@dataclass
class ProfileProgressed(Message):
    """Counts of the running profile; its log lines wait in the job's feed."""

    progress: ProfileProgress

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ProfileProgressed)


@dataclass
class ProfileEnded(Message):
    """Profiling ended, or was cancelled: what it has is in ``result`` and in the workspace."""

    result: ProfileResult


@dataclass
class ProfileSurveyed(Message):
    """What would be measured and what is there, for these inputs and settings."""

    survey: Survey
    inputs: tuple[object, ...]
    settings: ProfileSettings


@dataclass
class ProfileLearned(Message):
    """What training on the workspace has come to, or why it could not; ``of`` names what it was learned from."""

    learned: Learned | None
    problem: str
    of: tuple[object, ...]
