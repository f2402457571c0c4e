"""Measure Llama-7B-shaped stages on one GPU of this machine in under ten minutes, and leave one table.

    python sample_clusters/measurements/measure.py --python /path/to/python-with-torch

One process per point, through the same probe and runner as ``memx-tui profile --runner local``. Results are stored as
they arrive; the same command again goes on and measures nothing twice. TP sizes above one are one rank's shard without
its group's communication, and the table says so. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memx_engine import (
    Cluster,
    GpuGroup,
    GpuType,
    Link,
    LocalRunner,
    MemxError,
    Node,
    OfCluster,
    Outcome,
    Point,
    Recompute,
    TransformerSpec,
    Workspace,
    export_table,
    gib,
    load_model,
)
from memx_engine.inputs.catalogue import find_gpu_type
from memx_engine.inputs.job import Precision
from memx_engine.profile.process import run
from memx_engine.profile.protocol import PROBE_PATH, find_result

LEVELS = ("none", "block:1", "full")
POINT_TIMEOUT_S = 120.0


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Llama-7B-shaped stages on one GPU; leave one CSV table.")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder for the table and its workspace"
    )
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (default: this one)")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--gpu-type", help="catalogue name, where the driver's own name is not in the catalogue")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no new point after this long (default 9)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--model", default="llama2-7b", help="preset or config.json")
    parser.add_argument("--tp", type=sizes, default=(1, 2, 4))
    parser.add_argument("--mbs", type=sizes, default=(1, 2, 4))
    parser.add_argument("--seq-len", type=sizes, default=(2048, 4096))
    parser.add_argument("--only", type=int, metavar="N", help="measure the first N points")
    return parser.parse_args(arguments)


def points(gpu_type: str, model: TransformerSpec, given: argparse.Namespace, precision: Precision) -> list[Point]:
    """Two layers at every size and recompute level; deeper stages, more in flight, and both ends at the first size."""
    # One rank alone does not divide the sequence, whatever its TP size.
    first = Point(
        gpu_type, model, given.tp[0], given.mbs[0], given.seq_len[-1], 2, precision=precision, sequence_parallel=False
    )
    grid = [
        replace(first, tp=tp, micro_batch=mbs, seq_len=seq_len, recompute=Recompute.parse(level))
        for tp in given.tp
        for mbs in given.mbs
        for seq_len in given.seq_len
        for level in LEVELS
    ]
    more = [replace(first, tp=tp, layers=4) for tp in given.tp]
    more += [replace(first, in_flight=n) for n in (2, 4)]
    more += [replace(first, embedding=True), replace(first, head=True)]
    # Mixed by their keys, so that a run cut short has points from everywhere.
    return sorted(dict.fromkeys([*grid, *more]), key=lambda point: point.key)[: given.only]


def here(given: argparse.Namespace) -> Cluster:
    """This machine as a cluster of one device; MemxError where no device of the catalogue answers."""
    check = run([given.python, str(PROBE_PATH), "--self-check"], timeout_s=120.0, should_stop=lambda: False)
    found = find_result(check.output)
    if found is None:
        words = (check.errors or check.output).strip().splitlines()[-1:]
        raise MemxError(f"no torch answers: {' '.join(words)}", hint="name a Python that has it with --python")
    if given.device == "cpu":
        gpu_type = GpuType("cpu", "generic", str(found["device"]), 4 << 30, fp32_flops=1e11)
    elif found["kind"] == "cpu":
        raise MemxError("torch finds no accelerator here", hint="--device cpu tries the whole path on the CPU")
    else:
        gpu_type = find_gpu_type(given.gpu_type or str(found["device"]))
    print(f"{found['device']} as {gpu_type.name}, versions {json.dumps(found['versions'])}", flush=True)
    inner = Link(1e10, 1e-5)
    node = Node("this-machine", (GpuGroup(gpu_type, 1),), 1, 1, inner, inner, inner)
    return Cluster("one device", (node,), inner)


def measure(given: argparse.Namespace) -> Path:
    """Measure what is not stored yet and write the table; returns its path."""
    cluster, model = here(given), load_model(given.model)
    gpu_type = cluster.gpu_types[0]
    precision = Precision.BF16 if gpu_type.supports("bf16") and given.device != "cpu" else Precision.FP16
    precision = Precision.FP32 if given.device == "cpu" else precision
    runner = LocalRunner(python=given.python, collectives=False, device=given.device, repetitions=given.repetitions)
    name = f"{model.name}-{gpu_type.name}"
    end = time.monotonic() + 60.0 * given.minutes
    with Workspace(given.out / f"{name}.workspace") as workspace:
        store = OfCluster(workspace, cluster)
        todo = points(gpu_type.name, model, given, precision)
        there = store.latest(runner.ground(gpu_type.name)[1], [point.key for point in todo])
        todo = [p for p in todo if p.key not in there or there[p.key].outcome is Outcome.CRASHED]
        print(f"{len(there)} points are there, {len(todo)} are measured", flush=True)
        lane = runner.open(cluster, gpu_type.name, on_state=lambda _: None, should_stop=lambda: False)
        for number, point in enumerate(todo, 1):
            if time.monotonic() > end:
                print(f"{given.minutes:g} minutes are over; {len(todo) - number + 1} points are left for another run")
                break
            result = lane.measure(point, timeout_s=POINT_TIMEOUT_S, should_stop=lambda: False)
            store.add(result)
            peak = result.peak_reserved_bytes or result.peak_allocated_bytes
            words = f"{(result.time_s or 0) * 1e3:.2f} ms, {gib(peak or 0):.2f} GiB" if result.time_s else result.detail
            print(f"{number}/{len(todo)} {point.label}: {result.outcome.value}, {words}", flush=True)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        table = Path(given.out) / f"{name}-{date}.csv"
        with table.open("w", encoding="utf-8", newline="") as stream:
            rows = export_table(workspace, "measured", stream)
    print(f"{rows} rows in {table}")
    return table


if __name__ == "__main__":
    try:
        measure(parse(None))
    except MemxError as error:
        sys.exit(str(error))
