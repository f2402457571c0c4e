"""The training form: model, job and weights as fields, and what the operator types back into values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memx_engine import InputError, MemxError
from memx_tui.session_file import JobValue
from memx_tui.widgets.fields import Field

if TYPE_CHECKING:
    from memx_engine import Job, TransformerSpec
    from memx_tui.session import Session

MAX_NUMBER = 10_000_000
PROFILES = ("auto", "heterogeneous", "safety", "throughput")


@dataclass(frozen=True)
class Spec:
    """One field of the job.

    Attributes:
        choices: The words allowed; empty for numbers and lists.
        many: A list of sizes, ``free`` when nothing is fixed.
        hint: How to write it.
    """

    key: str
    label: str
    hint: str
    choices: tuple[str, ...] = ()
    many: bool = False
    default: str = ""


SPECS: dict[str, Spec] = {
    spec.key: spec
    for spec in (
        Spec("global_batch", "global batch", "sequences per iteration, a whole number", default="512"),
        Spec("seq_len", "sequence", "tokens per sequence, a whole number", default="up to 4096"),
        Spec("precision", "precision", "of weights and activations", ("bf16", "fp16", "fp32"), default="bf16"),
        Spec(
            "optimizer", "optimizer", "whether states are sharded over DP", ("sharded", "replicated"), default="sharded"
        ),
        Spec("attention", "attention", "fused keeps no score matrix", ("fused", "unfused"), default="fused"),
        Spec("framework", "framework", "whose rules limit the plan", ("any", "megatron", "flagscale"), default="any"),
        Spec("micro_batch_sizes", "micro-batch", "sizes to consider, such as 1, 2, 4", many=True),
        Spec("tp_sizes", "TP", "tensor parallel sizes to consider", many=True),
        Spec("pp_sizes", "PP", "pipeline stages to consider", many=True),
        Spec("dp_sizes", "DP", "data parallel sizes to consider", many=True),
        Spec("virtual_stages", "interleaving", "virtual stages besides 1, such as 2, 4", many=True, default="2"),
    )
}
WEIGHTS = Spec("weights", "weights", "of time, peak and spread: a profile, or T,M,V that sum to 1", PROFILES)


def training_fields(session: Session) -> tuple[list[Field], MemxError | None]:
    """The lines of the form, and why this job cannot be planned (None when it can, or when nothing is chosen yet)."""
    from memx_tui.remembering import weights_text

    job: Job | None = None
    problem: MemxError | None = None
    if session.ready:
        try:
            job = session.job()
        except MemxError as error:
            problem = error
    fields = [_model_field(session.model)]
    blamed = _blamed(problem)
    for spec in SPECS.values():
        own = session.job_overrides.get(spec.key)
        given = own is not None
        value = _shown(own) if given else _resolved(job, spec)
        note = "" if given else _origin(session, spec)
        bad = problem.message if problem is not None and spec.key == blamed else ""
        fields.append(Field(spec.key, spec.label, value, note, bad))
    weights = session.options.weights if session.options else None
    text = weights_text(weights)
    note = "from the cluster's GPUs" if weights is None else f"{weights.time:g} {weights.peak:g} {weights.variance:g}"
    fields.append(Field("weights", WEIGHTS.label, text, note))
    if session.cluster is None:
        fields.append(Field("search", "plans", "open a cluster first (o)", editable=False))
    elif session.model is None:
        fields.append(Field("search", "plans", "choose a model first (m)", editable=False))
    elif problem is not None:
        fields.append(Field("search", "plans", "not yet", bad="" if blamed else problem.message, editable=False))
    else:
        fields.append(Field("search", "plans", "search (r)", ""))
    return fields, problem


def parse_value(key: str, text: str) -> JobValue | None:
    """What was typed, as the job takes it; None for "back to the default".

    Raises:
        InputError: It cannot be read; says what is allowed.
    """
    text = text.strip().lower()
    spec = SPECS[key]
    if text in ("", "default") or (spec.many and text == "free"):
        return None
    if spec.choices:
        if text not in spec.choices:
            raise InputError(f"{text[:40]!r} is not one of {', '.join(spec.choices)}")
        return text
    if spec.many:
        numbers = tuple(_number(part) for part in re.split(r"[,\s]+", text) if part)
        if len(set(numbers)) != len(numbers):
            raise InputError("a size is given twice")
        return numbers
    return _number(text)


def stepped(session: Session, key: str, by: int) -> JobValue | None:
    """The next (1) or previous (-1) value of a field: the neighbouring word, or twice or half the number."""
    spec = SPECS[key]
    own = session.job_overrides.get(key)
    current = own
    if current is None and session.ready:
        try:
            current = getattr(session.job(), key)
        except MemxError:
            current = None
    if spec.choices:
        words = spec.choices
        at = words.index(str(current)) if str(current) in words else 0
        return words[(at + by) % len(words)]
    if spec.many:
        if isinstance(own, Sequence) and len(own) == 1 and not isinstance(own, str):
            return (own[0] * 2,) if by > 0 else ((own[0] // 2,) if own[0] > 1 else None)
        return (1,) if by > 0 else None
    number = current if isinstance(current, int) else int(spec.default) if spec.default.isdigit() else 4096
    return min(MAX_NUMBER, number * 2) if by > 0 else max(1, number // 2)


def next_profile(current: str, by: int) -> str:
    """The neighbouring weight profile."""
    at = PROFILES.index(current) if current in PROFILES else 0
    return PROFILES[(at + by) % len(PROFILES)]


def set_weights(session: Session, text: str) -> None:
    """Take over weights in words; ``auto`` lets the cluster decide. Raises InputError."""
    from memx_engine import SearchOptions, parse_weights

    weights = parse_weights(text.strip() or "auto")
    session.options = replace(session.options or SearchOptions(), weights=weights)


def _model_field(model: TransformerSpec | None) -> Field:
    if model is None:
        return Field("model", "model", "none", "m chooses one")
    size = f"{model.parameters / 1e9:.2f} B parameters, {model.layers} layers"
    return Field("model", "model", model.name, size)


def _resolved(job: Job | None, spec: Spec) -> str:
    value = getattr(job, spec.key) if job is not None else None
    if value is None:
        return "free" if spec.many and not spec.default else spec.default
    return _shown(value)


def _origin(session: Session, spec: Spec) -> str:
    if session.job_file is not None:
        return "default or job file"
    return "" if spec.many and not spec.default else "default"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value if type(value) is str else str(value)
    if isinstance(value, Sequence):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)


def _blamed(problem: MemxError | None) -> str:
    """Key of the field that a problem speaks of, "" when it names none."""
    if problem is None:
        return ""
    flags = {"mbs": "micro_batch_sizes", "tp": "tp_sizes", "pp": "pp_sizes", "dp": "dp_sizes"}
    for word in re.findall(r"[a-z_\-]+", problem.where):
        name = str(word).strip("-").replace("-", "_")
        if flags.get(name, name) in SPECS:
            return flags.get(name, name)
    return ""


def _number(text: str) -> int:
    cleaned = text.replace("_", "")
    if not re.fullmatch(r"\d{1,9}", cleaned) or not 1 <= int(cleaned) <= MAX_NUMBER:
        raise InputError(f"{text[:40]!r} is not a whole number from 1 to {MAX_NUMBER:,}")
    return int(cleaned)
