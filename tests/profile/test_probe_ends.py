"""A probe ends with whoever started it, and a rank without memory speaks for all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from memx_engine.measurement import Outcome
from memx_engine.profile.process import Finished, run
from memx_engine.profile.protocol import PROBE_PATH
from memx_engine.profile.runners import local
from tests.cli.processes import COMMAND, environment
from tests.profile.conftest import Sshd
from tests.profile.test_probe import CLUSTER, POINT

# What the probe needs of torch to get as far as its measurement, which then takes for ever.
_STUCK = "import time\n__version__ = '0'\ndef set_num_threads(count):\n    time.sleep(600)\n"

_ONE_SMALL_RANK = """\
import json, os, runpy, sys
spec = json.loads(sys.argv[1])
spec["memory_limit_bytes"] = 1 << 20 if os.environ["RANK"] == "1" else None
sys.argv[1] = json.dumps(spec)
runpy.run_path({probe!r}, run_name="__main__")
"""


def stuck_python(folder: Path) -> Path:
    """A Python whose torch never comes back from a measurement."""
    folder.mkdir()
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(_STUCK)
    (folder / "torch" / "utils").mkdir()
    (folder / "torch" / "utils" / "__init__.py").touch()
    (folder / "torch" / "utils" / "checkpoint.py").touch()
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def probes_of(folder: Path) -> list[psutil.Process]:
    """Probes that measure with the torch of ``folder``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            measures = any(word.startswith("{") for word in process.cmdline())
            if measures and process.environ().get("PYTHONPATH") == str(folder):
                found.append(process)
    return found


@pytest.mark.parametrize("runner", ["local", "ssh"])
def test_a_probe_ends_when_the_tool_is_killed(runner: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = stuck_python(tmp_path / "stuck")
    arguments = [*COMMAND, "profile", "--cluster", "paper-small", "--types", "t4", "--model", "gpt2-large"]
    arguments += ["--workspace", str(tmp_path / "w"), "--python", str(python), "--probe-device", "cpu"]
    arguments += ["--runner", runner]
    if runner == "ssh":
        sshd: Sshd = request.getfixturevalue("sshd")
        arguments += ["--ssh-host", "t4=127.0.0.1", *(f"--ssh-arg={word}" for word in sshd.arguments)]
    with (tmp_path / "err").open("wb") as err:
        tool = subprocess.Popen(arguments, stdout=err, stderr=err, env=environment(tmp_path))
    try:
        deadline = time.monotonic() + 60
        while not (probes := probes_of(tmp_path / "stuck")) and time.monotonic() < deadline and tool.poll() is None:
            time.sleep(0.1)
        assert probes, (tmp_path / "err").read_text()
        tool.send_signal(signal.SIGKILL)
        tool.wait()
        _, alive = psutil.wait_procs(probes, timeout=10)
        assert not alive
    finally:
        tool.kill()
        tool.wait()
        for process in probes_of(tmp_path / "stuck"):
            os.kill(process.pid, signal.SIGKILL)


def checked_without_torch(arguments: Sequence[str], **options: Any) -> Finished:
    """``run`` that says yes to the self-check at once: importing torch once more takes seconds."""
    return Finished(0, "", "", False, 0.0) if "--self-check" in arguments else run(arguments, **options)


def test_one_rank_without_memory_is_an_oom_of_the_point(
    torch_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "probe.py"
    wrapper.write_text(_ONE_SMALL_RANK.format(probe=str(PROBE_PATH)))
    monkeypatch.setattr(local, "PROBE_PATH", wrapper)
    monkeypatch.setattr(local, "run", checked_without_torch)
    lane = local.LocalRunner(python=torch_python).open(
        CLUSTER, "cpu", on_state=lambda state: None, should_stop=lambda: False
    )
    result = lane.measure(replace(POINT, tp=2), timeout_s=120, should_stop=lambda: False)
    assert result.outcome is Outcome.OOM
    assert "out of memory" in result.detail
