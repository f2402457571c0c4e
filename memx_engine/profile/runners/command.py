"""Measure with the operator's own launch script: placeholders are filled, its Megatron log is read."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from dataclasses import dataclass

from memx_engine.errors import InputError
from memx_engine.inputs.cluster import Cluster
from memx_engine.measurement import Measurement, Outcome, Point, Truth
from memx_engine.profile.megatron_log import read_megatron_log
from memx_engine.profile.process import run
from memx_engine.profile.runner import LaneState, ProfileError, StateCallback, StopCheck

_FIELD = re.compile(r"\{([a-z_]*)\}")
PLACEHOLDERS = (
    "gpu_type", "node", "tp", "micro_batch", "global_batch", "seq_len", "layers", "hidden", "ffn", "heads", "kv_heads",
    "vocab", "precision", "recompute", "recompute_granularity", "recompute_method", "recompute_num_layers",
)  # fmt: skip


def _fields(point: Point, node: str) -> dict[str, str]:
    method = {"uniform": "uniform", "full": "uniform", "block": "block"}.get(point.recompute.kind, "")
    granularity = "full" if method else ("selective" if point.recompute.kind == "selective" else "")
    return {
        "gpu_type": point.gpu_type,
        "node": node,
        "tp": str(point.tp),
        "micro_batch": str(point.micro_batch),
        # One pipeline stage alone holds one micro-batch; more in flight are more micro-batches per iteration.
        "global_batch": str(point.micro_batch * point.in_flight),
        "seq_len": str(point.seq_len),
        "layers": str(point.layers),
        "hidden": str(point.model.hidden),
        "ffn": str(point.model.ffn),
        "heads": str(point.model.heads),
        "kv_heads": str(point.model.kv_heads),
        "vocab": str(point.model.vocab),
        "precision": point.precision.value,
        "recompute": str(point.recompute),
        "recompute_granularity": granularity,
        "recompute_method": method,
        "recompute_num_layers": str(point.recompute.n or (1 if method else 0)),
    }


@dataclass(frozen=True)
class CommandTemplate:
    """A command with placeholders such as ``{tp}``; split into arguments once, so that no value is read by a shell."""

    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CommandTemplate:
        """Split ``text`` as a shell would, without running one; InputError for bad quoting or unknown placeholders."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise InputError(f"the launch command cannot be split: {error}", where="--command") from error
        if not words:
            raise InputError("the launch command is empty", where="--command")
        for word in words:
            for name in _FIELD.findall(word):
                if name not in PLACEHOLDERS:
                    raise InputError(
                        f"unknown placeholder {{{name}}}", where="--command", hint=f"known: {', '.join(PLACEHOLDERS)}"
                    )
        return cls(words)

    def fill(self, point: Point, node: str) -> list[str]:
        values = _fields(point, node)
        return [_FIELD.sub(lambda match: values[match[1]], word) for word in self.arguments]


@dataclass
class _CommandLane:
    gpu_type: str
    node: str
    template: CommandTemplate

    def measure(self, point: Point, *, timeout_s: float, should_stop: StopCheck) -> Measurement:
        started = time.time()
        finished = run(self.template.fill(point, self.node), timeout_s=timeout_s, should_stop=should_stop)
        lines = (finished.output + "\n" + finished.errors).splitlines()
        log = read_megatron_log(lines)
        outcome, detail = Outcome.OK, ""
        if log.out_of_memory:
            outcome, detail = Outcome.OOM, "the log tells of a rank out of memory"
        elif finished.timed_out:
            outcome, detail = Outcome.TIMEOUT, f"not finished within {timeout_s:g} s"
        elif log.iteration_time_s is None:
            words = " / ".join(line.strip() for line in lines[-3:] if line.strip())
            outcome, detail = Outcome.CRASHED, f"no iteration time in the output; its last words: {words[:300]}"
        ok = outcome is Outcome.OK and log.iteration_time_s is not None
        per_micro_batch = tuple(t / point.in_flight for t in log.iterations_s)
        return Measurement(
            point=point,
            outcome=outcome,
            truth=Truth.GPU,
            truth_name="command",
            whole_s=log.iteration_time_s / point.in_flight if ok and log.iteration_time_s else None,
            repetitions_s=per_micro_batch if ok else (),
            peak_allocated_bytes=max(log.allocated_bytes.values(), default=None),
            peak_reserved_bytes=max(log.reserved_bytes.values(), default=None),
            node=self.node,
            versions={"source": "megatron-log"},
            started_at=started,
            duration_s=finished.seconds,
            detail=detail,
        )

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class CommandRunner:
    """Runs the operator's command once per point; the command decides where, from ``{node}`` and ``{gpu_type}``."""

    template: CommandTemplate
    name: str = "command"
    truth: Truth = Truth.GPU
    truth_name: str = "command"

    def ground(self, gpu_type: str) -> tuple[Truth, str]:
        return self.truth, self.truth_name

    def open(self, cluster: Cluster, gpu_type: str, *, on_state: StateCallback, should_stop: StopCheck) -> _CommandLane:
        program = self.template.arguments[0]
        if shutil.which(program) is None:
            raise ProfileError(f"the launch command {program!r} is not an executable here", where="--command")
        node = cluster.nodes[cluster.gpus[cluster.ranks_by_type[gpu_type][0]].node_index].name
        on_state(LaneState(gpu_type, "ready", node))
        return _CommandLane(gpu_type, node, self.template)
