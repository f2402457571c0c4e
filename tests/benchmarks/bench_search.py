"""The search's targets, each row with its certificate: ``python tests/benchmarks/bench_search.py [ROW ...]``.

Every row is searched in a process of its own, so that the resident memory is its own; first principles predict. Rows
of table 9 search once before the clock starts, so that every stage signature is known, then five times, of which the
median counts, and leave the front out, as the paper does. A configuration is counted as the paper counts it: a
skeleton with one of four recompute strategies, its layer split given by rule. What is searched is every split and every
recompute per stage of them (column ``plans``). Times are CPU seconds of the one thread that searches, which a core of
its own would take; the wall clock beside them also counts whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from memx_engine.cost.first_principles import FirstPrinciples
from memx_engine.errors import CancelledError
from memx_engine.inputs.cluster import Cluster
from memx_engine.inputs.cluster_file import load_cluster, parse_cluster
from memx_engine.inputs.job_file import resolve_job
from memx_engine.inputs.model_file import load_model
from memx_engine.search.result import SearchProgress, SearchResult
from memx_engine.search.run import SearchOptions, search

_WARM_SEARCHES = 5
_STRATEGIES = 4  # the paper's: none, selective, full-block, full-uniform

# A 20-GPU cluster of the paper's shape that can hold 70 billion parameters: at 18 bytes each, and no less with any
# sharding, they need 1,174 GiB, and the paper's own cluster has 832.
_ROOMY = """
schema: memx/cluster/v1
name: roomy-20gpu
gpu_types:
  ascend-910b2: {bf16_tflops: 320, fp16_tflops: 320}
nodes:
  - {name: a100, gpus: [{type: a100-sxm-80g, count: 4}]}
  - {name: h100, gpus: [{type: h100-sxm-80g, count: 8}], island_size: 4}
  - {name: ascend, gpus: [{type: ascend-910b2, count: 8}], island_size: 4}
links:
  inter_node: {bandwidth_gb_s: 28, latency_us: 14, shared: true}
  host: {bandwidth_gb_s: 28, latency_us: 14, shared: true}
"""

_TWO_TYPES = """
schema: memx/cluster/v1
name: two-types-16gpu
gpu_types:
  ascend-910b2: {bf16_tflops: 320, fp16_tflops: 320}
nodes:
  - {name: a100, gpus: [{type: a100-sxm-80g, count: 8}]}
  - {name: ascend, gpus: [{type: ascend-910b2, count: 8}]}
links:
  inter_node: {bandwidth_gb_s: 28, latency_us: 14, shared: true}
  host: {bandwidth_gb_s: 28, latency_us: 14, shared: true}
