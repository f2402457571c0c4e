"""``memx-tui doctor``: is everything there that the tool needs, and what is around it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from memx_engine import __version__
from memx_tui.output import emit, emit_json
from memx_tui.terminal import is_terminal, locale_is_utf8

PACKAGES = (
    "click",
    "numpy",
    "pandas",
    "platformdirs",
    "plotext",
    "psutil",
    "pydantic",
    "pyyaml",
    "scikit-learn",
    "scipy",
    "textual",
    "xgboost",
)
_ALTERNATIVES = {"xgboost": ("xgboost-cpu", "xgboost")}
_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}
TOOLS = {
    "nvidia-smi": "describes NVIDIA GPUs",
    "rocm-smi": "describes AMD GPUs",
    "npu-smi": "describes Ascend NPUs",
    "sinfo": "describes a Slurm cluster",
    "tmux": "keeps the dashboard alive when the connection drops",
}
FAIL_CODE = 1


@dataclass(frozen=True)
class Check:
    """One finding. ``state``: ``ok``, ``note`` (works, with less) or ``bad`` (does not work)."""

    group: str
    name: str
    state: str
    detail: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> int:
    """Check the installation, the terminal and the folders. Exits 1 when something needed is missing."""
    checks = [*versions(), *terminal(), *folders(), *tools(), *machine()]
    bad = [check for check in checks if check.state == "bad"]
    if as_json:
        emit_json({"ok": not bad, "checks": [asdict(check) for check in checks]})
    else:
        emit(_text(checks))
    return FAIL_CODE if bad else 0


def versions() -> list[Check]:
    """The tool, Python, and every dependency, looked up without importing it."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    good = sys.version_info >= (3, 11)
    checks = [
        Check("versions", "memx-tui", "ok", f"{__version__} at {Path(__file__).resolve().parents[2]}"),
        Check("versions", "python", "ok" if good else "bad", f"{platform.python_version()} ({sys.executable})"),
    ]
    for name in PACKAGES:
        found = None
        for distribution in _ALTERNATIVES.get(name, (name,)):
            try:
                found = f"{version(distribution)}{f' ({distribution})' if distribution != name else ''}"
                break
            except PackageNotFoundError:
                continue
        if find_spec(_MODULES.get(name, name)) is None:
            checks.append(Check("versions", name, "bad", "missing; install it with: pip install memx-tui"))
        else:
            checks.append(Check("versions", name, "ok", found or "present, version unknown"))
    return checks


def terminal() -> list[Check]:
    """What the dashboard will find."""
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    missing = [name for name, stream in streams.items() if not is_terminal(stream)]
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "")
    state = "note" if missing else "ok"
    detail = f"{', '.join(missing)} not a terminal, so no dashboard from here" if missing else "yes"
    small = size.columns < 80 or size.lines < 24
    return [
        Check("terminal", "interactive", state, detail),
        Check("terminal", "TERM", "ok" if term not in ("", "dumb") else "note", term or "not set"),
        Check("terminal", "size", "note" if small else "ok", f"{size.columns}x{size.lines}"),
        Check(
            "terminal",
            "locale",
            "ok" if locale_is_utf8() else "note",
            f"{_locale()}: {'UTF-8' if locale_is_utf8() else 'not UTF-8, so bars are drawn in ASCII'}",
        ),
        Check("terminal", "colour", "ok", "off (NO_COLOR)" if os.environ.get("NO_COLOR") else "on"),
    ]


def _locale() -> str:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    return "no locale set"


def folders() -> list[Check]:
    """Whether each of the tool's folders can be written, or created where it is missing."""
    from memx_tui.paths import find_paths

    paths = find_paths()
    checks = []
    for name in ("config", "data", "cache", "state"):
        folder: Path = getattr(paths, name)
        nearest = next(p for p in (folder, *folder.parents) if p.exists())
        writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
        state = "ok" if writable else "note" if name == "config" else "bad"
        what = "writable" if writable else "not writable; set MEMX_HOME to a folder that is"
        checks.append(
            Check("folders", name, state, f"{folder} ({what if folder.exists() else f'not there yet, {what}'})")
        )
    checks.append(Check("folders", "log", "ok", str(paths.log_file)))
    return checks


def tools() -> list[Check]:
    """Programs that help but are not needed."""
    found = {name: shutil.which(name) for name in TOOLS}
    return [
        Check("optional", name, "ok" if path else "note", path or f"not found ({TOOLS[name]})")
        for name, path in found.items()
    ]


def machine() -> list[Check]:
    """How busy this machine is; the tool should not add to it."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    load = os.getloadavg()[0]
    return [
        Check("machine", "cores", "ok", f"{cores} usable, load {load:.1f}"),
        Check(
            "machine",
            "memory",
            "ok" if memory.available > 400 << 20 else "note",
            f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available",
        ),
    ]


def _text(checks: list[Check]) -> str:
    from memx_tui.text.style import Style

    style = Style.of(sys.stdout)
    looks = {"ok": "good", "note": "warn", "bad": "bad"}
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            lines.append(style.section(group))
        state = style.paint(check.state.ljust(4), looks[check.state])
        lines.append(f" {state}  {check.name.ljust(width)}  {check.detail}")
    return "\n".join(lines)
