"""The search: enumerate skeletons, prune, solve each for Phi, rank by events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memx_engine.cost.table import Estimator
from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Framework, Job
from memx_engine.inputs.model import TransformerSpec
from memx_engine.search.bounding import BoundedSpace, Bounder, Tables
from memx_engine.search.control import Control, Progress, Stop
from memx_engine.search.diagnose import exceeds_every_gpu, no_feasible_plan
from memx_engine.search.event_bound import event_lower_bound
from memx_engine.search.fitting import Fitting
from memx_engine.search.limit_checks import checked_limits
from memx_engine.search.limits import limited
from memx_engine.search.objective import Objective, Weights, choose_weights, compute_references
from memx_engine.search.options import SearchOptions
from memx_engine.search.ranking import Predictions, Ranking, rank
from memx_engine.search.result import FrontReport, SearchResult
from memx_engine.search.schedule import heterogeneity_index
from memx_engine.search.solving import Solver
from memx_engine.search.space import Space, enumerate_space
from memx_engine.search.summary import assumptions, certificate
from memx_engine.search.whole_front import WholeFront

__all__ = ["SearchOptions", "search"]


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
    options = options or SearchOptions()
    options = replace(options, limits=checked_limits(options.limits, cluster, model, job))
    control = Control(options.time_limit_s, on_progress, should_stop)
    return _Search(cluster, model, job, options, estimator, control).run()


class _Search:
    """One search."""

    def __init__(
        self,
        cluster: Cluster,
        model: TransformerSpec,
        job: Job,
        options: SearchOptions,
        estimator: Estimator,
        control: Control,
    ) -> None:
        self._cluster, self._model, self._job = cluster, model, job
        self._options, self._estimator, self._control = options, estimator, control
        self._variance_kind = options.objective.variance_kind if options.objective else options.variance_kind

    def run(self) -> SearchResult:
        limits, control = self._options.limits, self._control
        space = enumerate_space(self._cluster, self._model, self._job, limits)
        skeletons = list(space.skeletons())
        control.counts = replace(control.counts, placement=space.placement_pruned)
        if skeletons and exceeds_every_gpu(self._model, self._job, self._cluster):
            raise no_feasible_plan(space, None, make_estimator=self._estimator.derive, should_stop=control.cancels)
        tables = Tables(limited(self._estimator, limits))
        bounder = Bounder(
            self._estimator,
            tables,
            limits,
            control,
            one_recompute=self._job.framework is Framework.MEGATRON,
            variance_kind=self._variance_kind,
        )
        bounded = bounder.bound(skeletons, scattered=self._options.time_limit_s is not None)
        if not len(bounded.fitting):
            raise self._nothing(space, bounded)
        objective = self._objective(bounded.fitting)
        solver = Solver(self._cluster, self._model, self._job.framework, tables, self._options, control)
        solver.solve(bounded.fitting, objective)
        if not solver.found:
            raise self._nothing(space, bounded)
        control.report("ranking", 0, 1, force=True)
        fastest = solver.fastest(objective)
        predictions = Predictions(self._estimator)
        rescored = self._options.rescored
        ranking = rank(solver.found, fastest, objective, predictions, rescored, control.cancels)
        report = FrontReport()
        if self._options.front and not control.stops():
            front = WholeFront(solver, bounded.fitting, objective, control, self._options.front_nodes)
            report = front.seek(self._options.front)
            front.settle(ranking.on_front)
            if front.points and not control.cancels():
                ranking = rank(
                    solver.found,
                    fastest,
                    objective,
                    predictions,
                    rescored,
                    control.cancels,
                    beside=front.points,
                    whole=report.complete and not front.spent,
                )
            report = replace(report, plans=sum(map(front.proves, ranking.on_front)))
        control.report("done", 1, 1, force=True)
        return self._result(space, len(skeletons), bounded, objective, solver, ranking, report)

    def _nothing(self, space: Space, bounded: BoundedSpace) -> Exception:
        if self._control.cancelled:
            return CancelledError("the search was stopped before any plan was found")
        return no_feasible_plan(
            space, bounded.nearest, make_estimator=self._estimator.derive, should_stop=self._control.cancels
        )

    def _objective(self, fitting: Fitting) -> Objective:
        if self._options.objective is not None:
            return self._options.objective
        at = fitting.has_even
        measures = (fitting.even_time_s, fitting.even_peak_bytes, fitting.even_variance, fitting.even_worst_fraction)
        if not at.any():
            # Where no even split fits, the skeletons' bounds give the scale.
            at = np.ones(len(fitting), dtype=np.bool_)
            measures = (fitting.time_s, fitting.peak_bytes, fitting.variance_bytes2, fitting.utilization)
        time_s, peak, variance, shares = (values[at].tolist() for values in measures)
        references = compute_references(
            time_s,
            peak,
            variance,
            rule=self._options.epsilon_rule,
            utilizations=shares if self._variance_kind == "utilization" else None,
        )
        return Objective(self._options.weights or self._auto_weights(fitting), references, self._variance_kind)

    def _auto_weights(self, fitting: Fitting) -> Weights:
        margin = 1.0 - float(fitting.utilization.min())
        return choose_weights(margin, heterogeneity_index(self._cluster, self._job))

    def _result(
        self,
        space: Space,
        legal: int,
        bounded: BoundedSpace,
        objective: Objective,
        solver: Solver,
        ranking: Ranking,
        front: FrontReport,
    ) -> SearchResult:
        estimator, control = self._estimator, self._control
        return SearchResult(
            cluster=self._cluster,
            model=self._model,
            job=self._job,
            provenance=estimator.provenance,
            predictor_fingerprint=estimator.fingerprint,
            assumed=(*assumptions(space, estimator, ranking.plans[0]), *self._stopped_early(bounded)),
            objective=objective,
            space={**space.dimensions(), "recompute": tuple(map(str, bounded.recompute))},
            skeletons=legal + space.placement_pruned,
            pruned=control.counts,
            feasible=len(solver.found),
            plans_covered=bounded.plans_covered,
            seconds=control.elapsed_s,
            cache_hits=int(getattr(estimator, "hits", 0)),
            cache_misses=int(getattr(estimator, "misses", 0)),
            certificate=certificate(
                solver.found,
                objective,
                ranking.plans,
                unsolved_phi=solver.unsolved_phi,
                complete=not bounded.unbounded,
                event_lower_bound=None
                if bounded.unbounded
                else event_lower_bound(bounded.fitting, objective, solver.found),
            ),
            table=ranking.table,
            plans=ranking.plans,
            pareto=ranking.pareto,
            time_optimal=ranking.time_optimal,
            estimator=estimator,
            cancelled=control.cancelled,
            limits=self._options.limits,
            front=front,
        )

    def _stopped_early(self, bounded: BoundedSpace) -> list[str]:
        if not self._control.timed_out and (self._control.cancelled or not bounded.unbounded):
            return []
        unseen = bounded.unbounded
        return [f"the time limit was reached: plans are the best so far, {unseen} skeletons were not looked at"]
