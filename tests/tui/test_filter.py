"""The filter grammar."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_tui.filter import parse_filter
from tests.tui.harness import make_columns

COLUMNS = make_columns(
    [6.4, 7.0, 8.0, 9.0],
    [30, 20, 60, 79],
    worst=[0.91, 0.64, 0.75, 1.02],
    tp=[1, 2, 4, 8],
    recompute=[0, 1, 2, 4],
    worst_type=["a100", "a100", "h100", "mi300x"],
)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("", [0, 1, 2, 3]),
        ("tp<=4", [0, 1, 2]),
        ("tp>2 pp>=2", [2, 3]),
        ("tp=2", [1]),
        ("tp==2", [1]),
        ("TP!=2", [0, 2, 3]),
        ("worst<90", [1, 2]),
        ("worst<90%", [1, 2]),
        ("feasible", [0, 1, 2]),
        ("fits", [1, 2]),
        ("tight", [0]),
        ("time<7.5s", [0, 1]),
        ("peak<=30gib", [0, 1]),
        ("tok>140k", [0, 1]),
        ("rank<=2", [0, 1]),
        ("rc=sel", [1]),
        ("recompute!=none", [1, 2, 3]),
        ("type=a100", [0, 1]),
        ("gpu!=a100", [2, 3]),
        ("marked", [3]),
        ("mbs=1 v=1 spread<2 phi<0.7 dp<3", [0, 1]),
    ],
)
def test_check_16_valid_terms(line: str, kept: list[int]) -> None:
    parsed = parse_filter(line)
    assert parsed.bad == ()
    assert np.flatnonzero(parsed.mask(COLUMNS, frozenset({3}))).tolist() == kept


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("foo", "not a word of the filter"),
        ("feasable", "did you mean feasible?"),
        ("tq<=4", "did you mean tp?"),
        ("tp", "compare it with a value"),
        ("tp<=", "compare it with a value"),
        ("tp<=four", "is not a number"),
        ("tp<=1e400", "is not a number"),
        ("tp<=-1", "is not a number"),
        ("rc<full", "takes = or !="),
        ("recompute=lots", "recompute is one of"),
        ("<=4", "not a word of the filter"),
    ],
)
def test_check_16_invalid_terms_say_why_and_are_left_out(token: str, reason: str) -> None:
    parsed = parse_filter(f"tp<=4 {token}")
    assert [bad.text for bad in parsed.bad] == [token]
    assert reason in parsed.bad[0].reason
    assert (parsed.bad[0].start, parsed.bad[0].end) == (6, 6 + len(token))
    assert np.flatnonzero(parsed.mask(COLUMNS)).tolist() == [0, 1, 2]


def test_check_16_an_empty_result_names_the_term_that_removed_most() -> None:
    parsed = parse_filter("tp<=4 worst<10 time<8.5")
    assert not parsed.mask(COLUMNS).any()
    assert parsed.explain_empty(COLUMNS) == "worst<10 removes 4 of 4; without it 3 would be left"


@pytest.mark.parametrize(
    "text", ["é" * 10_000, "tp<=4 " * 2_000, "[bold]x[/x] 木<=4", "9" * 10_000, "tp<=" + "9" * 9_996]
)
def test_check_16_unicode_and_ten_thousand_characters(text: str) -> None:
    parsed = parse_filter(text)
    assert parsed.mask(COLUMNS).shape == (4,)
    assert all(len(bad.reason) < 200 for bad in parsed.bad)


@given(st.text(max_size=200))
def test_any_line_can_be_typed(line: str) -> None:
    parsed = parse_filter(line)
    assert parsed.mask(COLUMNS).shape == (4,)
    for bad in parsed.bad:
        assert 0 <= bad.start < bad.end <= len(line)
