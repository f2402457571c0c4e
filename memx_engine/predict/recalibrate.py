"""What a few whole runs say of a model that learned from many others, such as one node's of what crosses nodes.

Their remaining logarithms are explained by one overall shift and by the parts of an iteration that the learned runs
could not show: each part's share of the time, times how far it may be off (Bayesian linear regression; Student-t
scatter, so that one disturbed run of few does not move the others). What the runs do not speak of stays as learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memx_engine.predict.booster import OUTPUTS, Array

MAY_BE_OFF = {"tp_across_share": 0.7, "dp_comm_share": 0.7, "bubble_share": 0.3, "pp_comm_share": 0.3}
"""Standard deviation of the logarithm of a part of the time: a network's bandwidth by a factor of two, waiting less."""

OVERALL = 0.03
"""Standard deviation of the overall shift of time: the learned runs have settled it."""

OVERALL_MEMORY = 0.1
SCATTER = 0.1
_FREEDOM = 2.0
_ROUNDS = 50


def recalibrated(features: Array, names: Sequence[str], left: Array, asked: Array) -> Array:
    """(m, 2) further shifts of the ``asked`` (m, F) runs, from what is ``left`` (n, 2) of the known (n, F) ones."""
    out = np.zeros((len(asked), len(OUTPUTS)))
    for k in range(len(OUTPUTS)):
        known = ~np.isnan(left[:, k])
        if known.any():
            basis, wanted = _basis(features[known], names, k), _basis(asked, names, k)
            out[:, k] = wanted @ _coefficients(basis, left[known, k])
    return out


def _basis(features: Array, names: Sequence[str], output: int) -> Array:
    columns = [np.full(len(features), OVERALL if output == 0 else OVERALL_MEMORY)]
    if output == 0:
        columns += [features[:, list(names).index(n)] * sd for n, sd in MAY_BE_OFF.items() if n in names]
    return np.stack(columns, axis=1)


def _coefficients(basis: Array, left: Array) -> Array:
    """Posterior mean of standard normal coefficients, rows reweighted by how far off they stay."""
    counts = np.ones(len(left))
    found: Array = np.zeros(basis.shape[1])
    for _ in range(_ROUNDS):
        weighted = basis * (counts / SCATTER**2)[:, None]
        found = np.asarray(np.linalg.solve(basis.T @ weighted + np.eye(basis.shape[1]), weighted.T @ left))
        counts = (_FREEDOM + 1.0) / (_FREEDOM + ((left - basis @ found) / SCATTER) ** 2)
    return found
