"""Read what Megatron-LM prints while it trains: iteration times, and memory per rank.

Lines as printed by ``training_log`` and ``report_memory`` of
https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/training.py and ``utils.py``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from memx_engine.units import MIB

_ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+).*?elapsed time per iteration \(ms\):\s*([0-9.eE+]+)")
_MEMORY = re.compile(
    r"\[Rank (\d+)\].*?memory \(MB\).*?max allocated:\s*([0-9.]+).*?max reserved:\s*([0-9.]+)", re.IGNORECASE
)
_OOM = re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)
_LONGEST_S, _LARGEST_BYTES = 1e7, 1 << 50
"""A third of a year and a pebibyte: what is above is no iteration and no device."""
_BATCH = re.compile(r"global batch size:\s*(\d{1,12})\b")


@dataclass(frozen=True)
class MegatronLog:
    """What one log holds.

    Attributes:
        iterations_s: Seconds per iteration as logged, the first line (with its compilation and warm-up) left out when
            more follow.
        allocated_bytes, reserved_bytes: Highest seen per rank.
        out_of_memory: Whether any rank ran out of memory.
        unread: (line number, text) of lines that look like results but cannot be read.
    """

    iterations_s: tuple[float, ...]
    allocated_bytes: dict[int, int]
    reserved_bytes: dict[int, int]
    global_batch: int | None
    out_of_memory: bool
    unread: tuple[tuple[int, str], ...]

    @property
    def iteration_time_s(self) -> float | None:
        """Median over the iterations; None without any."""
        return statistics.median(self.iterations_s) if self.iterations_s else None


def read_megatron_log(lines: Iterable[str]) -> MegatronLog:
    """Read a Megatron-LM training log; lines that are neither times nor memory are passed over."""
    times: list[float] = []
    allocated: dict[int, int] = {}
    reserved: dict[int, int] = {}
    unread: list[tuple[int, str]] = []
    batch: int | None = None
    oom = False
    for number, line in enumerate(lines, start=1):
        oom = oom or bool(_OOM.search(line))
        if "elapsed time per iteration" in line:
            match = _ITERATION.search(line)
            try:
                times.append(float(match[3]) / 1e3 if match else float("nan"))
            except ValueError:
                times.append(float("nan"))
            if not 0 < times[-1] <= _LONGEST_S:
                times.pop()
                unread.append((number, line.strip()[:120]))
            found = _BATCH.search(line)
            batch = int(found[1]) if found else batch
        elif "max allocated" in line:
            match = _MEMORY.search(line)
            if match is None:
                unread.append((number, line.strip()[:120]))
                continue
            try:
                rank, used, held = int(match[1]), int(float(match[2]) * MIB), int(float(match[3]) * MIB)
            except (ValueError, OverflowError):
                unread.append((number, line.strip()[:120]))
                continue
            if max(used, held) > _LARGEST_BYTES:
                unread.append((number, line.strip()[:120]))
                continue
            allocated[rank] = max(allocated.get(rank, 0), used)
            reserved[rank] = max(reserved.get(rank, 0), held)
    kept = times[1:] if len(times) > 1 else times
    return MegatronLog(tuple(kept), allocated, reserved, batch, oom, tuple(unread))
