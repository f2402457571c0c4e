from __future__ import annotations

from memx_engine import Attention, DesignSummary
from memx_engine.profile.trends import Trend, judge_trend
from memx_tui.text.profile_view import order_words, trend_block, trend_plots
from memx_tui.text.style import Style

TRENDS = [
    judge_trend("a100", "micro_batch", "throughput", [(1.0, 900.0), (2.0, 1000.0), (4.0, 1100.0), (8.0, 1200.0)]),
    judge_trend("a100", "micro_batch", "memory", [(b, b * 2.0**30) for b in (1.0, 2.0, 4.0, 8.0)]),
    judge_trend("a100", "seq_len", "time", [(512.0, 0.1), (1024.0, 0.2), (2048.0, 0.4)]),
]


def kept() -> Trend:
    return judge_trend("a100", "seq_len", "memory", [(s, 2.0**20 * s + 2e3 * s * s) for s in (512.0, 1024.0, 2048.0)])


def test_trends_are_a_table_of_verdicts_with_what_they_mean() -> None:
    text = "\n".join(trend_block(TRENDS, Attention.FUSED, Style(width=100)))
    assert "Trends, measured on a100" in text and "warning" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("micro_batch", "seq_len"))]
    assert [row[:2] for row in rows] == [["micro_batch", "throughput"], ["micro_batch", "memory"], ["seq_len", "time"]]
    assert all("strong linear" in line for line in text.splitlines() if line.startswith("micro_batch"))
    doubtful = "\n".join(trend_block([*TRENDS, kept()], Attention.FUSED, Style(width=100)))
    assert "warning: a100: memory per added token grows" in doubtful


def test_plots_show_every_measured_point_at_any_width_and_in_ascii() -> None:
    for width in (60, 80, 120):
        lines = trend_plots(TRENDS, Style(width=width))
        assert max(map(len, lines)) <= width
        assert sum(line.count("◉") for line in lines) == 4 + 4 + 3
        assert any("log2 micro_batch: tokens/s" in line for line in lines)
    ascii_lines = trend_plots(TRENDS, Style(width=80, unicode=False))
    assert all(line.isascii() for line in ascii_lines)
    assert trend_plots([kept()], Style(width=80)) == []


def test_the_plan_says_whether_types_take_turns_and_how_long_that_takes() -> None:
    rows = [
        DesignSummary(name, points=3, skipped=0, by_purpose={}, crossed=(), exhaustive=9, device_s=seconds)
        for name, seconds in (("a", 20.0), ("b", 30.0))
    ]
    assert order_words(rows, None) == "the types are measured side by side, about 30 s"
    assert order_words(rows, 1) == "the types are measured one after the other, about 50 s"
    assert order_words(rows[:1], 1) == "about 20 s"
