from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine.measurement import Outcome, Point, Truth
from memx_engine.profile.probe import MARK
from memx_engine.profile.protocol import find_result, probe_spec, read_result
from memx_engine.profile.records import measurement_from_document, measurement_to_document
from tests.profile.conftest import TINY

POINT = Point("a100-sxm-80g", TINY, 2, 1, 64, 2)
GOOD = {"outcome": "ok", "forward_s": 0.01, "backward_s": 0.02, "repetitions_s": [0.03, 0.031], "node": "n1"}


def read(output: str) -> tuple[Outcome, str]:
    result = read_result(output, POINT, truth=Truth.GPU, truth_name="gpu")
    return result.outcome, result.detail


def test_a_result_is_found_between_vendor_banners() -> None:
    output = f"NCCL version 2.x\n{{not json}}\nUSDT: {MARK}{{broken\nw {MARK}{json.dumps(GOOD)}\nbye\n"
    assert find_result(output) == GOOD
    result = read_result(output, POINT, truth=Truth.GPU, truth_name="gpu")
    assert result.outcome is Outcome.OK
    assert result.time_s == pytest.approx(0.03)
    assert result.node == "n1"
    assert read_result(output, POINT, truth=Truth.GPU, truth_name="gpu", node="scheduler's").node == "scheduler's"


def test_silence_and_noise_are_crashes_with_their_last_words() -> None:
    assert read("") == (Outcome.CRASHED, "the probe printed nothing")
    outcome, detail = read("Traceback\nImportError: no module named torch\n")
    assert outcome is Outcome.CRASHED
    assert "no module named torch" in detail


def test_a_rank_without_memory_speaks_for_the_ranks_that_lost_it() -> None:
    lost = {"outcome": "crashed", "detail": "Connection closed by peer", "rank": 0}
    full = {"outcome": "oom", "detail": "out of memory", "rank": 3}
    for order in ((lost, full), (full, lost)):
        assert read("\n".join(MARK + json.dumps(d) for d in order)) == (Outcome.OOM, "out of memory")
    # Without memory in play the first failure is nearest to the cause.
    late = {"outcome": "timeout", "detail": "not finished", "rank": 1}
    assert read("\n".join(MARK + json.dumps(d) for d in (lost, late))) == (Outcome.CRASHED, lost["detail"])


@pytest.mark.parametrize(
    "huge",
    [
        MARK + '{"a":' * 100_000,
        MARK + json.dumps({**GOOD, "peak_allocated_bytes": 10**400}),
        MARK + json.dumps({**GOOD, "forward_s": 10**400, "repetitions_s": [10**400, float("nan"), -1, True]}),
        MARK + json.dumps({**GOOD, "repetitions_s": [0.03] * 200_000, "versions": {"x" * 9000: "y" * 9000}}),
        "\0" * 3_000_000,
    ],
    ids=["nested", "bytes", "seconds", "long", "zeros"],
)
def test_a_flood_is_read_or_refused_and_what_is_kept_stays_small(huge: str) -> None:
    result = read_result(huge, POINT, truth=Truth.GPU, truth_name="gpu")
    assert len(json.dumps(measurement_to_document(result), allow_nan=False)) < 100_000


@pytest.mark.parametrize(
    "bad", [{"forward_s": None}, {"forward_s": "1"}, {"backward_s": float("nan")}, {"forward_s": -1}]
)
def test_ok_without_usable_times_is_not_believed(bad: dict[str, object]) -> None:
    outcome, detail = read(MARK + json.dumps({**GOOD, **bad}))
    assert outcome is Outcome.CRASHED
    assert "without usable times" in detail


@given(st.text())
def test_no_output_raises(text: str) -> None:
    outcome, _ = read(text + "\n" + MARK + text)
    assert outcome in set(Outcome)


@given(
    st.dictionaries(
        st.sampled_from([*GOOD, "peak_allocated_bytes", "versions", "stragglers", "detail"]),
        st.none()
        | st.booleans()
        | st.floats()
        | st.text()
        | st.lists(st.floats())
        | st.dictionaries(st.text(), st.text()),
    )
)
def test_no_document_raises(document: dict[str, object]) -> None:
    result = read_result(MARK + json.dumps(document), POINT, truth=Truth.GPU, truth_name="gpu")
    assert (result.time_s is not None) == (result.outcome is Outcome.OK)


def test_the_specification_is_plain_json_with_padded_vocabulary() -> None:
    spec = probe_spec(POINT, time_limit_s=10)
    assert json.loads(json.dumps(spec)) == spec
    assert spec["padded_vocab"] == 512
    assert spec["sequence_parallel"] is True
    assert probe_spec(replace(POINT, tp=1), time_limit_s=1)["sequence_parallel"] is False


def test_a_measurement_survives_its_document() -> None:
    result = read_result(MARK + json.dumps(GOOD), POINT, truth=Truth.GPU, truth_name="gpu")
    assert measurement_from_document(json.loads(json.dumps(measurement_to_document(result)))) == result
