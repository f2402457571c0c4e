"""The job of a run: ``job.yaml`` and flags over it, with every default that was filled in said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memx_engine.errors import InputError
from memx_engine.inputs.catalogue import missing_peak_hint
from memx_engine.inputs.cluster import Cluster, GpuType
from memx_engine.inputs.documents import Node, Problems, node_from_value, read_document
from memx_engine.inputs.job import Attention, Framework, Job, Optimizer, Precision
from memx_engine.inputs.model import TransformerSpec

SCHEMA = "memx/job/v1"
DEFAULT_GLOBAL_BATCH = 512
DEFAULT_SEQ_LEN = 4096
MAX_GLOBAL_BATCH = 1_000_000
MAX_SEQ_LEN = 10_000_000
MAX_SIZE = 131_072
MAX_MICRO_BATCH = 4_096
MAX_VIRTUAL_STAGES = 64

_CHOICES: Mapping[str, type[Precision] | type[Optimizer] | type[Attention] | type[Framework]] = {
    "precision": Precision,
    "optimizer": Optimizer,
    "attention": Attention,
    "framework": Framework,
}
_LISTS = {
    "micro_batch_sizes": MAX_MICRO_BATCH,
    "tp_sizes": MAX_SIZE,
    "pp_sizes": MAX_SIZE,
    "dp_sizes": MAX_SIZE,
    "virtual_stages": MAX_VIRTUAL_STAGES,
}
_FLAGS = ("sequence_parallel", "fp32_gradients")
KEYS = ("schema", "global_batch", "seq_len", *_CHOICES, *_FLAGS, *_LISTS, "assumed")
# How the command line spells what it can override; the others are spelt like their key.
_FLAG_NAMES = {"micro_batch_sizes": "--mbs", "tp_sizes": "--tp", "pp_sizes": "--pp", "dp_sizes": "--dp"}

Value = int | str | bool | Sequence[int] | None


def resolve_job(
    cluster: Cluster,
    model: TransformerSpec,
    *,
    file: str | None = None,
    base: Job | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    attention: str | None = None,
    framework: str | None = None,
    sequence_parallel: bool | None = None,
    fp32_gradients: bool | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    tp_sizes: Sequence[int] | None = None,
    pp_sizes: Sequence[int] | None = None,
    dp_sizes: Sequence[int] | None = None,
    virtual_stages: Sequence[int] | None = None,
) -> Job:
    """The job: what is given here, else what ``file`` says, else the default, which is then listed in ``assumed``.

    Args:
        file: A job file (``-``: standard input), or None.
        base: An earlier job, whose values count where neither ``file`` nor a flag gives one.
        micro_batch_sizes: And the other lists: values to consider; None leaves the dimension free.

    Raises:
        InputError: A value is out of bounds (naming the flag, or file and line), the sequence is longer than a learned
            position table, a device lacks the precision or its peak for it, or the batch cannot be divided.
    """
    given: dict[str, Value] = {
        "global_batch": global_batch,
        "seq_len": seq_len,
        "precision": precision,
        "optimizer": optimizer,
        "attention": attention,
        "framework": framework,
        "sequence_parallel": sequence_parallel,
        "fp32_gradients": fp32_gradients,
        "micro_batch_sizes": micro_batch_sizes,
        "tp_sizes": tp_sizes,
        "pp_sizes": pp_sizes,
        "dp_sizes": dp_sizes,
        "virtual_stages": virtual_stages,
    }
    fields: dict[str, Node] = {}
    if file is not None:
        root = read_document(file)
        _check_document(root)
        fields.update({key: node for key, node in (root.fields or {}).items() if not node.is_null})
    for key, value in given.items():
        if value is not None:
            fields[key] = _flag_node(key, value)
    if base is not None:
        earlier = job_to_document(base)
        earlier["assumed"] = [line for line in base.assumed if _assumed_key(line) not in fields]
        fields = {key: node_from_value(value, f"job.{key}") for key, value in earlier.items()} | fields
    return _resolve(cluster, model, Node(Problems("job"), "", 0, fields=fields))


def job_to_document(job: Job) -> dict[str, object]:
    """The job as plain values; complete, so nothing is assumed when it is read back."""
    document: dict[str, object] = {"schema": SCHEMA, "global_batch": job.global_batch, "seq_len": job.seq_len}
    document |= {key: str(getattr(job, key)) for key in _CHOICES}
    document |= {key: getattr(job, key) for key in _FLAGS}
    document |= {key: list(sizes) for key in _LISTS if (sizes := getattr(job, key)) is not None}
    if job.assumed:
        document["assumed"] = list(job.assumed)
    return document


def job_from_document(document: Mapping[str, object] | Node, where: str = "<document>") -> Job:
    """The job of a complete document, as :func:`job_to_document` writes it. InputError when something is wrong."""
    root = document if isinstance(document, Node) else node_from_value(document, where)
    _check_document(root)
    for key in ("global_batch", "seq_len", *_CHOICES):
        if root.child(key) is None:
            root.fail(f"{key} is missing", f"add the key {key}", key)
    sizes = {key: root.integers(key, low=1, high=high) for key, high in _LISTS.items()}
    return Job(
        global_batch=root.integer("global_batch", low=1, high=MAX_GLOBAL_BATCH),
        seq_len=root.integer("seq_len", low=1, high=MAX_SEQ_LEN),
        precision=Precision(root.choice("precision", list(Precision))),
        optimizer=Optimizer(root.choice("optimizer", list(Optimizer))),
        attention=Attention(root.choice("attention", list(Attention))),
        framework=Framework(root.choice("framework", list(Framework))),
        sequence_parallel=root.flag("sequence_parallel", True),
        fp32_gradients=root.flag("fp32_gradients", True),
        micro_batch_sizes=sizes["micro_batch_sizes"],
        tp_sizes=sizes["tp_sizes"],
        pp_sizes=sizes["pp_sizes"],
        dp_sizes=sizes["dp_sizes"],
        virtual_stages=sizes["virtual_stages"] or (),
        assumed=root.texts("assumed"),
    )


def _check_document(root: Node) -> None:
    root.expect_mapping(KEYS)
    schema = root.child("schema")
    if schema is None:
        root.fail("schema is missing", f"begin the file with the line: schema: {SCHEMA}", "schema")
    elif schema.scalar != SCHEMA:
        schema.fail(f"schema {schema.scalar!r} is not a job of this version", f"expected {SCHEMA}")


def _assumed_key(sentence: str) -> str:
    """The key that an assumption of :func:`_resolve` is about."""
    for key, start in (("global_batch", "global batch "), ("seq_len", "sequence length ")):
        if sentence.startswith(start):
            return key
    words = sentence.split()
    return words[-1] if words[-1] in _CHOICES else words[0]


def _flag_node(key: str, value: Value) -> Node:
    flag = _FLAG_NAMES.get(key, "--" + key.replace("_", "-"))
    return node_from_value(list(value) if isinstance(value, tuple | range) else value, flag)


def _resolve(cluster: Cluster, model: TransformerSpec, given: Node) -> Job:
    assumed = list(given.texts("assumed"))

    def note(key: str, sentence: str) -> None:
        if given.child(key) is None:
            assumed.append(sentence)

    global_batch = given.integer("global_batch", low=1, high=MAX_GLOBAL_BATCH, default=DEFAULT_GLOBAL_BATCH)
    note("global_batch", f"global batch {DEFAULT_GLOBAL_BATCH}")
    seq_len = given.integer("seq_len", low=1, high=MAX_SEQ_LEN, default=min(model.max_positions, DEFAULT_SEQ_LEN))
    note("seq_len", f"sequence length {seq_len}")
    if seq_len > model.max_positions:
        assumed.append(_longer_than_declared(given, model, seq_len))
    precision = _precision(cluster.gpu_types, given, assumed)
    optimizer = Optimizer(given.choice("optimizer", list(Optimizer), Optimizer.SHARDED))
    note("optimizer", f"{optimizer} optimizer")
    attention = Attention(given.choice("attention", list(Attention), Attention.FUSED))
    note("attention", f"{attention} attention")
    framework = Framework(given.choice("framework", list(Framework), Framework.ANY))
    note("framework", f"framework {framework}")
    sequence_parallel = given.flag("sequence_parallel", True)
    note("sequence_parallel", "sequence parallel")
    fp32_gradients = given.flag("fp32_gradients", precision is not Precision.FP16)
    note("fp32_gradients", "fp32 gradients" if fp32_gradients else "fp16 gradients")
    sizes = {key: given.integers(key, low=1, high=high) for key, high in _LISTS.items()}
    depths = sizes["virtual_stages"]
    job = Job(
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        optimizer=optimizer,
        attention=attention,
        framework=framework,
        sequence_parallel=sequence_parallel,
        fp32_gradients=fp32_gradients,
        micro_batch_sizes=sizes["micro_batch_sizes"],
        tp_sizes=sizes["tp_sizes"],
        pp_sizes=sizes["pp_sizes"],
        dp_sizes=sizes["dp_sizes"],
        virtual_stages=(2,) if depths is None else tuple(depth for depth in depths if depth > 1),
        assumed=tuple(dict.fromkeys(assumed)),
    )
    _check_divisible(job, given)
    return job


def _longer_than_declared(given: Node, model: TransformerSpec, seq_len: int) -> str:
    """The sentence for a rotary or ALiBi model; a learned position table has no row for the tokens beyond it."""
    place = given.child("seq_len") or given
    if model.position_rows:
        place.fail(
            f"sequence length {seq_len} exceeds the {model.max_positions} learned positions of {model.name}",
            f"allowed: 1 to {model.max_positions}",
        )
    return (
        f"sequence length {seq_len} is beyond the {model.max_positions} positions that {model.name} declares "
        "(its position encoding is computed, so it runs)"
    )


def _precision(types: Sequence[GpuType], given: Node, assumed: list[str]) -> Precision:
    node = given.child("precision")
    usable = [p for p in Precision if all(t.supports(p) for t in types)]
    if node is None:
        lacking = [t.name for t in types if not t.supports("bf16")]
        precision = usable[0] if usable else Precision.BF16
        reason = f" ({', '.join(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} bf16)" if lacking else ""
        assumed.append(f"precision {precision}{reason}")
    else:
        precision = Precision(node.as_choice(list(Precision)))
    place = node or given
    for gpu_type in types:
        if not gpu_type.supports(precision):
            common = ", ".join(usable) or "no precision in common: leave a type out"
            place.fail(f"{gpu_type.name} lacks {precision}", f"the device types support {common}")
        elif gpu_type.peak_flops(precision) is None:
            raise InputError(
                f"the {precision} peak of {gpu_type.name} is not publicly known",
                where=place.where if node is not None else "",
                hint=f"{missing_peak_hint(gpu_type, f'{precision}_tflops')}, or train in another precision",
            )
    return precision


def _check_divisible(job: Job, given: Node) -> None:
    """Some data-parallel size and micro-batch size of those given must divide the global batch."""
    micro, replicas = job.micro_batch_sizes or (1,), job.dp_sizes or (1,)
    if any(job.global_batch % (dp * mbs) == 0 for dp in replicas for mbs in micro):
        return
    place = given.child("micro_batch_sizes") or given.child("dp_sizes") or given
    products = ", ".join(str(n) for n in sorted({dp * mbs for dp in replicas for mbs in micro})[:6])
    place.fail(
        f"global batch {job.global_batch} is not divisible by data-parallel size x micro-batch size ({products})",
        "change the global batch, the micro-batch size or the data-parallel size",
    )
