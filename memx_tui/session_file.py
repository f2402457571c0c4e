"""The session file: what the operator looked at last, so that the next start shows it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from memx_engine import InputError, MemxError
from memx_tui.files import write_text

VERSION = 1
MAX_BYTES = 8 << 20
"""More than a draft at its limit of 1 MiB becomes when it is quoted."""
MAX_RECENT = 10

JobValue = int | str | tuple[int, ...]


@dataclass(frozen=True)
class SessionState:
    """What is kept between two starts.

    Attributes:
        cluster, model: As the operator named them: a sample or preset name, or a path.
        recent: Cluster files and samples opened lately, newest first.
        job_file: Path of a job file.
        job: What was set on the job form, by the name of the job's field; fields left at their default are absent.
        weights: The weights in words: ``auto``, a profile, or ``T,M,V``.
        limits: What every plan keeps, by the fields of the dialog as the operator would type them.
        without: Names of nodes that are planned without.
        screen: ``cluster``, ``plans`` or ``compare``.
        sort, descending, filter, fits_only, frontier_only, axes: How the plans were looked at.
        marks: Letter to the key that names a plan.
        draft, draft_source: Text of a cluster file with changes that are not saved, and its file or sample.
        theme: The last theme chosen; None follows the terminal.
        profile: How to profile, by the fields of the form as the operator would type them; defaults are absent.
    """

    cluster: str = ""
    model: str = ""
    recent: tuple[str, ...] = ()
    job_file: str | None = None
    job: Mapping[str, JobValue] = field(default_factory=dict)
    weights: str = "auto"
    limits: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    screen: str = ""
    sort: str = "rank"
    descending: bool = False
    filter: str = ""
    fits_only: bool = False
    frontier_only: bool = False
    axes: str = "time-peak"
    marks: Mapping[str, str] = field(default_factory=dict)
    draft: str = ""
    draft_source: str = ""
    theme: str | None = None
    profile: Mapping[str, str] = field(default_factory=dict)


def add_recent(recent: Iterable[str], source: str) -> tuple[str, ...]:
    """``recent`` with ``source`` first, without repeats, at most ten."""
    return (source, *(other for other in recent if other != source))[:MAX_RECENT]


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
        if not _CHECKS[name](value):
            line = _line_of(data.decode("utf-8"), name)
            raise InputError("has a value of the wrong kind", where=f"{file}:{line}: {name}")
    values |= {name: tuple(values.get(name, ())) for name in ("recent", "without")}
    values["job"] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.get("job", {}).items()}
    return SessionState(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_words(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_job(value: object) -> bool:
    return isinstance(value, dict) and all(
        all(type(number) is int for number in item) if isinstance(item, list) else type(item) in (int, str)
        for item in value.values()
    )


_CHECKS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(
        ("cluster", "model", "weights", "screen", "sort", "filter", "axes", "draft", "draft_source"), _is_text
    ),
    **dict.fromkeys(("descending", "fits_only", "frontier_only"), _is_flag),
    **dict.fromkeys(("theme", "job_file"), _is_text_or_none),
    **dict.fromkeys(("recent", "without"), _is_texts),
    **dict.fromkeys(("marks", "profile", "limits"), _is_words),
    "job": _is_job,
}


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
