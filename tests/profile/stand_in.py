"""A stand-in for a Python with torch: answers as the probe does, at once, where the probe itself is not the matter."""

from __future__ import annotations

import sys
from pathlib import Path

_CODE = """\
#!{python}
import json, os, sys, time
if "--self-check" in sys.argv:
    print("MEMX-PROBE " + json.dumps({{"device": {device!r}, "kind": "cuda:0"}}))
    sys.exit(0)
spec = json.loads(sys.argv[-1])
with open({log!r}, "a") as log:
    log.write(f"{{os.getpid()}} {{spec['key']}}\\n")
    first = log.tell() == len(spec["key"]) + len(str(os.getpid())) + 2
time.sleep({first_seconds} if first else {seconds})
print("WARNING: vendor library 1.2.3 {{not json}}", flush=True)
print("MEMX-PROBE " + json.dumps({{
    "outcome": "ok", "forward_s": 0.001, "backward_s": 0.002, "repetitions_s": [0.003] * 4, "node": "elsewhere",
    "device": "stand-in", "peak_allocated_bytes": 1 << 20, "versions": {{"torch": "0"}},
}}))
print("vendor library says goodbye", file=sys.stderr)
"""


def make_stand_in(
    folder: Path,
    *,
    name: str = "python",
    seconds: float = 0.0,
    first_seconds: float | None = None,
    device: str = "stand-in",
) -> Path:
    """An executable that measures nothing and takes ``seconds``; it logs (process, key) to ``folder``/log."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    first = seconds if first_seconds is None else first_seconds
    log = str(folder / "log")
    program.write_text(
        _CODE.format(python=sys.executable, log=log, seconds=seconds, first_seconds=first, device=device)
    )
    program.chmod(0o755)
    return program


def logged(folder: Path) -> list[tuple[int, str]]:
    """(process, key) of every measurement that was begun."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(process), key) for process, key in (line.split() for line in lines)]
