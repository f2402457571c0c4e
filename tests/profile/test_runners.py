"""Slurm, SSH and command runners against real daemons."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from memx_engine.errors import CancelledError, InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.job import Precision
from memx_engine.measurement import Outcome, Point, Truth
from memx_engine.plan import Recompute
from memx_engine.profile.megatron_log import read_megatron_log
from memx_engine.profile.runner import LaneLostError, LaneState, ProfileError
from memx_engine.profile.runners.command import CommandRunner, CommandTemplate
from memx_engine.profile.runners.slurm import SlurmOptions, SlurmRunner
from memx_engine.profile.runners.slurm_nodes import SlurmNode, find_nodes
from memx_engine.profile.runners.ssh import SshOptions, SshRunner, ssh_arguments
from memx_engine.profile.runners.testbed import TestbedRunner, parse_testbed
from tests.profile.conftest import LINK, MI300X, TINY, Sshd, node
from tests.profile.slurm_cluster import SlurmCluster

POINT = Point("mi300x", TINY, 1, 1, 64, 1, precision=Precision.FP32)


def never() -> bool:
    return False


def ignore(state: LaneState) -> None:
    return None


# Slurm


def options(python: str) -> SlurmOptions:
    return SlurmOptions(python=python, device="cpu")


def test_nodes_and_gpu_types_are_found(slurm: SlurmCluster) -> None:
    assert find_nodes() == (
        SlurmNode("a100-0", {"a100": 4}, (), ("IDLE",), ("main",)),
        SlurmNode("mi300x-0", {"mi300x": 4}, (), ("IDLE",), ("main",)),
    )


def test_both_types_are_measured_on_their_own_node(
    slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster
) -> None:
    runner = SlurmRunner(options(torch_python))
    for gpu_type, where in (("a100-sxm-80g", "a100-0"), ("mi300x", "mi300x-0")):
        states: list[LaneState] = []
        lane = runner.open(mixed_cluster, gpu_type, on_state=states.append, should_stop=never)
        try:
            result = lane.measure(replace(POINT, gpu_type=gpu_type), timeout_s=60, should_stop=never)
        finally:
            lane.close()
        assert result.outcome is Outcome.OK, result.detail
        assert result.node == where
        assert result.truth is Truth.CPU
        assert states[-1] == LaneState(gpu_type, "ready", where)
    assert slurm.client("squeue", "-h").stdout == ""


def test_a_pending_job_tells_its_reason_and_cancelling_cancels_only_it(
    slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster
) -> None:
    runner = SlurmRunner(options(torch_python))
    first = runner.open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)
    states: list[LaneState] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def second() -> None:
        try:
            runner.open(mixed_cluster, "mi300x", on_state=states.append, should_stop=stop.is_set)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    deadline = time.monotonic() + 20
    while not states and time.monotonic() < deadline:
        time.sleep(0.1)
    stop.set()
    thread.join(20)
    try:
        assert states[0].state == "pending"
        assert "Resources" in states[0].reason or "Priority" in states[0].reason
        assert len(errors) == 1
        assert slurm.client("squeue", "-h", "-o", "%i").stdout.split() == [first.job]
    finally:
        first.close()


def test_a_cancelled_job_is_a_lost_lane(slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster) -> None:
    lane = SlurmRunner(options(torch_python)).open(mixed_cluster, "a100-sxm-80g", on_state=ignore, should_stop=never)
    slurm.client("scancel", lane.job)
    try:
        with pytest.raises(LaneLostError, match=lane.job):
            lane.measure(replace(POINT, gpu_type="a100-sxm-80g"), timeout_s=30, should_stop=never)
    finally:
        lane.close()


def test_a_drained_node_keeps_the_next_job_pending_and_says_so(
    slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster
) -> None:
    slurm.client("scontrol", "update", "nodename=a100-0", "state=drain", "reason=maintenance")
    states: list[LaneState] = []
    end = time.monotonic() + 6
    try:
        with pytest.raises(CancelledError):
            SlurmRunner(options(torch_python)).open(
                mixed_cluster, "a100-sxm-80g", on_state=states.append, should_stop=lambda: time.monotonic() > end
            )
        assert any(state.state == "pending" and state.reason for state in states)
    finally:
        slurm.client("scontrol", "update", "nodename=a100-0", "state=resume")


def test_hostile_names_reach_slurm_as_they_are_and_run_nothing(
    slurm: SlurmCluster, torch_python: str, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    hostile = SlurmOptions(python=torch_python, device="cpu", extra=(f"--comment=a b; $(touch {marker}) '\"",))
    lane = SlurmRunner(hostile).open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)
    try:
        comment = slurm.client("squeue", "-h", "-j", lane.job, "-o", "%k").stdout.strip()
        assert comment == f"a b; $(touch {marker}) '\""
    finally:
        lane.close()
    assert not marker.exists()


def test_slurm_refusing_a_job_is_told_in_its_words(slurm: SlurmCluster, mixed_cluster: Cluster) -> None:
    runner = SlurmRunner(SlurmOptions(partition="nowhere"))
    with pytest.raises(ProfileError, match="partition"):
        runner.open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)


# SSH


def ssh_runner(sshd: Sshd, python: str, **changes: str) -> SshRunner:
    return SshRunner(
        SshOptions(hosts={"mi300x": "127.0.0.1"}, arguments=sshd.arguments, python=python, device="cpu", **changes)
    )


def test_a_stage_is_measured_over_ssh_and_the_probe_removed(
    sshd: Sshd, torch_python: str, mixed_cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "a b;$(touch x)'"
    folder.mkdir()
    lane = ssh_runner(sshd, torch_python, folder=str(folder)).open(
        mixed_cluster, "mi300x", on_state=ignore, should_stop=never
    )
    assert [p.suffix for p in folder.iterdir()] == [".py"]
    result = lane.measure(POINT, timeout_s=60, should_stop=never)
    lane.close()
    assert result.outcome is Outcome.OK, result.detail
    assert result.node == "mi300x-0"
    assert list(folder.iterdir()) == []


def test_an_unreachable_host_is_told_with_what_to_do(sshd: Sshd, mixed_cluster: Cluster) -> None:
    arguments = tuple("1" if a.isdecimal() else a for a in sshd.arguments)
    runner = SshRunner(SshOptions(hosts={"mi300x": "127.0.0.1"}, arguments=arguments))
    with pytest.raises(ProfileError, match="cannot be reached") as caught:
        runner.open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)
    assert "--ssh-host" in caught.value.hint


def test_a_host_without_the_python_is_told(sshd: Sshd, mixed_cluster: Cluster) -> None:
    with pytest.raises(ProfileError, match="cannot run on"):
        ssh_runner(sshd, "/no/such/python").open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)


def test_remote_words_are_quoted_and_a_host_is_never_an_option() -> None:
    arguments = ssh_arguments("-oProxyCommand=x", SshOptions(), ["echo", "a b", "$(x)"])
    assert arguments[-2:] == ["-oProxyCommand=x", "echo 'a b' '$(x)'"]
    assert arguments[-3] == "--"


# The operator's command


def iteration(number: int, milliseconds: str) -> str:
    return (
        f" [2026-01-01 10:00:0{number}] iteration        {number}/      10 | consumed samples:  8 |"
        f" elapsed time per iteration (ms): {milliseconds} | learning rate: 1.0E-05 | global batch size:     8 |"
    )


def memory(rank: int, allocated: float, reserved: float) -> str:
    return (
        f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 9.0 | max allocated: {allocated} |"
        f" reserved: 9.0 | max reserved: {reserved}"
    )


LOG = "\n".join(
    [
        iteration(1, "5000.0"),
        memory(0, 1000.5, 1200.0),
        memory(1, 900.0, 1000.0),
        iteration(2, "410.0"),
        iteration(3, "400.0"),
        iteration(4, "420.0"),
        "broken | elapsed time per iteration (ms): not a number",
    ]
)


def test_a_megatron_log_gives_time_and_memory_and_lists_what_it_cannot_read() -> None:
    log = read_megatron_log(LOG.splitlines())
    assert log.iterations_s == (0.41, 0.40, 0.42)
    assert log.iteration_time_s == pytest.approx(0.41)
    assert log.allocated_bytes == {0: int(1000.5 * (1 << 20)), 1: 900 << 20}
    assert log.reserved_bytes == {0: 1200 << 20, 1: 1000 << 20}
    assert log.global_batch == 8
    assert not log.out_of_memory
    assert [number for number, _ in log.unread] == [7]
    assert read_megatron_log(["torch.OutOfMemoryError: CUDA out of memory."]).out_of_memory


def test_the_operators_script_is_run_with_filled_placeholders_and_its_log_read(tmp_path: Path) -> None:
    script = tmp_path / "run me.py"
    script.write_text(f"import sys; print(sys.argv[1:]); print({LOG!r})")
    template = CommandTemplate.parse(f"{sys.executable} '{script}' --tp={{tp}} {{recompute_granularity}} '{{node}}'")
    hostile = Cluster("c", (node("n 0; touch $(x) '", MI300X),), LINK)
    lane = CommandRunner(template).open(hostile, "mi300x", on_state=ignore, should_stop=never)
    point = replace(POINT, tp=2, in_flight=2, recompute=Recompute.parse("full"))
    assert template.fill(point, "n 0; touch $(x) '")[2:] == ["--tp=2", "full", "n 0; touch $(x) '"]
    result = lane.measure(point, timeout_s=30, should_stop=never)
    assert result.outcome is Outcome.OK, result.detail
    assert result.time_s == pytest.approx(0.205)
    assert result.forward_s is None
    assert result.peak_allocated_bytes == int(1000.5 * (1 << 20))


def test_a_command_that_says_nothing_hangs_or_stops(tmp_path: Path) -> None:
    cluster = Cluster("c", (node("n", MI300X),), LINK)

    def lane(code: str) -> object:
        return CommandRunner(CommandTemplate((sys.executable, "-c", code))).open(
            cluster, "mi300x", on_state=ignore, should_stop=never
        )

    quiet = lane("pass").measure(POINT, timeout_s=20, should_stop=never)  # type: ignore[attr-defined]  # a lane
    assert quiet.outcome is Outcome.CRASHED
    hung = lane("import time; time.sleep(60)").measure(POINT, timeout_s=0.5, should_stop=never)  # type: ignore[attr-defined]  # a lane
    assert hung.outcome is Outcome.TIMEOUT
    start = time.monotonic()
    with pytest.raises(CancelledError):
        lane("import time; time.sleep(60)").measure(POINT, timeout_s=50, should_stop=lambda: True)  # type: ignore[attr-defined]  # a lane
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", ["", "run {unknown}", "run 'open"])
def test_bad_command_templates_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        CommandTemplate.parse(text)


# Testbed


@pytest.mark.parametrize(
    ("name", "expected"),
    [("testbed", (0, False)), ("testbed:7", (7, False)), ("testbed:hard", (0, True)), ("testbed:hard:3", (3, True))],
)
def test_testbed_names(name: str, expected: tuple[int, bool]) -> None:
    assert parse_testbed(name) == expected


@pytest.mark.parametrize("name", ["bed", "testbed:x", "testbed:hard:x", "testbed:1:2", "testbed:-1"])
def test_bad_testbed_names(name: str) -> None:
    with pytest.raises(InputError):
        parse_testbed(name)


def test_the_testbed_replays_live_on_request_and_stops_at_once(mixed_cluster: Cluster) -> None:
    lane = TestbedRunner(pace=1.0).open(mixed_cluster, "mi300x", on_state=ignore, should_stop=never)
    start = time.monotonic()
    with pytest.raises(CancelledError):
        lane.measure(POINT, timeout_s=60, should_stop=lambda: time.monotonic() - start > 0.2)
    assert time.monotonic() - start < 2
