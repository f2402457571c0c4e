"""``utilization`` as the kind of variance, through the whole search."""

from __future__ import annotations

import numpy as np
import pytest

from memx_engine.errors import InputError
from memx_engine.search.bounds import compute_bounds, figures
from memx_engine.search.objective import compute_references, parse_weights
from memx_engine.search.run import SearchOptions, search
from memx_engine.search.space import enumerate_space
from tests.builders import H100, MI300X, make_cluster, make_job, make_model
from tests.search.brute import best_of, plain
from tests.search.fakes import TableEstimator, random_table

CLUSTER, MODEL, JOB = make_cluster(H100, MI300X, gpus_per_node=2), make_model(layers=6), plain(make_job(8))


@pytest.mark.parametrize("weights", ["heterogeneous", "safety", "throughput", "0,0,1"])
def test_the_best_of_brute_force_is_found(weights: str) -> None:
    estimator = TableEstimator(CLUSTER, MODEL, JOB)
    options = SearchOptions(weights=parse_weights(weights), variance_kind="utilization")
    result = search(CLUSTER, MODEL, JOB, options=options, estimator=estimator)
    least = best_of(enumerate_space(CLUSTER, MODEL, JOB).skeletons(), estimator, result.objective)
    assert result.objective.variance_kind == "utilization"
    assert result.certificate.best == pytest.approx(least, rel=1e-9)
    assert result.certificate.lower_bound == pytest.approx(least, rel=1e-9) and result.certificate.optimal


def test_phi_is_of_shares_and_the_table_of_bytes() -> None:
    options = SearchOptions(variance_kind="utilization")
    result = search(CLUSTER, MODEL, JOB, options=options, estimator=TableEstimator(CLUSTER, MODEL, JOB))
    for row, ranked in enumerate(result.plans):
        estimate = ranked.estimate
        shares = np.array([gpu.peak_bytes / gpu.capacity_bytes for gpu in estimate.gpus])
        assert ranked.phi == pytest.approx(
            result.objective.phi(estimate.iteration_time_s, estimate.peak_bytes, float(shares.var()))
        )
        assert result.table.variance_bytes2[row] == estimate.memory_variance_bytes2
    # Shares are below 1, so is their variance; that of bytes is some GiB squared.
    assert result.objective.references.variance_bytes2 < 1.0
    assert result.objective.references.epsilon_bytes2 < 1.0


def test_a_given_objective_is_kept() -> None:
    estimator = TableEstimator(CLUSTER, MODEL, JOB)
    first = search(CLUSTER, MODEL, JOB, options=SearchOptions(variance_kind="utilization"), estimator=estimator)
    again = search(CLUSTER, MODEL, JOB, options=SearchOptions(objective=first.objective), estimator=estimator)
    assert again.objective == first.objective
    assert again.table.phi.tolist() == first.table.phi.tolist()


def test_bounds_hold_for_shares() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        table = random_table(rng, 3, 8, 2)
        bounds = compute_bounds(table, variance_kind="utilization")
        for split in ((2, 3, 3), (1, 4, 3), (4, 2, 2), (3, 3, 2)):
            for options in np.ndindex(2, 2, 2):
                at = (np.arange(3), np.array(split), np.array(options))
                if (table.memory_bytes[at] <= table.capacity_bytes).all():
                    made = figures(table, split, options, "utilization")
                    assert bounds.variance_bytes2 <= made.variance_bytes2 * (1 + 1e-12)


def test_references_of_shares_have_their_own_floor() -> None:
    references = compute_references([1.0], [8e9], [0.0001], utilizations=[0.5])
    assert references.epsilon_bytes2 == pytest.approx(0.05**2)
    assert compute_references([1.0], [8e9], [0.0], rule="paper", utilizations=[0.5]).epsilon_bytes2 == 1e-12


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="utilization"):
        SearchOptions(variance_kind="percent")
