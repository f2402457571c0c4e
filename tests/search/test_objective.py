from __future__ import annotations

import pytest

from memx_engine.errors import InputError
from memx_engine.search.objective import (
    Objective,
    Weights,
    choose_weights,
    compute_references,
    parse_weights,
    profile_weights,
)


def test_words() -> None:
    assert parse_weights("auto") is None
    safety = parse_weights("safety")
    assert safety is not None and (safety.time, safety.peak, safety.variance) == (0.3, 0.5, 0.2)
    custom = parse_weights("1,0,0")
    assert custom is not None and (custom.profile, custom.time) == ("custom", 1.0)


@pytest.mark.parametrize("text", ["", "fast", "1,0", "0.5,0.5,0.5", "1.5,-0.5,0", "nan,0,1", "a,b,c", "0.4,0.2,0.4,0"])
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_weights(text)
    assert caught.value.hint


def test_auto_takes_safety_before_the_rest_and_says_why() -> None:
    assert choose_weights(0.05, 0.0).profile == "safety"
    assert choose_weights(0.30, 0.10).profile == "throughput"
    chosen = choose_weights(0.30, 0.11)
    assert chosen.profile == "heterogeneous" and "0.11" in chosen.reason


def test_references_are_medians_with_a_floor() -> None:
    references = compute_references([1.0, 2.0, 9.0], [10.0, 20.0, 30.0], [0.0, 1.0, 5.0])
    assert (references.time_s, references.peak_bytes, references.variance_bytes2) == (2.0, 20.0, 1.0)
    assert references.epsilon_bytes2 == 4.0  # (10 % of 20)^2, above 1 % of 1
    assert compute_references([1.0], [10.0], [500.0]).epsilon_bytes2 == 5.0  # 1 % of 500, above (10 % of 10)^2
    assert compute_references([1.0], [20.0], [400.0], rule="paper").epsilon_bytes2 == 4.0


def test_floor_keeps_a_zero_variance_plan_from_buying_any_slowdown() -> None:
    # Even with all variance gone, the throughput profile must not accept a plan 1.5 times as slow.
    references = compute_references([10.0], [40.0], [16.0])
    objective = Objective(profile_weights("throughput"), references)
    assert objective.phi(15.0, 40.0, 0.0) > objective.phi(10.0, 40.0, 16.0)
    assert objective.phi(10.0, 40.0, 16.0) == pytest.approx(1.0)


def test_weights_must_sum_to_one() -> None:
    with pytest.raises(InputError, match="sum to 1"):
        Weights("custom", 0.5, 0.5, 0.5)
