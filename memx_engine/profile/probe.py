"""Measure one pipeline stage of a transformer on the device at hand. Standard library and torch (2.1 or later) only.

This file is copied to compute nodes that have nothing but a vendor's PyTorch, and run there once per measurement:

    python probe.py SPEC               measure; SPEC is the JSON itself, a file that holds it, or - for standard input
    python probe.py --self-check       say which device and versions would be used

Under torchrun with WORLD_SIZE equal to ``tp`` the tensor-parallel collectives are real; otherwise one rank's shard is
run without them and the result says so. It prints one line, ``MEMX-PROBE {json}``, whatever else the vendor's libraries
print; under torchrun every rank that fails prints its own, since the others may never come back from a collective.
An out-of-memory, a crash inside the stage and a time limit are results, not failures of the probe.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import signal
import statistics
import sys
import threading
import time
from types import SimpleNamespace

MARK = "MEMX-PROBE "
SPEC_VERSION = 1
OUT_OF_MEMORY = ("out of memory", "out_of_device_memory", "can't allocate memory", "cublas_status_alloc_failed")


def _accelerator(torch, wanted):
    """(device string, memory and synchronisation module or None for the CPU, human name)."""
    names = {"auto": ["cuda", "npu", "xpu", "cpu"], "accelerator": ["cuda", "npu", "xpu"]}.get(wanted, [wanted])
    for name in names:
        if name == "cpu":
            return "cpu", None, _cpu_name()
        if name == "npu":
            try:
                __import__("torch_npu")
            except ImportError:
                continue
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            index = int(os.environ.get("LOCAL_RANK", "0")) % max(module.device_count(), 1)
            module.set_device(index)
            return f"{name}:{index}", module, module.get_device_name(index)
    raise RuntimeError(f"no device of kind {wanted!r} is available to this process")


def _cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _versions(torch, module):
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if module is not None:
        found.update((k, str(v)) for k in ("cuda", "hip") for v in [getattr(torch.version, k, None)] if v)
    npu = sys.modules.get("torch_npu")
    if npu is not None:
        found["torch_npu"] = getattr(npu, "__version__", "unknown")
    return found


def _collectives(torch, world):
    """Autograd functions of Megatron's tensor and sequence parallelism; identities when this process is alone."""
    dist = torch.distributed

    def reduce_all(x):
        y = x.contiguous().clone()
        dist.all_reduce(y)
        return y

    def gather(x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=0)

    def scatter(x):
        # Gloo has no reduce_scatter: reduce everything and keep this rank's rows.
        if dist.get_backend() == "gloo":
            return reduce_all(x).chunk(world, dim=0)[dist.get_rank()].contiguous()
        out = torch.empty_like(x.chunk(world, dim=0)[0])
        dist.reduce_scatter(out, [part.contiguous() for part in x.chunk(world, dim=0)])
        return out

    def pair(forward, backward):
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return forward(x)

            @staticmethod
            def backward(ctx, gradient):
                return backward(gradient)

        return Function.apply

    if world == 1:
        return SimpleNamespace(**dict.fromkeys(("enter", "leave", "gather", "scatter"), lambda x: x))
    return SimpleNamespace(
        enter=pair(lambda x: x.view_as(x), reduce_all),
        leave=pair(reduce_all, lambda x: x.view_as(x)),
        gather=pair(gather, scatter),
        scatter=pair(scatter, gather),
    )


