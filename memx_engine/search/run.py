"""The search: enumerate skeletons, prune, solve each for Phi, rank by events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from memx_engine.cost.table import Estimator, StageTable
from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.plan import Recompute, Skeleton
from memx_engine.search.assign import Assigned, assign, assign_even
from memx_engine.search.bounds import Bounds, PlanFigures, compute_bounds
from memx_engine.search.counting import count_plans
from memx_engine.search.diagnose import no_feasible_plan
from memx_engine.search.limit_checks import checked_limits
from memx_engine.search.limits import limited
from memx_engine.search.objective import Objective, Weights, choose_weights, compute_references
from memx_engine.search.options import SearchOptions
from memx_engine.search.prune import Incumbents, corner_phi
from memx_engine.search.ranking import Ranking, rank
from memx_engine.search.result import PruneCounts, SearchProgress, SearchResult
from memx_engine.search.schedule import heterogeneity_index
from memx_engine.search.space import Space, enumerate_space
from memx_engine.search.summary import assumptions, certificate

_REPORT_EVERY_S = 0.05
_KEPT_TABLE_BYTES = 128 << 20
_INTERLEAVED_TRIED = 16
_BOUNDING_SHARE = 0.5
# Knuth's multiplicative hash: neighbours in the enumeration land far apart, the same way every time.
_SCATTER = 2654435761
_SOLVED_AT_LEAST = 1000
"""Skeletons that are solved even where their bounds say that they cannot be among the N best."""

__all__ = ["SearchOptions", "search"]

Progress = Callable[[SearchProgress], None]
Stop = Callable[[], bool]


def search(
    cluster: Cluster,
    model: TransformerSpec,
    job: Job,
    *,
    options: SearchOptions | None = None,
    estimator: Estimator | None = None,
    on_progress: Progress | None = None,
    should_stop: Stop | None = None,
) -> SearchResult:
    """Find the best plans of ``model`` on ``cluster``.

    Args:
        options: Weights, limits; defaults search everything with ``auto`` weights.
        estimator: What predicts; first principles by default.
        on_progress: Told of the search's state about twenty times a second, from this thread.
        should_stop: Asked at least every 100 ms; True ends the search with the best plans so far.

    Raises:
        InputError: The operator's limits cannot hold.
        NoFeasiblePlanError: Nothing fits; names the binding constraint and the smallest change that would fit.
        CancelledError: Stopped before any plan was found.
    """
    if estimator is None:
        from memx_engine.cost.first_principles import FirstPrinciples

        estimator = FirstPrinciples(cluster, model, job)
    return _Search(cluster, model, job, options or SearchOptions(), estimator, on_progress, should_stop).run()


class _Tables:
    """Stage tables, the first of them kept from the bounds to the solver as far as memory goes."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._kept: dict[Skeleton, StageTable] = {}
        self._bytes = 0

    def get(self, skeleton: Skeleton, *, keep: bool = False) -> StageTable:
        table = self._kept.get(skeleton)
        if table is None:
            table = self._estimator.stage_table(skeleton)
            size = 3 * table.memory_bytes.nbytes
            if keep and self._bytes + size <= _KEPT_TABLE_BYTES:
                self._kept[skeleton] = table
                self._bytes += size
        return table


