"""What ``plan`` can ask beside its plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memx_engine import CancelledError
from memx_tui.commands.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from memx_engine import SearchOptions, SearchResult, Sensitivity


def run_sensitivity(result: SearchResult, options: SearchOptions) -> Sensitivity:
    """Search again under every change, with progress; Ctrl-C keeps the changes that are done.

    Raises:
        CancelledError: Stopped before the first was done.
    """
    from memx_engine import find_sensitivity
    from memx_tui.progress import CountLine

    line = CountLine("trying changes of the cluster")
    with stop_on_interrupt() as stop:
        try:
            found = find_sensitivity(
                result,
                options=options,
                on_progress=lambda done, total, words: line(done, total),
                should_stop=stop.is_set,
            )
        finally:
            line.close()
    if stop.is_set() and not found.gains:
        raise CancelledError("interrupted while trying changes of the cluster")
    return found
