"""Run the flow that the README shows, and put what it printed into README.md and docs/.

    python docs/demo.py            run everything, refresh README.md and docs/plan.svg
    python docs/demo.py --check    run everything, change nothing, fail where README.md differs

The blocks to refresh are the fenced ones below a line ``<!-- output: NAME -->``. How long the search took is rounded up
to whole seconds and not checked, since it differs between machines; neither is the dashboard, which shows it too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
MEMX = [sys.executable, "-m", "memx_tui.cli"]
WIDTH = 100

PLAN = "plan --cluster paper-20gpu --model llama2-7b --global-batch 512 -o plan.yaml"
MISTAKES = (
    "plan --cluster typo.yaml --model llama2-7b",
    "plan --cluster paper-20gpu --model lama2-7b",
    "plan --cluster paper-20gpu --model llama2-7b --weights 0.5,0.5,0.5",
    "plan --cluster small.yaml --model llama2-7b",
    "plan --cluster paper-20gpu --model llama2-7b -o plan.yaml",
)
TYPO = """\
schema: memx/cluster/v1
name: typo
nodes:
  - name: one
    gpus: [{type: a100-smx-80g, count: 8}]
"""
SMALL = """\
schema: memx/cluster/v1
name: small
nodes:
  - name: one
    gpus: [{type: rtx-4090, count: 2}]
"""


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "MEMX_HOME": str(folder / "memx"),
        "PYTHONPATH": str(REPOSITORY),
        "LANG": "C.UTF-8",
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
    }


def run(command: str, folder: Path, *, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [*MEMX, *command.split()], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    if done.returncode != code:
        raise SystemExit(f"memx-tui {command}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout, done.stderr


def mistakes(folder: Path) -> str:
    """Every mistake with its message and exit code, as a shell session."""
    lines = []
    for command in MISTAKES:
        done = subprocess.run(
            [*MEMX, *command.split()], cwd=folder, env=environment(folder), capture_output=True, text=True
        )
        lines += [f"$ memx-tui {command}", done.stderr.rstrip(), f"exit code {done.returncode}", ""]
    return "\n".join(lines).rstrip()


def dashboard(folder: Path) -> str:
    """The dashboard's Plans screen at 120x36, read from a real tmux."""
    tmux = ["tmux", "-u", "-S", str(folder / "tmux.sock"), "-f", "/dev/null"]
    env = {name: value for name, value in environment(folder).items() if name != "COLUMNS"}
    command = f"{' '.join(MEMX)} --cluster paper-20gpu --model llama2-7b --fresh"
    subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "36", command], env=env, check=True)
    try:
        for _ in range(600):
            screen = subprocess.run([*tmux, "capture-pane", "-p"], env=env, capture_output=True, text=True).stdout
            if "Why plan #1" in screen or "plan #1" in screen and "searching" not in screen:
                return screen.rstrip()
            time.sleep(0.5)
        raise SystemExit(f"the dashboard did not show its plans:\n{screen}")
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, capture_output=True)


def with_block(text: str, name: str, content: str) -> str:
    """``text`` with the fenced block below the marker of ``name`` replaced."""
    pattern = re.compile(rf"(<!-- output: {name} -->\n```[a-z]*\n).*?(```\n)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"README.md has no block {name}")
    return pattern.sub(lambda match: f"{match[1]}{content.rstrip()}\n{match[2]}", text)


def main() -> None:
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "typo.yaml").write_text(TYPO)
        (folder / "small.yaml").write_text(SMALL)
        planned, _ = run(PLAN, folder)
        run("explain plan.yaml", folder)
        run("plan --cluster paper-20gpu --model llama2-7b --global-batch 512 --pick 2 -o second.yaml", folder)
        run("compare plan.yaml second.yaml", folder)
        run("show plan.yaml --svg plan.svg", folder)
        text = README.read_text()
        planned = re.sub(r"skeletons in (\d+)\.\d s", lambda match: f"skeletons in {int(match[1]) + 1} s", planned)
        if check and (known := re.search(r"skeletons in \d+ s", text)):
            planned = re.sub(r"skeletons in \d+ s", known[0], planned)
        new = with_block(text, "plan", planned)
        new = with_block(new, "errors", mistakes(folder))
        if check:
            if new != text:
                raise SystemExit("README.md differs from what the commands print; run: python docs/demo.py")
            return
        if shutil.which("tmux"):
            new = with_block(new, "dashboard", dashboard(folder))
        README.write_text(new)
        (DOCS / "plan.svg").write_text((folder / "plan.svg").read_text())


if __name__ == "__main__":
    main()
