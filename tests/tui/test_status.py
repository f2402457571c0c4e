from __future__ import annotations

import time

from memx_engine import PruneCounts, SearchProgress
from memx_tui.progress import describe
from memx_tui.status import search_words
from tests.tui.harness import make_session


def test_the_gap_closes_before_the_readers_eyes() -> None:
    session = make_session(None)
    session.searching = True
    for gap, shown in ((0.314, "gap 31.4%"), (0.0, "gap 0.0%")):
        session.progress = SearchProgress("solving", 40, 604, 604, PruneCounts(), 0.5, gap, 0.7, 0.4)
        words = search_words(session)
        assert shown in words[0] and shown in words[1] and shown in describe(session.progress)
        # Beside the tabs of an 80-column terminal.
        assert any(shown in line and len(line) <= 40 for line in words)
    session.progress = SearchProgress("bounding", 40, 604, 12, PruneCounts(), None, None, 0.1)
    assert not any("gap" in line for line in search_words(session))


def test_training_before_the_first_report_is_said_with_its_time() -> None:
    session = make_session(None)
    session.searching = True
    session.progress = None
    assert search_words(session) == ["searching"]
    session.search_learns, session.search_began_s = True, time.monotonic() - 7.2
    words = search_words(session)
    assert all("training" in line and "7 s" in line for line in words)
    assert any(len(line) <= 33 for line in words)
