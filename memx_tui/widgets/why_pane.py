"""Why this plan: where its time goes, what limits it, its stages, its price beside the fastest, assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from memx_tui.glyphs import UNICODE, Glyphs
from memx_tui.plan_list import kept_words
from memx_tui.text import numbers
from memx_tui.widgets.memory_bars import SEGMENTS, segments_of

if TYPE_CHECKING:
    from memx_engine import Estimate, RankedPlan, SearchResult

_GIB = float(1 << 30)
_PARTS = {
    "compute": "compute",
    "recompute": "recompute",
    "tp_comm": "tp comm",
    "pp_comm": "pp comm",
    "bubble": "bubble",
    "dp_comm": "dp sync",
    "optimizer": "optimizer",
    "fixed": "fixed",
}
_HOLDS = dict(
    zip(SEGMENTS, ("weights and gradients", "optimizer state", "activations", "context and buffers"), strict=True)
)


def time_line(estimate: Estimate) -> str:
    """``6.412 s = compute 4.610 + bubble 0.680 ...``: parts above 1 % by name, largest first."""
    parts = sorted(estimate.time_breakdown_s.items(), key=lambda item: -item[1])
    least = 0.01 * estimate.iteration_time_s
    words = [f"{_PARTS.get(name, name)} {numbers.seconds(value)}" for name, value in parts if value >= least]
    rest = sum(value for _, value in parts if value < least)
    words += [f"other {numbers.seconds(rest)}"] if rest > 0.0005 else []
    return f"{numbers.seconds(estimate.iteration_time_s)} s = " + " + ".join(words)


def interval_words(estimate: Estimate) -> str:
    """The 95 % interval, or that there is none yet."""
    if estimate.interval_s is None:
        return "no interval while uncalibrated"
    low, high = estimate.interval_s
    return f"95% interval {numbers.seconds(low)} .. {numbers.seconds(high)} s"


def limit_line(estimate: Estimate) -> str:
    """What binds: the fullest GPU, by how much, and what fills it."""
    worst = estimate.worst_gpu
    parts = segments_of(worst.breakdown)
    largest = max(range(len(parts)), key=lambda i: parts[i])
    left = (worst.capacity_bytes - worst.peak_bytes) / _GIB
    risk = "" if estimate.oom_risk is None else f", OOM risk {numbers.risk(estimate.oom_risk)}"
    margin = f"{left:.1f} GiB left" if left >= 0 else f"{-left:.1f} GiB too much: OOM"
    return (
        f"{worst.gpu_type} on {worst.node}, stage {worst.stage}: {worst.peak_bytes / _GIB:.1f} of "
        f"{worst.capacity_bytes / _GIB:.1f} GiB ({worst.used_fraction * 100:.0f}%), {margin}{risk}; "
        f"mostly {_HOLDS[SEGMENTS[largest]]}, {parts[largest] / _GIB:.1f} GiB"
    )


def stage_words(ranked: RankedPlan) -> str:
    """Stages with neighbours of one kind folded: ``0-1 h100 x8 9 layers none``."""
    runs: list[tuple[int, int, str]] = []
    for index, stage in enumerate(ranked.plan.stages):
        text = f"{stage.gpu_type} x{len(stage.ranks)}, {stage.layers} layers, {stage.recompute}"
        if runs and runs[-1][2] == text:
            runs[-1] = (runs[-1][0], index, text)
        else:
            runs.append((index, index, text))
    return "; ".join(f"{a if a == b else f'{a}-{b}'}: {text}" for a, b, text in runs)


def price_line(ranked: RankedPlan, result: SearchResult, glyphs: Glyphs) -> str:
    """The objective, and what the time-optimal plan would give and cost."""
    w, best, phi = result.objective.weights, result.time_optimal, glyphs.phi
    shares = f"time {w.time:g}, peak {w.peak:g}, variance {w.variance:g}"
    head = f"{phi} {ranked.phi:.4f}, weights {w.profile} ({shares})"
    if best.plan == ranked.plan:
        return f"{head}; this is also the fastest plan"
    time = best.estimate.iteration_time_s / ranked.estimate.iteration_time_s - 1
    fastest = f"{numbers.seconds(best.estimate.iteration_time_s)} s ({time:+.1%})"
    return f"{head}; fastest is #{best.rank}: {fastest}, {phi} {best.phi / ranked.phi - 1:+.1%}"


def why_lines(ranked: RankedPlan, result: SearchResult, glyphs: Glyphs = UNICODE) -> list[tuple[str, str]]:
    """(label, text) pairs of the pane."""
    estimate, skeleton = ranked.estimate, ranked.plan.skeleton
    frontier = "on the Pareto frontier" if ranked.pareto else "not on the frontier"
    schedule = skeleton.schedule if skeleton.virtual_stages == 1 else f"interleaved x{skeleton.virtual_stages}"
    lines = [
        ("time", f"{time_line(estimate)}; {interval_words(estimate)}"),
        ("limit", limit_line(estimate)),
        ("stages", stage_words(ranked)),
        (
            "plan",
            f"{numbers.rate(estimate.tokens_per_s)} tok/s, {schedule}, "
            f"{skeleton.micro_batches} micro-batches, {frontier}"
            + (", embeddings untied" if ranked.plan.untied else ""),
        ),
        ("why", price_line(ranked, result, glyphs)),
    ]
    if kept := kept_words(result):
        lines.append(("within", "; ".join(kept)))
    if result.objective.weights.reason:
        lines.append(("weights", result.objective.weights.reason))
    lines.append(("source", f"{estimate.basis}; {certificate_words(result)}"))
    lines += [("assumed", text) for text in result.assumed]
    return lines


def certificate_words(result: SearchResult) -> str:
    """How far from optimal the answer can be, as far as it is known."""
    c = result.certificate
    if c.optimal:
        words = f"proven optimal for {c.objective} time"
    elif c.gap is not None:
        words = f"at most {c.gap:.1%} from the optimum ({c.objective} time)"
    else:
        words = "no optimality bound"
    if c.gap is not None and result.plans[0].plan.skeleton.virtual_stages > 1:
        words = f"#1 is interleaved; the best 1F1B plan is at most {c.gap:.1%} from their optimum ({c.objective} time)"
    words = f"{words}; {c.rescored} plans ordered by events"
    if c.event_lower_bound is None:
        return words
    lower = max(0.0, 1.0 - c.event_lower_bound / result.plans[0].phi)
    return f"{words}, none searched, interleaved or not, is more than {lower:.1%} better"


class WhyPane(VerticalScroll, can_focus=True):
    """The reasons as wrapped text, labels aligned."""

    DEFAULT_CSS = """
    WhyPane { height: 1fr; scrollbar-size-vertical: 1; padding: 0 1; }
    WhyPane > Static { height: auto; width: 1fr; }
    WhyPane > .why--label { color: $text-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"why--label"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", id="why.up", show=False, tooltip="Scroll up"),
        Binding("down,j", "scroll_down", "Down", id="why.down", show=False, tooltip="Scroll down"),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.glyphs = glyphs
        self._lines: list[tuple[str, str]] = []
        self._body = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._body

    def show(self, ranked: RankedPlan | None, result: SearchResult | None) -> None:
        """Explain ``ranked``; nothing when there is none."""
        self._lines = why_lines(ranked, result, self.glyphs) if ranked and result else []
        self._write()
        self.scroll_to(y=0, animate=False)

    def on_resize(self) -> None:
        self._write()

    def _write(self) -> None:
        width = max(20, self.size.width - 2)
        label_style = self.get_component_rich_style("why--label")
        text = Text()
        label_width = 8
        for label, words in self._lines:
            wrapped = _wrap(words, width - label_width - 1)
            for i, line in enumerate(wrapped):
                if text:
                    text.append("\n")
                text.append((label if i == 0 else "").ljust(label_width), label_style).append(line)
        self._body.update(text)


def _wrap(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, max(10, width), break_long_words=True, break_on_hyphens=False) or [""]
