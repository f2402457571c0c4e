"""Themes: YAML files, shipped and the operator's own, with strict keys and colours for the memory bars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memx_engine import InputError
from memx_tui.paths import shipped_themes
from memx_tui.settings import Section, nearest, read_settings

if TYPE_CHECKING:
    from textual.theme import Theme

DEFAULT_DARK = "memx-dark"
DEFAULT_LIGHT = "memx-light"
ANSI_DARK = "memx-ansi-dark"
ANSI_LIGHT = "memx-ansi-light"
SCHEMA = "memx/theme/v1"

MEMORY_KEYS = ("weights", "optimizer", "activations", "other", "free", "over")
"""Segments of a memory bar; each is the CSS variable ``$memory-<key>``."""

RECOMPUTE_KEYS = ("none", "selective", "full", "block", "mixed")
"""Recompute strategies in the Pareto plot; each is the CSS variable ``$recompute-<key>``. The block is optional."""

REQUIRED_COLOURS = (
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    "foreground",
    "background",
    "surface",
    "panel",
)
_TOP_KEYS = ("schema", "name", "title", "dark", "ansi", "colors", "memory", "recompute", "variables")
_ANSI_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_ANSI_COLOURS = frozenset(
    ["ansi_default", *(f"ansi_{n}" for n in _ANSI_NAMES), *(f"ansi_bright_{n}" for n in _ANSI_NAMES)]
)
_HEX = re.compile(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class ThemeFile:
    """One theme as its file gives it; colours are ``#rrggbb`` or ``ansi_*``, checked."""

    name: str
    title: str
    dark: bool
    ansi: bool
    colours: Mapping[str, str]
    memory: Mapping[str, str]
    recompute: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    file: Path = Path()

    def to_textual(self) -> Theme:
        """The theme in Textual's form; extra blocks become variables ``memory-<key>`` and so on."""
        from textual.theme import Theme

        variables = {f"memory-{key}": value for key, value in self.memory.items()}
        variables |= {f"recompute-{key}": value for key, value in self.recompute.items()}
        if self.ansi:
            # Textual's own stylesheet uses these two, and only its own ANSI themes define them.
            variables["ansi-background"] = "ansi_black" if self.dark else "ansi_white"
            variables["ansi-foreground"] = "ansi_white" if self.dark else "ansi_black"
        variables |= self.variables
        return Theme(name=self.name, dark=self.dark, ansi=self.ansi, variables=variables, **self.colours)  # type: ignore[arg-type]  # the keys are checked against REQUIRED_COLOURS


def read_theme(file: Path) -> ThemeFile:
    """Read one theme file.

    Raises:
        InputError: Anything is wrong with it; the first problem, with file, line and key.
    """
    top = read_settings(file)
    _no_unknown_keys(top, _TOP_KEYS)
    top.choice("schema", (SCHEMA,))
    name = top.text("name")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:60]!r} is not a theme name", where=top.where("name"), hint="use a-z, 0-9 and -, at most 40"
        )
    ansi = top.flag("ansi") if "ansi" in top else False
    return ThemeFile(
        name=name,
        title=top.text("title") if "title" in top else name,
        dark=top.flag("dark"),
        ansi=ansi,
        colours=_colours(top.section("colors"), REQUIRED_COLOURS, ansi),
        memory=_colours(top.section("memory"), MEMORY_KEYS, ansi),
        recompute=_colours(top.section("recompute"), RECOMPUTE_KEYS, ansi) if "recompute" in top else {},
        variables=_variables(top, ansi),
        file=file,
    )


def load_themes(user_folder: Path | None = None) -> tuple[dict[str, ThemeFile], tuple[InputError, ...]]:
    """Every theme by name, the shipped ones first, and one problem for each file that cannot be used.

    A theme of the operator's replaces a shipped one of the same name.
    """
    themes: dict[str, ThemeFile] = {}
    problems: list[InputError] = []
    for file in _yaml_files((shipped_themes(), user_folder)):
        try:
            theme = read_theme(file)
        except InputError as error:
            problems.append(error)
        else:
            themes[theme.name] = theme
    return themes, tuple(problems)


def choose_theme(
    wanted: str | None, available: Mapping[str, ThemeFile], environ: Mapping[str, str], *, ansi: bool = False
) -> tuple[str, InputError | None]:
    """The theme to start with, and why it is not the one asked for.

    Without a wish the terminal decides: 16-colour terminals (and ``ansi``) get the ANSI theme, others the dark one.
    ``COLORFGBG`` (``15;0``), where the terminal sets it, says whether the background is light.
    """
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    light = background in ("7", "15")
    term = environ.get("TERM", "")
    if ansi or term in ("linux", "screen") or term.startswith("vt"):
        fallback = ANSI_LIGHT if light else ANSI_DARK
    else:
        fallback = DEFAULT_LIGHT if light else DEFAULT_DARK
    if wanted is None or wanted in available:
        return wanted or fallback, None
    problem = InputError(f"theme {wanted!r} is not there", hint=f"{nearest(wanted, available)} using {fallback}")
    return fallback, problem


def _yaml_files(folders: Iterable[Path | None]) -> Iterable[Path]:
    for folder in folders:
        if folder is not None and folder.is_dir():
            yield from sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))


def _no_unknown_keys(section: Section, known: Iterable[str]) -> None:
    for problem in section.unknown_keys(known):
        raise problem


def _colours(section: Section, keys: tuple[str, ...], ansi: bool) -> dict[str, str]:
    _no_unknown_keys(section, keys)
    return {key: _colour(section, key, ansi) for key in keys}


def _colour(section: Section, key: str, ansi: bool) -> str:
    value = section.text(key)
    if value in _ANSI_COLOURS if ansi else _HEX.fullmatch(value):
        return value
    if ansi:
        raise InputError(
            f"{value!r} is not one of the terminal's colours",
            where=section.where(key),
            hint=nearest(value, _ANSI_COLOURS),
        )
    raise InputError(f"{value!r} is not a colour", where=section.where(key), hint='write it as "#rrggbb", in quotes')


def _variables(top: Section, ansi: bool) -> dict[str, str]:
    if "variables" not in top:
        return {}
    from textual.design import ColorSystem

    section = top.section("variables")
    known = ColorSystem("#000000", ansi=ansi).generate() if not ansi else ColorSystem("ansi_blue", ansi=True).generate()
    _no_unknown_keys(section, known)
    return {
        key: section.text(key) if key.endswith("-style") else _variable_colour(section, key, ansi) for key in section
    }


def _variable_colour(section: Section, key: str, ansi: bool) -> str:
    """A colour that may carry an opacity: ``#rrggbb 40%``."""
    value, _, opacity = section.text(key).partition(" ")
    if opacity and not re.fullmatch(r"\d{1,3}%", opacity):
        raise InputError(f"{opacity!r} is not an opacity", where=section.where(key), hint="for example 40%")
    if value == "transparent" or value in _ANSI_COLOURS or (not ansi and _HEX.fullmatch(value)):
        return section.text(key)
    return _colour(section, key, ansi)


FALLBACKS = {
    "memory-weights": "primary",
    "memory-optimizer": "secondary",
    "memory-activations": "accent",
    "memory-other": "warning",
    "memory-free": "panel",
    "memory-over": "error",
    "recompute-none": "success",
    "recompute-selective": "secondary",
    "recompute-full": "warning",
    "recompute-block": "primary",
    "recompute-mixed": "accent",
}
"""Colours beyond Textual's own, and what serves a theme that does not set them."""
