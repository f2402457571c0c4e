from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from memx_engine import InputError
from memx_tui import themes
from memx_tui.themes import MEMORY_KEYS, RECOMPUTE_KEYS, ThemeFile, choose_theme, load_themes, read_theme

SHIPPED, PROBLEMS = load_themes()
# The 16 colours of the Linux console and VGA text mode.
VGA = dict(
    zip(
        [f"ansi_{b}{n}" for b in ("", "bright_") for n in themes._ANSI_NAMES],
        "#000000 #aa0000 #00aa00 #aa5500 #0000aa #aa00aa #00aaaa #aaaaaa "
        "#555555 #ff5555 #55ff55 #ffff55 #5555ff #ff55ff #55ffff #ffffff".split(),
        strict=True,
    )
)
TEXT_PAIRS = [
    (text, ground)
    for text in ("foreground", "primary", "secondary", "accent", "success", "warning", "error")
    for ground in ("background", "surface", "panel")
]
VARIABLE_PAIRS = [
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("foreground", "block-hover-background"),
    ("footer-foreground", "footer-background"),
    ("footer-description-foreground", "footer-background"),
    ("footer-key-foreground", "footer-background"),
    ("text-muted", "background"),
    ("text-muted", "surface"),
    ("text-muted", "panel"),
    ("text-error", "surface"),
    ("text-warning", "surface"),
    ("text-success", "surface"),
    ("text-accent", "surface"),
    ("text-primary", "surface"),
]


def luminance(color: Color) -> float:
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""

    def linear(channel: int) -> float:
        c = channel / 255
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)


def contrast(a: Color, b: Color) -> float:
    """Contrast ratio, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def resolve(theme: ThemeFile, variables: dict[str, str], name: str, ground: Color | None = None) -> Color:
    """The colour a terminal shows for a variable, opacity blended over ``ground``."""
    value = variables[name]
    if value == "transparent":
        return resolve(theme, variables, "background")
    word, _, opacity = value.partition(" ")
    if word == "ansi_default":
        is_ground = name.endswith("background") or name in ("surface", "panel")
        word = "#000000" if theme.dark == is_ground else "#ffffff"
        if is_ground:
            opacity = ""
    word = VGA.get(word, word)
    if word == "auto":
        assert ground is not None
        word = ground.get_contrast_text(1.0).hex
    color = Color.parse(word)
    if opacity and ground is not None:
        color = ground.blend(color, float(opacity.rstrip("%")) / 100, alpha=1)
    elif color.a < 1 and ground is not None:
        color = ground + color
    return color


def test_every_shipped_theme_loads() -> None:
    assert PROBLEMS == ()
    assert {"memx-dark", "memx-light", "memx-ansi-dark", "memx-ansi-light"} <= set(SHIPPED)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_check_28_contrast_of_text_and_memory_keys(name: str) -> None:
    theme = SHIPPED[name]
    textual_theme = theme.to_textual()
    variables = {**textual_theme.to_color_system().generate(), **textual_theme.variables}
    low = []
    for text, ground in TEXT_PAIRS + VARIABLE_PAIRS:
        back = resolve(theme, variables, ground)
        ratio = contrast(resolve(theme, variables, text, back), back)
        if ratio < 4.5:
            low.append(f"{text} on {ground}: {ratio:.2f}")
    assert low == []
    for key in MEMORY_KEYS:
        assert variables[f"memory-{key}"] == theme.memory[key]
    assert set(theme.recompute) == set(RECOMPUTE_KEYS)
    # The segments of a bar carry numbers too: 3:1 is what WCAG 2.2 (1.4.11) asks of graphics.
    back = resolve(theme, variables, "background")
    for key in RECOMPUTE_KEYS:
        assert contrast(resolve(theme, variables, f"recompute-{key}"), back) >= 3.0, key
    for key in MEMORY_KEYS:
        floor = 2.0 if key == "free" else 3.0
        assert contrast(resolve(theme, variables, f"memory-{key}"), back) >= floor, key


GOOD = """\
schema: memx/theme/v1
name: mine
dark: true
colors: {primary: "#6cb0f5", secondary: "#93a4b8", accent: "#f2b85c", success: "#74cf92", warning: "#f0c35e",
         error: "#ff8078", foreground: "#d9e0e8", background: "#0f1419", surface: "#151b22", panel: "#1f2731"}
