"""The Profile screen's trends: verdicts and small plots, and what training on the measurements has come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style as Look
from rich.text import Text

from memx_engine import MemxError
from memx_tui.field_words import in_fields
from memx_tui.glyphs import ASCII
from memx_tui.profile_canvas import Canvas
from memx_tui.text.profile_view import trend_block, trend_plots
from memx_tui.text.style import Style
from memx_tui.text.training_view import longest_trends, predictor_block

if TYPE_CHECKING:
    from memx_engine import Trend
    from memx_tui.session import Session


def trends_lines(session: Session, canvas: Canvas) -> list[Text]:
    """Trends first, of the run or else of what is stored; below them the predictor that was learned."""
    state = session.profile
    style = Style(canvas.width, canvas.glyphs is not ASCII)
    learned = state.learned
    blocks: list[list[str]] = []
    if session.cluster is not None and session.model is not None:
        try:
            inputs = (session.cluster, session.model, session.job())
        except MemxError as error:
            return [canvas.line((f" {error.message}", canvas.colors.bad))]
        checked = [t.trends for t in state.result.types if t.trends] if state.result is not None else []
        shown: list[list[Trend]] = [list(found) for found in checked]
        if not shown and learned is not None and learned.trends:
            shown = [longest_trends(learned.trends)]
        for found in shown:
            blocks.append(trend_block(found, inputs[2].attention, style))
            blocks.append(trend_plots(found, style))
        if learned is not None:
            blocks.append(predictor_block(learned, inputs, style))
        if not shown and not state.learning and not state.unlearned:
            blocks.append([" no trends: none of the numeric parameters has three points on one line"])
    if state.learning:
        blocks.insert(0 if not blocks else len(blocks), [" learning from what is measured by now ..."])
    elif state.unlearned:
        blocks.append(style.wrap(f"nothing is learned yet: {in_fields(state.unlearned)}", " "))
    lines: list[Text] = []
    for block in blocks:
        lines += [*([Text()] if lines and block else []), *(_line(words, canvas, style) for words in block)]
    return lines


def _line(words: str, canvas: Canvas, style: Style) -> Text:
    heading = words.startswith(style.glyphs.rule * 2)
    return canvas.line((in_fields(words), canvas.colors.bar if heading else Look()))