def _build(torch, spec, device, dtype, world):
    """The stage as a torch module: ``stage(x)`` takes token ids or hidden states, gives hidden states or the loss."""
    nn, functional = torch.nn, torch.nn.functional
    checkpoint = torch.utils.checkpoint.checkpoint
    s = SimpleNamespace(**spec)
    tp = s.tp
    talk = _collectives(torch, world)
    split_sequence = s.sequence_parallel and world > 1
    enter = talk.gather if split_sequence else talk.enter
    leave = talk.scatter if split_sequence else talk.leave
    heads, kv_heads = s.heads // tp, max(s.kv_heads // tp, 1)
    made = {"device": device, "dtype": dtype}

    class Norm(nn.Module):
        def __init__(self, width, kind):
            super().__init__()
            self.kind = kind
            self.weight = nn.Parameter(torch.ones(width, **made))
            self.bias = nn.Parameter(torch.zeros(width, **made)) if kind == "layernorm" else None

        def forward(self, x):
            if self.kind == "layernorm":
                return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)
            scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
            return (x.float() * scale).to(x.dtype) * self.weight

    def linear(columns_in, columns_out, bias):
        layer = nn.Linear(columns_in, columns_out, bias=bias, **made)
        nn.init.normal_(layer.weight, std=0.02)
        return layer

    def core(q, k, v):
        if s.attention == "fused":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(s.head_dim)
        mask = torch.ones(scores.shape[-2:], device=device, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")).float(), dim=-1).to(dtype)
        return torch.matmul(functional.dropout(weights, 0.1 if s.dropout else 0.0), v)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(Norm(s.hidden, s.norm) for _ in range(s.norms_per_layer))
            self.qkv = linear(s.hidden, (heads + 2 * kv_heads) * s.head_dim, s.qkv_bias)
            self.out = linear(heads * s.head_dim, s.hidden, s.attention_output_bias)
            self.up = linear(s.hidden, (2 if s.gated else 1) * s.ffn // tp, s.mlp_bias)
            self.down = linear(s.ffn // tp, s.hidden, s.mlp_bias)
            self.q_norm = Norm(s.head_dim, "rmsnorm") if s.qk_norm else None
            self.k_norm = Norm(s.head_dim, "rmsnorm") if s.qk_norm else None

        def attend(self, x):
            x = enter(x)
            length, batch = x.shape[0], x.shape[1]
            q, k, v = self.qkv(x).split([heads * s.head_dim, kv_heads * s.head_dim, kv_heads * s.head_dim], dim=-1)

            def by_head(y, count):
                return y.reshape(length, batch, count, s.head_dim).permute(1, 2, 0, 3)

            q, k, v = by_head(q, heads), by_head(k, kv_heads), by_head(v, kv_heads)
            if self.q_norm is not None:
                q, k = self.q_norm(q), self.k_norm(k)
            if kv_heads != heads:
                k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
            y = checkpoint(core, q, k, v, use_reentrant=False) if s.recompute_kind == "selective" else core(q, k, v)
            y = y.permute(2, 0, 1, 3).reshape(length, batch, heads * s.head_dim)
            return leave(self.out(y))

        def feed(self, x):
            x = self.up(enter(x))
            if s.gated:
                gate, value = x.chunk(2, dim=-1)
                x = functional.silu(gate) * value
            else:
                x = functional.gelu(x)
            return leave(self.down(x))

        def drop(self, x):
            return functional.dropout(x, 0.1) if s.dropout else x

        def forward(self, x):
            norms = self.norms
            if s.parallel_block:
                y = norms[0](x)
                other = norms[1](x) if len(norms) > 1 else y
                return x + self.drop(self.attend(y) + self.feed(other))
            if len(norms) == 4:
                x = x + self.drop(norms[1](self.attend(norms[0](x))))
                return x + self.drop(norms[3](self.feed(norms[2](x))))
            x = x + self.drop(self.attend(norms[0](x)))
            return x + self.drop(self.feed(norms[1](x)))

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            if s.embedding:
                rows = s.position_rows
                self.table = nn.Parameter(torch.empty(s.padded_vocab // tp, s.hidden, **made).normal_(std=0.02))
                self.positions = nn.Parameter(torch.zeros(rows, s.hidden, **made)) if rows else None
            self.layers = nn.ModuleList(Layer() for _ in range(s.layers))
            if s.head:
                self.final = Norm(s.hidden, s.norm)
                self.output = linear(s.hidden, s.padded_vocab // tp, False)

        def run(self, first, count, x):
            for layer in self.layers[first : first + count]:
                x = layer(x)
            return x

        def forward(self, x, labels):
            if s.embedding:
                x = functional.embedding(x % self.table.shape[0], self.table)
                x = talk.scatter(x) if split_sequence else talk.leave(x)
                if self.positions is not None:
                    x = x + self.positions[: x.shape[0]].unsqueeze(1)
            total = len(self.layers)
            group = {"full": 1, "uniform": max(s.recompute_n, 1), "block": 1}.get(s.recompute_kind, 0)
            whole = min(s.recompute_n, total) if s.recompute_kind == "block" else (total if group else 0)
            for first in range(0, whole, group or 1):
                count = min(group, whole - first)
                x = checkpoint(self.run, first, count, x, use_reentrant=False)
            x = self.run(whole, total - whole, x)
            if not s.head:
                return x
            logits = self.output(enter(self.final(x))).float()
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    stage = Stage()
    rows = s.seq_len // world if split_sequence else s.seq_len

    def tokens():
        return torch.randint(s.padded_vocab // tp, (s.seq_len, s.micro_batch), device=device)

    def batch():
        x = tokens() if s.embedding else torch.randn(rows, s.micro_batch, s.hidden, **made).requires_grad_()
        return x, tokens() if s.head else None

    return stage, batch


def _keep_gradients(torch, stage, fp32):
    """Accumulate gradients as Megatron does: into one buffer of their own, the per-call gradient freed at once."""
    for parameter in stage.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32 if fp32 else parameter.dtype)

        def accumulate(p):
            p.main_grad.add_(p.grad)
            p.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)


def _timed(synchronize, work, *given):
    """(what ``work(*given)`` returns, its seconds on the device)."""
    synchronize()
    start = time.perf_counter()
    made = work(*given)
    synchronize()
    return made, time.perf_counter() - start


def _optimizer_seconds(torch, stage, synchronize):
    """One Adam step over fp32 master weights, the state made for this phase only."""
    parameters = list(stage.parameters())
    masters = [p.detach().float().clone() for p in parameters]
    for master, parameter in zip(masters, parameters):  # noqa: B905  (torch nodes may run Python 3.9)
        master.grad = parameter.main_grad.float()
    adam = torch.optim.AdamW(masters, lr=1e-4, foreach=True)

    def step():
        adam.step()
        for master, parameter in zip(masters, parameters):  # noqa: B905  (as above)
            parameter.data.copy_(master)

    return statistics.median([_timed(synchronize, step)[1] for _ in range(3)][1:])


def _iterations(stage, batch, in_flight, count, synchronize, torch, has_head):
    """Steady 1F1B with ``in_flight`` micro-batches held; yields (forward seconds, backward seconds)."""
    held = []

    def forward():
        made, seconds = _timed(synchronize, stage, *batch())
        held.append(made)
        return seconds

    for _ in range(max(in_flight, 1) - 1):
        forward()
    gradient = None
    for _ in range(count):
        f = forward()
        oldest = held.pop(0)
        if not has_head and gradient is None:
            gradient = torch.randn_like(oldest)
        b = _timed(synchronize, oldest.backward, None if has_head else gradient)[1]
        del oldest
        yield f, b


def _peak_on_cpu(torch, work):
    """Peak bytes of the CPU allocator while ``work`` runs, from its own allocation events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    key = "start_ns" if hasattr(events[0], "start_ns") else "start_us"
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: getattr(e, key)())))


def measure(spec):
    """Run the stage that ``spec`` describes; returns the result document."""
    import torch
    import torch.utils.checkpoint

    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(int(spec.get("threads") or torch.get_num_threads()))
    device, module, name = _accelerator(torch, spec.get("device", "auto"))
    if world > 1:
        if world != spec["tp"]:
            raise ValueError(f"torchrun started {world} ranks but the stage has tp {spec['tp']}")
        backend = {"cuda": "nccl", "npu": "hccl", "xpu": "ccl"}.get(device.split(":")[0], "gloo")
        torch.distributed.init_process_group(backend)
    synchronize = module.synchronize if module is not None else (lambda: None)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[spec["precision"]]
    result = {"device": name, "versions": _versions(torch, module), "collectives": world > 1}
    torch.manual_seed(0)
    warm, repeats = int(spec.get("warm_up", 2)), int(spec.get("repetitions", 5))

    def prepare():
        stage, batch = _build(torch, spec, device, dtype, world)
        _keep_gradients(torch, stage, fp32=dtype != torch.float16)
        return stage, batch

    def run(stage, batch, count):
        return list(_iterations(stage, batch, spec["in_flight"], count, synchronize, torch, spec["head"]))

    if module is None:
        keep = []

        def once():
            keep.append(prepare())
            run(*keep[0], 1)

        result["peak_allocated_bytes"] = _peak_on_cpu(torch, once)
        limit = spec.get("memory_limit_bytes")
        if limit and result["peak_allocated_bytes"] > limit:
            raise MemoryError(f"out of memory: {result['peak_allocated_bytes']} bytes needed, {limit} on the device")
        stage, batch = keep.pop()
    else:
        module.reset_peak_memory_stats()
        stage, batch = prepare()
    timed = run(stage, batch, warm + repeats)[warm:]
    if module is not None:
        result["peak_allocated_bytes"] = module.max_memory_allocated()
        result["peak_reserved_bytes"] = module.max_memory_reserved()
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info()
            result.update(capacity_bytes=total, outside_bytes=max(total - free - module.memory_reserved(), 0))
    middle = statistics.median(f + b for f, b in timed)
    kept = [(f, b) for f, b in timed if f + b <= 3 * middle]
    result.update(
        outcome="ok",
        forward_s=statistics.median(f for f, _ in kept),
        backward_s=statistics.median(b for _, b in kept),
        repetitions_s=[f + b for f, b in timed],
        stragglers=len(timed) - len(kept),
        parameters=sum(p.numel() for p in stage.parameters()),
    )
    try:
        result["optimizer_s"] = _optimizer_seconds(torch, stage, synchronize)
    except RuntimeError as error:
        # The state may not fit beside the stage; the rest of the measurement stands.
        result["optimizer_detail"] = str(error)[:300]
    return result


def _judge(error):
    """(outcome, words) of an exception that ended the measurement."""
    text, low = str(error), str(error).lower()
    if isinstance(error, TimeoutError):
        return "timeout", text
    if isinstance(error, MemoryError) or any(words in low for words in OUT_OF_MEMORY):
        return "oom", text[:500]
    return "crashed", f"{type(error).__name__}: {text}"[:500]


def _end_with_the_tool():
    """End this process once standard input closes: the tool keeps it open, so the tool is gone, even by kill -9."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main(arguments):
    if arguments[:1] == ["--self-check"]:
        import torch

        device, module, name = _accelerator(torch, "auto")
        print(MARK + json.dumps({"device": name, "kind": device, "versions": _versions(torch, module)}), flush=True)
        return 0
    if len(arguments) != 1:
        print("usage: probe.py SPEC | - | --self-check", file=sys.stderr)
        return 2
    if arguments[0].lstrip().startswith("{"):
        spec = json.loads(arguments[0])
    else:
        with sys.stdin if arguments[0] == "-" else open(arguments[0], encoding="utf-8") as source:
            spec = json.load(source)
    if spec.get("spec") != SPEC_VERSION:
        print(f"this probe reads spec version {SPEC_VERSION}, not {spec.get('spec')!r}", file=sys.stderr)
        return 2
    rank = int(os.environ.get("RANK", "0"))
    result = {"started_at": time.time(), "node": platform.node(), "key": spec.get("key", ""), "rank": rank}
    start = time.perf_counter()
    if spec.get("tethered"):
        threading.Thread(target=_end_with_the_tool, daemon=True).start()

    def stop(_signal, _frame):
        raise TimeoutError(f"not finished within {spec['time_limit_s']} s")

    if spec.get("time_limit_s") and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, float(spec["time_limit_s"]))
    try:
        result.update(measure(spec))
    except Exception as error:  # every way a stage can fail is a result that the operator wants to see
        result.update(zip(("outcome", "detail"), _judge(error)))  # noqa: B905  (as above)
    result["duration_s"] = time.perf_counter() - start
    failed = result["outcome"] != "ok"
    if rank == 0 or failed:
        print("\n" + MARK + json.dumps(result), flush=True)
    if failed and "RANK" in os.environ:
        # torchrun then ends the ranks that wait in a collective; this one's communicator may never close properly.
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
