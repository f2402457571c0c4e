"""What the operator works on: inputs, result, marks, view. One per app; screens read it and are told of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from memx_tui.profile_state import ProfileState

if TYPE_CHECKING:
    from memx_engine import (
        Cluster,
        FreeSearch,
        Job,
        Plan,
        RankedPlan,
        SearchOptions,
        SearchProgress,
        SearchResult,
        TransformerSpec,
    )
    from memx_tui.columns import PlanColumns
    from memx_tui.replanning import Hand

Change = Literal[
    "cluster", "model", "job", "result", "search", "marks", "view", "theme", "mode", "profile", "settings", "draft"
]

MARK_LETTERS = "ABCD"
NEW_CLUSTER = "the new cluster"
SORT_KEYS = ("rank", "phi", "time", "tokens", "worst", "spread", "peak", "tp", "pp", "dp", "mb", "recompute")
AXES = ("time-peak", "time-spread")


@dataclass
class ViewOptions:
    """How the plans are looked at; kept between sessions.

    Attributes:
        sort: One of :data:`SORT_KEYS`.
        filter_text: What was typed after ``/``; see :mod:`memx_tui.filter`.
        fits_only: Hide plans that are tight, that is within 10 % of a GPU's capacity.
        axes: One of :data:`AXES`.
    """

    sort: str = "rank"
    descending: bool = False
    filter_text: str = ""
    fits_only: bool = False
    frontier_only: bool = False
    axes: str = "time-peak"


def plan_key(plan: Plan) -> str:
    """What names a plan across searches and sessions: its skeleton and the order of its GPU types."""
    s = plan.skeleton
    return f"tp{s.tp} pp{s.pp} dp{s.dp} mb{s.micro_batch} v{s.virtual_stages} {'>'.join(s.type_order)}"


@dataclass
class Session:
    """The state behind all screens.

    Attributes:
        cluster_source, model_source: What the operator named: a file, a sample, a preset.
        recent: Clusters opened lately, newest first.
        unsaved: Name of a cluster file with changes that are not saved; "" when there is none.
        draft, draft_source: The text of that file as it stands, and where it came from ("": nowhere yet); the session
            file keeps both. draft_aside: The same of the last session's, while the command line names another cluster.
        job_file, job_overrides: As for the command line; the overrides win.
        options: Weights, limits and the like; None for the defaults. free: Values of the job and the model to choose
            from, by the names of their fields in :mod:`memx_tui.limit_form`.
        without: Names of nodes that are planned without. result_without: Those that ``result`` was computed without.
        hand: The plan that ``result`` was planned again from; None where it was searched from nothing.
        limit_draft: What was typed as limits and not searched with, None where nothing was.
        free_search: The searches of every combination of free values, ``result`` being one; None where one was made.
        result_inputs: Fingerprints of the inputs that ``result`` was computed from.
        progress: Last report of a running search; None when none runs. search_began_s: When it started, on the
            monotonic clock. search_learns: It starts with measurements, on which a predictor may have to be trained.
        marks: Letter to row of ``result.table``.
        pending_marks: Letter to plan key, applied when the next search ends.
        profile: How profiling stands.
        mode: Name of the screen that is open.
    """

    cluster: Cluster | None = None
    cluster_source: str = ""
    recent: tuple[str, ...] = ()
    unsaved: str = ""
    draft: str = ""
    draft_source: str = ""
    draft_aside: tuple[str, str] = ("", "")
    model: TransformerSpec | None = None
    model_source: str = ""
    job_file: str | None = None
    job_overrides: dict[str, Any] = field(default_factory=dict)
    options: SearchOptions | None = None
    free: dict[str, tuple[int, ...]] = field(default_factory=dict)
    limit_draft: dict[str, str] | None = None
    without: tuple[str, ...] = ()
    result_without: tuple[str, ...] = ()
    hand: Hand | None = None
    result: SearchResult | None = None
    columns: PlanColumns | None = None
    free_search: FreeSearch | None = None
    result_inputs: tuple[object, ...] = ()
    progress: SearchProgress | None = None
    searching: bool = False
    search_began_s: float = 0.0
    search_learns: bool = False
    failure: BaseException | None = None
    marks: dict[str, int] = field(default_factory=dict)
    pending_marks: dict[str, str] = field(default_factory=dict)
    view: ViewOptions = field(default_factory=ViewOptions)
    profile: ProfileState = field(default_factory=ProfileState)
    mode: str = ""
    selected_row: int = 0
    _details: dict[int, RankedPlan] = field(default_factory=dict, repr=False)

    @property
    def ready(self) -> bool:
        """Cluster and model are known, so a search can start."""
        return self.cluster is not None and self.model is not None

    def job(self) -> Job:
        """The job of this cluster and model; raises MemxError when the overrides do not fit them."""
        from memx_engine import InputError, resolve_job

        if self.cluster is None or self.model is None:
            raise InputError(
                "a job needs a cluster and a model", hint="choose the model with m, the cluster on screen 1"
            )
        job: Job = resolve_job(self.cluster, self.model, file=self.job_file, **self.job_overrides)
        return job

    def planned(self) -> tuple[Cluster, TransformerSpec, Job]:
        """Cluster, model and job of the next search: without the nodes that are left out.

        Raises:
            MemxError: A job cannot be made of them, or no node is left.
        """
        from memx_engine import resolve_job, without_nodes

        job = self.job()
        assert self.cluster is not None and self.model is not None
        if not self.without:
            return self.cluster, self.model, job
        cluster = without_nodes(self.cluster, self.without)
        return cluster, self.model, resolve_job(cluster, self.model, file=self.job_file, **self.job_overrides)

    def job_words(self) -> str:
        """The job in a few words, from the last result while it is current; "" while nothing was resolved."""
        if self.result is None:
            return ""
        job = self.result.job
        return f"seq {job.seq_len} batch {job.global_batch} {job.precision.value}"

    def inputs(self) -> tuple[object, ...]:
        """What a result depends on; compares equal while nothing has changed."""
        return (
            self.cluster.fingerprint if self.cluster else None,
            self.model.fingerprint if self.model else None,
            self.job_file,
            tuple(sorted((key, str(value)) for key, value in self.job_overrides.items())),
            self.options,
            tuple(sorted(self.free.items())),
            self.without,
            self.profile.settings.folder,
            self.profile.version,
        )

    @property
    def stale(self) -> bool:
        """The result shown was computed from other inputs than those now chosen."""
        return self.result is not None and self.result_inputs != self.inputs()

    @property
    def unused_measurements(self) -> bool:
        """Something was measured since the result shown was computed."""
        return self.result is not None and self.result_inputs[-1:] != (self.profile.version,)

    @property
    def subject(self) -> str:
        """Cluster and model by name."""
        return f"{self.cluster.name if self.cluster else ''}, {self.model.name if self.model else ''}"

    def accept(
        self,
        result: SearchResult,
        columns: PlanColumns,
        inputs: tuple[object, ...],
        free_search: FreeSearch | None = None,
    ) -> None:
        """Take over a finished search; marks follow their plans into the new ranking and are dropped with them."""
        wanted = dict(self.pending_marks)
        if self.result is not None:
            wanted |= {letter: plan_key(self.result.table.plans[row]) for letter, row in self.marks.items()}
        self.result, self.columns, self.result_inputs = result, columns, inputs
        self.free_search, self.result_without = free_search, self.without
        self.failure = None
        self._details = {}
        self.marks = {}
        if wanted:
            rows = {plan_key(plan): row for row, plan in reversed(list(enumerate(result.table.plans)))}
            self.marks = {letter: rows[key] for letter, key in sorted(wanted.items()) if key in rows}
        self.pending_marks = {}
        self.selected_row = 0

    def detail(self, row: int) -> RankedPlan:
        """Everything predicted of table row ``row``; computed once."""
        if self.result is None:
            raise IndexError(row)
        if row not in self._details:
            if len(self._details) >= 512:
                self._details.pop(next(iter(self._details)))
            self._details[row] = self.result.detail(row)
        return self._details[row]

    def toggle_mark(self, row: int) -> str | None:
        """Mark or unmark a row. Returns its letter, "" when it was unmarked, None when all letters are taken."""
        for letter, marked in self.marks.items():
            if marked == row:
                del self.marks[letter]
                return ""
        for letter in MARK_LETTERS:
            if letter not in self.marks:
                self.marks[letter] = row
                self.marks = dict(sorted(self.marks.items()))
                return letter
        return None

    def mark_of(self, row: int) -> str:
        """The letter of a row, "" when it is not marked."""
        return next((letter for letter, marked in self.marks.items() if marked == row), "")

    def marked_keys(self) -> Mapping[str, str]:
        """Letter to plan key, for the session file."""
        if self.result is None:
            return dict(self.pending_marks)
        return {letter: plan_key(self.result.table.plans[row]) for letter, row in self.marks.items()}
