"""Plans as text: they fit the width, they stay ASCII where asked, and they say what the values are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memx_engine import (
    Gain,
    Gap,
    MemoryBreakdown,
    OperatorLimits,
    RankedPlan,
    SearchOptions,
    SearchResult,
    Sensitivity,
    Verdict,
    load_cluster,
    load_model,
    parse_weights,
    resolve_job,
    search_plans,
)
from memx_engine.search.sensitivity import Change
from memx_tui.text import bars, numbers, plan_view, search_view
from memx_tui.text.compare_view import METRICS, compare_text
from memx_tui.text.explain_view import explain_text, gap_words
from memx_tui.text.grid import Column, table
from memx_tui.text.price import short_price
from memx_tui.text.search_view import search_text
from memx_tui.text.sensitivity_view import sensitivity_text
from memx_tui.text.show_view import show_text
from memx_tui.text.style import Style
from memx_tui.widgets import why_pane
from tests.builders import make_cluster, make_estimate, make_job, make_model, make_objective, make_plan, make_result


@dataclass(frozen=True)
class File:
    """What the comparison reads of a plan file."""

    plan: Any
    estimate: Any
    phi: float = 0.5
    cluster: Any = make_cluster()
    model: Any = make_model()
    job: Any = make_job()
    objective: Any = make_objective()
    predictor_fingerprint: str = "fake"
    provenance: str = "uncalibrated"
    version: str = "0.1.0"
    assumed: tuple[str, ...] = ()
    limits: OperatorLimits = OperatorLimits()


def whole(result: SearchResult, style: Style, pick: int = 1) -> str:
    shown = [result.detail(row) for row in range(min(10, result.feasible))]
    return search_text(result, shown, result.detail(pick - 1), style)


@pytest.mark.parametrize("width", [70, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_search_fits_the_width(width: int, unicode: bool) -> None:
    for result in (make_result(12), make_result(3, calibrated=True), make_result(1, cancelled=True)):
        for line in whole(result, Style(width, unicode)).splitlines():
            assert len(line) <= width, line


def test_ascii_style_writes_only_ascii() -> None:
    result = make_result(12)
    assert whole(result, Style(100, unicode=False)).isascii()
    files = [File(p.plan, p.estimate, p.phi) for p in result.plans[:3]]
    assert compare_text(files, ["a.yaml", "b.yaml", "c.yaml"], Style(100, unicode=False)).isascii()  # type: ignore[arg-type]  # stand-ins
    assert show_text(files[0], Style(100, unicode=False)).isascii()  # type: ignore[arg-type]  # stand-in


def test_colour_is_absent_unless_asked_for() -> None:
    result = make_result(4)
    assert "\x1b" not in whole(result, Style(100))
    assert "\x1b" in whole(result, Style(100, colour=True))


def test_a_search_says_what_it_assumed_where_its_numbers_come_from_and_what_it_dropped() -> None:
    result = make_result(12)
    text = whole(result, Style(160))
    assert "uncalibrated" in text
    for sentence in result.assumed:
        assert sentence in text
    assert "12 misplaced" in text and "12 too big" in text
    assert "10 of 12 shown" in text
    assert "not proven optimal" in text
    assert result.objective.weights.reason in text


def test_the_fastest_plan_is_shown_with_its_price() -> None:
    result = make_result(12)
    quick, best = result.time_optimal, result.plans[0]
    assert quick.plan != best.plan
    text = whole(result, Style(160))
    section = text[text.index("Fastest plan found") :]
    assert numbers.seconds(quick.estimate.iteration_time_s) in section
    assert numbers.change(quick.phi, best.phi) in section
    same = whole(result, Style(160), pick=quick.rank)
    assert "also the fastest" in same


def test_a_plan_much_slower_than_the_fastest_tells_its_price_at_the_table() -> None:
    result = make_result(12)
    chosen, other = result.plans[0], result.plans[1]
    words = "The fastest plan found takes"
    for share, told in ((0.80, True), (0.95, False)):
        estimate = replace(other.estimate, iteration_time_s=share * chosen.estimate.iteration_time_s)
        fast = replace(result, time_optimal=replace(other, estimate=estimate))
        text = " ".join(whole(fast, Style(100, unicode=True)).split())
        assert (words in text) is told
        assert bool(short_price(fast, chosen)) is told
    dear = replace(other.estimate, iteration_time_s=0.8 * chosen.estimate.iteration_time_s)
    fast = replace(result, time_optimal=replace(other, estimate=dear))
    lines = whole(fast, Style(160, unicode=True)).splitlines()
    at = next(n for n, line in enumerate(lines) if words in line)
    assert "(-20.0%)" in lines[at] and "--weights throughput, or 1,0,0" in lines[at]
    assert at < next(n for n, line in enumerate(lines) if "Plan 1" in line)
    assert all("-20.0%" in words for words in short_price(fast, chosen))


def test_a_picked_plan_says_so() -> None:
    assert "picked by hand" in whole(make_result(12), Style(160), pick=3)


@given(st.integers(2, 60), st.floats(0.01, 3.0), st.floats(1.0, 2.0))
def test_a_bar_has_its_width_and_marks_what_is_over(width: int, fill: float, scale: float) -> None:
    gpu = make_estimate(make_plan()).gpus[0]
    total = fill * gpu.capacity_bytes
    breakdown = MemoryBreakdown(*[total / 8] * 8)
    gpu = replace(gpu, peak_bytes=breakdown.total, breakdown=breakdown)
    drawn = bars.bar(gpu, width, Style(unicode=False), scale)
    limit = drawn.index("|")
    assert limit == min(width, round(width / scale))
    assert len(drawn) <= width + 2
    assert ("!" in drawn[limit:]) == (gpu.peak_bytes > gpu.capacity_bytes)


def test_check_15_segments_sum_to_the_number_shown() -> None:
    for gpu in make_estimate(make_plan(recompute=("none", "full", "selective", "none"))).gpus:
        assert math.isclose(sum(bars.segments(gpu)), gpu.peak_bytes, rel_tol=1e-9)


def test_a_plan_that_does_not_fit_is_called_oom() -> None:
    plan = make_plan()
    text = "\n".join(plan_view.plan_block("Plan", plan, make_estimate(plan, memory_scale=40.0), Style(100)))
    assert "OOM" in text and "does not fit" in text and "!" in text


def test_rows_of_equal_gpus_fold() -> None:
    rows = bars.fold(make_estimate(make_plan()).gpus)
    assert [len(row.ranks) for row in rows] == [4, 4, 4, 4]
    assert sum(len(row.ranks) for row in rows) == 16


def test_many_nodes_fold_further() -> None:
    from tests.builders import H100

    cluster = make_cluster(*[H100] * 64, gpus_per_node=2)
    plan = make_plan(cluster, tp=2, dp=32, layers=(16, 16))
    rows = bars.fold(make_estimate(plan, cluster).gpus)
    assert len(rows) == 2 and rows[0].place == "node-0-h100-sxm-80g..node-31-h100-sxm-80g"


def test_words_of_a_plan() -> None:
    style = Style(unicode=False)
    plan = make_plan(layers=(9, 9, 7, 7), recompute=("none", "none", "full", "block:2"))
    assert plan_view.layers_by_type(plan, style) == "2x9|2x7"
    assert plan_view.recompute_by_type(plan, style) == "none|full,block:2"
    assert plan_view.recompute_by_type(make_plan(), style) == "none"
    assert plan_view.schedule_word(make_plan(layers=(16, 16), virtual_stages=2)) == "interleaved:2"
    assert plan_view.ranks((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"


def test_numbers() -> None:
    assert numbers.seconds(0.8123) == "0.812" and numbers.seconds(48.2) == "48.20" and numbers.seconds(1234.5) == "1234"
    assert numbers.rate(812) == "812" and numbers.rate(43_500) == "43.5k" and numbers.rate(1.24e6) == "1.24M"
    assert numbers.percent(1.002) == "101%" and numbers.percent(0.88) == "88%"
    assert numbers.count(1482) == "1,482" and numbers.count(2.1e9) == "2.1e9"
    assert numbers.change(1.0, 1.0) == "same" and numbers.change(1.089, 1.0) == "+8.9%"
    assert numbers.parameters(6_738_415_616) == "6.74 B"
    assert numbers.seconds(math.inf) == "-" and numbers.percent(math.nan) == "-"


def test_check_17_equal_plans_compare_as_same() -> None:
    plan = make_plan()
    file = File(plan, make_estimate(plan))
    text = compare_text([file, file], ["a.yaml", "b.yaml"], Style(120))  # type: ignore[list-item]  # stand-ins
    rows = [line for line in text.splitlines() if any(line.startswith(metric.name) for metric in METRICS)]
    assert len(rows) == len(METRICS) and all(row.endswith("same") for row in rows)
    assert "better" not in text and "worse" not in text


def test_check_17_deltas_say_better_and_worse_by_the_direction_of_the_metric() -> None:
    plan = make_plan()
    base = File(plan, make_estimate(plan))
    slow = replace(base.estimate, iteration_time_s=2 * base.estimate.iteration_time_s, tokens_per_s=1.0, peak_bytes=1.0)
    text = compare_text([base, replace(base, estimate=slow)], ["a", "b"], Style(120))  # type: ignore[list-item]  # stand-ins
    row = {line.split("  ")[0]: line for line in text.splitlines()}
    assert row["iteration time"].endswith("+100.0% worse")
    assert row["tokens/s"].endswith("worse")
    assert row["peak memory"].endswith("better")


def test_figures_of_different_grounds_are_marked_and_called_neither_better_nor_worse() -> None:
    plan = make_plan()
    base = File(plan, make_estimate(plan), provenance="simulated")
    slow = replace(base.estimate, iteration_time_s=2 * base.estimate.iteration_time_s)
    other = replace(base, estimate=slow, provenance="uncalibrated")
    text = compare_text([base, other], ["a", "b"], Style(120))  # type: ignore[list-item]  # stand-ins
    row = {line.split("  ")[0]: line for line in text.splitlines()}
    assert row["iteration time"].endswith("+100.0% (?)")
    assert "better nor worse is known" in " ".join(text.split())
    assert not any(line.endswith((" better", " worse")) for line in text.splitlines() if "nor worse" not in line)


def test_a_comparison_of_unlike_things_says_so() -> None:
    plan = make_plan()
    one = File(plan, make_estimate(plan))
    other = replace(one, model=make_model(16), objective=make_objective("throughput"))
    text = compare_text([one, other], ["a", "b"], Style(160))  # type: ignore[list-item]  # stand-ins
    assert "note: the plans are for different models" in text
    assert "note: weights or references differ" in text
    assert "note:" not in compare_text([one, one], ["a", "b"], Style(160))  # type: ignore[list-item]  # stand-ins


def test_four_plans_turn_the_page_at_80_columns() -> None:
    files = [File(p.plan, p.estimate, p.phi) for p in make_result(6).plans[:4]]
    text = compare_text(files, list("abcd"), Style(80))  # type: ignore[arg-type]  # stand-ins
    assert text.count("A (base)") >= 2
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_judgement_names_verdict_rule_and_remedy() -> None:
    from memx_engine import Explanation, Reason

    plan = make_plan()
    ranked = RankedPlan(1, plan, make_estimate(plan), 0.5, True)
    reason = Reason("memory", "weights alone exceed the GPU", 2, 3.5 * 2**30, "use tp 8")
    text = explain_text(Explanation(Verdict.DOES_NOT_FIT, (reason,), ranked), ["heading"], ["bf16"], Style(120))
    assert "DOES NOT FIT" in text
    assert "stage 2: weights alone exceed the GPU (3.50 GiB missing) [memory]" in text
    assert "remedy: use tp 8" in text and "idle" not in text
    said = replace(reason, message="stage 2 needs 83.5 GiB and has 80.0: 3.5 GiB missing")
    text = explain_text(Explanation(Verdict.DOES_NOT_FIT, (said,), ranked), ["heading"], ["bf16"], Style(120), 20)
    assert "- stage 2 needs 83.5 GiB and has 80.0: 3.5 GiB missing [memory]" in text
    idle = 20 - sum(len(stage.ranks) for stage in plan.stages)
    assert f"DOES NOT FIT, {idle} of 20 GPUs idle" in text
    assert "bf16" in text


@given(st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=5), st.integers(60, 120))
def test_a_table_fits_when_its_columns_may_shrink(words: list[str], width: int) -> None:
    columns = [Column("name", words, shrink=4), Column("n", ["1"] * len(words), right=True), Column("x", words, drop=1)]
    assert all(len(line) <= width for line in table(columns, Style(width)))


def test_brackets_stay_literal() -> None:
    cluster = make_cluster(name="[tp=2] a[/x]")
    result = make_result(2, cluster=cluster)
    assert "[tp=2] a[/x]" in whole(result, Style(120, colour=True))


def test_more_hardware_and_a_longer_time_are_explained() -> None:
    result = make_result(3)
    change = Change("node", "a100", "one more node like a100 (4 x a100-sxm-80g)", result.cluster)

    def text(phi_change: float, time_change: float) -> str:
        gain = Gain(change, result.plans[1], phi_change, time_change, same_plan=False, proven=True)
        return "\n".join(sensitivity_text(Sensitivity(result.plans[0], (gain,), 1.5), Style(100)))

    traded = text(-0.056, 0.046)
    assert "one more node like a100 (4 x a100-sxm-80g)" in traded
    assert "nothing got slower" in traded.replace("\n ", " ")
    assert "nothing got slower" not in text(-0.056, -0.046)


@pytest.mark.parametrize("excess", (0.0, 0.01))
def test_what_is_found_and_what_is_proven_are_told_apart(excess: float) -> None:
    words = gap_words(Gap(0.4 * (1 + excess), 0.4, excess, 0.032, excess, 0))
    assert "what is proven" in words and "more than 3.2% lower" in words and "closed form" in words
    assert "proven: no 1F1B plan of the space has a lower" in gap_words(Gap(0.4, 0.4, 0.0, 0.0, 0.0, 0))


def test_an_interleaved_winner_is_said_to_be_bounded_by_events_alone() -> None:
    # A small batch on a deep pipeline, by time alone: interleaving halves the bubble.
    cluster, model = load_cluster("a800x8"), load_model("llama2-7b")
    job = resolve_job(cluster, model, global_batch=8, pp_sizes=(4,), dp_sizes=(1,), micro_batch_sizes=(1,))
    result = search_plans(cluster, model, job, options=SearchOptions(weights=parse_weights("1,0,0"), front=0))
    assert result.plans[0].plan.skeleton.virtual_stages == 2
    certificate = result.certificate
    assert not certificate.optimal and certificate.event_lower_bound is not None
    lower = f"{1 - certificate.event_lower_bound / result.plans[0].phi:.1%}"
    for words in (search_view.certificate_words(result), why_pane.certificate_words(result)):
        assert "interleaved" in words and "the best 1F1B plan" in words and lower in words
