"""A verdict says which metric it rests on."""

from __future__ import annotations

import pytest

from memx_engine import Impact
from memx_tui.profile_tables import CELL, impact_words
from memx_tui.text.profile_view import amplitude_words


@pytest.mark.parametrize(
    ("time", "memory", "words", "cell"),
    [
        (1.09, 0.03, ("109%!", "3% "), "HIGH  109%!    3% "),
        (0.05, 1.28, ("5% ", "128%!"), "HIGH    5%   128%!"),
        (0.06, 12.9, ("6%!", "1290%!"), "HIGH    6%! 1290%!"),
        (0.02, None, ("2% ", "- "), "low     2%      - "),
    ],
)
def test_the_mark_stands_at_what_is_above_the_threshold(
    time: float, memory: float | None, words: tuple[str, str], cell: str
) -> None:
    impact = Impact("layers", time, memory, 0.05)
    assert amplitude_words(impact) == words and impact_words(impact) == cell
    predicted = impact_words(Impact("layers", time, memory, 0.05, predicted=True))
    assert predicted == f"{cell}*" and len(predicted) == CELL


def test_nothing_is_said_of_what_was_not_judged() -> None:
    assert impact_words(None) == "-"
