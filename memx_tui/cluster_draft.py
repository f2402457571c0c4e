"""The cluster file being edited: its text, whether it is saved, what is wrong with it, and the way back."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from memx_engine import InputError, MemxError
from memx_tui.cluster_edit import ClusterText

if TYPE_CHECKING:
    from memx_engine import Cluster, Problem

UNDO_LIMIT = 100
MAX_BYTES = 1 << 20


class ClusterDraft:
    """One cluster file's text and its history.

    Attributes:
        source: A sample's name or a path; "" for a text that was never saved.
        file: Where saving would go; None for samples and new texts.
        problems: Everything wrong with the text (with ``line``, ``key``, ``message``, ``hint``); empty when valid.
        cluster: The last valid cluster.
        doc: Places in the text; None while it is not YAML.
    """

    def __init__(self, text: str = "", source: str = "", file: Path | None = None) -> None:
        self.source = source
        self.file = file
        self.text = text
        self._saved = text
        self._undo: deque[str] = deque(maxlen=UNDO_LIMIT)
        self._redo: deque[str] = deque(maxlen=UNDO_LIMIT)
        self.problems: tuple[Problem, ...] = ()
        self.cluster: Cluster | None = None
        self.doc: ClusterText | None = None
        self._check()

    @property
    def dirty(self) -> bool:
        """The text differs from what is on disk."""
        return self.text != self._saved

    @property
    def empty(self) -> bool:
        return not self.text.strip()

    @property
    def valid(self) -> bool:
        return not self.problems and not self.empty

    def change(self, text: str) -> bool:
        """Replace the text; False when nothing changes."""
        if text == self.text:
            return False
        self._undo.append(self.text)
        self._redo.clear()
        self._set(text)
        return True

    def undo(self) -> bool:
        """Go one change back; False when there is none."""
        return self._step(self._undo, self._redo)

    def redo(self) -> bool:
        """Take one undo back; False when there is none."""
        return self._step(self._redo, self._undo)

    def saved(self, file: Path) -> None:
        """The text is now on disk at ``file``."""
        self._saved = self.text
        self.file, self.source = file, str(file)

    def _step(self, take: deque[str], give: deque[str]) -> bool:
        if not take:
            return False
        give.append(self.text)
        self._set(take.pop())
        return True

    def _set(self, text: str) -> None:
        self.text = text
        self._check()

    def _check(self) -> None:
        from memx_engine import Problem, parse_cluster, validate_cluster_text

        self.doc = None
        if self.empty:
            self.problems = ()
            return
        self.problems = validate_cluster_text(self.text)
        if not self.problems:
            try:
                self.cluster = parse_cluster(self.text, self.source or "new cluster")
            except MemxError as error:
                self.problems = (Problem(0, error.where, error.message, error.hint),)
        try:
            self.doc = ClusterText(self.text)
        except InputError:
            # Not YAML yet: the problems say so, and the form waits.
            self.doc = None


def reopen(text: str, source: str) -> ClusterDraft:
    """A draft whose changes were never saved, on what is at ``source`` by now; undo leads back to that."""
    try:
        draft = open_source(source) if source else ClusterDraft()
    except InputError:
        draft = ClusterDraft()
    draft.change(text)
    return draft


def open_source(source: str) -> ClusterDraft:
    """The draft of a sample or a file, valid or not, so that it can be corrected.

    Raises:
        InputError: There is no such sample or file, it cannot be read, is larger than 1 MiB, or is not text.
    """
    from memx_engine import sample_clusters

    path = Path(source).expanduser()
    sample = next((s for s in sample_clusters() if s.name == source), None)
    if sample is not None and not path.exists():
        return ClusterDraft(sample.path.read_text(encoding="utf-8"), source)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise InputError("this is a folder", where=source, hint="name a YAML file in it") from error
    except OSError as error:
        raise InputError(
            f"cannot be opened: {error.strerror or error}", where=source, hint="o lists the samples"
        ) from error
    if len(data) > MAX_BYTES:
        raise InputError("larger than 1 MiB, too large for the editor", where=source, hint="is this the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", where=f"{source}:{line}", hint="save it as UTF-8") from error
    if not text.strip():
        raise InputError("the file is empty", where=source, hint="press n for an example to start from")
    return ClusterDraft(text, str(path.absolute()), path.absolute())
