"""How far one plan is from the best that is known."""

from __future__ import annotations

from dataclasses import dataclass

from memx_engine.plan import Estimate
from memx_engine.search.objective import Objective
from memx_engine.search.result import Certificate, SearchResult


@dataclass(frozen=True)
class Gap:
    """A plan against the best one of a search, in that search's objective.

    Attributes:
        phi, best_phi: Of the plan and of the best, both by events; by the additive time where only a certificate is
            known. excess: phi / best_phi - 1; below 0 where the plan is outside what was searched, and better.
        time_excess: Iteration time against the best plan's, less 1. ahead: Skeletons with a better plan. None where it
            is only a certificate that is known.
        bound_gap: 1 - lower bound / additive phi: the plan is at most this share above the optimum of the space. None
            where no bound was proven.
        event_bound_gap: The same by events over the whole space, interleaved plans included: 1 - bound / phi by events.
    """

    phi: float
    best_phi: float
    excess: float
    bound_gap: float | None
    time_excess: float | None = None
    ahead: int | None = None
    event_bound_gap: float | None = None


def gap_to(result: SearchResult, objective: Objective, estimate: Estimate) -> Gap:
    """The gap of a plan with ``estimate`` to the best of ``result``, in ``objective``."""
    best = result.plans[0].estimate
    phi, best_phi = objective.phi_of(estimate), objective.phi_of(best)
    known = objective == result.objective
    return Gap(
        phi,
        best_phi,
        phi / best_phi - 1.0,
        _bound_gap(result.certificate, objective, estimate) if known else None,
        estimate.iteration_time_s / best.iteration_time_s - 1.0,
        result.table.ahead_of(phi) if known else None,
        _event_bound_gap(result.certificate, phi) if known else None,
    )


def gap_by_certificate(certificate: Certificate, objective: Objective, estimate: Estimate) -> Gap:
    """The gap of a plan to the best of the search that its file's certificate is of; by the additive time."""
    phi = _additive(objective, estimate)
    bound = _bound_gap(certificate, objective, estimate)
    by_events = _event_bound_gap(certificate, objective.phi_of(estimate))
    return Gap(phi, certificate.best, phi / certificate.best - 1.0, bound, event_bound_gap=by_events)


def _event_bound_gap(certificate: Certificate, event_phi: float) -> float | None:
    bound = certificate.event_lower_bound
    return None if bound is None else 1.0 - bound / event_phi


def _bound_gap(certificate: Certificate, objective: Objective, estimate: Estimate) -> float | None:
    if certificate.lower_bound is None:
        return None
    return 1.0 - certificate.lower_bound / _additive(objective, estimate)


def _additive(objective: Objective, estimate: Estimate) -> float:
    return objective.phi(estimate.additive_time_s, estimate.peak_bytes, objective.variance_of(estimate))
