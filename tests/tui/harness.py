"""What the interface's tests share: an app on made-up results, and the text that is on its screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from textual.screen import Screen

from memx_engine.search.result import SearchResult
from memx_tui.app import MemxApp
from memx_tui.columns import PlanColumns
from memx_tui.paths import Paths
from memx_tui.session import Session
from tests.builders import make_cluster, make_model, make_result


def make_paths(root: Path) -> Paths:
    return Paths(root / "config", root / "data", root / "cache", root / "state")


def make_session(result: SearchResult | None = None, **values: Any) -> Session:
    """A session that looks at ``result`` (made up when None) on the Plans screen."""
    result = result or make_result(20)
    values.setdefault("mode", "plans")
    session = Session(cluster=result.cluster, model=result.model, **values)
    session.accept(result, PlanColumns.of(result.table), session.inputs())
    return session


def empty_session(**values: Any) -> Session:
    """Cluster and model are known, nothing was searched."""
    values.setdefault("mode", "plans")
    return Session(cluster=make_cluster(), model=make_model(), **values)


def make_app(root: Path, session: Session | None = None, **options: Any) -> MemxApp:
    return MemxApp(session or make_session(), paths=make_paths(root), **options)


def screen_lines(app: MemxApp, screen: Screen[Any] | None = None) -> list[str]:
    """What is drawn, line by line, filters applied."""
    target = screen or app.screen
    width, height = target.size
    lines = [""] * height
    for y, strips in enumerate(target._compositor.render_strips()):
        text = strips
        for line_filter in app.get_line_filters():
            text = text.apply_filter(line_filter, target.styles.background)
        lines[y] = text.text
    return lines


def screen_text(app: MemxApp) -> str:
    return "\n".join(line.rstrip() for line in screen_lines(app))


def make_columns(
    time_s: Sequence[float],
    peak_gib: Sequence[float],
    *,
    spread_gib: Sequence[float] | None = None,
    recompute: Sequence[int] | None = None,
    worst: Sequence[float] | None = None,
    worst_type: Sequence[str] | None = None,
    tp: Sequence[int] | None = None,
) -> PlanColumns:
    """Columns with the given values and plain ones elsewhere."""
    n = len(time_s)
    ones = np.ones(n, dtype=np.int64)
    time = np.array(time_s, dtype=float)
    return PlanColumns(
        tp=np.array(tp, dtype=np.int64) if tp is not None else ones,
        pp=2 * ones,
        dp=ones,
        mb=ones,
        vpp=ones,
        recompute=np.array(recompute if recompute is not None else [0] * n, dtype=np.int64),
        time_s=time,
        tokens_per_s=1e6 / time,
        peak_bytes=np.array(peak_gib, dtype=float) * 2**30,
        spread_bytes=np.array(spread_gib if spread_gib is not None else [1.0] * n, dtype=float) * 2**30,
        worst=np.array(worst if worst is not None else [0.5] * n, dtype=float),
        phi=np.linspace(0.5, 1.0, n) if n else np.zeros(0),
        worst_type=tuple(worst_type if worst_type is not None else ["h100"] * n),
        by_events=np.ones(n, dtype=bool),
        pareto=np.zeros(n, dtype=bool),
    )