"""


def _scaled(nodes_per_type: int) -> Cluster:
    """The sample of 1,024 GPUs of four types with another number of nodes of each type."""
    from memx_engine.inputs.cluster_file import sample_clusters

    path = next(sample.path for sample in sample_clusters() if sample.name == "thousand-gpus")
    text = Path(path).read_text().replace("[00-31]", f"[0000-{nodes_per_type - 1:04}]")
    return parse_cluster(text)


@dataclass(frozen=True)
class Row:
    """One line of the table: what is searched, and what it must keep to."""

    name: str
    cluster: Callable[[], Cluster]
    model: str
    seconds: float
    warm: bool = False
    gap: float = 1e-9
    memory_mb: float | None = None
    configurations: int | None = None
    global_batch: int = 512
    seq_lens: tuple[int, ...] = (4096,)
    micro_batches: tuple[int, ...] | None = None
    pp_sizes: tuple[int, ...] | None = None


def _axis(name: str, cluster: str, count: int, seconds: float, sizes: int, pp_up_to: int | None = None) -> Row:
    return Row(
        name,
        lambda: load_cluster(cluster),
        "llama2-7b",
        seconds,
        warm=True,
        configurations=count,
        global_batch=1024,
        micro_batches=tuple(2**k for k in range(sizes)),
        pp_sizes=tuple(range(1, pp_up_to + 1)) if pp_up_to else None,
    )


ROWS = (
    _axis("table 9: base", "paper-20gpu", 2240, 0.15, 4),
    _axis("table 9: + MBS options", "paper-20gpu", 3360, 0.2, 6),
    _axis("table 9: ++ MBS options", "paper-20gpu", 5040, 0.3, 11),
    _axis("table 9: + parallel configs", "paper-20gpu", 8040, 0.2, 4, pp_up_to=10),
    _axis("table 9: ++ parallel configs", "paper-60gpu", 31240, 0.5, 4, pp_up_to=32),
    Row(
        "section 2.3: 7B, 16 GPUs",
        lambda: parse_cluster(_TWO_TYPES),
        "llama2-7b",
        5.0,
        seq_lens=(1024, 2048, 4096),
        pp_sizes=(1, 2, 3, 4),
    ),
    Row("70B, 20 GPUs", lambda: parse_cluster(_ROOMY), "llama2-70b", 20.0, pp_sizes=tuple(range(1, 21))),
    Row("405B, 1,024 GPUs", lambda: _scaled(32), "llama3.1-405b", 60.0, gap=1e-3, memory_mb=600),
    Row("405B, 10,240 GPUs", lambda: _scaled(320), "llama3.1-405b", 300.0, gap=0.01, memory_mb=1000, global_batch=5120),
    Row("growth: 7B, 512 GPUs", lambda: _scaled(16), "llama2-7b", 30.0),
    Row("growth: 7B, 1,024 GPUs", lambda: _scaled(32), "llama2-7b", 30.0),
    Row("growth: 7B, 2,048 GPUs", lambda: _scaled(64), "llama2-7b", 30.0),
)


@dataclass(frozen=True)
class Outcome:
    """What one row measured; times in seconds, several sequence lengths added up."""

    skeletons: int
    plans: float
    search_s: float
    wall_s: float
    first_plan_s: float
    cancel_s: float
    tables: int
    gap: float | None
    optimal: bool
    schedule: str
    resident_mb: float


def _measure(row: Row) -> Outcome:
    cluster, model = row.cluster(), load_model(row.model)
    results: list[SearchResult] = []
    search_s = wall_s = first_s = cancel_s = 0.0
    for seq_len in row.seq_lens:
        job = resolve_job(
            cluster,
            model,
            global_batch=row.global_batch,
            seq_len=seq_len,
            micro_batch_sizes=row.micro_batches,
            pp_sizes=row.pp_sizes,
        )
        estimator = FirstPrinciples(cluster, model, job)
        options = SearchOptions(front=0) if row.warm else SearchOptions()
        if row.warm:
            search(cluster, model, job, options=options, estimator=estimator)
        timed: list[tuple[float, float, float]] = []
        for _ in range(_WARM_SEARCHES if row.warm else 1):
            seen: list[tuple[float, int]] = []
            began, wall_began = time.process_time(), time.perf_counter()

            def note(report: SearchProgress, began: float = began, seen: list[tuple[float, int]] = seen) -> None:
                seen.append((time.process_time() - began, report.feasible))

            result = search(cluster, model, job, options=options, estimator=estimator, on_progress=note)
            took, wall = time.process_time() - began, time.perf_counter() - wall_began
            timed.append((took, wall, next(at for at, found in seen if found)))
        results.append(result)
        took, wall, first = sorted(timed)[len(timed) // 2]
        search_s, wall_s, first_s = search_s + took, wall_s + wall, max(first_s, first)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Once more, stopped at three moments: how long until the search returns.
    for share in (0.2, 0.5, 0.9):
        until = time.process_time() + share * took
        with suppress(CancelledError):
            search(cluster, model, job, should_stop=partial(_is_past, until))
        cancel_s = max(cancel_s, time.process_time() - until)
    gaps = [r.certificate.gap for r in results]
    return Outcome(
        skeletons=sum(r.skeletons for r in results),
        plans=float(sum(r.plans_covered for r in results)),
        search_s=search_s,
        wall_s=wall_s,
        first_plan_s=first_s,
        cancel_s=cancel_s,
        tables=sum(r.skeletons - r.pruned.placement for r in results),
        gap=None if None in gaps else max(g for g in gaps if g is not None),
        optimal=all(r.certificate.optimal for r in results),
        schedule=results[-1].plans[0].plan.skeleton.schedule,
        resident_mb=resident,
    )


def _is_past(until: float) -> bool:
    return time.process_time() > until


def _line(row: Row, made: Outcome) -> str:
    gap = "none" if made.gap is None else f"{max(made.gap, 0.0):.2g}"
    proof = "optimal" if made.optimal else f"best 1F1B gap {gap}" if made.schedule != "1f1b" else f"gap {gap}"
    missed = [
        word
        for word, bad in (
            ("time", made.search_s > row.seconds),
            ("gap", made.gap is None or made.gap > row.gap),
            ("memory", row.memory_mb is not None and made.resident_mb > row.memory_mb),
            ("first", made.first_plan_s > 0.5),
            ("cancel", made.cancel_s > 0.2),
            ("count", row.configurations is not None and _STRATEGIES * made.tables < row.configurations),
        )
        if bad
    ]
    return (
        f"{row.name:30}{_STRATEGIES * made.tables:>9,}{made.plans:>9.0e}{made.search_s:>9.2f}{row.seconds:>8.2f}"
        f"{made.wall_s:>8.1f}{made.resident_mb:>8.0f}{made.first_plan_s:>8.2f}{made.cancel_s:>8.2f}  {proof:24}"
        f"{'misses ' + ', '.join(missed) if missed else 'met'}"
    )


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="parts of row names; all rows where none is given")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.measure is not None:
        print(json.dumps(asdict(_measure(ROWS[asked.measure]))))
        return
    print(f"load {' '.join(f'{x:.1f}' for x in os.getloadavg())}, {os.cpu_count()} cores, one used")
    print(
        f"{'':30}{'configs':>9}{'plans':>9}{'CPU s':>9}{'target':>8}{'wall':>8}{'MB':>8}{'first':>8}{'cancel':>8}  "
        "certificate"
    )
    done: dict[str, Outcome] = {}
    for index, row in enumerate(ROWS):
        if asked.rows and not any(part in row.name for part in asked.rows):
            continue
        command = [sys.executable, __file__, "--measure", str(index)]
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if run.returncode:
            print(f"{row.name:30}failed: {(run.stderr.strip().splitlines() or ['no message'])[-1]}", flush=True)
            continue
        done[row.name] = Outcome(**json.loads(run.stdout.splitlines()[-1]))
        print(_line(row, done[row.name]), flush=True)
    _compare(done)


def _compare(done: dict[str, Outcome]) -> None:
    """What only several rows together tell."""
    axis = [made for name, made in done.items() if name.startswith("table 9")]
    if len(axis) == 5:
        first, last = (1e6 * made.search_s / made.tables for made in (axis[0], axis[-1]))
        print(f"table 9, per stage table: first {first:.0f} us, last {last:.0f} us, {last / first:.2f} times (<= 1.3)")
    grown = [made.search_s for name, made in done.items() if name.startswith("growth")]
    for before, after in pairwise(grown):
        print(f"twice the GPUs of the same types: {after / before:.2f} times as long (<= 1.6)")


if __name__ == "__main__":
    main(sys.argv[1:])
