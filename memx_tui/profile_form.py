"""The form of where and how to profile: its fields, and what the operator types back into settings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memx_engine import InputError
from memx_tui.profile_state import ProfileSettings
from memx_tui.runners import RUNNERS, RunnerSettings
from memx_tui.widgets.fields import Field


def _text(text: str) -> str:
    return text


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"cannot be split into arguments: {error}", hint="close the quotes") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.whitespace += ","
    try:
        parts = list(lexer)
    except ValueError as error:
        raise InputError(f"cannot be split into pairs: {error}", hint="close the quotes") from None
    for part in parts:
        name, equals, rest = part.partition("=")
        if not (name and equals and rest):
            raise InputError(f"{part[:40]!r} is not of the form TYPE=NAME")
        pairs[name] = rest
    return pairs


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise InputError(f"{text[:40]!r} is not a whole number from {low:,} to {high:,}")
        return int(text)

    return parse


def _number(low: float, *, above: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or (above and value == low):
            raise InputError(f"{text[:40]!r} is not a number {'above' if above else 'of at least'} {low:g}")
        return value

    return parse


def _command(text: str) -> str:
    from memx_engine import CommandTemplate

    if text:
        CommandTemplate.parse(text)
    return text


def _folder(text: str) -> Path | None:
    path = Path(text).expanduser() if text else None
    if path is not None and path.exists() and not path.is_dir():
        raise InputError("this is a file", hint="name a folder; it is made when it is not there")
    return path


@dataclass(frozen=True)
class FormField:
    """One field.

    Attributes:
        runners: Who has it; empty for all.
        choices: The words allowed, where it is not typed.
        parse: From text; raises InputError. "" is never passed: it stands for the default.
        empty: Said where nothing is set.
    """

    key: str
    label: str
    hint: str
    parse: Callable[[str], Any] = _text
    runners: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    empty: str = ""


_PROBES = ("local", "slurm", "ssh")
FORM: dict[str, FormField] = {
    field.key: field
    for field in (
        FormField("name", "runner", "where to measure", choices=RUNNERS),
        FormField("folder", "workspace", "folder that keeps the results", _folder),
        FormField("types", "GPU types", "names with commas between them", _names, empty="all of the cluster"),
        FormField("world", "testbed", "hard has more of what no model sees", runners=("testbed",),
                  choices=("normal", "hard")),
        FormField("seed", "seed", "of the testbed, a whole number", _whole(0, 10**8), ("testbed",)),
        FormField("pace", "pace", "1 takes the time it simulates, 0 does not wait", _number(0.0), ("testbed",)),
        FormField("partition", "partition", "of Slurm", runners=("slurm",), empty="Slurm's default"),
        FormField("account", "account", "of Slurm", runners=("slurm",), empty="yours"),
        FormField("time_limit", "time limit", "of each job, HH:MM:SS", runners=("slurm",), empty="02:00:00"),
        FormField("gres_names", "GRES names", "TYPE=NAME, where Slurm calls a type otherwise", _pairs, ("slurm",),
                  empty="as in the cluster file"),
        FormField("slurm_arguments", "arguments", "more arguments of salloc, quoted as for a shell", _words, ("slurm",),
                  empty="none"),
        FormField("ssh_hosts", "hosts", "TYPE=HOST, one for each GPU type", _pairs, ("ssh",),
                  empty="the node names of the cluster"),
        FormField("ssh_arguments", "arguments", "more arguments of ssh, quoted as for a shell", _words, ("ssh",),
                  empty="none"),
        FormField("command", "command", "yours, with placeholders such as {node} {tp} {micro_batch}", _command,
                  ("command",), empty="needed"),
        FormField("python", "python", "a Python with torch, there", runners=_PROBES,
                  empty="this one here, python3 elsewhere"),
        FormField("device", "device", "cpu measures on CPUs", runners=_PROBES, choices=("auto", "cpu")),
        FormField("threads", "threads", "of the probe on a CPU", _whole(1, 1024), ("local",)),
        FormField("repetitions", "repetitions", "of every point", _whole(1, 1000), ("testbed", *_PROBES)),
        FormField("point_timeout_s", "point timeout", "seconds after which a point counts as hung",
                  _number(0.0, above=True)),
        FormField("retries", "retries", "of a crashed point at once", _whole(0, 100)),
    )
}  # fmt: skip
_OWN = ("folder", "types", "point_timeout_s", "retries")
"""Fields of ProfileSettings itself; the others are the runner's."""