memory: {weights: "#5b9fe3", optimizer: "#b08ae6", activations: "#e8a34f", other: "#8a98a8", free: "#56626f",
         over: "#ff6b62"}
"""


@pytest.mark.parametrize(
    ("change", "where", "hint"),
    [
        (("name: mine", "name: mine\nprimry: red"), "mine.yaml:3: primry", "known"),
        (('primary: "#6cb0f5"', 'primery: "#6cb0f5"'), "mine.yaml:4: colors.primery", "primary"),
        (('"#6cb0f5"', "bluish"), "mine.yaml:4: colors.primary", "#rrggbb"),
        (('free: "#56626f",', ""), "mine.yaml:6: memory.free", ""),
        (("dark: true", "dark: maybe"), "mine.yaml:3: dark", ""),
        (("name: mine", "name: '[red]mine[/]'"), "mine.yaml:2: name", "a-z"),
        (("name: mine", "name: !!python/object/apply:os.system [ls]"), "mine.yaml:2: name", ""),
        (("name: mine", "name: [mine"), "mine.yaml:", ""),
        (("schema: memx/theme/v1\n", ""), "schema", ""),
    ],
)
def test_bad_theme_names_file_line_and_key(tmp_path: Path, change: tuple[str, str], where: str, hint: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace(*change))
    with pytest.raises(InputError) as caught:
        read_theme(file)
    assert where in caught.value.where
    assert hint in caught.value.hint


def test_check_25_bad_theme_file_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    (tmp_path / "broken.yaml").write_text("name: [")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    found, problems = load_themes(tmp_path)
    assert {"mine", *SHIPPED} == set(found)
    assert sorted(Path(p.where.split(":")[0]).name for p in problems) == ["binary.yaml", "broken.yaml"]
    assert (tmp_path / "broken.yaml").read_text() == "name: ["


def test_a_user_theme_replaces_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(GOOD.replace("name: mine", "name: memx-dark\ntitle: Mine"))
    found, problems = load_themes(tmp_path)
    assert problems == () and found["memx-dark"].title == "Mine"


def test_variables_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text(GOOD + 'variables:\n  border: "#123456 40%"\n  footer-key-foregrond: "#ffffff"\n')
    with pytest.raises(InputError) as caught:
        read_theme(file)
    assert "v.yaml:10: variables.footer-key-foregrond" in caught.value.where
    assert "footer-key-foreground" in caught.value.hint


@pytest.mark.parametrize(
    ("environ", "ansi", "expected"),
    [
        ({"TERM": "xterm-256color"}, False, "memx-dark"),
        ({"TERM": "tmux-256color", "COLORFGBG": "0;15"}, False, "memx-light"),
        ({"TERM": "linux"}, False, "memx-ansi-dark"),
        ({"TERM": "screen", "COLORFGBG": "0;default;15"}, False, "memx-ansi-light"),
        ({"TERM": "vt220"}, False, "memx-ansi-dark"),
        ({"TERM": "xterm-256color"}, True, "memx-ansi-dark"),
    ],
)
def test_the_terminal_decides_without_a_wish(environ: dict[str, str], ansi: bool, expected: str) -> None:
    assert choose_theme(None, SHIPPED, environ, ansi=ansi) == (expected, None)


def test_an_unknown_theme_falls_back_and_says_so() -> None:
    name, problem = choose_theme("memx-drak", SHIPPED, {"TERM": "xterm-256color"})
    assert name == "memx-dark"
    assert problem is not None and "memx-dark" in problem.hint
