"""The Cluster screen: what is trained, and on what."""

from __future__ import annotations

from memx_tui.screens.base import ModeScreen


class ClusterScreen(ModeScreen):
    """Cluster, model and job."""

    MODE = "cluster"

    def open_source(self, source: str) -> None:
        """Open a sample or a file."""
        from memx_engine import MemxError, load_cluster

        try:
            self.memx.set_cluster(load_cluster(source), source)
        except MemxError as error:
            self.memx.show_error(error)
