"""One command run, watched and stopped, whether or not the kernel tells of its end."""

from __future__ import annotations

import os
import sys
import time

import psutil
import pytest

from memx_engine.errors import CancelledError
from memx_engine.profile.process import run


@pytest.fixture(params=["told", "asking"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without ``pidfd_open``, which kernels before 5.3 and other systems lack."""

    def refuse(_pid: int) -> int:
        raise OSError("not here")

    if request.param == "asking":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)


def never() -> bool:
    return False


def is_alive(pid: int) -> bool:
    try:
        # Whoever inherits an orphan may take its time to reap it.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_that_ends_is_reaped_and_read() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(int(sys.stdin.read()))"
    before = len(os.listdir("/dev/fd"))
    done = run([sys.executable, "-c", code], stdin="3", timeout_s=60, should_stop=never)
    assert (done.returncode, done.output, done.errors, done.timed_out) == (3, "out\n", "err\n", False)
    assert len(os.listdir("/dev/fd")) == before


def test_a_command_that_hangs_is_stopped_with_what_it_started() -> None:
    start = time.monotonic()
    done = run(["sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=0.5, should_stop=never)
    assert done.timed_out and done.returncode < 0
    assert time.monotonic() - start < 30
    deadline = time.monotonic() + 10
    while is_alive(int(done.output)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(done.output))


def test_an_operator_who_stops_waits_no_longer_than_a_moment() -> None:
    start = time.monotonic()
    with pytest.raises(CancelledError):
        run(["sleep", "600"], timeout_s=None, should_stop=lambda: time.monotonic() - start > 0.3)
    assert time.monotonic() - start < 10