def form_fields(settings: ProfileSettings, folder: Path) -> list[Field]:
    """The lines of the form for the chosen runner. ``folder``: the workspace where none is named."""
    kind = settings.runner.kind
    lines = []
    for spec in FORM.values():
        if spec.runners and kind not in spec.runners:
            continue
        value = shown(settings, spec.key)
        note = spec.hint
        if spec.key == "name":
            note = "simulated: no device is touched" if settings.runner.simulated else "real devices"
        elif spec.key == "folder" and not value:
            value, note = str(folder), "the cluster's own"
        lines.append(Field(spec.key, spec.label, value or spec.empty, note))
    return lines


def shown(settings: ProfileSettings, key: str) -> str:
    """A setting as the operator would type it; "" where it is the default that ``empty`` words."""
    if key == "name":
        return settings.runner.kind
    if key == "world":
        return "hard" if "hard" in settings.runner.name.split(":") else "normal"
    value = getattr(settings if key in _OWN else settings.runner, key)
    if isinstance(value, Mapping):
        return ", ".join(_quoted(f"{name}={other}") for name, other in value.items())
    if key == "types":
        return ", ".join(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shlex.join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _quoted(pair: str) -> str:
    """``pair`` as :func:`_pairs` reads it back whole."""
    quoted = shlex.quote(pair)
    return f"'{pair}'" if "," in pair and quoted == pair else quoted


def settings_words(settings: ProfileSettings) -> dict[str, str]:
    """What differs from the defaults, as the operator would type it, by the names of the fields."""
    plain = ProfileSettings()
    keys = [key for key in FORM if key != "world" or settings.runner.simulated]
    return {key: shown(settings, key) for key in keys if shown(settings, key) != shown(plain, key)}


def settings_of(words: Mapping[str, str]) -> tuple[ProfileSettings, list[InputError]]:
    """The settings that :func:`settings_words` tells of, and a problem for each word that cannot be used any more."""
    settings, problems = ProfileSettings(), []
    for key in FORM:  # the runner comes first: the testbed's world depends on it
        try:
            settings = changed(settings, key, words.get(key, ""))
        except InputError as error:
            problems.append(InputError(f"{FORM[key].label}: {error.message}", hint="the default is used"))
    return settings, problems


def changed(settings: ProfileSettings, key: str, text: str) -> ProfileSettings:
    """``settings`` with a field set from text; "" returns it to its default.

    Raises:
        InputError: The text cannot be used.
    """
    text = text.strip()
    spec = FORM[key]
    if spec.choices and text and text not in spec.choices:
        raise InputError(f"{text[:40]!r} is not one of {', '.join(spec.choices)}")
    if key == "name":
        return replace(settings, runner=replace(settings.runner, name=text or RUNNERS[0]))
    if key == "world":
        if not settings.runner.simulated:
            return settings
        return replace(settings, runner=replace(settings.runner, name="testbed:hard" if text == "hard" else "testbed"))
    own = key in _OWN
    value = spec.parse(text) if text else getattr(ProfileSettings() if own else RunnerSettings(), key)
    changes: dict[str, Any] = {key: value}
    return replace(settings, **changes) if own else replace(settings, runner=replace(settings.runner, **changes))


def stepped(settings: ProfileSettings, key: str, by: int) -> ProfileSettings:
    """The neighbouring word, or one more or less; the same settings where a field has no neighbours."""
    spec = FORM[key]
    current = shown(settings, key)
    if spec.choices:
        at = spec.choices.index(current) if current in spec.choices else 0
        return changed(settings, key, spec.choices[(at + by) % len(spec.choices)])
    if key in ("seed", "threads", "repetitions", "retries") and current.isdigit():
        try:
            return changed(settings, key, str(int(current) + by))
        except InputError:
            return settings
    return settings
