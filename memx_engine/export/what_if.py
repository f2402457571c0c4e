"""What a search says beside its plans, as JSON documents: what changes of the cluster would buy."""

from __future__ import annotations

from memx_engine.export.documents import Document, plain, plan_document
from memx_engine.search.sensitivity import Gain, Sensitivity

_METHOD = "each change is searched anew over the whole space, with the weights and references of this search"


def sensitivity_document(sensitivity: Sensitivity) -> Document:
    """The key ``sensitivity`` of ``plan --json``; changes of Phi and time are shares, below 0 is better."""
    base = sensitivity.base
    return plain(
        {
            "method": _METHOD,
            "phi": base.phi,
            "iteration_time_s": base.estimate.iteration_time_s,
            "seconds": sensitivity.seconds,
            "cancelled": sensitivity.cancelled,
            "changes": [_gain(gain) for gain in sensitivity.gains],
        }
    )


def _gain(gain: Gain) -> Document:
    change = gain.change
    return {
        "kind": change.kind,
        "subject": change.subject,
        "change": change.words,
        "phi": gain.plan.phi,
        "phi_change": gain.phi_change,
        "iteration_time_s": gain.plan.estimate.iteration_time_s,
        "iteration_time_change": gain.time_change,
        "same_plan": gain.same_plan,
        "optimal": gain.proven,
        "plan": plan_document(gain.plan, change.cluster, gpus=False),
    }
