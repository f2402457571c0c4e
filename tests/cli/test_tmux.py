"""Check 6: the dashboard in a real tmux, at two sizes, in the terminals that operators have."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import environment as bare_environment

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ARGUMENTS = "--cluster a800x8 --model llama3-8b --mbs 1 --fresh"
STARTED_WITHIN_S = 60


class Screen:
    """The dashboard in a tmux server of its own."""

    def __init__(self, home: Path, columns: int, rows: int, environment: dict[str, str], arguments: str) -> None:
        self._tmux = ["tmux", "-u", "-S", str(home / "tmux.sock"), "-f", "/dev/null"]
        # The server passes its environment on, and the test runner's own (COLUMNS) must not reach the dashboard.
        self._environment = bare_environment(home)
        words = " ".join(f"{name}='{value}'" for name, value in environment.items())
        command = f"env {words} {sys.executable} -m memx_tui.cli {arguments}; echo left $?; cat"
        self._call("new-session", "-d", "-x", str(columns), "-y", str(rows), command)

    def _call(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, timeout=30, check=True, env=self._environment
        )
        return done.stdout

    def text(self) -> str:
        return self._call("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self._call("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    def wait_for(self, *words: str) -> str:
        """The screen once it shows all ``words``."""
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            text = self.text()
            if all(word in text for word in words):
                return text
            assert time.monotonic() < deadline, f"{words} not on screen:\n{text}"
            time.sleep(0.2)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=30)


Open = Callable[..., Screen]


@pytest.fixture
def open_screen(tmp_path: Path) -> Iterator[Open]:
    screens: list[Screen] = []

    def start(columns: int, rows: int, arguments: str = ARGUMENTS, **environment: str) -> Screen:
        screens.append(Screen(tmp_path, columns, rows, {"LANG": "C.UTF-8", **environment}, arguments))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 50)])
@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "tmux-256color"},
        {"TERM": "screen"},
        {"TERM": "linux"},
        {"TERM": "tmux-256color", "NO_COLOR": "1"},
        {"TERM": "tmux-256color", "LANG": "C"},
    ],
    ids=["tmux-256color", "screen", "linux", "no-color", "lang-c"],
)
def test_check_06_the_selected_plan_reads_as_text(
    open_screen: Open, columns: int, rows: int, environment: dict[str, str]
) -> None:
    screen = open_screen(columns, rows, **environment)
    text = screen.wait_for("uncalibrated", "%", "plan #1", "worst GPU")
    cursor = ">" if environment.get("LANG") == "C" else "▶"
    row = next(line for line in text.splitlines() if line.lstrip().startswith(cursor))
    assert row.split()[1] == "1"
    assert "%" in row and "a800-sxm" in row and " fits " in row
    assert "Help" in text.splitlines()[-1]
    if environment.get("LANG") == "C":
        assert text.isascii()
    screen.press("j")
    screen.wait_for("plan #2")
    screen.press("q")
    screen.wait_for("left 0")


def test_check_07_a_resize_keeps_the_selection(open_screen: Open) -> None:
    screen = open_screen(160, 50)
    screen.wait_for("plan #1")
    screen.press("j", "j", "j")
    screen.wait_for("plan #4")
    screen.resize(80, 24)
    screen.wait_for("plan #4", "? Help")
    screen.resize(160, 50)
    screen.wait_for("plan #4", "Pareto")


def test_a_screen_of_40_by_12_still_works(open_screen: Open) -> None:
    screen = open_screen(40, 12)
    text = screen.wait_for("%", "uncalibrated")
    assert "▶" in text
    screen.press("j", "q")
    screen.wait_for("left 0")


def test_ctrl_c_twice_leaves_in_mid_search(open_screen: Open) -> None:
    screen = open_screen(80, 24, "--cluster thousand-gpus --model llama2-70b --fresh")
    screen.wait_for("Searching")
    screen.press("C-c")
    time.sleep(0.3)
    screen.press("C-c")
    screen.wait_for("left 0")
