"""The session file: what the operator looked at last, so that the next start shows it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from memx_engine import InputError, MemxError
from memx_tui.files import write_text

VERSION = 1
MAX_BYTES = 256 * 1024
MAX_RECENT = 10
_SCREENS = ("cluster", "plans", "compare")


@dataclass(frozen=True)
class SessionState:
    """What is kept between two starts.

    Attributes:
        cluster, model: As the operator named them: a sample or preset name, or a path.
        recent: Cluster files and samples opened lately, newest first.
        job: What was set on the job form, as text by field; fields left at their default are absent.
        weights: The weights in words, such as ``auto``.
        screen: ``cluster``, ``plans`` or ``compare``.
        sort, descending, filter: How the plans were listed.
        marks: Marked plans, each by the key that its screen gives it.
        theme: The last theme chosen; None follows the terminal.
    """

    cluster: str | None = None
    model: str | None = None
    recent: tuple[str, ...] = ()
    job: tuple[tuple[str, str], ...] = ()
    weights: str | None = None
    screen: str | None = None
    sort: str | None = None
    descending: bool = False
    filter: str = ""
    marks: tuple[str, ...] = ()
    theme: str | None = None

    def opened(self, source: str) -> SessionState:
        """This state with ``source`` as the cluster, and first among the recent ones."""
        recent = (source, *(other for other in self.recent if other != source))
        return replace(self, cluster=source, recent=recent[:MAX_RECENT])


def load_session(file: Path, *, fresh: bool = False) -> tuple[SessionState, MemxError | None]:
    """The last session, and what was wrong with its file.

    A file that cannot be understood is kept beside the new one with the suffix ``.bad``.

    Args:
        fresh: Start from nothing and leave the file alone.
    """
    if fresh:
        return SessionState(), None
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"larger than {MAX_BYTES // 1024} KiB", where=str(file))
        return _parse(data, file), None
    except FileNotFoundError:
        return SessionState(), None
    except OSError as error:
        return SessionState(), InputError(f"the session cannot be read: {error.strerror or error}", where=str(file))
    except InputError as error:
        return SessionState(), _set_aside(file, error)


def save_session(file: Path, state: SessionState) -> None:
    """Write the session, whole or not at all.

    Raises:
        OutputError: The folder or the file cannot be written.
    """
    document = {"version": VERSION, **asdict(state)}
    write_text(file, json.dumps(document, indent=1) + "\n", overwrite=True)


def _parse(data: bytes, file: Path) -> SessionState:
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", where=f"{file}:1") from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=f"{file}:1") from error
    except json.JSONDecodeError as error:
        raise InputError(f"is not valid JSON: {error.msg}", where=f"{file}:{error.lineno}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise InputError(f"is not a session of version {VERSION}", where=f"{file}:1: version")
    values = {f.name: document[f.name] for f in fields(SessionState) if f.name in document}
    for name, value in values.items():
        if not _fits(name, value):
            line = _line_of(data.decode("utf-8"), name)
            raise InputError("has a value of the wrong kind", where=f"{file}:{line}: {name}")
    values["job"] = tuple((key, value) for key, value in values.get("job", ()))
    for name in ("recent", "marks"):
        values[name] = tuple(values.get(name, ()))
    return SessionState(**values)


def _fits(name: str, value: object) -> bool:
    if name == "descending":
        return isinstance(value, bool)
    if name in ("recent", "marks"):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if name == "job":
        return isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) for item in pair) for pair in value
        )
    if name == "screen":
        return value is None or value in _SCREENS
    if name == "filter":
        return isinstance(value, str)
    return value is None or isinstance(value, str)


def _line_of(text: str, key: str) -> int:
    lines = text.splitlines()
    return next((n for n, line in enumerate(lines, 1) if f'"{key}"' in line), 1)


def _set_aside(file: Path, error: InputError) -> InputError:
    bad = file.with_name(file.name + ".bad")
    try:
        file.replace(bad)
    except OSError as problem:
        hint = f"it could not be set aside: {problem.strerror or problem}"
    else:
        hint = f"kept as {bad}; starting fresh"
    return InputError(f"the last session {error.message}", where=error.where, hint=hint)