class _Search:
    """State of one search."""

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        options: SearchOptions,
        estimator: Estimator,
        on_progress: Progress | None,
        should_stop: Stop | None,
    ) -> None:
        self.cluster, self.model, self.job = cluster, model, job
        self.options, self.estimator = options, estimator
        self._on_progress, self._should_stop = on_progress, should_stop
        self._began = time.monotonic()
        self._reported = float("-inf")
        self.cancelled = False
        self.timed_out = False
        self.one_recompute = job.framework is Framework.MEGATRON
        self.variance_kind = options.objective.variance_kind if options.objective else options.variance_kind
        self.counts = PruneCounts()
        self.plans_covered = 0
        self.recompute: dict[Recompute, None] = {}
        self.bounded: list[tuple[Skeleton, Bounds]] = []
        self.nearest: tuple[Skeleton, Bounds] | None = None
        self.found: list[Assigned] = []
        self.limits = checked_limits(options.limits, cluster, model, job)
        self.tables = _Tables(limited(estimator, self.limits))
        self.unbounded = 0
        self.unsolved_phi = float("inf")

    def run(self) -> SearchResult:
        space = enumerate_space(self.cluster, self.model, self.job, self.limits)
        skeletons = list(space.skeletons())
        self.counts = replace(self.counts, placement=space.placement_pruned)
        self._bound(skeletons)
        if not self.bounded:
            if self.cancelled:
                raise CancelledError("the search was stopped before any plan was found")
            raise no_feasible_plan(space, self.nearest, make_estimator=self.estimator.derive, should_stop=self._cancels)
        objective = self._objective()
        incumbents = self._incumbents(objective, [bounds for _, bounds in self.bounded])
        self._solve(objective, incumbents)
        if not self.found:
            if self.cancelled:
                raise CancelledError("the search was stopped before any plan was found")
            raise no_feasible_plan(space, self.nearest, make_estimator=self.estimator.derive, should_stop=self._cancels)
        fastest = self._fastest(objective)
        self._report("ranking", 0, 1, incumbents, force=True)
        ranking = rank(self.found, fastest, objective, self.estimator, self.options.rescored, self._cancels)
        return self._result(space, len(skeletons), objective, incumbents, ranking)

    def _bound(self, skeletons: list[Skeleton]) -> None:
        """Rule 2, and what the references, the weights and the time rule need.

        Under a time limit this takes at most half of it, and skeletons from all over the space come first.
        """
        order = list(range(len(skeletons)))
        if self.options.time_limit_s is not None:
            order.sort(key=lambda i: i * _SCATTER % 2**32)
        fitting: list[int] = []
        bounded: dict[int, Bounds] = {}
        for done, i in enumerate(order):
            if self._cancels() or (fitting and self._elapsed_share() > _BOUNDING_SHARE):
                self.unbounded = len(order) - done
                break
            skeleton = skeletons[i]
            table = self.tables.get(skeleton, keep=True)
            bounds = compute_bounds(table, one_recompute=self.one_recompute, variance_kind=self.variance_kind)
            bounds = self.limits.bounds_within(bounds)
            self.recompute |= dict.fromkeys(table.options)
            self.plans_covered += count_plans(
                table,
                one_recompute=self.one_recompute,
                max_layer_difference=self.limits.max_layer_difference,
            )
            if self.nearest is None or bounds.excess_bytes < self.nearest[1].excess_bytes:
                self.nearest = (skeleton, bounds)
            if bounds.fits:
                fitting.append(i)
                bounded[i] = bounds
            else:
                self.counts = replace(self.counts, memory=self.counts.memory + 1)
            self._report("bounding", done + 1, len(skeletons))
        self.bounded = [(skeletons[i], bounded[i]) for i in sorted(fitting)]

    def _objective(self) -> Objective:
        if self.options.objective is not None:
            return self.options.objective
        evens = [b.even for _, b in self.bounded if b.even is not None]
        # Where no even split fits, the skeletons' bounds give the scale.
        figures: list[PlanFigures] = [*evens] or [
            PlanFigures(b.time_s, b.peak_bytes, b.variance_bytes2) for _, b in self.bounded
        ]
        shares = [b.even.worst_fraction for _, b in self.bounded if b.even is not None] or [
            b.utilization for _, b in self.bounded
        ]
        references = compute_references(
            [f.time_s for f in figures],
            [f.peak_bytes for f in figures],
            [f.variance_bytes2 for f in figures],
            rule=self.options.epsilon_rule,
            utilizations=shares if self.variance_kind == "utilization" else None,
        )
        return Objective(self.options.weights or self._auto_weights(), references, self.variance_kind)

    def _incumbents(self, objective: Objective, bounds: list[Bounds]) -> Incumbents:
        """No plan yet; the N-th best Phi of these skeletons' even splits is a limit to start with."""
        evens = [b.even for b in bounds if b.even is not None]
        phis = sorted(objective.phi(f.time_s, f.peak_bytes, f.variance_bytes2) for f in evens)
        # A hair above, so that a skeleton whose even split is its best is still solved.
        ceiling = phis[self.options.top - 1] * (1.0 + 1e-9) if len(phis) >= self.options.top else float("inf")
        return Incumbents(self.options.top, self.options.time_rule, ceiling)

    def _auto_weights(self) -> Weights:
        margin = 1.0 - min(bounds.utilization for _, bounds in self.bounded)
        return choose_weights(margin, heterogeneity_index(self.cluster, self.job))

    def _solve(self, objective: Objective, incumbents: Incumbents) -> None:
        """Rule 3 and the inner solver, the most promising corner first; ties in the order of enumeration."""
        corners = [corner_phi(bounds, objective) for _, bounds in self.bounded]
        order = sorted(range(len(corners)), key=lambda i: (corners[i], i))
        # Interleaved estimates may be too low, and the certificate speaks of 1F1B: they close no 1F1B skeleton.
        plain = self._incumbents(objective, [b for skeleton, b in self.bounded if skeleton.virtual_stages == 1])
        for done, i in enumerate(order):
            if self._stops() and self._may_end():
                self.unsolved_phi = min(self.unsolved_phi, corners[i])
                return
            skeleton, bounds = self.bounded[i]
            known = plain if skeleton.virtual_stages == 1 else incumbents
            if known.closes(bounds, corners[i]):
                self.counts = replace(self.counts, time=self.counts.time + 1)
                if self.options.time_rule == "paper":
                    self.unsolved_phi = min(self.unsolved_phi, corners[i])
                continue
            limit = known.phi_limit
            if corners[i] > limit and bounds.even is not None and len(self.found) >= _SOLVED_AT_LEAST:
                best: Assigned | None = assign_even(
                    self.cluster, self.model, skeleton, bounds.even, objective, corners[i]
                )
            else:
                best = self._assign(skeleton, objective, limit)
            if best is not None:
                self.found.append(best)
                found = PlanFigures(best.time_s, best.peak_bytes, best.variance_bytes2)
                incumbents.add(found, best.phi)
                if skeleton.virtual_stages == 1:
                    plain.add(found, best.phi)
            elif not self._may_end():
                self.counts = replace(self.counts, memory=self.counts.memory + 1)
            self._report("solving", done + 1, len(order), incumbents)

    def _assign(self, skeleton: Skeleton, objective: Objective, incumbent_phi: float) -> Assigned | None:
        return assign(
            self.cluster,
            self.model,
            self.job.framework,
            skeleton,
            self.tables.get(skeleton),
            objective,
            incumbent_phi=incumbent_phi,
            max_layer_difference=self.limits.max_layer_difference,
            should_stop=lambda: self._stops() and self._may_end(),
        )

    def _fastest(self, objective: Objective) -> list[Assigned]:
        """Candidates for the fastest plan: the least additive time, and interleaved estimates below it.

        Estimates of interleaved plans may be too low, so events decide among the candidates.
        """
        by_time = replace(objective, weights=Weights("time", 1.0, 0.0, 0.0))
        plain = [a for a in self.found if a.plan.skeleton.virtual_stages == 1]
        best = min(plain, key=lambda a: (a.time_s, a.peak_bytes), default=None)
        others: list[Assigned] = []
        for skeleton, bounds in sorted(self.bounded, key=lambda pair: pair[1].time_s):
            if (best is not None and bounds.time_s >= best.time_s) or self._stops():
                break
            limit = by_time.phi(best.time_s, best.peak_bytes, best.variance_bytes2) if best else float("inf")
            other = self._assign(skeleton, by_time, limit)
            if other is None or (best is not None and other.time_s >= best.time_s):
                continue
            if skeleton.virtual_stages > 1:
                others.append(other)
            else:
                best = other
        others.sort(key=lambda a: a.time_s)
        return ([best] if best else []) + others[:_INTERLEAVED_TRIED]

    def _result(
        self,
        space: Space,
        legal: int,
        objective: Objective,
        incumbents: Incumbents,
        ranking: Ranking,
    ) -> SearchResult:
        self._report("done", 1, 1, incumbents, force=True)
        return SearchResult(
            cluster=self.cluster,
            model=self.model,
            job=self.job,
            provenance=self.estimator.provenance,
            predictor_fingerprint=self.estimator.fingerprint,
            assumed=(*assumptions(space, self.estimator, ranking.plans[0]), *self._stopped_early()),
            objective=objective,
            space={**space.dimensions(), "recompute": tuple(map(str, self.recompute))},
            skeletons=legal + space.placement_pruned,
            pruned=self.counts,
            feasible=len(self.found),
            plans_covered=self.plans_covered,
            seconds=time.monotonic() - self._began,
            cache_hits=int(getattr(self.estimator, "hits", 0)),
            cache_misses=int(getattr(self.estimator, "misses", 0)),
            certificate=certificate(
                self.found,
                objective,
                ranking.plans,
                unsolved_phi=self.unsolved_phi,
                complete=not self.unbounded,
            ),
            table=ranking.table,
            plans=ranking.plans,
            pareto=ranking.pareto,
            time_optimal=ranking.time_optimal,
            estimator=self.estimator,
            cancelled=self.cancelled,
            limits=self.limits,
        )

    def _stopped_early(self) -> list[str]:
        if not self.timed_out and (self.cancelled or not self.unbounded):
            return []
        return [f"the time limit was reached: plans are the best so far, {self.unbounded} skeletons were not looked at"]

    def _cancels(self) -> bool:
        if self._should_stop is not None and self._should_stop():
            self.cancelled = True
        return self.cancelled

    def _stops(self) -> bool:
        self._cancels()
        self.timed_out |= self._elapsed_share() > 1.0
        return self.cancelled or self.timed_out

    def _elapsed_share(self) -> float:
        """How much of the time limit is used; 0 without one."""
        limit = self.options.time_limit_s
        return 0.0 if limit is None else (time.monotonic() - self._began) / limit

    def _may_end(self) -> bool:
        """Whether the work can end here: a time limit still waits for the first plan, the operator does not."""
        return self.cancelled or (self.timed_out and bool(self.found))

    def _report(
        self, phase: str, done: int, total: int, incumbents: Incumbents | None = None, *, force: bool = False
    ) -> None:
        now = time.monotonic()
        if self._on_progress is None or (not force and now - self._reported < _REPORT_EVERY_S):
            return
        self._reported = now
        best = min((a.phi for a in self.found), default=None)
        self._on_progress(
            SearchProgress(phase, done, total, len(self.found), self.counts, best, None, now - self._began)
        )
