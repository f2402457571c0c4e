"""The operator's configuration file, ``config.yaml``: every key is optional, and none of them is ever written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memx_engine import InputError
from memx_tui.logs import LEVELS
from memx_tui.settings import Section, nearest, read_settings

_KEYS = ("theme", "ascii", "mouse", "log_level", "keymap")


@dataclass(frozen=True)
class Config:
    """What ``config.yaml`` may say.

    Attributes:
        theme: Name of the theme to start with; the session's last choice comes first.
        ascii: Draw with ASCII only; None lets the locale decide.
        mouse: Take mouse events; off leaves selecting text to the terminal.
        log_level: One of debug, info, warning, error.
        keymap: New keys (``f5`` or ``f5,ctrl+r``) by binding id.
        places: ``file:line: key`` of every keymap entry, for complaints.
    """

    theme: str | None = None
    ascii: bool | None = None
    mouse: bool = True
    log_level: str = "info"
    keymap: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)

    def keymap_problems(self, known_ids: Iterable[str]) -> list[InputError]:
        """One problem for each keymap entry whose binding id does not exist, with the nearest that does."""
        known = set(known_ids)
        return [
            InputError("no binding has this id", where=self.places.get(name, name), hint=nearest(name, known))
            for name in self.keymap
            if name not in known
        ]


def load_config(file: Path) -> tuple[Config, tuple[InputError, ...]]:
    """Read the configuration; what is wrong in it is reported and left at its default, the rest counts.

    A missing file is no problem.
    """
    if not file.exists():
        return Config(), ()
    try:
        top = read_settings(file)
    except InputError as error:
        return Config(), (error,)
    problems = top.unknown_keys(_KEYS)
    values: dict[str, object] = {}
    for key in _KEYS:
        if key not in top:
            continue
        try:
            if key == "keymap":
                values["keymap"], values["places"] = _keymap(top.section("keymap"))
            elif key in ("ascii", "mouse"):
                values[key] = top.flag(key)
            elif key == "log_level":
                values[key] = top.choice(key, LEVELS)
            else:
                values[key] = top.text(key)
        except InputError as error:
            problems.append(error)
    return Config(**values), tuple(problems)  # type: ignore[arg-type]  # each value was read as its field's type


def _keymap(section: Section) -> tuple[dict[str, str], dict[str, str]]:
    return {name: section.text(name) for name in section}, {name: section.where(name) for name in section}
